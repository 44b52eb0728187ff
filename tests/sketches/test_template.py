"""Templates: what they declare becomes a space, what they do a schedule, what they are a fingerprint."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from tvm.s_tir import Schedule

from stormdrop import operators
from stormdrop.errors import SpaceError
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.template import Knobs, Template, template
from stormdrop.space import Tile
from stormdrop.testing.sketches import check_sketch

TARGET = Cpu.detect()
MATMUL = operators.matmul(12, 48, 10)


@template
def blocked(schedule: Schedule, knobs: Knobs) -> None:
    block = knobs.reduction()
    i, j, k = schedule.get_loops(block)
    i0, i1 = schedule.split(i, knobs.tile("i", i, 2, default=(3, 4)))
    j0, j1 = schedule.split(j, knobs.tile("j", j, 2, default=[3, 16]))
    knobs.require(("i", "j"), lambda rows, columns: rows[1] * columns[1] <= 96, "a register tile")
    unroll = knobs.ordinal("unroll", [0, 1], default=1)
    order = [i0, j0] if knobs.categorical("order", ["rows", "columns"]) == "rows" else [j0, i0]
    schedule.reorder(*order, k, i1, j1)
    schedule.vectorize(j1)
    if unroll:
        schedule.unroll(i1)
    schedule.parallel(schedule.fuse(*order))
    schedule.decompose_reduction(block, k)


@template
def packed(schedule: Schedule, knobs: Knobs) -> None:
    block = knobs.reduction()
    _, width = knobs.tile("columns", knobs.workload.outputs[0].shape[1], 2)
    column = 0 if knobs.workload.constants else 1  # dense has [n, k], matmul [k, n]
    copy = knobs.layout(block, "x1", lambda *at: [at[column] // width, at[1 - column], at[column] % width])
    assert (copy is None) == (knobs.workload.constants == (1,))


@template
def fickle(schedule: Schedule, knobs: Knobs) -> None:
    if knobs.ordinal("a", [0, 1]):
        knobs.ordinal("b", [0, 1])


@template
def shifting(schedule: Schedule, knobs: Knobs) -> None:
    knobs.ordinal("b", [0, 1 + knobs.ordinal("a", [0, 1])])


def test_declarations_become_the_space() -> None:
    space = blocked.space(MATMUL, TARGET)
    assert space is not None
    assert (space.name, [knob.name for knob in space.knobs]) == ("blocked", ["i", "j", "unroll", "order"])
    assert space.knobs[0] == Tile("i", 12, 2)
    assert space.config(space.origin) == {"i": (3, 4), "j": (3, 16), "unroll": 1, "order": "rows"}
    with pytest.raises(SpaceError, match="a register tile"):
        space.point({"i": (3, 4), "j": (1, 48), "unroll": 1, "order": "rows"})


@pytest.mark.compiles
def test_every_point_is_a_right_schedule() -> None:
    check_sketch(blocked, MATMUL, TARGET, samples=10)


def test_it_does_not_apply_where_it_says_so() -> None:
    assert blocked.space(operators.elementwise((8, 8)), TARGET) is None
    assert blocked.space(operators.softmax(4, 8), TARGET) is None


@pytest.mark.parametrize("sketch", [fickle, shifting], ids=lambda sketch: sketch.name)
def test_knobs_that_depend_on_values_are_an_error(sketch: Template) -> None:
    with pytest.raises(SpaceError, match=r"its knobs depend on their values: at .*'b'"):
        sketch.apply(MATMUL, TARGET, {"a": 1, "b": 0} if sketch is shifting else {"a": 1})


def test_a_missing_knob_is_an_error() -> None:
    def shy(schedule: Schedule, knobs: Knobs) -> None:
        if not knobs.ordinal("a", [0, 1]):
            knobs.ordinal("b", [0, 1])

    with pytest.raises(SpaceError, match="b missing"):
        template(shy).apply(MATMUL, TARGET, {"a": 1, "b": 0})


def declare_twice(schedule: Schedule, knobs: Knobs) -> None:
    assert knobs.ordinal("a", [1, 2], default=2) == knobs.ordinal("a", [1, 2]) == 2
    knobs.ordinal("a", [1, 2, 3])


def require_unknown(schedule: Schedule, knobs: Knobs) -> None:
    knobs.require(("a",), bool, "nothing")


def require_other_defaults(schedule: Schedule, knobs: Knobs) -> None:
    knobs.ordinal("a", [1, 2])
    knobs.require(("a",), lambda a: a > 1, "more than one")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (declare_twice, "declares knob 'a' twice"),
        (require_unknown, "undeclared knob 'a'"),
        (require_other_defaults, "a=1 does not satisfy 'more than one'"),
    ],
)
def test_contradictions_are_one_line(function: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        template(function).space(MATMUL, TARGET)


def test_a_point_outside_is_refused() -> None:
    with pytest.raises(SpaceError, match="a register tile"):
        blocked.apply(MATMUL, TARGET, {"i": (1, 12), "j": (1, 48), "unroll": 0, "order": "rows"})


@pytest.mark.compiles
def test_constants_are_laid_out_ahead_of_time() -> None:
    variant = packed.apply(operators.dense(8, 12, 10), TARGET, {"columns": (3, 4)})
    assert list(variant.transforms) == [1]
    assert [int(extent) for extent in variant.transforms[1].params[1].shape] == [3, 10, 4]
    check_sketch(packed, operators.dense(8, 12, 10), TARGET, samples=2)


@pytest.mark.compiles
def test_other_operands_are_laid_out_by_a_block() -> None:
    workload = operators.matmul(8, 12, 10)
    variant = packed.apply(workload, TARGET, {"columns": (3, 4)})
    assert not variant.transforms
    check_sketch(packed, workload, TARGET, samples=2)


@pytest.mark.compiles
def test_a_template_is_a_step_of_another() -> None:
    @template
    def twice(schedule: Schedule, knobs: Knobs) -> None:
        blocked(schedule, knobs)
        knobs.ordinal("more", [1, 2])

    space = twice.space(MATMUL, TARGET)
    assert space is not None and space.knobs[-1].name == "more"
    check_sketch(twice, MATMUL, TARGET, samples=1)


# What a template is


def test_from_a_module_it_goes_by_name() -> None:
    assert pickle.loads(pickle.dumps(blocked)) is blocked


def test_elsewhere_it_goes_by_value() -> None:
    def local(schedule: Schedule, knobs: Knobs) -> None:
        knobs.ordinal("a", [1, 2])

    copy = pickle.loads(cloudpickle.dumps(template(local)))
    space, other = copy.space(MATMUL, TARGET), template(local).space(MATMUL, TARGET)
    assert space.fingerprint == other.fingerprint  # type: ignore[union-attr]


PROGRAM = """
import stormdrop as sd
from stormdrop.sketches.template import template

WIDTH = 8

@template
def rows(schedule, knobs):
    i, j, k = schedule.get_loops(knobs.reduction())
    schedule.split(j, knobs.tile("j", j, 2, default=(2, WIDTH)))
    schedule.parallel(i)

if __name__ == "__main__":
    result = sd.tune(sd.operators.matmul(8, 16, 4), sketches=[rows], trials=3, fresh=True)
    print(result.best.sketch, result.trials, result.failed)
"""


@pytest.mark.compiles
def test_workers_take_templates_that_were_typed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-"],
        cwd=tmp_path,
        input=PROGRAM,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["rows", "3", "0"], done.stderr


def test_a_layout_of_what_is_not_read_is_refused() -> None:
    @template
    def wrong(schedule: Schedule, knobs: Knobs) -> None:
        knobs.layout(knobs.reduction(), "z", lambda i, j: (j, i))

    with pytest.raises(SpaceError, match=r"reads no 'z'; it reads x"):
        wrong.space(MATMUL, TARGET)
