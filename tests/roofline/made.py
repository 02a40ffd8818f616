"""Measurements and ceilings with numbers a test can predict."""

from rafters.cost import Cost
from rafters.device import DeviceFacts
from rafters.roofline import Ceilings, Measurement
from rafters.roofline.ceiling import ComputeCeiling, Point
from rafters.roofline.statistics import Summary

GPU = DeviceFacts("cuda", "Made-up GPU", "abc", 100, 50 << 20, 1 << 37, 3e9, 4096, "9.0", "1.2", 700.0)
BANDWIDTH = {0.0: ("write", 2.8e12), 0.5: ("copy", 2.5e12), 1.0: ("read", 2.7e12)}
T0 = 2e-6


def ceilings() -> Ceilings:
    points = [Point(name, mix, v, T0 + v / b, "made up") for mix, (name, b) in BANDWIDTH.items() for v in (2**16, 2**24, 2**44)]
    points += [Point("copy", 0.5, v, v / 6e12, "made up", "hot") for v in (2**20, 2**24)]
    points += [Point("copy", 0.5, 2**28, 2**28 / 2.5e12, "made up", "hot")]
    return Ceilings(GPU, tuple(points), T0, compute=(ComputeCeiling("bf16 matmul", "bf16", 9e14, 7e14),))


def seconds(median: float, spread: float = 0.001) -> Summary:
    low, high = median * (1 - spread), median * (1 + spread)
    return Summary(median, low, low, high, high, low, low, high)


def measurement(name: str = "add", median: float | None = 1e-3, **fields) -> Measurement:
    cost = fields.pop("cost", Cost(10**9, 10**9, 10**9))
    roof = ceilings()
    known = {
        "provider": "ours",
        "shape": "4096x4096",
        "dtype": "bf16",
        "host_us": 8.0,
        "samples": 30,
        "throttled": 0,
        "stop_reason": "converged",
        "state": "cold",
        "timer": "graph",
        "verdict": "VALID",
        "ceiling": roof.bandwidth(cost.read_fraction),
        "attainable_s": roof.attainable_seconds(cost),
        "family": "pointwise",
        "environment": "e1",
        "date": "2026-01-02T03:04:05+00:00",
        **fields,
    }
    return Measurement(name=name, cost=cost, seconds=seconds(median) if median else None, **known)
