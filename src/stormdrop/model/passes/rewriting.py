"""How the passes over a model's Relax code replace its function `main`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst

from ..graph.open_blocks import ended_blocks
from ..tensors import copied

_LARGE = 1 << 16  # bytes


def rewrite_main(mod: tvm.IRModule, mutator: relax.PyExprMutator, main: str = "main") -> tvm.IRModule:
    """The module with `main` as the mutator rewrites it. Bindings and functions that become unused stay.

    Args:
        mod: The module that the mutator was made for.
        mutator: Visits the expressions of `main`.
        main: The name of the function that is rewritten.
    """
    with ended_blocks(mutator.builder_):
        mutator.builder_.update_func(mod.get_global_var(main), mutator.visit_expr(mod[main]))
    return mutator.builder_.get()


def constant(value: NDArray[Any]) -> GenericConst:
    """A constant of the array's very type: `relax.const` alone makes int32 of int64, and float32 of float64.

    A large array is copied once, however it lies in memory.
    """
    if value.nbytes < _LARGE:
        return relax.const(np.asarray(value, order="C"), str(value.dtype))
    return relax.const(copied(value), str(value.dtype))
