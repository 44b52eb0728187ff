"""Expressions: traversals, rewrites, coefficients, tiles and nested loops."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind

from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.expressions import (
    children,
    coefficients,
    loads_in,
    rebuild,
    rewrite_loads,
    simplified,
    substitute,
    tile_start,
    transform,
    transform_statement,
    unraveled,
    variables,
    walk,
)
from stormdrop.ir.stages import intermediate, variable


def number(expression: object) -> int:
    return int(Analyzer().simplify(expression))


@pytest.mark.parametrize(("size", "extent"), [(4, 12), (4, 13), (5, 5), (3, 17), (1, 2)])
def test_tiles_cover_an_axis_and_stay_inside(size: int, extent: int) -> None:
    tiles = -(-extent // size)
    starts = [number(tile_start(IntImm("int32", tile), size, extent, tiles)) for tile in range(tiles)]
    assert all(0 <= start <= extent - size for start in starts)
    assert {start + inner for start in starts for inner in range(size)} == set(range(extent))
    assert len(set(starts)) == tiles


def test_more_tiles_than_needed_repeat_the_last() -> None:
    assert [number(tile_start(IntImm("int32", tile), 4, 10, 4)) for tile in range(4)] == [0, 4, 6, 6]


@pytest.mark.parametrize("extents", [[7], [2, 3], [4, 1, 5]])
def test_unraveled_is_numpys(extents: list[int]) -> None:
    for position in range(int(np.prod(extents))):
        indices = [number(index) for index in unraveled(IntImm("int32", position), extents)]
        assert indices == [int(index) for index in np.unravel_index(position, extents)]


I, J = variable("i"), variable("j")
X, Y = (intermediate(name, (64, 64), "float32") for name in "xy")

KINDS = [
    X[I, J] + Y[J, I],
    tirx.exp(X[I, 0]),
    prim.Select(I < 3, X[I, J], Y[I, J]),
    prim.Cast("int32", X[I, J]),
    prim.Not(I < J),
    prim.And(I < 3, J < 3),
    tirx.if_then_else(I < 3, X[I, J], 0.0),
]


@pytest.mark.parametrize("expression", KINDS, ids=str)
def test_rebuilding_from_the_operands_is_the_identity(expression: object) -> None:
    assert tvm_ffi.structural_equal(rebuild(expression, children(expression)), expression)


def test_what_stages_do_not_hold_is_refused() -> None:
    with pytest.raises(UnsupportedFunction, match="Ramp"):
        list(walk(X[I, prim.Ramp(J, 1, 4)]))


def test_walk_yields_parents_first() -> None:
    kinds = [type(node).__name__ for node in walk(X[I + 1, J] * 2.0)]
    assert kinds == ["Mul", "TensorLoad", "Add", "Var", "IntImm", "Var", "FloatImm"]


@pytest.mark.parametrize("expression", KINDS, ids=str)
def test_loads_are_those_that_walk_yields(expression: object) -> None:
    """`loads_in` goes through TVM's own traversal."""
    walked = [node for node in walk(expression) if isinstance(node, TensorLoad)]
    loads = loads_in(expression)
    assert len(loads) == len(walked)
    assert all(load.same_as(node) for load, node in zip(loads, walked, strict=True))


def test_variables_are_indices_and_not_buffers() -> None:
    assert variables(X[I, 0] + Y[0, J]) == {I, J}


def test_substitution_is_simultaneous() -> None:
    assert str(substitute(I + 2 * J, {I: J, J: I})) == "j + 2 * i"


@pytest.mark.parametrize("wide", [Var("w", "int64"), prim.Cast("int64", I), IntImm("int64", 3)])
def test_a_variable_is_replaced_by_an_expression_of_its_own_type(wide: object) -> None:
    """The index of a resized image comes from a float and has 64 bits, and every operand beside it has 32."""
    index = substitute(I * 4 + J, {I: wide, J: prim.Min(J, IntImm("int32", 7))})
    assert str(index.ty.dtype) == "int32" and {str(item.ty.dtype) for item in (index.a, index.b)} == {"int32"}
    w = Var("w", "int64")
    assert str(substitute(prim.Add(w, IntImm("int64", 1)), {w: I}).ty.dtype) == "int64"


def test_transform_does_not_enter_what_it_replaced() -> None:
    doubled = transform(I + J, lambda node: node * 2 if isinstance(node, Var) else None)
    assert str(doubled) == "i * 2 + j * 2"


def test_what_does_not_change_is_the_same_object() -> None:
    expression = X[I, J] + 1.0
    assert transform(expression, lambda node: None) is expression
    assert substitute(expression, {variable("k"): I}) is expression


def test_loads_are_rewritten_after_the_loads_in_their_indices() -> None:
    """An index never holds a load in a stage, but an inlined one may until it is checked."""
    table = intermediate("table", (64,), "int32")
    seen: list[str] = []

    def replacement(load: TensorLoad) -> object:
        seen.append(str(load))
        return I if load.source.same_as(table) else None

    assert str(rewrite_loads(X[table[J], 0], replacement)) == "x[i, 0]"
    assert seen == ["table[j]", "x[i, 0]"]


def test_indices_of_loads_are_simplified() -> None:
    assert str(simplified(X[prim.Add(I, IntImm("int32", 0)), J] * 1.5)) == "x[i, j] * T.float32(1.5)"


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_indices_of_loads_are_simplified_by_the_extents_of_variables(dtype: str) -> None:
    """Those of a model may have 64 bits."""
    i, j = Var("i", dtype), Var("j", dtype)
    rest = prim.FloorMod(i, IntImm(dtype, 8))
    load = X[prim.Select(prim.Not(prim.LT(j, i)), rest, j), rest]
    (first, second) = simplified(load, {i: 1, j: 5}).indices
    assert isinstance(first, IntImm) and isinstance(second, IntImm) and str(first.ty.dtype) == dtype
    assert str(simplified(load, {i: 8, j: 5})).endswith(", i]")
    assert "8" in str(simplified(load, {i: 9, j: 5}))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (4 * I + J + 1, {I: 4, J: 1}),
        ((I + J) * 3 - I * 2, {I: 1, J: 3}),
        (I - I, {I: 0}),
        (J % 4 + I, None),
        (I * J, None),
        (prim.Min(I, J), None),
        (IntImm("int32", 3), {}),
    ],
    ids=str,
)
def test_coefficients(expression: object, expected: dict[object, int] | None) -> None:
    assert coefficients(expression, {I, J}) == expected


def test_other_variables_count_as_constants() -> None:
    assert coefficients(4 * I + J % 4, {I}) == {I: 4}
    assert coefficients(I * J, {I}) is None


def test_statements_are_rebuilt_from_their_stores_and_loops() -> None:
    function = operators.matmul(4, 5, 6).function
    stores: list[str] = []

    def store(node: object) -> object:
        assert isinstance(node, BufferStore)
        stores.append(str(node.buffer.name))
        return node

    def unrolled(loop: For) -> For:
        return For(loop.loop_var, loop.min, loop.extent, ForKind.UNROLLED, loop.body)

    body = transform_statement(function.body, store, unrolled)
    assert stores == ["y0", "y0"]  # the sum and its start
    assert str(body).count("T.unroll") == 3
    assert tvm_ffi.structural_equal(transform_statement(function.body, lambda node: node), function.body)
