"""The loops of nests: they reach every element and nothing else, and run in parallel if that is worth it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from index_values import positions, value_at, written
from tvm import te

from stand_ins.cpus import cpu
from stormdrop import operators
from stormdrop.ir.expressions import walk
from stormdrop.ir.stages import Stage, StageGraph, assemble, shape_of
from stormdrop.ir.workload import Workload
from stormdrop.sketches.cpu.groups import Group, groups_of
from stormdrop.sketches.cpu.loops import (
    LoopSizes,
    NestLoops,
    default_loops,
    leaves_cores_idle,
    loops_of,
    parallel_axis_count,
    parallel_loop,
)
from stormdrop.sketches.cpu.nest_rewrites import vectorize_reduction
from stormdrop.sketches.cpu.nests import Nest, nests_of

SIZES = LoopSizes(lanes=8, vectors=2)


def name_of(value: object) -> str:
    return str(getattr(value, "name", value))


def only_nest(workload: Workload) -> Nest:
    (nest,) = nests_of(workload.graph)
    return nest


def only_group(workload: Workload, min_rows: int | None = None) -> Group:
    graph = workload.graph
    (group,) = groups_of(nests_of(graph), graph.parameters, min_rows)
    return group


def text(loops: list[NestLoops], graph: StageGraph, shared: int, leading: int) -> str:
    """The function that one loop over nests makes."""
    stages = [stage for nest_loops in loops for stage in nest_loops.stages]
    return str(assemble(graph.parameters, stages, [parallel_loop(loops, shared, leading)]).script())


# What steps cover


@pytest.mark.parametrize("extent", [1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 40])
def test_steps_cover_an_extent_that_they_do_not_divide(extent: int) -> None:
    (stage,) = NestLoops(only_nest(operators.elementwise((extent,))), SIZES).stages
    counts = Counter(written(stage))
    assert set(counts) == set(range(extent))
    step = math.prod(axis.extent for axis in stage.axes[1:])
    assert step == (1 if extent < 4 else 4 if extent < 8 else 8 if extent < 16 else 16)
    twice = -extent % step
    assert sum(counts.values()) == extent + twice  # the last step overlaps the one before it
    assert max(counts.values()) == (2 if twice else 1)


@pytest.mark.parametrize(("rows", "columns"), [(64, 48), (37, 17), (5, 3), (16, 8)])
def test_tiles_of_a_transpose_cover_both_axes(rows: int, columns: int) -> None:
    loops = NestLoops(only_nest(operators.transpose((rows, columns), (1, 0))), LoopSizes(8, across=16, columns=8))
    assert loops.transposes
    (stage,) = loops.stages
    assert set(written(stage)) == set(range(rows * columns))
    row = next(axis for axis in stage.axes if axis.name == "row")
    assert row.extent <= 16  # along the axis in which the input is contiguous


@pytest.mark.parametrize("workload", [operators.matmul(3, 35, 4), operators.pool2d(1, 5, 5, 11, 3, 3)], ids=name_of)
def test_a_reduction_stores_every_result(workload: Workload) -> None:
    nest = only_nest(workload)
    loops = NestLoops(nest, SIZES)
    assert loops.reduces and not loops.transposes
    init, update, store = loops.stages
    assert (init.combine, update.combine, store.combine) == (None, nest.reduction and nest.reduction.combine, None)
    assert update.identity is None  # `init` sets the registers
    assert set(written(store)) == set(range(math.prod(shape_of(nest.store.buffer))))
    (registers,) = shape_of(update.buffer)
    assert set(written(init)) == set(written(update)) == set(range(registers))


def test_lanes_are_added_in_halves() -> None:
    nest = vectorize_reduction(only_nest(operators.reduce((2, 64), 1)), 0, lanes=8, vectors=2)
    assert nest.lane is not None and nest.lane.extent == 16
    init, update, *halves, store = NestLoops(nest, SIZES).stages
    assert [len(set(written(stage))) for stage in (init, update, *halves)] == [16, 16, 8, 4, 2, 1]
    assert {stage.combine for stage in halves} == {"sum"}
    assert written(store) == [0, 1]


def test_each_segment_of_a_concatenation_has_loops_of_its_own() -> None:
    first, second = NestLoops(only_nest(operators.concatenate((1, 17), (1, 18), 1)), SIZES).stages
    assert (set(written(first)), set(written(second))) == (set(range(17)), set(range(17, 35)))
    assert not any("if_then_else" in str(node) for stage in (first, second) for node in walk(stage.value))


def test_strided_loads_have_short_steps() -> None:
    contiguous = NestLoops(only_nest(operators.pool2d(1, 4, 99, 4, 1, 1, layout="NCHW")), LoopSizes(8, vectors=4))
    strided = NestLoops(
        only_nest(operators.pool2d(1, 4, 99, 4, 1, 1, stride=2, layout="NCHW")), LoopSizes(8, vectors=4)
    )
    (widest,), (narrow,) = (shape_of(loops.stages[0].buffer) for loops in (contiguous, strided))
    assert (widest, narrow) == (32, 16)


def test_sizes_count_the_steps_of_reductions() -> None:
    assert NestLoops(only_nest(operators.elementwise((9, 35))), SIZES).size == 9 * 35
    assert NestLoops(only_nest(operators.matmul(9, 35, 17)), SIZES).size == 9 * 35 * 17
    lanes = vectorize_reduction(only_nest(operators.reduce((6, 100), 1)), 0, 8, 2)
    assert NestLoops(lanes, SIZES).size == 6 * 16 * (6 + 1)  # 16 lanes of 6 steps, and one for the rest


# Their kinds


@pytest.mark.parametrize(("unroll", "unrolled"), [(1, 0), (3, 1), (8, 1), (9, 2), (64, 2)])
def test_reductions_are_unrolled_from_the_inside(unroll: int, unrolled: int) -> None:
    workload = operators.pool2d(1, 5, 5, 8, 3, 3)
    loops = NestLoops(only_nest(workload), LoopSizes(8, unroll=unroll))
    function = text([loops], workload.graph, shared=0, leading=0)
    assert function.count("T.unroll(3)") == unrolled
    assert f"T.vectorized({8})" in function


# What runs in parallel


def test_one_loop_runs_all_nests_of_a_group() -> None:
    workload = operators.softmax(640, 100)
    (loops,) = loops_of(only_group(workload, min_rows=4), SIZES, cores=2)
    assert len(loops) == 4
    assert parallel_axis_count(loops, 2) == 1
    function = text(loops, workload.graph, shared=1, leading=1)
    assert function.count("T.parallel") == 1 and "T.parallel(640)" in function
    assert "T.parallel" not in text(loops, workload.graph, shared=1, leading=0)


def test_leading_axes_are_one_parallel_loop() -> None:
    workload = operators.elementwise((4, 3, 40))
    loops = [NestLoops(only_nest(workload), SIZES)]
    assert "T.parallel(12)" in text(loops, workload.graph, shared=0, leading=2)
    assert "T.parallel(4)" in text(loops, workload.graph, shared=0, leading=1)
    assert "T.parallel" not in text(loops, workload.graph, shared=0, leading=0)


def test_there_is_no_loop_over_one_task() -> None:
    workload = operators.elementwise((1, 40))
    function = text([NestLoops(only_nest(workload), SIZES)], workload.graph, shared=0, leading=1)
    assert "T.parallel" not in function


@pytest.mark.parametrize(
    ("shape", "cores", "count"),
    [
        ((4, 3, 8), 2, 0),  # too little work for threads
        ((4, 3, 8192), 1, 1),
        ((4, 3, 8192), 2, 2),
        ((4, 3, 8192), 100, 3),
        ((400, 3, 8192), 100, 1),
    ],
)
def test_as_few_axes_run_in_parallel_as_keep_the_cores_busy(shape: tuple[int, ...], cores: int, count: int) -> None:
    assert parallel_axis_count([NestLoops(only_nest(operators.elementwise(shape)), SIZES)], cores) == count


@pytest.mark.parametrize(
    ("workload", "cores", "idle"),
    [
        (operators.reduce((1000,), 0), 1, True),
        (operators.reduce((4, 1000), 1), 1, False),
        (operators.reduce((4, 1000), 1), 2, True),
        (operators.elementwise((1, 8)), 8, False),  # it reduces nothing: there is nothing to split
    ],
    ids=name_of,
)
def test_few_results_leave_cores_idle(workload: Workload, cores: int, idle: bool) -> None:
    nest = vectorize_reduction(only_nest(workload), 0, 8, 2)
    assert leaves_cores_idle(NestLoops(nest, SIZES), cores) == idle


def test_few_results_are_reduced_in_parts() -> None:
    group = only_group(operators.reduce((1000,), 0))
    assert len(loops_of(group, LoopSizes(8), cores=2)) == 1
    (partial,), (combination,) = loops_of(group, LoopSizes(8, parts=6), cores=2)
    assert partial.outer[0].extent == 6
    assert math.prod(axis.extent for axis in combination.outer) == 1
    many = only_group(operators.reduce((1000, 64), 1))
    assert len(loops_of(many, LoopSizes(8, parts=6), cores=2)) == 1  # the results are parallel enough


def test_a_single_row_runs_segment_by_segment() -> None:
    first, second = loops_of(only_group(operators.concatenate((17,), (18,), 0)), SIZES, cores=2)
    assert [set(written(loops.stages[0])) for (loops,) in (first, second)] == [set(range(17)), set(range(17, 35))]


# Beside a kernel


def test_default_loops_keep_every_index_within_its_dimension() -> None:
    """TVM allocates of an intermediate buffer what it sees written, by dimension. Fused axes may pass a row's end."""
    x = te.placeholder((3, 5, 7))
    stages = StageGraph.parse(
        te.create_prim_func([x, te.compute((3, 5, 7), lambda i, j, k: te.exp(x[i, j, k]))])
    ).stages
    buffer = stages[0].buffer

    def within(stage: Stage) -> bool:
        return all(
            value_at(index, position) < extent
            for position in positions(stage.axes)
            for index, extent in zip(stage.indices, shape_of(buffer), strict=True)
        )

    statements, (stage,) = default_loops(stages, [buffer], cpu("cpu/x86-64-v3"))
    assert len(statements) == 1
    assert stage.buffer.same_as(buffer)
    assert set(written(stage)) == set(range(3 * 5 * 7))
    assert within(stage)
    (group,) = groups_of(nests_of(StageGraph((), stages), [buffer]), [buffer], None)
    ((fused,),) = loops_of(group, LoopSizes(8), cores=4)
    assert not within(fused.stages[0])


def test_default_loops_of_nothing() -> None:
    empty: tuple[list[Any], list[Any]] = ([], [])
    assert default_loops((), (), cpu("cpu/x86-64-v3")) == empty
