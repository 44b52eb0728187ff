"""Stages: reading and writing functions, rewriting graphs, and the functions of users and graph compilers.

What is read is also scheduled right; what is not understood is refused in time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tvm import te, tirx
from tvm.ir.prim.expr import IntImm
from tvm.script import tirx as T
from tvm.tirx import ForKind

from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.stages import StageGraph, assemble, intermediate, loads_of, shape_of, variable
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.sketches import check_sketch

TARGET = Cpu.detect()


def tensor(*shape: int, name: str = "x", dtype: str = "float32") -> Any:
    return te.placeholder(shape, dtype, name=name)


def product(a: Any, b: Any) -> Any:
    k = te.reduce_axis((0, a.shape[1]), name="k")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")


def matrix_vector() -> list[Any]:
    a, x, k = tensor(37, 24, name="a"), tensor(24), te.reduce_axis((0, 24))
    return [a, x, te.compute((37,), lambda i: te.sum(a[i, k] * x[k], axis=k))]


def vector_matrix() -> list[Any]:
    x, b, k = tensor(24), tensor(24, 37, name="b"), te.reduce_axis((0, 24))
    return [x, b, te.compute((37,), lambda j: te.sum(x[k] * b[k, j], axis=k))]


def batched_dot() -> list[Any]:
    a, b, k = tensor(19, 24, name="a"), tensor(19, 24, name="b"), te.reduce_axis((0, 24))
    return [a, b, te.compute((19,), lambda i: te.sum(a[i, k] * b[i, k], axis=k))]


def dot() -> list[Any]:
    a, b, k = tensor(40, name="a"), tensor(40, name="b"), te.reduce_axis((0, 40))
    return [a, b, te.compute((), lambda: te.sum(a[k] * b[k], axis=k))]


def scalar_sum() -> list[Any]:
    a, k = tensor(49, name="a"), te.reduce_axis((0, 49))
    return [a, te.compute((), lambda: te.sum(a[k], axis=k))]


def row_maximum_of_a_product() -> list[Any]:
    a, b, r = tensor(17, 32, name="a"), tensor(32, 48, name="b"), te.reduce_axis((0, 48))
    c = product(a, b)
    return [a, b, te.compute((17,), lambda i: te.max(c[i, r], axis=r))]


def product_minus_its_first_column() -> list[Any]:
    a, b = tensor(17, 32, name="a"), tensor(32, 35, name="b")
    c = product(a, b)
    return [a, b, te.compute((17, 35), lambda i, j: c[i, j] - c[i, 0])]


def product_broadcast() -> list[Any]:
    a, b = tensor(17, 32, name="a"), tensor(32, 35, name="b")
    c = product(a, b)
    return [a, b, te.compute((3, 17, 35), lambda s, i, j: c[i, j])]


def product_and_more_outputs() -> list[Any]:
    a, b = tensor(17, 32, name="a"), tensor(32, 35, name="b")
    c = product(a, b)
    return [a, b, c, te.compute((17, 35), lambda i, j: c[i, j] * 2.0)]


def residual_made_after() -> list[Any]:
    a, b, r = tensor(17, 32, name="a"), tensor(32, 35, name="b"), tensor(17, 35, name="r")
    c = product(a, b)
    twice = te.compute((17, 35), lambda i, j: te.exp(r[i, j]))
    y = te.compute((17, 35), lambda i, j: c[i, j] + twice[i, j])
    return [a, b, r, y, te.compute((17, 35), lambda i, j: twice[i, j] + 1.0)]


def padded_output_used() -> list[Any]:
    a, b = tensor(17, 30, name="a"), tensor(32, 35, name="b")
    pad = te.compute((17, 32), lambda i, k: tirx.if_then_else(k < 30, a[i, k], 0.0), name="pad")
    return [a, b, pad, product(pad, b)]


def gelu_after_a_product() -> list[Any]:
    a, b = tensor(17, 32, name="a"), tensor(32, 48, name="b")
    c = product(a, b)
    shifted = te.compute((17, 48), lambda i, j: c[i, j] * 0.1)
    return [a, b, te.compute((17, 48), lambda i, j: shifted[i, j] * (te.erf(shifted[i, j]) + 1.0))]


def chain_of_squares() -> list[Any]:
    def square(y: Any) -> Any:
        return te.compute((8, 33), lambda i, j: y[i, j] * y[i, j] * 0.25 + 0.5)

    x = y = tensor(8, 33)
    for _ in range(15):
        y = square(y)
    return [x, y]


def root_of_a_quotient() -> list[Any]:
    a, b = tensor(8, 33, name="a"), tensor(8, 33, name="b")
    return [a, b, te.compute((8, 33), lambda i, j: te.sqrt(a[i, j] / b[i, j]))]


def choice() -> list[Any]:
    a, b = tensor(8, 33, name="a"), tensor(8, 33, name="b")
    less = te.compute((8, 33), lambda i, j: a[i, j] < b[i, j])
    wide = te.compute((8, 33), lambda i, j: less[i, j].astype("int64"))
    return [a, b, te.compute((8, 33), lambda i, j: tirx.Select(wide[i, j] > 0, a[i, j], b[i, j]))]


def minus_infinity() -> list[Any]:
    a = tensor(8, 33, name="a")
    return [a, te.compute((8, 33), lambda i, j: tirx.Select(j < i, tirx.const(float("-inf"), "float32"), a[i, j]))]


def int8_product() -> list[Any]:
    a, b, k = tensor(8, 33, name="a", dtype="int8"), tensor(33, 20, name="b", dtype="int8"), te.reduce_axis((0, 33))
    wide = lambda value: value.astype("int32")  # noqa: E731
    return [a, b, te.compute((8, 20), lambda i, j: te.sum(wide(a[i, k]) * wide(b[k, j]), axis=k))]


def graph_of(*tensors: Any) -> StageGraph:
    return StageGraph.parse(te.create_prim_func(list(tensors)))


def test_a_product_is_one_reduction_over_its_last_axis() -> None:
    a, b = tensor(17, 32, name="a"), tensor(32, 35, name="b")
    graph = graph_of(a, b, product(a, b))
    (stage,) = graph.stages
    assert [(axis.name, axis.extent) for axis in stage.spatial] == [("v_i", 17), ("v_j", 35)]
    assert [(axis.name, axis.extent) for axis in stage.reductions] == [("v_k", 32)]
    assert stage.combine == "sum"
    assert stage.identity is not None and float(stage.identity.value) == 0.0
    assert str(stage.value) == "a[v_i, v_k] * b[v_k, v_j]"
    assert [load.source.name for load in stage.loads()] == ["a", "b"]


def test_inputs_outputs_writers_and_readers() -> None:
    graph = graph_of(*residual_made_after())
    assert [buffer.name for buffer in graph.inputs] == ["a", "b", "r"]
    first, second = graph.outputs
    assert graph.writer(graph.inputs[0]) is None
    writer = graph.writer(first)
    assert writer is not None and writer.buffer.same_as(first)
    exponential = next(stage for stage in graph.stages if "exp" in str(stage.value))
    assert {reader.buffer for reader in graph.readers(exponential.buffer)} == {first, second}


def chain() -> StageGraph:
    """x -> x + 1 -> its rows' sums, times 2."""
    x, k = tensor(4, 6), te.reduce_axis((0, 6), name="k")
    more = te.compute((4, 6), lambda i, j: x[i, j] + 1.0, name="more")
    total = te.compute((4,), lambda i: te.sum(more[i, k], axis=k), name="total")
    return graph_of(x, te.compute((4,), lambda i: total[i] * 2.0, name="y"))


def names(graph: StageGraph) -> list[str]:
    return [str(stage.buffer.name) for stage in graph.stages]


def test_inlining_spares_reductions_outputs_and_what_is_kept() -> None:
    graph = chain()
    assert names(graph) == ["more", "total", "y"]
    inlined = graph.inlined(lambda stage: False)
    assert names(inlined) == ["total", "y"]
    assert str(inlined.stages[0].value) == "x[v_i, v_k] + T.float32(1.0)"
    assert names(graph.inlined(lambda stage: stage.buffer.name == "more")) == names(graph)


def test_inlining_one_stage_replaces_all_its_loads() -> None:
    graph = chain()
    graph = graph.inline(graph.stages[0])
    assert "more" not in {load.source.name for stage in graph.stages for load in stage.loads()}


def test_mapping_changes_every_stage() -> None:
    graph = chain().mapped(lambda stage: replace(stage, name=f"{stage.name}_again"))
    assert [stage.name for stage in graph.stages] == ["more_again", "total_again", "y_again"]


def test_the_buffers_that_stages_read() -> None:
    first, second, third = chain().stages
    assert {buffer.name for buffer in loads_of([first], [second])} == {"x", "more"}
    assert {buffer.name for buffer in loads_of([third])} == {"total"}


def test_a_statement_takes_its_first_axes_from_outside() -> None:
    (stage,) = graph_of(*gelu_after_a_product()).stages[:1]
    text = str(stage.statement([IntImm("int32", 3)], {stage.axes[1].var: ForKind.PARALLEL}))
    assert "T.parallel(48)" in text
    assert "range(32)" in text
    assert "range(17)" not in text


def test_what_is_no_parameter_is_allocated() -> None:
    graph = chain()
    scratch = intermediate("scratch", (8,), "float32")
    root = assemble(graph.parameters, graph.stages, allocated=[scratch]).body.block
    assert [buffer.name for buffer in root.alloc_buffers] == ["scratch", "more", "total"]


def test_new_buffers_and_variables() -> None:
    buffer = intermediate("t", (3, 5), "int8", scope="local")
    assert (shape_of(buffer), str(buffer.dtype), buffer.scope()) == ((3, 5), "int8", "local")
    assert not variable("i").same_as(variable("i"))


def test_a_symbolic_shape_is_refused() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    function = te.create_prim_func([x, te.compute((n,), lambda i: x[i] + 1.0)])
    with pytest.raises(UnsupportedFunction, match="constant extent"):
        StageGraph.parse(function)


@pytest.mark.compiles
@pytest.mark.parametrize(
    "arguments",
    [
        matrix_vector,
        vector_matrix,
        batched_dot,
        dot,
        scalar_sum,
        row_maximum_of_a_product,
        product_minus_its_first_column,
        product_broadcast,
        product_and_more_outputs,
        residual_made_after,
        padded_output_used,
        gelu_after_a_product,
        chain_of_squares,
        root_of_a_quotient,
        minus_infinity,
        int8_product,
    ],
)
def test_is_scheduled_right(arguments: Callable[[], list[Any]]) -> None:
    workload = Workload.create(arguments.__name__, te.create_prim_func(arguments()))
    applicable = sketches_for(workload, TARGET)
    assert applicable
    for sketch, _ in applicable:
        check_sketch(sketch, workload, TARGET)


@pytest.mark.compiles
def test_64_bit_values_are_refused_and_64_bit_indices_are_not() -> None:
    with pytest.raises(UnsupportedFunction, match="64-bit"):
        Workload.create("choice", te.create_prim_func(choice()))

    @T.prim_func(s_tir=True)
    def shifted(x: T.Buffer((T.int64(8), T.int64(33)), "float32"), y: T.Buffer((T.int64(8), T.int64(31)), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i, j in T.grid(T.int64(8), T.int64(31)):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = T.Select(T.int64(0) < vi, x[vi, vj + T.int64(2)], T.float32(0))

    workload = Workload.create("shifted", shifted)
    check_sketch(sketches_for(workload, TARGET)[0][0], workload, TARGET, samples=3)


def other_start() -> list[Any]:
    a, k = tensor(8, 32, name="a"), te.reduce_axis((0, 32))
    combine = te.comm_reducer(lambda x, y: x + y, lambda dtype: tirx.const(1, dtype))
    return [a, te.compute((8,), lambda i: combine(a[i, k], axis=k))]


def gather() -> list[Any]:
    table, rows = tensor(9, 4, name="table"), tensor(6, name="rows", dtype="int32")
    return [table, rows, te.compute((6, 4), lambda i, j: table[rows[i], j])]


def unknown_intrinsic() -> list[Any]:
    a = tensor(9, name="a")
    return [a, te.compute((9,), lambda i: te.sinh(a[i]))]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (other_start, "neutral element"),
        (gather, "an index that depends on data"),
        (unknown_intrinsic, "does not know the intrinsic"),
    ],
)
def test_is_refused(arguments: Callable[[], list[Any]], reason: str) -> None:
    with pytest.raises(UnsupportedFunction, match=reason):
        Workload.create(arguments.__name__, te.create_prim_func(arguments()))


def test_what_is_no_tensor_or_is_read_and_written_is_refused() -> None:
    @T.prim_func(s_tir=True)
    def scaled(x: T.Buffer((8,), "float32"), n: T.int32, y: T.Buffer((8,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in range(8):
            with T.sblock("y"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi] * T.Cast("float32", n)

    @T.prim_func(s_tir=True)
    def accumulated(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in range(8):
            with T.sblock("y"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi] + y[vi]

    with pytest.raises(UnsupportedFunction, match="n is no tensor"):
        Workload.create("scaled", scaled)
    with pytest.raises(UnsupportedFunction, match="reads the buffer that it writes"):
        Workload.create("accumulated", accumulated)


def test_what_is_more_than_plain_blocks_is_refused() -> None:
    @T.prim_func(s_tir=True)
    def twice(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in range(8):
            with T.sblock("first"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi]
        for i in range(8):
            with T.sblock("second"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi]

    @T.prim_func(s_tir=True)
    def guarded(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in range(8):
            with T.sblock("y"):
                vi = T.axis.spatial(8, i)
                T.where(i < 5)
                y[vi] = x[vi]

    @T.prim_func(s_tir=True)
    def parallel(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in T.parallel(8):
            with T.sblock("y"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi]

    for function, reason in ((twice, "more than one block"), (guarded, "has a predicate"), (parallel, "serial loop")):
        with pytest.raises(UnsupportedFunction, match=reason):
            StageGraph.parse(function)
