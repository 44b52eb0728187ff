"""The NumPy reference against independent formulas and against TVM's own execution."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest
import tvm
from scipy.special import softmax
from tvm import te, tirx

from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir import reference
from stormdrop.ir.reference import evaluate
from stormdrop.ir.stages import StageGraph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import parse_machine
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.sketches import some_points

WORKLOADS = [
    operators.matmul(17, 33, 40),
    operators.dense(5, 30, 20, bias=1, act="relu"),
    operators.batch_matmul(2, 7, 9, 11),
    operators.batch_matmul(2, 7, 9, 11, transpose_b=1),
    operators.conv2d(2, 9, 11, 8, 6, 3, 3, stride=2, pad=1, bias=1, act="relu"),
    operators.conv2d(2, 9, 11, 8, 6, 3, 3, pad=1, dilation=2, groups=2, bias=1, layout="NCHW"),
    operators.conv2d(1, 6, 6, 5, 7, 1, 1),
    operators.depthwise_conv2d(1, 9, 9, 8, 3, 3, stride=2, pad=1),
    operators.depthwise_conv2d(1, 9, 9, 8, 3, 3, pad=1, layout="NCHW"),
    operators.pool2d(1, 9, 9, 8, 3, 3, stride=2, pad=1),
    operators.pool2d(1, 9, 9, 8, 2, 2, kind="avg", layout="NCHW"),
    operators.reduce((8, 5, 12), 2),
    operators.reduce((8, 5, 12), 0, kind="max"),
    operators.reduce((30,), 0, kind="min"),
    operators.softmax(5, 7),
    operators.elementwise((12, 13)),
    operators.elementwise((12, 13), kind="add"),
]


def unscheduled(workload: Workload, inputs: list[np.ndarray]) -> np.ndarray:
    call = tvm.compile(tvm.IRModule({"main": workload.function}), "llvm")
    output = tvm.runtime.tensor(np.full(workload.outputs[0].shape, np.nan, "float32"))
    call(*map(tvm.runtime.tensor, inputs), output)
    return output.numpy()


@pytest.mark.compiles
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_agrees_with_unscheduled_code(workload: Workload) -> None:
    inputs = workload.random_inputs(1)
    (expected,) = workload.reference(inputs)
    actual = unscheduled(workload, inputs)
    if workload.tolerance([expected]) == 0.0:
        assert np.array_equal(actual, expected)
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_convolution_by_its_definition() -> None:
    workload = operators.conv2d(1, 6, 5, 3, 4, 3, 2, stride=2, pad=1)
    x, w = workload.random_inputs(3)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = np.zeros(workload.outputs[0].shape, "float32")
    for _, y, z, o in np.ndindex(expected.shape):
        window = padded[0, 2 * y : 2 * y + 3, 2 * z : 2 * z + 2]
        expected[0, y, z, o] = (window * w[o]).sum()
    assert np.array_equal(workload.reference([x, w])[0], expected)


def test_softmax_by_scipy() -> None:
    workload = operators.softmax(9, 31)
    (x,) = workload.random_inputs(0)
    np.testing.assert_allclose(workload.reference([x])[0], softmax(x, axis=1), rtol=1e-6)


def test_slices_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = operators.pool2d(1, 20, 20, 6, 3, 3, pad=1)
    inputs = workload.random_inputs(0)
    whole = workload.reference(inputs)[0]
    monkeypatch.setattr("stormdrop.ir.reference._SLICE", 1000)
    assert np.array_equal(workload.reference(inputs)[0], whole)


def test_large_factors_become_wide_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = operators.dense(4, 512, 1024)
    inputs = workload.random_inputs(0)
    whole = workload.reference(inputs)[0]
    monkeypatch.setattr(reference, "_SLICE", 1 << 14)
    tracemalloc.start()
    sliced = workload.reference(inputs)[0]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(sliced, whole, rtol=1e-6)
    assert peak < 512 * 1024 * 4, "the weights would take twice as much in float64"


def test_of_a_large_table_only_what_is_read_becomes_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    table, rows = te.placeholder((1000, 8), name="table"), te.placeholder((5,), "int64", name="rows")
    doubled = te.compute((5, 8), lambda i, j: table[rows[i], j] * tirx.const(0.1, "float32"))
    graph = StageGraph.parse(te.create_prim_func([table, rows, doubled]), gathers=True)
    values = [np.random.default_rng(0).standard_normal((1000, 8), np.float32), np.array([0, 7, 999, 7, 3])]
    monkeypatch.setattr(reference, "_SLICE", 1000)
    (ours,) = reference.evaluate_graph(graph, values, rounded=False)
    assert ours.dtype == np.float64
    np.testing.assert_array_equal(ours, values[0][values[1]].astype(np.float64) * 0.1)


def test_a_window_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relax counts in 64 bits."""
    monkeypatch.setattr(reference, "_SLICE", 4)
    x = te.placeholder((tirx.const(1, "int64"), tirx.const(9, "int64")), name="x")
    window = te.reduce_axis((tirx.const(0, "int64"), tirx.const(3, "int64")), name="window")
    sums = te.compute((x.shape[0], tirx.const(7, "int64")), lambda i, j: te.sum(x[i, j + window], axis=window))
    values = np.arange(9, dtype=np.float32)[None]
    (result,) = evaluate(te.create_prim_func([x, sums]), [values])
    assert result.tolist() == [[3, 6, 9, 12, 15, 18, 21]]


@pytest.mark.parametrize(
    ("workload", "exact"),
    [(operators.matmul(4, 4, 4), True), (operators.softmax(4, 4), False), (operators.pool2d(1, 4, 4, 4, 2, 2), True)],
    ids=["matmul", "softmax", "pool"],
)
def test_tolerance_is_zero_only_where_integers_stay_exact(workload: Workload, exact: bool) -> None:
    outputs = workload.reference(workload.random_inputs(0))
    assert (workload.tolerance(outputs) == 0.0) is exact


def test_unknown_intrinsic_is_refused() -> None:
    x = te.placeholder((4,), name="x")
    function = te.create_prim_func([x, te.compute((4,), lambda i: te.sinh(x[i]), name="y")])
    with pytest.raises(UnsupportedFunction, match="sinh"):
        evaluate(function, [np.zeros(4, "float32")])


def test_stages_without_elements_make_nothing_and_sums_of_none_are_zero() -> None:
    """As in a model that splits a tensor into a part and the empty rest, and joins them again."""
    x, nothing = te.placeholder((2, 3), name="x"), te.reduce_axis((0, 0), name="nothing")
    rest = te.compute((2, 0), lambda i, j: x[i, j + 3], name="rest")
    joined = te.compute((2, 3), lambda i, j: tirx.if_then_else(j < 3, x[i, j], rest[i, j - 3]), name="joined")
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(evaluate(te.create_prim_func([x, joined]), [data])[0], data)
    total = te.compute((2,), lambda i: te.sum(x[i, nothing], axis=nothing), name="total")
    np.testing.assert_array_equal(evaluate(te.create_prim_func([x, total]), [data])[0], [0, 0])


def test_a_division_by_zero_is_infinite_and_no_warning() -> None:
    a, b = (te.placeholder((3,), "float32", name=name) for name in "ab")
    function = te.create_prim_func([a, b, te.compute((3,), lambda i: a[i] / b[i])])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (result,) = evaluate(function, [np.array([1, -1, 0], np.float32), np.zeros(3, "float32")])
    np.testing.assert_array_equal(result, [np.inf, -np.inf, np.nan])


def test_a_result_beyond_its_type_is_infinite_and_no_warning() -> None:
    a = te.placeholder((2,), "float32", name="a")
    function = te.create_prim_func([a, te.compute((2,), lambda i: te.exp(a[i]), name="b")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = evaluate(function, [np.array([0, 100], np.float32)])
    np.testing.assert_array_equal(found, [1, np.inf])


def test_a_conversion_of_what_no_integer_holds_is_no_warning() -> None:
    x = te.placeholder((3,), "float32", name="x")
    function = te.create_prim_func([x, te.compute((3,), lambda i: x[i].astype("int32"))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (result,) = evaluate(function, [np.array([np.nan, np.inf, -2.7], np.float32)])
    assert result[2] == -2


def test_values_near_a_tie_are_rounded_to_both_sides() -> None:
    x, w = te.placeholder((1, 6)), te.placeholder((6, 6))
    r = te.reduce_axis((0, 6))
    levels = te.compute((1, 6), lambda i, j: te.nearbyint(x[i, j] * 0.5))
    product = te.compute((1, 6), lambda i, j: te.sum(levels[i, r] * w[r, j], axis=r))
    workload = Workload.create("function", te.create_prim_func([x, w, levels, product]))
    near = np.array([[5, 5 - 3e-4, 5 + 3e-4, 4.99, -5, 2]], "float32")
    (levels_of, product_of), (other_levels, other_product) = workload.reference_with_ties([near, np.eye(6, dtype="f4")])
    np.testing.assert_array_equal(levels_of, [[2, 2, 3, 2, -2, 1]])
    np.testing.assert_array_equal(other_levels, [[3, 3, 2, 2, -3, 1]])
    np.testing.assert_array_equal(product_of, levels_of)
    np.testing.assert_array_equal(other_product, other_levels)
    assert workload.reference_with_ties([near * 0, np.eye(6, dtype="f4")])[1] == []


PACKINGS = [
    operators.dense(4, 50, 33),
    operators.dense(4, 49, 66, dtype="bfloat16"),
    operators.conv2d(1, 6, 6, 5, 7, 3, 3),
    operators.conv2d(1, 6, 6, 8, 12, 3, 3, groups=2),
]


@pytest.mark.parametrize("workload", PACKINGS, ids=lambda workload: workload.name)
def test_what_only_moves_is_moved_in_its_own_type(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    target = parse_machine("cpu/x86-64-v4")  # a unit for bfloat16 takes pairs of numbers as one
    inputs, moved = workload.random_inputs(1), 0
    for sketch, space in sketches_for(workload, target):
        for point in some_points(space, 5):
            variant = sketch.apply(workload, target, space.config(point))
            for position, transform in variant.transforms.items():
                graph = StageGraph.parse(transform)
                (found,) = evaluate(transform, [inputs[position]])
                with monkeypatch.context() as patch:
                    patch.setattr(reference, "only_moves", lambda graph: False)
                    (expected,) = evaluate(transform, [inputs[position]])
                assert found.dtype == expected.dtype == np.dtype(str(graph.outputs[0].dtype))
                np.testing.assert_array_equal(found.view(f"u{found.itemsize}"), expected.view(f"u{found.itemsize}"))
                moved += reference.only_moves(graph)
    assert moved


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("first", [False, True], ids=["number last", "number first"])
def test_what_only_moves_by_plain_indexing(dtype: str, first: bool) -> None:
    a = te.placeholder((5, 7), dtype, name="a")
    number = tirx.const(1, dtype)

    def element(i: object, j: object) -> object:
        inner = tirx.if_then_else(j < 2, number, a[i, tirx.max(j - 2, 0)])  # type: ignore[operator]
        if first:
            return tirx.if_then_else(i >= 5, number, inner)  # type: ignore[operator]
        return tirx.if_then_else(i < 5, inner, number)  # type: ignore[operator]

    function = te.create_prim_func([a, te.compute((6, 9), element, name="b")])
    graph = StageGraph.parse(function)
    values = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (5, 7)).astype(dtype)
    expected = np.ones((6, 9), dtype)
    expected[:5, 2:] = values
    (found,) = evaluate(function, [values])
    assert reference.only_moves(graph) and found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found.astype("float64"), expected.astype("float64"))


def test_wider_numbers_are_rounded_only_if_that_is_asked_for() -> None:
    a = te.placeholder((4,), "float32", name="a")
    graph = StageGraph.parse(te.create_prim_func([a, te.compute((4,), lambda i: a[3 - i], name="b")]))
    values = np.array([0.1, 1e-50, 1.0, 3.0])
    (wide,) = reference.evaluate_graph(graph, [values], rounded=False)
    np.testing.assert_array_equal(wide, values[::-1])
    (narrow,) = reference.evaluate_graph(graph, [values])
    np.testing.assert_array_equal(narrow, values[::-1].astype("float32"))
    assert narrow.dtype == np.float32


def test_integers_may_be_given_for_floats() -> None:
    a = te.placeholder((4,), "float32", name="a")
    b = te.compute((4,), lambda i: tirx.if_then_else(a[i] > 1, a[i], a[i] * tirx.const(0.5, "float32")), name="b")
    (found,) = evaluate(te.create_prim_func([a, b]), [np.arange(4)])
    np.testing.assert_array_equal(found, np.array([0, 0.5, 2, 3], np.float32))


def test_which_functions_only_move() -> None:
    a = te.placeholder((4,), "float32", name="a")
    moves = te.compute((4,), lambda i: tirx.if_then_else(i < 3, a[3 - i], 0.0))
    computes = te.compute((4,), lambda i: tirx.if_then_else(a[i] < 3, a[i], 0.0))
    assert reference.only_moves(StageGraph.parse(te.create_prim_func([a, moves])))
    assert not reference.only_moves(StageGraph.parse(te.create_prim_func([a, computes])))
    for workload in WORKLOADS:
        assert not reference.only_moves(workload.graph)


def test_little_memory_is_taken_where_elements_only_move() -> None:
    """NumPy tells tracemalloc of its arrays: here these are the result, and a few indices."""
    a = te.placeholder((512, 1024), "float32", name="a")
    b = te.compute((1024, 512), lambda i, j: a[j, i], name="b")
    function, values = te.create_prim_func([a, b]), np.ones((512, 1024), np.float32)
    tracemalloc.start()
    try:
        (result,) = evaluate(function, [values])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.dtype == np.float32 and most < 1.1 * values.nbytes
