"""Whether a kernel for any size computes what its function says, at some sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 by it
import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.tirx import PrimFunc

from ...ir.dtypes import is_float
from ...ir.reference import evaluate_graph
from ...ir.relative_error import relative_error
from ...ir.stages import StageGraph, shape_of
from ...sketches.contract import Variant

Array = NDArray[Any]

_TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}
"""What a kernel may be off its function. One that leaves out or misplaces elements is off by far more."""


def is_right(kernel: Any, function: PrimFunc, variant: Variant) -> bool:
    """Whether a kernel computes a function, on random inputs.

    Args:
        kernel: The kernel, a function of TVM.
        function: The function.
        variant: What its schedule makes of it, which lays out its constants.

    Raises:
        UnsupportedFunction: The function is no sequence of loop nests, so that nothing says what it computes.
    """
    graph = StageGraph.parse(function, gathers=True)
    rng = np.random.default_rng(0)
    inputs = [_random(rng, shape_of(buffer), str(buffer.dtype)) for buffer in graph.inputs]
    wanted = evaluate_graph(graph, inputs, rounded=False)
    shapes = [(shape_of(buffer), str(buffer.dtype)) for buffer in graph.outputs]
    outputs = [tvm.runtime.tensor(_unwritten(shape, dtype)) for shape, dtype in shapes]
    kernel(*(tvm.runtime.tensor(each) for each in variant.arguments(inputs)), *outputs)
    return all(_close(output.numpy(), expected) for output, expected in zip(outputs, wanted, strict=True))


def _random(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, size=shape).astype(bool)
    if is_float(dtype):
        return rng.uniform(0.5, 1.5, size=shape).astype(dtype)
    return rng.integers(0, 4, size=shape).astype(dtype)


def _unwritten(shape: Sequence[int], dtype: str) -> Array:
    """Memory whose elements nothing computes."""
    return np.full(shape, np.nan if is_float(dtype) else 0 if dtype == "bool" else np.iinfo(dtype).min, dtype)


def _close(output: Array, wanted: Array) -> bool:
    tolerance = _TOLERANCE.get(str(output.dtype))
    if tolerance is not None:
        return relative_error(output, wanted) <= tolerance
    # What a function rounds may be on the other side of a tie.
    return bool(np.all(np.abs(output.astype(np.int64) - np.rint(wanted).astype(np.int64)) <= (output.dtype != bool)))
