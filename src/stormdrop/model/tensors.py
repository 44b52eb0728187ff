"""Tensors where they are: TVM's as NumPy's arrays, and arrays as TVM's."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 by it
import numpy as np
import tvm
from numpy.typing import NDArray

from ..runtime.program import ALIGNMENT

Array = NDArray[Any]


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
