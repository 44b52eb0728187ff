"""Programs that cannot be executed are refused, each for its own reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stormdrop.model.program.check import check_program
from stormdrop.model.program.document import from_json, to_json
from stormdrop.runtime.program import Constant, Program, SizeProgram, Step, View
from stormdrop.runtime.sizes import TensorInfo

F32 = "float32"
SIZE = SizeProgram(
    inputs=(TensorInfo("x", (4, 16), F32),),
    outputs=(TensorInfo("y", (4, 16), F32), TensorInfo("places", (2, -1), "int64")),
    storage=(256, 512),
    views=(
        View("input", 0, 0, (4, 16), F32, 0),
        View("constant", 0, 0, (16,), F32, 1),
        View("storage", 0, 0, (4, 16), F32, 2),
        View("storage", 0, 0, (64,), F32, 2),
        View("storage", 1, 256, (4, 16), F32, 3),
        View("output", 0, 0, (4, 16), F32, 4),
        View("output", 1, 0, (2, -1), "int64", 5),
    ),
    steps=(
        Step("kernel", "add", (0, 1), (2,)),
        Step("kernel", "twice", (3,), (4,)),
        Step("copy", "", (4,), (5,)),
        Step("part", "0", (2,), (6,)),
    ),
)
PROGRAM = Program((Constant(0, (16,), F32),), (SIZE,))


def test_a_program_is_taken_and_read_back() -> None:
    check_program(PROGRAM, 1)
    assert from_json(to_json(PROGRAM), 1) == PROGRAM


def with_view(position: int, /, **changes: Any) -> Program:
    views = [*SIZE.views]
    views[position] = replace(views[position], **changes)
    return Program(PROGRAM.constants, (replace(SIZE, views=tuple(views)),))


def with_step(position: int, /, **changes: Any) -> Program:
    steps = [*SIZE.steps]
    steps[position] = replace(steps[position], **changes)
    return Program(PROGRAM.constants, (replace(SIZE, steps=tuple(steps)),))


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (Program((Constant(0, (-1,), F32),), (SIZE,)), "constant 0 is float32"),
        (Program((Constant(0, (16,), "int4"),), (SIZE,)), "which no constant is"),
        (Program((Constant(32, (16,), F32),), (SIZE,)), "unaligned"),
        (Program((), (SIZE,)), "view 1 lies in constant 0, and there are 0"),
        (with_view(2, dtype="int4"), "view 2 has an unknown type: 'int4'"),
        (with_view(2, shape=(-1, 16)), "view 2 has an open shape"),
        (with_view(2, index=2), "view 2 lies in storage 2, and there are 2"),
        (with_view(4, offset=320), "view 4 ends outside of storage 1"),
        (with_view(4, offset=8), "view 4 begins at 8"),
        (with_view(0, offset=64, shape=(2, 16)), "view 0 begins at 64"),
        (with_view(3, shape=(32,)), "view 3 is of a tensor that lies somewhere else"),
        (with_view(4, tensor=2), "view 4 is of a tensor that lies somewhere else"),
        (with_step(0, reads=(0, 99)), "step 0 has an argument that is no view"),
        (with_step(0, writes=(1,)), "step 0 writes to constant 0"),
        (with_step(1, reads=(4,), writes=(3,)), "step 1 reads storage 1 where nothing or something else was written"),
        (with_step(1, writes=(2,)), "step 1 writes over another of its arguments"),
        (with_step(1, reads=(6,)), "step 1 has an argument with an open shape, and is no part"),
        (with_step(1, name="add"), "step 1 calls add with other arguments than a step before"),
        (with_step(2, reads=(1,)), "step 2 copies something else"),
        (with_step(2, writes=()), "step 2 copies something else"),
        (with_step(2, writes=(2,)), "output 'y' is never written"),
        (with_step(3, name="1"), "step 3 runs a part '1', which is not there"),
        (with_step(3, name="zz"), "step 3 runs a part 'zz'"),
    ],
)
def test_what_does_not_fit_is_refused(program: Program, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        check_program(program, 1)
    assert "\n" not in str(caught.value)


def test_an_output_is_written_to_its_end() -> None:
    views = (View("output", 0, 0, (16,), F32, 0), View("input", 0, 0, (4, 16), F32, 1))
    size = SizeProgram(SIZE.inputs, SIZE.outputs[:1], (), views, (Step("kernel", "first_row", (1,), (0,)),))
    with pytest.raises(ValueError, match="output 'y' is never written, or only in part"):
        check_program(Program((), (size,)))


def test_what_is_written_over_is_lost() -> None:
    views = (*SIZE.views, View("storage", 0, 0, (4, 16), F32, 9))
    steps = (SIZE.steps[0], Step("kernel", "zero", (), (7,)), *SIZE.steps[1:])
    with pytest.raises(ValueError, match="step 2 reads storage 0 where nothing or something else was written"):
        check_program(Program(PROGRAM.constants, (replace(SIZE, views=views, steps=steps),)))
