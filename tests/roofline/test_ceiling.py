"""Ceilings: interpolation, the floor under a launch, and a cache that nothing can break."""

import dataclasses
import json
import time

import pytest
import torch

from rafters import device as devices
from rafters.cost import Cost
from rafters.errors import MeasureError
from rafters.roofline import Ceilings, ceiling_cache, ceiling_run, ceilings, sampling, streams
from rafters.roofline.ceiling import Point
from rafters.roofline.ceiling_run import launch_floor

CPU = torch.device("cpu")
BANDWIDTH = {0.0: 4e12, 0.5: 3e12, 1.0: 5e12}
NAMES = {0.0: "write", 0.5: "copy", 1.0: "read"}


def synthetic(t0=2e-6, floors=None):
    """Streams that take exactly t0 + V / B."""
    sizes = [2**16, 2**20, 2**24, 2**28, 2**40]
    points = tuple(Point(NAMES[m], m, v, t0 + v / b, "made up") for m, b in BANDWIDTH.items() for v in sizes)
    return Ceilings(devices.facts("cpu"), points, **(floors or {"launch_floor_s": t0}))


def test_bandwidth_is_linear_between_mixes():
    c = synthetic()
    assert c.bandwidth(0.5) == pytest.approx(3e12, rel=1e-4)
    assert c.bandwidth(0.75) == pytest.approx(4e12, rel=1e-4)
    assert c.bandwidth(0.25) == pytest.approx(3.5e12, rel=1e-4)
    with pytest.raises(MeasureError, match="hold no bandwidth"):
        Ceilings(devices.facts("cpu"), (), 1e-6).bandwidth(0.5)


def test_a_call_is_judged_by_streams_of_its_own_size_or_larger():
    """16 MB that a cache keeps in part are no ceiling for a gigabyte; a gigabyte's is one for everything that is smaller."""
    points = [Point("copy", 0.5, 16 << 20, (16 << 20) / 80e9, "x"), Point("copy", 0.5, 256 << 20, (256 << 20) / 50e9, "x")]
    c = Ceilings(devices.facts("cpu"), tuple(points), 0.0)
    assert [c.bandwidth(0.5, moved) for moved in (0, 4 << 20, 128 << 20, 1 << 30, 1 << 40)] == [80e9, 80e9, 80e9, 50e9, 50e9]
    assert c.attainable_seconds(Cost(10**9, 10**9)) == pytest.approx(2e9 / 50e9)


def test_attainable_time():
    c = synthetic()
    assert c.attainable_seconds(Cost(3_000_000, 3_000_000)) == pytest.approx(4e-6, rel=1e-3)
    assert c.attainable_seconds(Cost(0, 0)) == pytest.approx(2e-6)


def test_the_launch_floor_is_recovered_from_its_streams():
    points = list(synthetic(t0=2e-6).points)
    assert launch_floor(points, synthetic().mixes) == pytest.approx(2e-6, rel=1e-2)
    quicker = [*points, Point("copy", 0.5, 2**16, 1.2e-6, "quick")]
    assert launch_floor(quicker, synthetic().mixes) == pytest.approx(1.2e-6 - 2**16 / 3e12, rel=1e-3)


def test_the_smaller_floor_counts():
    c = synthetic(floors={"launch_floor_s": 2e-6, "launch_floor_pdl_s": 1e-6})
    assert c.t0 == 1e-6


def test_json_round_trip_and_published_fields():
    c = synthetic(floors={"launch_floor_s": 2e-6, "launch_floor_pdl_s": 1e-6})
    record = json.loads(json.dumps(c.to_json()))
    again = Ceilings.from_json(record)
    assert again.points == c.points
    assert again.launch_floor_s == pytest.approx(2e-6)
    assert {"device", "theoretical", "ceilings", "launch_floor_us", "compute"} <= record.keys()
    assert {"mix", "read_fraction", "bytes", "gbps", "kernel"} <= record["ceilings"][0].keys()
    assert record["ceilings"][0]["gbps"] == pytest.approx(2**16 / (2e-6 + 2**16 / 4e12) / 1e9)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"ceilings": [{"bytes": 0}]}', "\x00\xff"])
def test_a_damaged_cache_is_as_none(tmp_path, monkeypatch, content):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "rafters" / ceiling_cache._name(devices.facts("cpu"), quick=True)
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="latin-1")
    assert ceiling_cache.cached("cpu") is None


def test_cache_is_used_refreshed_and_keyed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs = []

    def fake_run(device, *, quick, progress):
        runs.append(quick)
        return dataclasses.replace(synthetic(), quick=quick)

    monkeypatch.setattr(ceiling_run, "run", fake_run)
    assert ceilings("cpu", quick=True).quick
    ceilings("cpu", quick=True)
    assert runs == [True]
    ceilings("cpu")  # a quick run does not answer for a full one
    assert not ceilings("cpu", quick=True).quick  # but a full one for a quick one
    assert runs == [True, False]
    ceilings("cpu", refresh=True)
    assert runs == [True, False, False]
    limited = dataclasses.replace(devices.facts("cpu"), power_limit_w=300.0)
    assert ceiling_cache._name(limited, False) != ceiling_cache._name(devices.facts("cpu"), False)
    assert not list(tmp_path.glob("**/tmp*"))


def test_an_unwritable_cache_is_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(ceiling_cache.tempfile, "tempdir", str(tmp_path / "file"))  # nor the place to fall back to
    monkeypatch.setattr(ceiling_run, "run", lambda device, *, quick, progress: synthetic())
    with pytest.warns(UserWarning, match="could not be cached"):
        assert ceilings("cpu").points


@pytest.mark.parametrize("mix", [streams.READ, streams.WRITE, streams.COPY, streams.ADD, streams.TRIAD], ids=lambda m: m.name)
def test_candidates_are_right_and_wrong_ones_are_refused(mix):
    for candidate in streams.candidates(mix, CPU):
        streams.verify(candidate, mix, CPU)
    with pytest.raises(MeasureError, match="gives wrong results"):
        streams.verify(streams.Candidate("does nothing", lambda *tensors: None), mix, CPU)


def test_bytes_of_a_mix():
    assert streams.ADD.bytes(streams.ADD.elements(12 << 20)) == 12 << 20
    assert streams.COPY.elements(1) == streams.GRAIN
    assert [m.read_fraction for m in (streams.READ, streams.WRITE, streams.COPY)] == [1.0, 0.0, 0.5]


def test_a_real_run_of_one_small_point():
    rule = sampling.Rule(3, 0.0, 1.0, 0.2, 0.0)
    facts = dataclasses.replace(devices.facts("cpu"), l2_bytes=1 << 20)
    candidate = streams.candidates(streams.COPY, CPU)[0]
    point = ceiling_run.time_stream(candidate, streams.COPY, 1 << 22, facts, CPU, rule)
    assert point.bytes == 1 << 22
    assert 0.1 < point.gbps < 2000


@pytest.mark.slow
def test_a_full_run_on_a_cpu_ends_within_a_minute(tmp_path, monkeypatch):
    """On two cores that nobody else uses."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    start = time.perf_counter()
    found = ceilings("cpu")
    assert time.perf_counter() - start < 60
    assert {p.mix for p in found.points} == {"read", "write", "copy", "add", "triad"}
    assert {c.name for c in found.compute} >= {"fp32 matmul"}
