"""Output tensors that show what was not written, and memory around them that shows what should not have been."""

from collections.abc import Sequence

import torch

PATTERN = 0xA5
GUARD = 64  # elements before and after
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Guarded:
    """`tensor` lies in a buffer of sentinel bytes, with 64 elements of them on either side and in the gaps of its strides.

    `start` shifts it by some elements more, so that it is not aligned.
    """

    def __init__(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu", start: int = 0
    ) -> None:
        extent = 0 if 0 in shape else sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        first = GUARD + start
        self._bytes = torch.full(((first + extent + GUARD) * dtype.itemsize,), PATTERN, dtype=torch.uint8, device=device)
        self._words = self._bytes.view(_WORDS[dtype.itemsize])
        self.tensor = self._bytes.view(dtype).as_strided(tuple(shape), tuple(strides), first)
        inside = torch.zeros(self._words.shape, dtype=torch.bool, device=device)
        inside.as_strided(tuple(shape), tuple(strides), first).fill_(True)
        self._outside = ~inside
        self._sentinel = self._words[0].clone()

    def overrun(self) -> list[int]:
        """Offsets, from the tensor's start, of elements outside it that were written."""
        touched = (self._words != self._sentinel) & self._outside
        return [int(i) - int(self.tensor.storage_offset()) for i in touched.nonzero().flatten()[:8]]

    def untouched(self) -> int:
        """How many elements of the tensor still hold the sentinel (a value that only an 8-bit result may have by chance)."""
        words = self._words.as_strided(tuple(self.tensor.shape), self.tensor.stride(), self.tensor.storage_offset())
        return int((words == self._sentinel).sum())
