"""The NumPy reference: what a function should compute, independent of any schedule and compiler.

A function is evaluated stage by stage. Float values are computed in float64 and rounded to the buffer's type at the
end, integers in int64. A function that only moves elements, such as one that packs weights, moves them in their own
type. Sums of products go through `numpy.einsum`. Everything else is evaluated over the whole iteration domain at once,
or slice by slice along its longest axis if that would take too much memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Call, StringImm, TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.tirx import PrimFunc

from ..errors import UnsupportedFunction
from .contractions.factors import factor_of, factors_of
from .dtypes import is_float, is_integer
from .expressions import (
    children,
    intrinsic,
    is_selection,
    is_tf32,
    loads_in,
    rebuild,
    simplified,
    substitute,
    transform,
    variables,
    walk,
)
from .grid import BINARY, INTRINSICS, Array, GridEvaluator, Narrow, store
from .stages import Axis, Stage, StageGraph, shape_of

_SLICE = 1 << 24  # the most elements to evaluate at once: 128 MiB of float64

NEAR_A_TIE = 2.0**-12
"""What float32 may add to a number of some hundreds, made of sums and products, before it is rounded to an integer."""

_PARTIAL = {"sqrt", "rsqrt", "log", "log2", "log10", "pow"}  # not defined for all real numbers
_REDUCE: dict[str, Any] = {"sum": np.add, "product": np.multiply, "max": np.maximum, "min": np.minimum}
_EXACT_NODES = (
    *(prim.Add, prim.Sub, prim.Mul, prim.Min, prim.Max, prim.CmpExpr, prim.LogicalExpr, prim.Select),
    *(prim.BitwiseAnd, prim.LShift, prim.RShift),
)


def evaluate(function: PrimFunc, inputs: Sequence[Array]) -> list[Array]:
    """Computes the outputs of a function.

    Args:
        function: The function.
        inputs: Its inputs, in the order of its parameters.

    Returns:
        The outputs, in the order of its parameters.

    Raises:
        UnsupportedFunction: The function is not a sequence of plain blocks, or holds something that is not known here.
        ValueError: An input has another shape than its parameter.
    """
    return evaluate_graph(StageGraph.parse(function), inputs)


def evaluate_graph(
    graph: StageGraph,
    inputs: Sequence[Array],
    rounded: bool = True,
    after: Callable[[Stage, Array], Array] | None = None,
) -> list[Array]:
    """Does what `evaluate` does, for a function that is already read as stages.

    Args:
        graph: The function.
        inputs: Its inputs, in the order of its parameters. Floats may be wider than the parameters.
        rounded: Whether floats are rounded to the type of the output; otherwise they stay in float64.
        after: Changes the elements of each stage before others read them.
    """
    wide = not rounded or not only_moves(graph)
    values = _inputs(graph, inputs, wide)
    for stage in graph.stages:
        value = _evaluate_stage(stage, values, wide)
        values[stage.buffer] = value if after is None else after(stage, value)
    return [_narrowed(values[buffer], str(buffer.dtype), rounded) for buffer in graph.outputs]


def only_moves(graph: StageGraph) -> bool:
    """Whether a function computes nothing: each element of a stage is one of another buffer of its type, or a number.

    The number, and which element it is, may depend on the position, but on no element.
    """
    return all(stage.combine is None and _moves(stage.value, str(stage.buffer.dtype)) for stage in graph.stages)


def _moves(value: Any, dtype: str) -> bool:
    if isinstance(value, TensorLoad):
        return str(value.source.dtype) == dtype and not any(map(loads_in, value.indices))
    if is_selection(value):
        condition, *branches = children(value)
        return not loads_in(condition) and all(_moves(branch, dtype) for branch in branches)
    return isinstance(value, FloatImm | IntImm)


def evaluate_ties(graph: StageGraph, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Computes the outputs of a function, and what they may be instead because a value is near a tie of a rounding.

    A quantised layer ends with a rounding to an integer. In float32 a value of 3.5 may well be 3.4999998, and be
    rounded to 3 where the reference has 4. Both are right. So it is where `floor` and other functions jump. If a
    reduction follows the rounding, the second outputs are those with all of these values on the other side; what a
    kernel has that turns some of them may lie elsewhere.

    Args:
        graph: The function.
        inputs: Its inputs, in the order of its parameters.

    Returns:
        The outputs as of `evaluate_graph`, and the outputs if all values that are within `NEAR_A_TIE` of a tie are
        rounded to the other side. The second list is empty if they are the same. Both may hold the same arrays.
    """
    values = _inputs(graph, inputs)
    other: dict[Any, Array] = {}
    for stage in graph.stages:
        value = values[stage.buffer] = _evaluate_stage(stage, values)
        known = {**values, **other}
        if any(map(_rounds, walk(stage.value))):
            up, down = (_evaluate_stage(nudged(stage, nudge), known) for nudge in (NEAR_A_TIE, -NEAR_A_TIE))
            alternative = np.where(up == value, down, up)
        elif any(load.source in other for load in stage.loads()):
            alternative = _evaluate_stage(stage, known)
        else:
            continue
        if not np.array_equal(alternative, value, equal_nan=True):
            other[stage.buffer] = alternative
    outputs = [_narrowed(values[buffer], str(buffer.dtype), True) for buffer in graph.outputs]
    if not any(buffer in other for buffer in graph.outputs):
        return outputs, []
    alternatives = {**values, **other}
    return outputs, [_narrowed(alternatives[buffer], str(buffer.dtype), True) for buffer in graph.outputs]


def nudged(stage: Stage, nudge: float) -> Stage:
    """A stage that adds a number to whatever it rounds to an integer, and more to numbers above some hundreds."""

    def visit(node: Any) -> Any:
        if not _rounds(node):
            return None
        first, *others = children(node)
        operand = transform(first, visit)
        return rebuild(node, [_moved(operand, nudge, node), *others])

    return replace(stage, value=transform(stage.value, visit))


def _moved(operand: Any, nudge: float, node: Any) -> Any:
    """What a node rounds, plus a nudge.

    The nearest integer jumps halfway between two. All others jump at the integers, and a remainder at the multiples. A
    number that is one in float64 is left alone there: only arithmetic that is exact in float32, too, makes such.
    """
    kind = str(operand.ty.dtype)
    name = "nudge" if intrinsic(node) in _TO_NEAREST else "nudge_between"
    step = node.b if isinstance(node, _REMAINDERS) else FloatImm(kind, 1.0)
    # A call, in which the operand stands once: roundings of roundings would grow without bound.
    return tirx.call_pure_extern(kind, name, operand, FloatImm(kind, nudge), step)


def rounds(graph: StageGraph) -> bool:
    """Whether a function rounds numbers to integers or takes remainders, so that it jumps."""
    return any(_rounds(node) for stage in graph.stages for node in walk(stage.value))


_TO_NEAREST = {"nearbyint", "round"}
_TO_A_SIDE = {"ceil", "floor", "trunc"}
_REMAINDERS = (prim.Mod, prim.FloorMod)


def _rounds(node: Any) -> bool:
    if isinstance(node, prim.Cast):
        return is_float(str(node.value.ty.dtype)) and is_integer(str(node.ty.dtype))
    if isinstance(node, _REMAINDERS):
        return is_float(str(node.ty.dtype))
    return intrinsic(node) in _TO_NEAREST | _TO_A_SIDE


def _inputs(graph: StageGraph, inputs: Sequence[Array], wide: bool = True) -> dict[Any, Array]:
    """The inputs by buffer, in wide types or in those of the buffers. A large one becomes wide slice by slice."""
    values: dict[Any, Array] = {}
    for buffer, array in zip(graph.inputs, inputs, strict=True):
        if tuple(array.shape) != shape_of(buffer):
            raise ValueError(f"input {buffer.name} has shape {array.shape}, not {shape_of(buffer)}")
        if wide and array.size > _SLICE and array.dtype.itemsize < np.dtype(_wide(str(buffer.dtype))).itemsize:
            values[buffer] = array.view(Narrow)
        else:
            values[buffer] = array.astype(_wide(str(buffer.dtype)) if wide else str(buffer.dtype), copy=False)
    return values


def check_supported(graph: StageGraph) -> None:
    """Checks that `evaluate_graph` knows all that a function holds.

    Raises:
        UnsupportedFunction: The function holds something that is not known here.
    """
    known = (IntImm, FloatImm, StringImm, Var, TensorLoad, prim.Cast, prim.Not, prim.Select, prim.Div, *BINARY)
    for stage in graph.stages:
        for expression in (stage.value, *stage.indices):
            for node in walk(expression):
                if isinstance(node, Call) and intrinsic(node) not in INTRINSICS and not is_tf32(node):
                    raise UnsupportedFunction(f"the NumPy reference does not know the intrinsic {node.op.name}")
                if not isinstance(node, (Call, *known)):
                    raise UnsupportedFunction(f"the NumPy reference does not know {type(node).__name__}")


def input_kind(graph: StageGraph) -> str:
    """The kind of random inputs that tests a function best.

    Returns:
        "integers" if small integers stay exact, "positive" if an operation is not defined for all numbers (a division,
        a root, a logarithm), else "reals".
    """
    if is_exact(graph):
        return "integers"
    for stage in graph.stages:
        for node in walk(stage.value):
            if intrinsic(node) in _PARTIAL:
                return "positive"
            if isinstance(node, prim.Div | prim.Mod) and not isinstance(node.b, FloatImm | IntImm):
                return "positive"
    return "reals"


def is_exact(graph: StageGraph) -> bool:
    """Whether small-integer inputs give exact results in float32, in any order of the reductions.

    This is so for sums, products, comparisons and selections with integer constants. It is not so if a division, a
    square root or another intrinsic rounds. The magnitude of the values is not considered.
    """
    for stage in graph.stages:
        for node in walk(stage.value):
            if isinstance(node, FloatImm):
                if np.isfinite(node.value) and abs(node.value) < 1e30 and not float(node.value).is_integer():
                    return False
            elif isinstance(node, Call):
                if intrinsic(node) not in {"if_then_else", "fabs", "abs"} and not is_tf32(node):
                    return False
            elif children(node) and not isinstance(
                node, (*_EXACT_NODES, TensorLoad, prim.Cast, prim.FloorDiv, prim.FloorMod, prim.Not)
            ):
                return False
    return True


def codes(graph: StageGraph) -> list[Any]:
    """The buffers whose elements are codes of weight-only quantisation: all values of their type have a meaning."""
    factors = [factor for stage in graph.stages for factor in factors_of(stage) or ()]
    return [factor.load.source for factor in factors if factor.decoders]


def zero_points(graph: StageGraph) -> dict[Any, int]:
    """What products subtract from the elements of buffers that they multiply, also where a stage has padded these."""
    found = {factor.load.source: factor.zero_point for stage in graph.stages for factor in factors_of(stage) or ()}
    for stage in reversed(graph.stages):
        if stage.combine is None and stage.buffer in found:
            copied = [load.source for load in stage.loads() if load.source.dtype == stage.buffer.dtype]
            found = {**dict.fromkeys(copied, found[stage.buffer]), **found}
    return found


def sums_integers(graph: StageGraph) -> bool:
    """Whether a function has reductions, and all of them combine integers."""
    reduced = [str(stage.buffer.dtype) for stage in graph.stages if stage.combine is not None]
    return bool(reduced) and all(map(is_integer, reduced))


def _narrowed(array: Array, dtype: str, rounded: bool) -> Array:
    if not rounded and is_float(dtype):
        return array
    with np.errstate(over="ignore"):  # a kernel does not warn of what becomes infinite either
        return array.astype(dtype, copy=False)


def _wide(dtype: str) -> Any:
    """The type in which inputs of a type are widened; booleans stay what they are."""
    return np.float64 if is_float(dtype) else np.int64 if is_integer(dtype) else bool


def _evaluate_stage(stage: Stage, values: Mapping[Any, Array], wide: bool = True) -> Array:
    """The elements of a stage, in a wide type or in that of its buffer.

    Those that the stage does not write are NaN, or 0 if they are no floats.
    """
    shape, dtype = shape_of(stage.buffer), str(stage.buffer.dtype)
    kind = dtype if not wide else np.float64 if is_float(dtype) else np.int64
    result = np.full(shape, np.nan if is_float(dtype) else 0, dtype=kind)
    if any(axis.extent == 0 for axis in stage.axes):  # there are no elements, or each is the sum of none
        if result.size:
            store(stage, result, GridEvaluator(stage.spatial, values, {})(stage.identity), {})
        return result
    window = _window(stage)
    if window:
        store(stage, result, _over_window(stage, window, values), {})
        return result
    product = _product_of_loads(stage)
    if product is not None:
        size, sliced = _largest_factor(stage, product, values)
    else:
        size, sliced = math.prod(axis.extent for axis in stage.axes), stage.spatial
    leading = max(sliced, key=lambda axis: axis.extent, default=None)
    slices = 1 if leading is None else min(leading.extent, -(-size // _SLICE))
    if leading is None or slices == 1:
        store(stage, result, _evaluate_slice(stage, product, values, {}), {})
        return result
    step = -(-leading.extent // slices)
    for start in range(0, leading.extent, step):
        count = min(step, leading.extent - start)
        axes = tuple(replace(axis, extent=count) if axis is leading else axis for axis in stage.axes)
        part = replace(stage, axes=axes)
        store(part, result, _evaluate_slice(part, product, values, {leading.var: start}), {leading.var: start})
    return result


def _window(stage: Stage) -> list[Axis]:
    """The reductions that share an index with a spatial axis (the window of a convolution).

    The list is empty if all that each load reads fits into a slice, because it is then gathered at once.
    """
    spatial = {axis.var for axis in stage.spatial}
    sharing: set[Any] = set()
    for load in stage.loads():
        by_dimension = [variables(index) for index in load.indices]
        size = math.prod(axis.extent for axis in stage.axes if axis.var in set().union(*by_dimension))
        if size > _SLICE:
            sharing.update(*(used for used in by_dimension if used & spatial))
    return [axis for axis in stage.reductions if axis.var in sharing]


def _over_window(stage: Stage, window: Sequence[Axis], values: Mapping[Any, Array]) -> Array:
    """The value of a reduction over the spatial axes, computed for one position of the window after the other.

    Each position reads the input once. All positions at once would make as many copies of it.
    """
    assert stage.combine is not None
    rest = tuple(axis for axis in stage.axes if axis not in window)
    total: Array | None = None
    for position in np.ndindex(*(axis.extent for axis in window)):
        constants = {axis.var: IntImm(axis.var.ty.dtype, index) for axis, index in zip(window, position, strict=True)}
        part = replace(stage, axes=rest, value=simplified(substitute(stage.value, constants)))
        product = _product_of_loads(part) if part.reductions else None
        if product is not None:
            value = _einsum(part, product, values, {})
        elif part.reductions:
            value = _evaluate_slice(part, None, values, {})
        else:
            value = GridEvaluator(rest, values, {})(part.value)
        total = value if total is None else _REDUCE[stage.combine](total, value)
    assert total is not None and stage.identity is not None
    result: Array = _REDUCE[stage.combine](total, GridEvaluator(stage.spatial, values, {})(stage.identity))
    return result


def _evaluate_slice(
    stage: Stage, product: tuple[Any, Any] | None, values: Mapping[Any, Array], offsets: Mapping[Any, int]
) -> Array:
    """The value of a stage after its reductions, in a shape that broadcasts to the spatial axes.

    Args:
        stage: The stage.
        product: What `_product_of_loads` finds in it.
        values: The arrays by their buffers.
        offsets: The first positions of axes that do not begin at 0.
    """
    if product is not None:
        return _einsum(stage, product, values, offsets)
    evaluator = GridEvaluator(stage.axes, values, offsets)
    value = evaluator(stage.value)
    reduced = tuple(position for position, axis in enumerate(stage.axes) if axis.reduce)
    if not reduced:
        return value
    full = tuple(
        axis.extent if axis.reduce else value.shape[position] if value.ndim else 1
        for position, axis in enumerate(stage.axes)
    )
    assert stage.combine is not None and stage.identity is not None
    combined = _REDUCE[stage.combine].reduce(np.broadcast_to(value, full), axis=reduced)
    spatial = [axis for axis in stage.axes if not axis.reduce]
    identity = GridEvaluator(spatial, values, offsets)(stage.identity)
    result: Array = _REDUCE[stage.combine](combined, identity)
    return result


def _product_of_loads(stage: Stage) -> tuple[Any, Any] | None:
    """The factors of a stage that sums `A[...] * B[...]`, which `einsum` computes; None for any other stage.

    The factors may be conversions of the loads to another type, less a zero point.
    """
    if stage.combine != "sum" or not isinstance(stage.value, prim.Mul):
        return None
    if not (isinstance(stage.identity, FloatImm | IntImm) and float(stage.identity.value) == 0.0):
        return None
    factors = (stage.value.a, stage.value.b)
    return factors if all(factor_of(factor) is not None for factor in factors) else None


def _are_bytes(product: tuple[Any, Any]) -> bool:
    """Whether both factors are integers of 8 bits, less a zero point of no more."""
    factors = [factor_of(factor) for factor in product]
    return all(
        factor is not None and factor.dtype in {"int8", "uint8"} and abs(factor.zero_point) < 256 for factor in factors
    )


def _largest_factor(stage: Stage, product: tuple[Any, Any], values: Mapping[Any, Array]) -> tuple[int, Sequence[Axis]]:
    """The elements of the larger factor that become wide when it is read, and the spatial axes along which it lies."""
    loads = [
        load for factor in product if (load := _load_of(factor)) is not None and isinstance(values[load.source], Narrow)
    ]
    largest = max(loads, key=lambda load: values[load.source].size, default=None)
    if largest is None:
        return 0, ()
    used = set().union(*map(variables, largest.indices))
    return values[largest.source].size, [axis for axis in stage.spatial if axis.var in used]


def _load_of(factor: Any) -> Any:
    found = factor_of(factor)
    return None if found is None else found.load


def _einsum(stage: Stage, product: tuple[Any, Any], values: Mapping[Any, Array], offsets: Mapping[Any, int]) -> Array:
    """The sum of a product of two loads, in a shape that broadcasts to the spatial axes."""
    factors = [GridEvaluator(stage.axes, values, offsets)(factor) for factor in product]
    # Sums of products of bytes are exact in float64, in which NumPy multiplies matrices a hundred times as fast.
    if _are_bytes(product):
        factors = [factor.astype(np.float64) for factor in factors]
    present = [p for p in range(len(stage.axes)) if any(factor.shape[p] > 1 for factor in factors)]
    kept = [position for position in present if not stage.axes[position].reduce]
    if kept == present:  # nothing is summed: einsum would transpose the factors for its matrix products
        result = (factors[0] * factors[1]).reshape([stage.axes[position].extent for position in kept])
    else:
        operands: list[Any] = []
        for factor in factors:
            labels = [position for position in present if factor.shape[position] > 1]
            operands += [factor.reshape([factor.shape[position] for position in labels]), labels]
        result = np.einsum(*operands, kept, optimize=True)
    # A reduced axis that neither operand depends on adds the same term once per position.
    for position, axis in enumerate(stage.axes):
        if axis.reduce and position not in present:
            result = result * axis.extent
    return np.asarray(result).reshape(
        [axis.extent if position in kept else 1 for position, axis in enumerate(stage.axes) if not axis.reduce]
    )
