"""The roles of axes and stages around a contraction, and what is fused, inlined or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import te, tirx

from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.contractions.contraction import (
    Contraction,
    contiguous,
    find_contraction,
    fused_epilogue,
    is_contraction,
    multiplied_loads,
)
from stormdrop.ir.expressions import walk
from stormdrop.ir.inlining import inline_well, inlines_well, worth_copying
from stormdrop.ir.stages import Axis, Stage, StageGraph, intermediate, variable
from stormdrop.ir.workload import Workload


def tensor(*shape: int, name: str = "x", dtype: str = "float32") -> Any:
    return te.placeholder(shape, dtype, name=name)


def product(a: Any, b: Any) -> Any:
    k = te.reduce_axis((0, a.shape[1]), name="k")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")


def graph_of(*tensors: Any) -> StageGraph:
    """The stages of a function in normal form: buffers x0, x1, ... are inputs, t0, t1, ... intermediates."""
    return Workload.create("function", te.create_prim_func(list(tensors))).graph


def roles_of(workload: Workload) -> Contraction:
    return workload.contraction


def names(axes: tuple[Axis, ...]) -> list[str]:
    return [axis.name for axis in axes]


def stage_of(graph: StageGraph, buffer: str) -> Stage:
    return next(stage for stage in graph.stages if stage.buffer.name == buffer)


@pytest.mark.parametrize(
    ("workload", "column", "rows", "outer", "operand", "flat"),
    [
        (operators.matmul(5, 6, 7), "i1", ["i0"], [], "x1", False),
        (operators.dense(5, 6, 7), "i1", ["i0"], [], "x1", False),
        (operators.batch_matmul(2, 5, 6, 7), "i2", ["i1"], ["i0"], "x1", False),
        # The window moves along rows and columns of the image: they cannot be one loop.
        (operators.conv2d(1, 8, 9, 4, 6, 3, 3), "i3", ["i1", "i2"], ["i0"], "x1", False),
        (operators.conv2d(1, 8, 9, 4, 6, 3, 3, layout="NCHW"), "i1", ["i2", "i3"], ["i0"], "x1", False),
        # A 1x1 window reads where it writes.
        (operators.conv2d(1, 8, 9, 4, 6, 1, 1), "i3", ["i1", "i2"], ["i0"], "x1", True),
        (operators.conv2d(2, 8, 9, 4, 6, 1, 1), "i3", ["i0", "i1", "i2"], [], "x1", True),
        (operators.conv2d(2, 8, 9, 4, 6, 1, 1, stride=2), "i3", ["i1", "i2"], ["i0"], "x1", False),
        (operators.depthwise_conv2d(1, 8, 9, 4, 3, 3), "i3", ["i1", "i2"], ["i0"], "x1", False),
        # Only the data depends on the last axis, the column, and it depends on all others, too: no axis reuses it.
        (operators.depthwise_conv2d(1, 8, 9, 4, 3, 3, layout="NCHW"), "i3", ["i2"], ["i0", "i1"], "x0", False),
        (operators.conv2d(1, 8, 9, 4, 6, 3, 3, groups=2), "column", ["i1", "i2"], ["i0", "group"], "x1", False),
    ],
    ids=lambda value: value.name if isinstance(value, Workload) else "",
)
def test_roles_of_axes(
    workload: Workload, column: str, rows: list[str], outer: list[str], operand: str, flat: bool
) -> None:
    roles = roles_of(workload)
    assert roles.column.name == column
    assert names(roles.rows) == rows
    assert names(roles.outer) == outer
    assert roles.operand.source.name == operand
    assert roles.flat is flat


def test_the_column_axis_of_a_grouped_convolution_is_split_into_groups_and_their_columns() -> None:
    roles = roles_of(operators.conv2d(1, 8, 9, 4, 6, 3, 3, groups=2))
    assert (roles.outer[-1].extent, roles.column.extent) == (2, 3)
    assert str(roles.epilogue.indices[-1]) == "group * 3 + column"
    data = next(load for load in roles.stage.loads() if load.source.name == "x0")
    assert str(data.indices[-1]) == "group * 2 + r6"


def test_axes_of_an_upsampled_image_are_split_into_pixels_and_the_places_in_a_window() -> None:
    x, w = tensor(1, 5, 7, 16), tensor(2, 3, 24, 16, name="w")
    c = te.reduce_axis((0, 16), name="c")
    y = te.compute(
        (1, 10, 21, 24), lambda n, h, v, o: te.sum(x[n, h // 2, v // 3, c] * w[h % 2, v % 3, o, c], axis=c), name="y"
    )
    contraction = find_contraction(graph_of(x, w, y), (1,))
    assert contraction.column.extent == 24
    assert [axis.extent for axis in contraction.rows] == [5, 7]
    assert [axis.extent for axis in contraction.outer] == [1, 2, 3]


def test_constant_weights_are_packed_because_columns_are_not_contiguous() -> None:
    dense, matmul = roles_of(operators.dense(5, 6, 7)), roles_of(operators.matmul(5, 6, 7))
    assert (dense.must_pack, dense.constant) == (True, 1)
    assert (matmul.must_pack, matmul.constant) == (False, None)
    assert dense.packable is not None and matmul.packable is not None


def test_an_operand_that_every_axis_moves_is_not_packed() -> None:
    roles = roles_of(operators.depthwise_conv2d(1, 8, 9, 4, 3, 3, layout="NCHW"))
    assert (roles.packable, roles.must_pack, roles.constant) == (None, False, None)


def test_a_constant_that_another_stage_reads_too_is_not_laid_out_ahead_of_time() -> None:
    a, b = tensor(5, 7, name="a"), tensor(7, 6, name="b")
    tensors = [a, b, product(a, b), te.compute((7, 6), lambda i, j: b[i, j] + 1.0)]
    workload = Workload.create("shared", te.create_prim_func(tensors), constants=(1,))
    assert roles_of(workload).constant is None


def test_the_constant_operand_has_the_columns_on_either_side_of_the_product() -> None:
    """A product W X with constant W has its columns in the rows of W."""
    w, x = tensor(6, 7, name="w"), tensor(7, 5)
    function = te.create_prim_func([w, x, product(w, x)])
    assert roles_of(Workload.create("constant", function, constants=(0,))).column.name == "i0"
    assert roles_of(Workload.create("variable", function)).column.name == "i1"


def test_of_several_axes_that_only_the_constant_has_the_longest_is_the_column() -> None:
    x, w, k = tensor(5, 7), tensor(8, 3, 7, name="w"), te.reduce_axis((0, 7), name="k")
    y = te.compute((5, 8, 3), lambda i, long, short: te.sum(x[i, k] * w[long, short, k], axis=k))
    roles = roles_of(Workload.create("constant", te.create_prim_func([x, w, y]), constants=(1,)))
    assert roles.column.extent == 8
    assert names(roles.rows) == ["i0"]


@pytest.mark.parametrize(("width", "flat"), [(6, True), (9, False)])
def test_rows_are_one_loop_only_if_they_are_whole_dimensions(width: int, flat: bool) -> None:
    x, w, k = tensor(5, width, 7), tensor(7, 4, name="w"), te.reduce_axis((0, 7), name="k")
    y = te.compute((5, 6, 4), lambda i, j, o: te.sum(x[i, j, k] * w[k, o], axis=k))
    assert find_contraction(graph_of(x, w, y), ()).flat is flat


def test_unit_reductions_vanish_but_one() -> None:
    assert names(roles_of(operators.conv2d(1, 8, 9, 4, 6, 1, 1)).stage.reductions) == ["r6"]
    assert len(roles_of(operators.conv2d(1, 8, 9, 1, 6, 1, 1)).stage.reductions) == 1


def test_bias_residual_and_activation_become_one_epilogue() -> None:
    roles = roles_of(operators.dense(5, 6, 7, bias=1, act="gelu", residual=1))
    assert {load.source.name for load in roles.epilogue.loads()} == {roles.stage.buffer.name, "x2", "x3"}
    assert roles.epilogue.buffer.name == "y0"
    assert roles.epilogue.axes == roles.stage.spatial
    assert (roles.before, roles.after) == ((), ())


def test_without_a_consumer_the_epilogue_copies_the_result() -> None:
    roles = roles_of(operators.matmul(5, 6, 7))
    assert roles.epilogue.buffer.same_as(roles.stage.buffer)
    assert str(roles.epilogue.value) == "y0[i0, i1]"


def test_padding_is_the_prologue() -> None:
    roles = roles_of(operators.conv2d(1, 8, 9, 4, 6, 3, 3, pad=1))
    assert roles.prologue is not None
    assert roles.before == (roles.prologue,)
    assert roles.prologue.buffer.name == "t0"
    assert roles_of(operators.conv2d(1, 8, 9, 4, 6, 3, 3)).prologue is None


def test_padding_that_is_an_output_is_no_prologue() -> None:
    a, b = tensor(5, 6, name="a"), tensor(7, 4, name="b")
    padded = te.compute((5, 7), lambda i, k: tirx.if_then_else(k < 6, a[i, k], 0.0), name="padded")
    roles = find_contraction(graph_of(a, b, padded, product(padded, b)), ())
    assert roles.prologue is None
    assert len(roles.before) == 1


def transposed(c: Any) -> Any:
    return te.compute((6, 5), lambda j, i: c[i, j] * 2.0)


def broadcast(c: Any) -> Any:
    return te.compute((3, 5, 6), lambda s, i, j: c[i, j] * 2.0)


def with_unit_axis(c: Any) -> Any:
    return te.compute((1, 5, 6), lambda s, i, j: c[i, j] * 2.0)


def minus_first_column(c: Any) -> Any:
    return te.compute((5, 6), lambda i, j: c[i, j] - c[i, 0])


def part(c: Any) -> Any:
    return te.compute((5, 4), lambda i, j: c[i, j] * 2.0)


def row_maximum(c: Any) -> Any:
    k = te.reduce_axis((0, 6), name="k")
    return te.compute((5,), lambda i: te.max(c[i, k], axis=k))


@pytest.mark.parametrize(
    ("consumer", "is_fused"),
    [
        (transposed, True),
        (with_unit_axis, True),
        (broadcast, False),
        (minus_first_column, False),
        (part, False),
        (row_maximum, False),
    ],
)
def test_only_a_consumer_that_takes_each_result_once_is_fused(consumer: Callable[[Any], Any], is_fused: bool) -> None:
    a, b = tensor(5, 7, name="a"), tensor(7, 6, name="b")
    roles = find_contraction(graph_of(a, b, consumer(product(a, b))), ())
    assert roles.epilogue.buffer.same_as(roles.stage.buffer) is not is_fused
    assert len(roles.after) == (0 if is_fused else 1)


def test_a_fused_epilogue_stores_where_its_consumer_did() -> None:
    a, b = tensor(5, 7, name="a"), tensor(7, 6, name="b")
    roles = find_contraction(graph_of(a, b, transposed(product(a, b))), ())
    assert [str(index) for index in roles.epilogue.indices] == ["i1", "i0"]
    assert str(roles.epilogue.value) == "t0[i0, i1] * T.float32(2.0)"


def test_a_result_with_two_consumers_or_that_is_an_output_is_not_fused() -> None:
    a, b = tensor(5, 7, name="a"), tensor(7, 6, name="b")
    c = product(a, b)
    for tensors in ([a, b, c, transposed(c)], [a, b, transposed(c), part(c)]):
        roles = find_contraction(graph_of(*tensors), ())
        assert roles.epilogue.buffer.same_as(roles.stage.buffer)


def test_fusing_nothing_leaves_a_copy() -> None:
    a, b = tensor(5, 7, name="a"), tensor(7, 6, name="b")
    graph = graph_of(a, b, transposed(product(a, b)))
    stage = stage_of(graph, "t0")
    assert [item.buffer.name for item in fused_epilogue(graph, stage)[1]] == ["t0", "y0"]
    store, replaced = fused_epilogue(graph, stage, alone=True)
    assert replaced == [stage]
    assert store.buffer.same_as(stage.buffer)


def test_what_the_epilogue_reads_runs_before_it() -> None:
    """A residual that is computed after the product, and is an output itself, moves before it."""
    a, b, r = tensor(5, 7, name="a"), tensor(7, 6, name="b"), tensor(5, 6, name="r")
    c = product(a, b)
    residual = te.compute((5, 6), lambda i, j: te.exp(r[i, j]), name="residual")
    y = te.compute((5, 6), lambda i, j: c[i, j] + residual[i, j], name="y")
    graph = graph_of(a, b, r, y, residual)
    position = {stage.buffer.name: number for number, stage in enumerate(graph.stages)}
    roles = find_contraction(graph, ())
    (moved,) = roles.before
    assert position[moved.buffer.name] > position[roles.stage.buffer.name]
    assert moved.buffer in {load.source for load in roles.epilogue.loads()}


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        (lambda a, b: [a, b, te.compute((5, 7), lambda i, j: a[i, j] + 1.0)], "0 contractions"),
        (lambda a, b: [a, b, product(a, b), transposed(product(a, b))], "2 contractions"),
        (lambda a, b: [a, b, matrix_vector(a, b)], "no rows to tile"),
    ],
)
def test_refusals(tensors: Callable[[Any, Any], list[Any]], reason: str) -> None:
    graph = graph_of(*tensors(tensor(5, 7, name="a"), tensor(7, 6, name="b")))
    with pytest.raises(UnsupportedFunction, match=reason):
        find_contraction(graph, ())


def matrix_vector(a: Any, b: Any) -> Any:
    k = te.reduce_axis((0, 7), name="k")
    return te.compute((5,), lambda i: te.sum(a[i, k] * b[k, 0], axis=k))


def square_sum(a: Any) -> Any:
    k = te.reduce_axis((0, 7), name="k")
    return te.compute((5,), lambda i: te.sum(a[i, k] * a[i, k], axis=k))


def test_a_contraction_sums_the_product_of_different_buffers_in_their_own_type() -> None:
    a, b = tensor(5, 7, name="a"), tensor(7, 6, name="b")
    (plain,) = graph_of(a, b, product(a, b)).stages
    assert is_contraction(plain)
    (squares,) = graph_of(a, square_sum(a)).stages
    assert multiplied_loads(squares) is None
    (widened, *_) = operators.matmul(5, 6, 7, dtype="float16").graph.stages
    assert not is_contraction(widened)
    loads = multiplied_loads(widened)
    assert loads is not None and [load.source.name for load in loads] == ["x0", "x1"]


def test_a_dot_product_has_no_spatial_axis_and_is_no_contraction() -> None:
    a, b, k = tensor(7, name="a"), tensor(7, name="b"), te.reduce_axis((0, 7), name="k")
    (dot,) = graph_of(a, b, te.compute((), lambda: te.sum(a[k] * b[k], axis=k))).stages
    assert multiplied_loads(dot) is None


def test_contiguous_means_one_element_per_step() -> None:
    i, j, buffer = variable("i"), variable("j"), intermediate("x", (64, 64), "float32")
    assert contiguous(buffer[i, j], j)
    assert contiguous(buffer[i, j + 3], j)
    assert not contiguous(buffer[i, j], i)
    assert not contiguous(buffer[i, j * 2], j)
    assert not contiguous(buffer[j, j], j)
    assert not contiguous(buffer[i, j // 2], j)


def test_values_that_are_worth_copying() -> None:
    i, buffer = variable("i"), intermediate("x", (64,), "float32")
    load = buffer[i]
    assert worth_copying(tirx.exp(load), loads=1, reduced=False)
    assert not worth_copying(tirx.exp(load), loads=2, reduced=False)
    padded = tirx.if_then_else(i < 5, load, 0.0)
    assert worth_copying(padded, loads=2, reduced=False)
    assert not worth_copying(padded, loads=1, reduced=True)


def test_copies_have_64_nodes_at_most() -> None:
    i, buffer = variable("i"), intermediate("x", (64,), "float32")
    shorter = buffer[i] + buffer[i] + buffer[i] + buffer[i] + 1.0
    longer = buffer[i] + buffer[i] + buffer[i] + buffer[i] + buffer[i] + 1.0
    assert [len(list(walk(value))) for value in (shorter, longer)] == [13, 16]
    assert worth_copying(longer, loads=4, reduced=False)
    assert not worth_copying(shorter, loads=5, reduced=False)


def test_roundings_are_cheap_and_equal_copies_may_be_longer() -> None:
    i, buffer = variable("i"), intermediate("x", (64,), "float32")
    assert worth_copying(tirx.nearbyint(buffer[i]), loads=2, reduced=False)
    value = buffer[i]
    while len(list(walk(value))) <= 40:
        value = value + buffer[i]
    assert not worth_copying(value, loads=2, reduced=False)
    assert worth_copying(value, loads=2, reduced=False, merged=True)
    assert not worth_copying(value, loads=8, reduced=False, merged=True)
    assert not worth_copying(tirx.exp(buffer[i]), loads=2, reduced=False, merged=True)


def test_a_long_gate_without_calls_is_computed_once_as_well() -> None:
    """It has one load, to which each row comes back: LLVM computes it for each of them."""
    x, image = tensor(1, 16), tensor(9, 16, name="z")
    gate = te.compute((1, 16), lambda i, j: sum([x[i, j] * 2.0 for _ in range(8)]), name="gate")
    graph = graph_of(x, image, te.compute((9, 16), lambda i, j: gate[0, j] * image[i, j]))
    assert 64 < 2 * len(list(walk(graph.stages[0].value))) < 256
    assert not inlines_well(graph, graph.stages[0])


def test_a_value_whose_two_readers_become_one_is_inlined() -> None:
    """As in a quantised activation: x round(x + 3) by three stages, of which the rounded sum has one reader."""
    x = tensor(5, 7)
    long = te.compute((5, 7), lambda i, j: sum([x[i, j] * 2.0 for _ in range(8)]), name="long")
    rounded = te.compute((5, 7), lambda i, j: tirx.nearbyint(long[i, j] + 3.0), name="rounded")
    graph = graph_of(x, te.compute((5, 7), lambda i, j: long[i, j] * rounded[i, j], name="product"))
    assert not inlines_well(graph, graph.stages[0]), "two stages read it"
    assert len(inline_well(graph).stages) == 1
    shifted = te.compute((4, 7), lambda i, j: long[i + 1, j] * rounded[i, j], name="shifted")
    assert len(inline_well(graph_of(x, shifted)).stages) == 2, "two elements are read at a time"


def test_a_gate_that_all_rows_are_multiplied_by_is_computed_once() -> None:
    """As in squeeze-and-excite: a sigmoid of each channel, and a product with each pixel."""
    data, weights, image = tensor(1, 4), tensor(4, 16, name="w"), tensor(9, 16, name="z")
    gate = te.compute((1, 16), lambda i, j: te.sigmoid(product(data, weights)[i, j]), name="gate")
    scaled = te.compute((9, 16), lambda i, j: gate[0, j] * image[i, j], name="scaled")
    contraction = find_contraction(graph_of(data, weights, image, scaled), (1,))
    (after,) = contraction.after
    assert ("sigmoid" in str(contraction.epilogue.value), "sigmoid" in str(after.value)) == (True, False)
    # A factor of a whole row is computed once before the loop over the row, wherever it stands.
    factor = te.compute((9,), lambda i: te.sqrt(image[i, 0]), name="factor")
    graph = graph_of(image, te.compute((9, 16), lambda i, j: factor[i] * image[i, j]))
    assert inlines_well(graph, graph.stages[0])
    # Padding loads each element once, though it has more elements.
    gates = te.compute((9, 16), lambda i, j: te.sigmoid(image[i, j]), name="gates")
    padded = te.compute((11, 16), lambda i, j: tirx.if_then_else(tirx.all(i > 0, i < 10), gates[i - 1, j], 0.0))
    graph = graph_of(image, padded)
    assert inlines_well(graph, graph.stages[0])


def test_nothing_is_inlined_into_the_contraction() -> None:
    a, b = tensor(5, 7, name="a"), tensor(7, 6, name="b")
    doubled = te.compute((5, 7), lambda i, k: a[i, k] * 2.0, name="doubled")
    graph = graph_of(a, b, product(doubled, b))
    stage, contraction = graph.stages
    assert inlines_well(graph, stage)
    assert not inlines_well(graph, stage, contraction)
    assert find_contraction(graph, ()).before == (stage,)
