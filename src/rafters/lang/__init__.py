"""`rafters.lang`: what a body may call beside `tl`. Accurate where Triton's own functions are fast, and with PyTorch's meaning.

`lang.exp` is a JITFunction where triton is installed, so that a body that calls it is plain Triton; where it is not, it is the
word itself, which the trace understands.
"""

from typing import Any

from rafters.lang import arithmetic, elementary, extrema, rounding, rows
from rafters.lang._define import Word
from rafters.lang._define import has_triton as has_triton

_ROOMS = (arithmetic, elementary, extrema, rounding, rows)
WORDS: dict[str, Word] = {
    value.name: value
    for room in _ROOMS
    for value in vars(room).values()
    if isinstance(value, Word) and value.code.__module__ == room.__name__ and not value.name.startswith("_")
}


def __getattr__(name: str) -> Any:
    word = WORDS.get(name)
    if word is None:
        raise AttributeError(f"module 'rafters.lang' has no word {name!r}; it has {', '.join(sorted(WORDS))}")
    return word.jit if has_triton() else word


def __dir__() -> list[str]:
    return sorted(WORDS)


def word_of(value: Any) -> Word | None:
    """The word that `value` (a Word, or the JITFunction built from one) stands for, or None."""
    if isinstance(value, Word):
        return value
    built = ("jit", "half_jit")
    return next((word for word in WORDS.values() if any(word.__dict__.get(form, word) is value for form in built)), None)
