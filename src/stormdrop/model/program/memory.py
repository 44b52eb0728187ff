"""The memory of arrays: aligned as kernels want it, or mapped from files."""

from __future__ import annotations

import math
import mmap
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...machine.process.memory import return_freed_memory
from ...runtime.inputs import Array, address_of
from ...runtime.program import ALIGNMENT

_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def aligned_memory(size: int, alignment: int = ALIGNMENT) -> NDArray[np.uint8]:
    """Memory that begins at a multiple of so many bytes.

    Args:
        size: Its bytes.
        alignment: The number.
    """
    memory = np.empty(size + alignment, np.uint8)
    begin = -address_of(memory) % alignment
    return memory[begin : begin + size]


def mapped(file: Path, dtype: Any, offset: int, shape: tuple[int, ...]) -> Array:
    """An array of a part of a file. It stays valid if the file is removed or replaced, but not if it is shortened.

    Args:
        file: The file.
        dtype: The type of the elements.
        offset: Where they begin, in bytes.
        shape: The shape of the array, which has elements.
    """
    skipped = offset % mmap.ALLOCATIONGRANULARITY
    count = math.prod(shape)
    with file.open("rb") as opened:
        size = skipped + count * np.dtype(dtype).itemsize
        pages = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY, offset=offset - skipped)
    _mapped.add(pages)
    array: Array = np.frombuffer(pages, dtype, count, skipped)
    return array.reshape(shape)


def release_pages() -> None:
    """Takes what was freed, and the pages of all mapped arrays, out of this process's memory.

    Whoever reads such an array gets it from its file again. The system would take the pages itself if memory were
    short, but until then nobody can see that it may.
    """
    for pages in list(_mapped):
        pages.madvise(mmap.MADV_DONTNEED)
    return_freed_memory()
