"""Which functions are attentions: a product, a softmax along its columns, and a product with what that gives.

    product[h, i, j]  = sum over d of query[h, i, d] key[h, j, d]
    score[h, i, j]    = any function of product[h, i, j], such as its scale and a mask
    output[h, i, c]   = sum over j of softmax(score[h, i, ...])[j] value[h, j, c]

h stands for any number of axes. Queries, keys and values are read from inputs, each with any index. Queries and keys
may be multiplied by numbers. A softmax that is no number, because nothing may be attended to, may be 0 instead.
Queries, keys, values and what the softmax gives are float32, or all of them are float16 or bfloat16; everything else is
float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.tirx import BufferStore
from tvm_ffi import structural_equal

from ....errors import UnsupportedFunction
from ....ir.contractions.contraction import fused_epilogue
from ....ir.dtypes import BFLOAT16, FLOAT16
from ....ir.expressions import Expr, loads_in, rewrite_loads, substitute, variables
from ....ir.stages import Axis, Stage, StageGraph

_COMBINED = ["sum", "max", "sum", "sum"]  # of the products, and of the softmax between them


@dataclass(frozen=True, eq=False)
class AttentionParts:
    """A function as an attention. All parts are over the same axes.

    Attributes:
        parameters: The parameters of the function.
        heads: The axes of which each position has queries, keys and values of its own, or shares them.
        row: The axis of the queries.
        key: That of the keys.
        depth: That of the elements of a query and of a key.
        column: That of the elements of a value.
        query: A load, of heads, row and depth.
        keys: A load, of heads, key and depth.
        values: A load, of heads, key and column.
        product: The buffer that stands for the products in `score`.
        score: What a product becomes before the softmax.
        sums: The buffer that stands for the sums over the keys in what `store` writes.
        store: What writes the output, over heads, row and column.
        guarded: Whether the weights of a row are 0 if they are no numbers.
        dtype: The type of queries, keys and values, to which the weights are rounded.
    """

    parameters: tuple[Any, ...]
    heads: tuple[Axis, ...]
    row: Axis
    key: Axis
    depth: Axis
    column: Axis
    query: Any
    keys: Any
    values: Any
    product: Any
    score: Expr
    sums: Any
    store: Stage
    guarded: bool
    dtype: str

    def scored(self, product: Expr, position: Mapping[Any, Expr]) -> Expr:
        """What a product becomes before the softmax, at a position of the axes."""
        return _with_element(self.score, position, self.product, product)

    def divided(self, element: Expr, total: Expr) -> Expr:
        """A sum of weighted values, by the sum of the weights; 0 if that is guarded and no number."""
        zero = FloatImm("float32", 0.0)
        return tirx.if_then_else(total > zero, element / total, zero) if self.guarded else element / total

    def stored(self, element: Expr, position: Mapping[Any, Expr]) -> Any:
        """What writes the output where an element is the sum over the keys, at a position of the axes."""
        value = _with_element(self.store.value, position, self.sums, element)
        return BufferStore(self.store.buffer, value, [substitute(index, position) for index in self.store.indices])


def _with_element(value: Expr, position: Mapping[Any, Expr], buffer: Any, element: Expr) -> Expr:
    """A value at a position of axes, with an element in place of what it reads of a buffer."""
    return rewrite_loads(substitute(value, position), lambda load: element if load.source.same_as(buffer) else None)


def find_attention(graph: StageGraph) -> AttentionParts:
    """Reads an attention off a function.

    Args:
        graph: The function.

    Raises:
        UnsupportedFunction: The function is none, or not in one of these types.

    Example:
        >>> from stormdrop import operators
        >>> parts = find_attention(operators.attention(b=2, m=32, n=48, k=16, v=8).graph)
        >>> parts.row.extent, parts.key.extent, parts.depth.extent, parts.column.extent
        (32, 48, 16, 8)
    """
    graph = graph.inlined(lambda stage: False)
    reductions = [stage for stage in graph.stages if stage.combine is not None]
    if [stage.combine for stage in reductions] != _COMBINED:
        raise UnsupportedFunction("no two products with a softmax between them")
    product, top, total, last = reductions
    store, fused = fused_epilogue(graph, last)
    if len(graph.stages) != len(fused) + 3 or any(stage.buffer in graph.parameters for stage in reductions[:3]):
        raise UnsupportedFunction("it computes more than an attention")
    if any(str(stage.buffer.dtype) != "float32" for stage in reductions):
        raise UnsupportedFunction("it does not compute in float32")
    key = _only(top.reductions)
    score = substitute(top.value, _first(top.reductions, key))
    weight = tirx.exp(score - _plain(top))
    of_total = dict(zip(_variables(total.spatial), _variables(top.spatial), strict=False))
    if not structural_equal(substitute(total.value, of_total | _key_of(total, key)), weight):
        raise UnsupportedFunction("the sum of a row is not that of a softmax")
    summed = substitute(_plain(total), of_total)
    of_last = _positions(last, total.buffer, _variables(top.spatial)) | _key_of(last, key)
    columns = [axis for axis in last.spatial if axis.var not in of_last]
    column = _only(columns)
    of_last |= _first(columns, column)
    values, guarded, rounded = _other_factor(substitute(last.value, of_last), weight, summed)
    element = _only_load(score, product.buffer)
    query, keys, depth, scale = _factors(product, element, key)
    if scale != 1.0:
        score = _with_element(score, {}, product.buffer, element * FloatImm("float32", scale))
    shared = variables(keys) | variables(values)
    rows = [axis for axis in top.spatial if axis.var not in shared]
    if not rows or {load.source for load in (query, keys, values)} & {stage.buffer for stage in graph.stages}:
        raise UnsupportedFunction("no rows share keys and values that are inputs")
    dtypes = {rounded, *(str(load.source.dtype) for load in (query, keys, values))}
    if len(dtypes) > 1 or not dtypes <= {"float32", FLOAT16, BFLOAT16}:
        raise UnsupportedFunction("what is multiplied is not in one type")
    heads = tuple(axis for axis in top.spatial if axis is not rows[-1])
    indices = tuple(substitute(index, of_last) for index in store.indices)
    store = replace(store, indices=indices, value=substitute(store.value, of_last))
    if {load.source for load in store.loads()} & {stage.buffer for stage in reductions[:3]}:
        raise UnsupportedFunction("what follows reads the scores")
    return AttentionParts(
        graph.parameters, heads, rows[-1], key, depth, column, query, keys, values, product.buffer, score,
        last.buffer, store, guarded, rounded,
    )  # fmt: skip


def _variables(axes: Sequence[Axis]) -> tuple[Any, ...]:
    return tuple(axis.var for axis in axes)


def _only(axes: Sequence[Axis]) -> Axis:
    """The axis that has more than one position; the last one if none has."""
    longer = [axis for axis in axes if axis.extent > 1] or list(axes)[-1:]
    if len(longer) != 1:
        raise UnsupportedFunction("keys, columns and the depth are not one axis each")
    return longer[0]


def _first(axes: Sequence[Axis], kept: Axis) -> dict[Any, Expr]:
    """The only position of each axis but one."""
    return {axis.var: IntImm("int32", 0) for axis in axes if axis is not kept}


def _key_of(stage: Stage, key: Axis) -> dict[Any, Expr]:
    """The reduction of a stage as the key."""
    own = _only(stage.reductions)
    if own.extent != key.extent:
        raise UnsupportedFunction("the sums are not over all keys")
    return {**_first(stage.reductions, own), own.var: key.var}


def _plain(stage: Stage) -> Any:
    """The element that a stage writes, the indices of which are its axes."""
    if tuple(stage.indices) != _variables(stage.spatial):
        raise UnsupportedFunction("the rows are laid out otherwise")
    return stage.buffer[stage.indices]


def _only_load(value: Expr, buffer: Any) -> Any:
    """The one element of a buffer that a value reads."""
    loads = [load for load in loads_in(value) if load.source.same_as(buffer)]
    if not loads or any(list(load.indices) != list(loads[0].indices) for load in loads):
        raise UnsupportedFunction("a row reads another one")
    return loads[0]


def _positions(stage: Stage, buffer: Any, variables_of_rows: Sequence[Any]) -> dict[Any, Expr]:
    """The axes of a stage by the variables of the rows, from the row of a buffer that it reads."""
    indices = list(_only_load(stage.value, buffer).indices)
    if len(set(indices)) != len(indices) or not set(indices) <= set(_variables(stage.spatial)):
        raise UnsupportedFunction("the output has rows of another order")
    return dict(zip(indices, variables_of_rows, strict=True))


def _other_factor(value: Expr, weight: Expr, summed: Expr) -> tuple[Any, bool, str]:
    """What the weight of a softmax is multiplied by, whether the weight is 0 instead of no number, and its type."""
    one = FloatImm("float32", 1.0)
    normalized = (weight / summed, weight * (one / summed))
    if isinstance(value, prim.Mul):
        for factor, other in ((value.a, value.b), (value.b, value.a)):
            rounded, load = _without_cast(factor), _without_cast(other)
            exact = _without_cast(rounded)
            inner = _without_guard(exact)
            if isinstance(load, TensorLoad) and any(structural_equal(inner, each) for each in normalized):
                return load, inner is not exact, str(rounded.ty.dtype)
    raise UnsupportedFunction("the second product is not that of a softmax and an input")


def _without_cast(value: Expr) -> Expr:
    """What is converted; a value that is not converted as it is."""
    return value.value if isinstance(value, prim.Cast) else value


def _without_guard(value: Expr) -> Expr:
    """The x of `0 if x is no number else x`; any other value as it is."""
    if not isinstance(value, prim.Select) or not structural_equal(value.true_value, FloatImm("float32", 0.0)):
        return value
    condition = value.condition
    if isinstance(condition, prim.LT) and structural_equal(condition.a, tirx.const(0, condition.a.ty.dtype)):
        condition = condition.b
    condition = condition.value if isinstance(condition, prim.Cast) else condition
    guarded = structural_equal(condition, tirx.isnan(value.false_value))
    return value.false_value if guarded else value


def _factors(product: Stage, element: Any, key: Axis) -> tuple[Any, Any, Axis, float]:
    """The query, the key and the depth of the product that is read as an element, and what it is multiplied by."""
    _plain(product)
    depth = _only(product.reductions)
    positions = dict(zip(_variables(product.spatial), element.indices, strict=True))
    loads, scale = _multiplied(substitute(product.value, positions | _first(product.reductions, depth)))
    if len(loads) != 2:
        raise UnsupportedFunction("the first product is not one of two inputs")
    query, keys = reversed(loads) if key.var in variables(loads[0]) else loads
    if key.var in variables(query) or (key.var not in variables(keys) and key.extent > 1):
        raise UnsupportedFunction("queries depend on the key, or keys do not")
    return query, keys, depth, scale


def _multiplied(value: Expr) -> tuple[list[Any], float]:
    """The elements whose product a value is, and the product of the numbers in it."""
    if isinstance(value, FloatImm):
        return [], float(value.value)
    if isinstance(load := _without_cast(value), TensorLoad):
        return [load], 1.0
    if not isinstance(value, prim.Mul):
        raise UnsupportedFunction("what is multiplied is computed here")
    (left, first), (right, second) = _multiplied(value.a), _multiplied(value.b)
    return left + right, first * second
