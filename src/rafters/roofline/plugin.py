"""The pytest fixture `roofline`: a test can assert how close to the limit a function comes on the machine that runs it."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def roofline() -> Callable[..., Any]:
    """`roofline(fn, args, cost=None, **options) -> Measurement`, judged by the ceilings of this device (measured once, cached).

    def test_mine_is_fast(roofline):
        m = roofline(mine, (x,), reference=torch_mine)
        assert m.ok, m.reasons
        assert m.share_of_attainable >= 0.9
    """
    # Imported here: a plugin is loaded by every pytest run of every project that has Rafters installed.
    from rafters.roofline import ceilings, measure

    known = ceilings(quick=True)

    def run(fn: Callable[..., Any], args: Any, cost: Any = None, **options: Any) -> Any:
        return measure(fn, args, cost, ceilings=options.pop("ceilings", known), **options)

    return run
