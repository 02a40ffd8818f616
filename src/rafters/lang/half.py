"""`rafters.lang` as kernels on 16-bit (and 8-bit) floats see it: the same words, those with a shorter code for such values in it.

A result that is rounded to 8 or 11 bits next needs no function that is right to 24, and at the rate at which 16-bit values come
from memory there is no time for one. Nobody imports this: the engine puts it in the place of `rafters.lang`.
"""

from typing import Any

from rafters.lang import WORDS


def __getattr__(name: str) -> Any:
    if name not in WORDS:
        raise AttributeError(f"module 'rafters.lang' has no word {name!r}")
    return WORDS[name].half_jit
