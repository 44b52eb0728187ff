"""The NumPy reference: what a function should compute, independent of any schedule and compiler.

A function is evaluated stage by stage. Float values are computed in float64 and rounded to the buffer's type at the
end, integers in int64. Sums of products go through `numpy.einsum`. Everything else is evaluated over the whole
iteration domain at once, or slice by slice along its longest axis if that would take too much memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir import Call, TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.tirx import PrimFunc

from ..errors import UnsupportedFunction
from .expressions import children, simplified, substitute, variables, walk
from .stages import Axis, Stage, StageGraph, shape_of

Array = NDArray[Any]

_SLICE = 1 << 24  # the most elements to evaluate at once: 128 MiB of float64

_BINARY: dict[type, Callable[[Array, Array], Array]] = {
    prim.Add: np.add,
    prim.Sub: np.subtract,
    prim.Mul: np.multiply,
    prim.Mod: np.fmod,
    prim.FloorDiv: np.floor_divide,
    prim.FloorMod: np.mod,
    prim.Min: np.minimum,
    prim.Max: np.maximum,
    prim.EQ: np.equal,
    prim.NE: np.not_equal,
    prim.LT: np.less,
    prim.LE: np.less_equal,
    prim.GT: np.greater,
    prim.GE: np.greater_equal,
    prim.And: np.logical_and,
    prim.Or: np.logical_or,
}


def _special(name: str) -> Callable[..., Array]:
    """A function of `scipy.special`, which is loaded at the first call: it takes 0.3 s, and workers rarely need it."""

    def function(x: Array) -> Array:
        from scipy import special

        values: Array = getattr(special, name)(x)
        return values

    return function


_INTRINSICS: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "pow": np.power,
    "tanh": np.tanh,
    "sigmoid": _special("expit"),
    "erf": _special("erf"),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "fabs": np.abs,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "nearbyint": np.round,
    "trunc": np.trunc,
    "if_then_else": np.where,
}
_PARTIAL = {"sqrt", "rsqrt", "log", "log2", "log10", "pow"}  # not defined for all real numbers
_REDUCE: dict[str, Any] = {"sum": np.add, "product": np.multiply, "max": np.maximum, "min": np.minimum}
_EXACT_NODES = (prim.Add, prim.Sub, prim.Mul, prim.Min, prim.Max, prim.CmpExpr, prim.LogicalExpr, prim.Select)


def evaluate(function: PrimFunc, inputs: Sequence[Array]) -> list[Array]:
    """Computes the outputs of a function.

    Args:
        function: the function.
        inputs: its inputs, in the order of its parameters.

    Returns:
        The outputs, in the order of its parameters.

    Raises:
        UnsupportedFunction: the function is not a sequence of plain blocks, or holds something that is not known here.
        ValueError: an input has another shape than its parameter.
    """
    return evaluate_graph(StageGraph.parse(function), inputs)


def evaluate_graph(graph: StageGraph, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
    """Does what `evaluate` does, for a function that is already read as stages.

    Args:
        graph: the function.
        inputs: its inputs, in the order of its parameters. Floats may be wider than the parameters.
        rounded: whether floats are rounded to the type of the output; otherwise they stay in float64.
    """
    values: dict[Any, Array] = {}
    for buffer, array in zip(graph.inputs, inputs, strict=True):
        if tuple(array.shape) != shape_of(buffer):
            raise ValueError(f"input {buffer.name} has shape {array.shape}, not {shape_of(buffer)}")
        values[buffer] = _wide(array)
    for stage in graph.stages:
        values[stage.buffer] = _evaluate_stage(stage, values)
    return [_narrowed(values[buffer], str(buffer.dtype), rounded) for buffer in graph.outputs]


def check_supported(graph: StageGraph) -> None:
    """Checks that `evaluate_graph` knows all that a function holds.

    Raises:
        UnsupportedFunction: the function holds something that is not known here.
    """
    known = (IntImm, FloatImm, Var, TensorLoad, prim.Cast, prim.Not, prim.Select, prim.Div, *_BINARY)
    for stage in graph.stages:
        for expression in (stage.value, *stage.indices):
            for node in walk(expression):
                if isinstance(node, Call) and node.op.name.split(".")[-1] not in _INTRINSICS:
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
            if isinstance(node, Call) and node.op.name.split(".")[-1] in _PARTIAL:
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
                if node.op.name.split(".")[-1] not in {"if_then_else", "fabs", "abs"}:
                    return False
            elif children(node) and not isinstance(
                node, (*_EXACT_NODES, TensorLoad, prim.Cast, prim.FloorDiv, prim.FloorMod, prim.Not)
            ):
                return False
    return True


def _narrowed(array: Array, dtype: str, rounded: bool) -> Array:
    return array.astype(dtype) if rounded or not dtype.startswith("float") else array


def _wide(array: Array) -> Array:
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64 if array.dtype.kind in "iu" else bool)


def _evaluate_stage(stage: Stage, values: Mapping[Any, Array]) -> Array:
    shape = shape_of(stage.buffer)
    kind = np.float64 if str(stage.buffer.dtype).startswith("float") else np.int64
    result = np.full(shape, np.nan if kind is np.float64 else 0, dtype=kind)
    window = _window(stage)
    if window:
        _store(stage, result, _over_window(stage, window, values), {})
        return result
    product = _product_of_loads(stage)
    if product is not None:
        _store(stage, result, _einsum(stage, product, values), {})
        return result
    size = int(np.prod([axis.extent for axis in stage.axes], dtype=np.int64))
    leading = max(stage.spatial, key=lambda axis: axis.extent, default=None)
    slices = 1 if leading is None else min(leading.extent, -(-size // _SLICE))
    if leading is None or slices == 1:
        _store(stage, result, _evaluate_slice(stage, values, {}), {})
        return result
    step = -(-leading.extent // slices)
    for start in range(0, leading.extent, step):
        count = min(step, leading.extent - start)
        axes = tuple(replace(axis, extent=count) if axis is leading else axis for axis in stage.axes)
        part = replace(stage, axes=axes)
        _store(part, result, _evaluate_slice(part, values, {leading.var: start}), {leading.var: start})
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
            value = _einsum(part, product, values)
        elif part.reductions:
            value = _evaluate_slice(part, values, {})
        else:
            value = _Evaluator(rest, values, {})(part.value)
        total = value if total is None else _REDUCE[stage.combine](total, value)
    assert total is not None and stage.identity is not None
    result: Array = _REDUCE[stage.combine](total, _Evaluator(stage.spatial, values, {})(stage.identity))
    return result


def _evaluate_slice(stage: Stage, values: Mapping[Any, Array], offsets: Mapping[Any, int]) -> Array:
    """The value of a stage after its reductions, in a shape that broadcasts to the spatial axes.

    Args:
        stage: the stage.
        values: the arrays by their buffers.
        offsets: the first positions of axes that do not begin at 0.
    """
    evaluator = _Evaluator(stage.axes, values, offsets)
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
    identity = _Evaluator(spatial, values, offsets)(stage.identity)
    result: Array = _REDUCE[stage.combine](combined, identity)
    return result


def _store(stage: Stage, result: Array, value: Array, offsets: Mapping[Any, int]) -> None:
    """Writes the value of a stage over its spatial axes to the elements that its indices name."""
    evaluator = _Evaluator(stage.spatial, {}, offsets)
    indices = tuple(evaluator(index) for index in stage.indices)
    extents = tuple(axis.extent for axis in stage.spatial)
    if not indices:  # a tensor without axes, which a block with an axis of one element may write
        result[...] = np.broadcast_to(value, extents).reshape(())
        return
    result[tuple(np.broadcast_to(index, extents) for index in indices)] = np.broadcast_to(value, extents)


class _Evaluator:
    """Evaluates expressions over a grid of axes. A result broadcasts to the axes' extents."""

    def __init__(self, axes: Sequence[Axis], values: Mapping[Any, Array], offsets: Mapping[Any, int]) -> None:
        self.axes = axes
        self.values = values
        self.ranges = {
            axis.var: (np.arange(axis.extent) + offsets.get(axis.var, 0)).reshape(
                [axis.extent if other is axis else 1 for other in axes]
            )
            for axis in axes
        }

    def __call__(self, node: Any) -> Array:
        if isinstance(node, IntImm):
            return np.asarray(int(node), dtype=bool if str(node.ty.dtype) == "bool" else np.int64)
        if isinstance(node, FloatImm):
            return np.asarray(float(node.value))
        if isinstance(node, Var):
            return self.ranges[node]
        if isinstance(node, TensorLoad):
            return self._load(node)
        if isinstance(node, prim.Cast):
            return self._cast(node)
        if isinstance(node, prim.Not):
            return np.logical_not(self(node.a))
        if isinstance(node, prim.Select):
            return np.where(self(node.condition), self(node.true_value), self(node.false_value))
        if isinstance(node, prim.Div):
            left, right = self(node.a), self(node.b)
            return np.divide(left, right) if left.dtype.kind == "f" else np.fix(left / right).astype(np.int64)
        if type(node) in _BINARY:
            return _BINARY[type(node)](self(node.a), self(node.b))
        if isinstance(node, Call):
            name = node.op.name.split(".")[-1]
            if name in _INTRINSICS:
                with np.errstate(all="ignore"):
                    return _INTRINSICS[name](*(self(argument) for argument in node.args))
            raise UnsupportedFunction(f"the NumPy reference does not know the intrinsic {node.op.name}")
        raise UnsupportedFunction(f"the NumPy reference does not know {type(node).__name__}")

    def _cast(self, node: Any) -> Array:
        value, dtype = self(node.value), str(node.ty.dtype)
        if dtype == "bool":
            return value.astype(bool)
        return value.astype(np.float64) if dtype.startswith("float") else np.trunc(value).astype(np.int64)

    def _load(self, node: Any) -> Array:
        """The values of a load. Indices outside the buffer, which a condition guards, are clipped."""
        array = self.values[node.source]
        indices = [np.clip(self(index), 0, extent - 1) for index, extent in zip(node.indices, array.shape, strict=True)]
        rank = len(self.axes)
        occupied: set[int] = set()
        for index in indices:
            used = {position for position in range(rank) if index.ndim and index.shape[position] > 1}
            if used & occupied:
                gathered: Array = array[tuple(np.broadcast_arrays(*indices))]
                return gathered
            occupied |= used
        # No two dimensions depend on the same axis: indexing them one by one is many times faster.
        order: list[int] = []
        for dimension, index in enumerate(indices):
            flat = index.reshape(-1)
            step = int(flat[1] - flat[0]) if flat.size > 1 else 1
            if step > 0 and np.array_equal(flat, np.arange(flat.size) * step + flat[0]):
                array = array[(slice(None),) * dimension + (slice(int(flat[0]), int(flat[-1]) + 1, step),)]
            else:
                array = np.take(array, flat, axis=dimension)
        shape: list[int] = []
        for index in indices:
            used_axes = [position for position in range(rank) if index.ndim and index.shape[position] > 1]
            shape += [index.shape[position] for position in used_axes]
            order += used_axes
        transposed: Array = array.reshape(shape).transpose(np.argsort(order))
        return transposed.reshape(
            [axis.extent if position in occupied else 1 for position, axis in enumerate(self.axes)]
        )


def _product_of_loads(stage: Stage) -> tuple[Any, Any] | None:
    """The factors of a stage that sums `A[...] * B[...]`, which `einsum` computes; None for any other stage.

    The factors may be conversions of the loads to another type.
    """
    if stage.combine != "sum" or not isinstance(stage.value, prim.Mul):
        return None
    if not (isinstance(stage.identity, FloatImm) and float(stage.identity.value) == 0.0):
        return None
    factors = (stage.value.a, stage.value.b)
    loads = [factor.value if isinstance(factor, prim.Cast) else factor for factor in factors]
    return factors if all(isinstance(load, TensorLoad) for load in loads) else None


def _einsum(stage: Stage, product: tuple[Any, Any], values: Mapping[Any, Array]) -> Array:
    """The sum of a product of two loads, in a shape that broadcasts to the spatial axes."""
    operands: list[Any] = []
    for factor in product:
        array = _Evaluator(stage.axes, values, {})(factor)
        labels = [position for position in range(len(stage.axes)) if array.shape[position] > 1]
        operands += [array.reshape([array.shape[position] for position in labels]), labels]
    present = set(operands[1]) | set(operands[3])
    kept = [position for position, axis in enumerate(stage.axes) if not axis.reduce and position in present]
    result = np.einsum(*operands, kept, optimize=True)
    # A reduced axis that neither operand depends on adds the same term once per position.
    for position, axis in enumerate(stage.axes):
        if axis.reduce and position not in present:
            result = result * axis.extent
    return np.asarray(result).reshape(
        [axis.extent if position in kept else 1 for position, axis in enumerate(stage.axes) if not axis.reduce]
    )
