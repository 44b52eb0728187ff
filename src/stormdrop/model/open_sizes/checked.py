"""Whether a kernel for any size computes what its function says, at a size.

Its inputs are those on which tuning compares kernels: small integers, whose sums are exact, so that each element that
is left out or misplaced shows; and, where the rounding of the function has a bound, numbers of different magnitudes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.tirx import PrimFunc

from ...errors import UnsupportedFunction
from ...ir import reference
from ...ir.dtypes import is_float
from ...ir.error_bounds import rounding_bounds, varied_inputs
from ...ir.stages import StageGraph, shape_of
from ...ir.workload import Workload, step_inside
from ...measure.worker.devices import CpuDevice
from ...measure.worker.output_check import difference, excess, fill, same_bytes
from ...sketches.contract import Variant

Array = NDArray[Any]

_SEED = 0
_MOST_OPERATIONS = 1e9  # of a function that is compared on real numbers, too: NumPy takes half a second
_INDICES = 4  # so many different ones are looked up in tables


@dataclass(frozen=True)
class Sized:
    """A kernel's function at a size.

    Attributes:
        function: The function.
        transforms: How its schedule packs constants, by their positions.
        max_error: How far a schedule that computes in another way may be off, as of `Sketch.max_error`.
    """

    function: PrimFunc
    transforms: Mapping[int, PrimFunc]
    max_error: float


def wrong_at(call: Callable[..., object], sized: Sized) -> str:
    """What is wrong with a kernel at a size, in one line; empty if nothing is.

    Args:
        call: The kernel, which takes tensors.
        sized: What it should compute.

    Raises:
        UnsupportedFunction: The function is no sequence of loop nests, so that nothing says what it computes.
    """
    return _on_integers(call, sized) or _on_reals(call, sized)


def _on_integers(call: Callable[..., object], sized: Sized) -> str:
    try:
        workload = Workload.create("kernel", sized.function)
    except UnsupportedFunction:  # it looks up tables, or has integers of 64 bits
        return _of_moves(call, sized)
    inputs = workload.random_inputs(_SEED)
    expected, ties = workload.reference_with_ties(inputs)
    tolerance = workload.tolerance_of(sized.max_error, workload.tolerance(expected))
    outputs, outside = _executed(call, sized, inputs, workload.graph)
    both = zip(outputs, expected, ties or expected, strict=True)
    return outside or _first(difference(f"output {at}", *each[:2], tolerance, each[2]) for at, each in enumerate(both))


def _of_moves(call: Callable[..., object], sized: Sized) -> str:
    graph = StageGraph.parse(sized.function, gathers=True)
    rng = np.random.default_rng(_SEED)
    indices = min([_INDICES, *(extent for buffer in graph.inputs for extent in shape_of(buffer))])
    inputs = [_random(rng, shape_of(buffer), str(buffer.dtype), indices) for buffer in graph.inputs]
    expected = reference.evaluate_graph(graph, inputs)
    tolerance = 0.0 if reference.is_exact(graph) else max(1e-4, step_inside(graph))
    outputs, outside = _executed(call, sized, inputs, graph)
    both = zip(outputs, expected, strict=True)
    return outside or _first(difference(f"output {at}", *each, tolerance) for at, each in enumerate(both))


def _on_reals(call: Callable[..., object], sized: Sized) -> str:
    if sized.max_error:
        return ""  # its error has another bound, which the integers were compared with
    try:
        workload = Workload.create("kernel", sized.function)
        if workload.flops > _MOST_OPERATIONS:
            return ""
        inputs = varied_inputs(workload, _SEED)
        allowed = rounding_bounds(workload, inputs)
    except UnsupportedFunction:
        return ""
    expected = workload.reference(inputs)
    outputs, outside = _executed(call, sized, inputs, workload.graph)
    both = zip(outputs, expected, allowed, strict=True)
    return outside or _first(excess(f"output {at}", *each) for at, each in enumerate(both))


def _executed(
    call: Callable[..., object], sized: Sized, inputs: Sequence[Array], graph: StageGraph
) -> tuple[list[Array], str]:
    """The outputs of a kernel, and one line if it has written to anything else."""
    device = CpuDevice()  # with memory around outputs that no kernel may write to
    arguments = Variant(sized.function, sized.transforms).arguments(inputs)
    tensors = [device.tensor(np.ascontiguousarray(argument)) for argument in arguments]
    outputs, views = device.outputs([(shape_of(buffer), str(buffer.dtype)) for buffer in graph.outputs])
    for view in views:
        fill(view)
    call(*tensors, *outputs)
    outside = device.trespass()
    unchanged = all(same_bytes(device.view(tensor), each) for tensor, each in zip(tensors, arguments, strict=True))
    return views, outside if unchanged else "the kernel writes to its inputs"


def _random(rng: np.random.Generator, shape: Sequence[int], dtype: str, indices: int) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, size=shape).astype(bool)
    if is_float(dtype):
        return rng.uniform(0.5, 1.5, size=shape).astype(dtype)
    return rng.integers(0, indices, size=shape).astype(dtype)


def _first(lines: Iterable[str]) -> str:
    return next((line for line in lines if line), "")


def elements(function: PrimFunc) -> int:
    """The number of elements of all arguments of a function."""
    return sum(math.prod(map(int, parameter.ty.shape)) for parameter in function.params)
