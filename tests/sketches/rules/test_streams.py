"""Derived sketches of what is no contraction: every point schedules and is right to the last element."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import te

from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.sketches.rules import derive
from stormdrop.testing.sketches import check_sketch

TARGET = Cpu.detect()


@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [
        operators.pool2d(1, 9, 9, 16, 3, 3, stride=2, pad=1),
        operators.pool2d(1, 8, 8, 6, 2, 2, stride=2, kind="avg", layout="NCHW"),
        operators.reduce((600,), 0),
        operators.reduce((300, 2), 0, kind="max"),
        operators.reduce((6, 35, 20), 2),
        operators.softmax(2, 16),
        operators.softmax(60, 16),
        operators.elementwise((300,)),
        operators.elementwise((4, 3, 2), kind="add"),
    ],
    ids=lambda workload: workload.name,
)
def test_every_sketch_is_right(workload: Workload) -> None:
    for sketch in derive(workload, TARGET):
        check_sketch(sketch, workload, TARGET)


@pytest.mark.compiles
def test_a_sum_without_axes_is_scheduled() -> None:
    x = te.placeholder((6, 64), name="x")
    r, s = te.reduce_axis((0, 6), name="r"), te.reduce_axis((0, 64), name="s")
    function = te.create_prim_func([x, te.compute((), lambda: te.sum(x[r, s], axis=[r, s]), name="y")])
    workload = Workload.create("sum", function)
    for sketch in derive(workload, TARGET):
        check_sketch(sketch, workload, TARGET, samples=3)


def test_a_large_sum_runs_in_parallel_and_in_vectors() -> None:
    workload = operators.reduce((65536,), 0)
    factored = derive(workload, TARGET)[0]
    space = factored.space(workload, TARGET)
    assert space is not None
    text = factored.apply(workload, TARGET, space.config(space.origin)).main.script()
    assert "T.parallel(" in text and "T.vectorized(" in text


def test_where_stages_can_be_computed_does_not_depend_on_the_length_of_vectors() -> None:
    """A width of 4 does not divide 35 channels, and one of 8 leaves 7."""
    workload = operators.pool2d(1, 17, 17, 35, 3, 3, kind="avg")
    board = parse_machine("cpu/cortex-a72")
    assert isinstance(board, Cpu)
    for cores in (1, 4):
        target = replace(board, cores=cores)
        (sketch,) = derive(workload, target)
        space = sketch.space(workload, target)
        assert space is not None
        config = space.config(space.origin)
        texts = {sketch.apply(workload, target, {**config, "vector": width}).main.script() for width in (4, 8, 16)}
        assert len(texts) == 2  # 8 and 16 both leave 7


def test_rows_of_a_softmax_are_computed_together_by_default() -> None:
    workload = operators.softmax(1000, 60)
    (sketch,) = derive(workload, TARGET)
    space = sketch.space(workload, TARGET)
    assert space is not None
    places = {name: value for name, value in space.config(space.origin).items() if name.endswith("_at")}
    assert places and set(places.values()) == {1}
    assert sketch.apply(workload, TARGET, space.config(space.origin)).main.script().count("T.parallel(") == 1
