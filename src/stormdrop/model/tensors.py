"""Tensors where they are: TVM's as NumPy's arrays, arrays as TVM's, and parts of files as arrays.

A model is loaded with this, so it needs TVM's runtime only.
"""

from __future__ import annotations

import math
import mmap
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 by it
import numpy as np
import tvm
from numpy.typing import NDArray

from ..machine.process.memory import return_freed_memory
from .program.program import ALIGNMENT

Array = NDArray[Any]

_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def array_of(tensor: Any) -> Array:
    """The elements of a TVM tensor, or of a constant, where they are: `Tensor.numpy` copies them."""
    tensor = getattr(tensor, "value", tensor)
    size = math.prod(tensor.shape) * tensor.dtype.itemsize
    if not size:
        return tensor.numpy()  # type: ignore[no-any-return]
    # DLPack has no bfloat16 for NumPy.
    view: Array = np.from_dlpack(tensor._create_view((size,), "uint8"))
    return view.view(str(tensor.dtype)).reshape(tuple(tensor.shape))


def tensor_of(value: Array) -> Any:
    """A TVM tensor of an array. It shares the array's memory if that may be written and begins where kernels want it.

    Args:
        value: An array with elements.
    """
    flags = value.flags
    if not (flags.c_contiguous and flags.writeable) or value.ctypes.data % ALIGNMENT:
        return copied(value)
    return tvm.runtime.from_dlpack(value.reshape(-1).view(np.uint8))._create_view(value.shape, str(value.dtype))


def copied(value: Array) -> Any:
    """A TVM tensor with the elements of an array, which are copied once, however they lie in memory."""
    tensor = tvm.runtime.empty(value.shape, str(value.dtype))
    np.copyto(array_of(tensor), value, casting="no")
    return tensor


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
