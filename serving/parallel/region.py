"""Memory that several processes of one machine share, known by its file descriptor alone.

No name leads to it, so the kernel frees it with its last process, however that one ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np
from numpy.typing import NDArray

LINE = 128
"""Bytes between words that different cores write: two cache lines, which processors fetch together."""


def make_memory(size: int) -> int:
    """A descriptor of `size` zero bytes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("penstock")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class Region:
    """The memory behind a descriptor, mapped; it stays mapped while the region or a tensor in it is in use."""

    def __init__(self, descriptor: int, size: int, touch: bool) -> None:
        """Takes the descriptor over. With `touch`, all pages are made now rather than at their first use."""
        try:
            found = os.fstat(descriptor).st_size
            if found != size:
                raise ValueError(f"the peers share {found} bytes where this process expects {size}")
            populate = getattr(mmap, "MAP_POPULATE", 0) if touch else 0
            self.memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | populate)
        finally:
            os.close(descriptor)
        self.words: NDArray[np.int64] = np.frombuffer(self.memory, np.int64)
        self.address: int = self.words.ctypes.data
