"""How the passes over a model's Relax code replace its function `main`."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 by it
import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst

ALIGNMENT = 64
"""Kernels want a tensor to begin at a multiple of so many bytes."""

_LARGE = 1 << 16  # bytes


def rewrite_main(mod: tvm.IRModule, mutator: relax.PyExprMutator, main: str = "main") -> tvm.IRModule:
    """The module with `main` as the mutator rewrites it. Bindings and functions that become unused stay.

    Args:
        mod: The module that the mutator was made for.
        mutator: Visits the expressions of `main`.
        main: The name of the function that is rewritten.
    """
    mutator.builder_.update_func(mod.get_global_var(main), mutator.visit_expr(mod[main]))
    return mutator.builder_.get()


def constant(value: NDArray[Any]) -> GenericConst:
    """A constant of the array's very type: `relax.const` alone makes int32 of int64, and float32 of float64.

    A large array is copied once, however it lies in memory.
    """
    if value.nbytes < _LARGE:
        return relax.const(np.asarray(value, order="C"), str(value.dtype))
    tensor = tvm.runtime.empty(value.shape, str(value.dtype))
    np.copyto(array_of(tensor), value, casting="no")
    return relax.const(tensor, str(value.dtype))


def array_of(tensor: Any) -> NDArray[Any]:
    """The elements of a TVM tensor, or of a constant, where they are: `Tensor.numpy` copies them."""
    tensor = getattr(tensor, "value", tensor)
    size = math.prod(tensor.shape) * tensor.dtype.itemsize
    if not size:
        return tensor.numpy()  # type: ignore[no-any-return]
    # DLPack has no bfloat16 for NumPy.
    view: NDArray[Any] = np.from_dlpack(tensor._create_view((size,), "uint8"))
    return view.view(str(tensor.dtype)).reshape(tuple(tensor.shape))


def tensor_of(value: NDArray[Any]) -> Any:
    """A TVM tensor of an array. It shares the array's memory if that may be written and begins where kernels want it.

    Args:
        value: An array with elements.
    """
    flags = value.flags
    if not (flags.c_contiguous and flags.writeable) or value.ctypes.data % ALIGNMENT:
        return constant(value).value
    return tvm.runtime.from_dlpack(value.reshape(-1).view(np.uint8))._create_view(value.shape, str(value.dtype))
