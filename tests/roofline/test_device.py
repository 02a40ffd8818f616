"""Facts of a device: the formula of the peak, and what is left when a source of facts is missing."""

import json

import pytest
import torch

from rafters import device as devices
from rafters.errors import MeasureError


@pytest.mark.parametrize(
    ("clock_mhz", "bits", "terabytes"),
    [(3996, 7680, 7.672), (3996, 8192, 8.184), (1593, 5120, 2.039), (2619, 5120, 3.352), (3201, 6016, 4.814)],
)
def test_theoretical_bandwidth(clock_mhz, bits, terabytes):
    assert devices.theoretical_bandwidth(clock_mhz * 1e6, bits) / 1e12 == pytest.approx(terabytes, abs=6e-4)


@pytest.mark.parametrize(("clock", "bits"), [(0, 5120), (None, 5120), (1e9, 0), (1e9, None), (-1.0, 5120)])
def test_missing_clock_or_width_is_unknown(clock, bits):
    assert devices.theoretical_bandwidth(clock, bits) is None


def test_cpu_facts():
    facts = devices.facts("cpu")
    assert facts.kind == "cpu"
    assert facts.theoretical_bandwidth is None
    assert facts.sm_count == torch.get_num_threads()
    assert 2**18 <= facts.l2_bytes <= 2**32
    assert facts.memory_bytes > 2**28


@pytest.mark.parametrize("name", ["cuda:99", "nonsense", "meta", "xla:0"])
def test_a_device_that_cannot_be_had_is_a_sentence(name):
    with pytest.raises(MeasureError, match=f"device '{name}'"):
        devices.resolve(name)


def test_environment_survives_json_and_its_id_ignores_the_date():
    first = devices.environment("cpu")
    record = json.loads(json.dumps(first.to_json()))
    assert devices.Environment.from_json(record) == first
    record["date"] = "2001-01-01T00:00:00+00:00"
    assert devices.Environment.from_json(record).id == first.id
    record["torch"] = "9.9"
    assert devices.Environment.from_json(record).id != first.id


def test_without_nvml_every_question_gets_none(monkeypatch):
    monkeypatch.setattr(devices, "nvml", lambda: None)
    assert devices.ask_nvml("nvmlSystemGetDriverVersion") is None
    assert devices.environment("cpu").sm_clock_mhz is None


def test_an_nvml_error_is_an_unknown_not_a_crash(monkeypatch):
    class Binding:
        class NVMLError(Exception):
            pass

        def nvmlDeviceGetPowerUsage(self, handle):
            raise self.NVMLError("not supported")

    monkeypatch.setattr(devices, "nvml", Binding)
    assert devices.ask_nvml("nvmlDeviceGetPowerUsage", object()) is None
    assert devices.ask_nvml("nvmlNoSuchFunction", object()) is None
    assert devices.ask_nvml("nvmlDeviceGetPowerUsage", None) is None


class FakeNvml:
    """Knows one GPU by UUID and one by PCI address."""

    class NVMLError(Exception):
        pass

    def __init__(self, known):
        self.known = known

    def nvmlDeviceGetHandleByUUID(self, name):
        return self._find(name)

    def nvmlDeviceGetHandleByPciBusId(self, address):
        return self._find(address)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return f"parent of {handle}"

    def _find(self, name):
        if name not in self.known:
            raise self.NVMLError("not found")
        return self.known[name]


@pytest.mark.parametrize(
    ("known", "handle"),
    [
        pytest.param({"GPU-abc": "whole"}, "whole", id="uuid"),
        pytest.param({"MIG-abc": "slice"}, "parent of slice", id="mig"),
        pytest.param({"00000000:1b:00.0": "by address"}, "by address", id="pci"),
        pytest.param({}, None, id="unknown"),
    ],
)
def test_nvml_is_found_by_uuid_then_mig_then_pci(monkeypatch, known, handle):
    class Properties:
        uuid, pci_bus_id, pci_device_id, pci_domain_id = "abc", 0x1B, 0, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    monkeypatch.setattr(devices, "nvml", lambda: FakeNvml(known))
    assert devices._nvml_handle.__wrapped__(0) == handle
