"""Constants that are fetched ahead: for which kernels, and that every line of the next panel is fetched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm.ir import TensorLoad
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer

from stormdrop import operators
from stormdrop.ir.expressions import substitute, walk
from stormdrop.ir.stages import intermediate, variable
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Target
from stormdrop.sketches.contract import AnySketch
from stormdrop.sketches.cpu.prefetch import PREFETCH, fetched
from stormdrop.sketches.cpu.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.winograd.sketch import Winograd
from stormdrop.testing.sketches import check_point

TARGET = Target.detect()
SMALL = replace(TARGET, l2=1024)
"""A machine with a second cache that holds none of the weights of these tests."""


def has_knob(sketch: AnySketch, workload: Workload, target: Target = SMALL) -> bool:
    space = sketch.space(workload, target)
    assert space is not None
    return PREFETCH in {knob.name for knob in space.knobs}


def test_large_constants_can_be_fetched_ahead() -> None:
    convolution = operators.conv2d(1, 8, 8, 16, 32, 3, 3, pad=1)
    assert has_knob(RegisterBlocked(), operators.dense(8, 32, 64))
    assert has_knob(RegisterBlocked(), convolution) and has_knob(Winograd(2), convolution)
    assert not has_knob(RegisterBlocked(), operators.dense(8, 32, 64), replace(TARGET, l2=1 << 20))
    assert not has_knob(RegisterBlocked(), operators.dense(8, 32, 64), replace(TARGET, l2=0)), "nothing is known of it"
    assert not has_knob(RegisterBlocked(), operators.matmul(8, 32, 64)), "no constant: it was just written"


@pytest.mark.parametrize(
    ("elements", "steps"), [(512, 64), (512, 32), (512, 31), (512, 7), (512, 1), (24, 1000), (24, 5), (100, 3)]
)
def test_all_steps_together_fetch_each_line_of_a_panel(elements: int, steps: int) -> None:
    panel, step = intermediate("panel", [elements], "float32"), variable("step")
    statements = fetched(lambda position: panel[position], elements, steps, step)
    lines = set()
    for number in range(steps):
        for statement in statements:
            (load,) = (node for node in walk(statement.value) if isinstance(node, TensorLoad))
            (index,) = load.indices
            lines.add(int(Analyzer().simplify(substitute(index, {step: IntImm("int32", number)}))) // 16)
    needed = -(-elements // 16)
    assert set(range(needed)) <= lines
    assert max(lines) < 2 * needed + len(statements), "little else is fetched"


@pytest.mark.compiles
@pytest.mark.parametrize("order", ["columns", "rows", "mixed"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: operators.dense(49, 40, 96, bias=1, act="relu"),
        lambda: operators.conv2d(1, 9, 9, 24, 40, 3, 3, stride=2, pad=1),
        lambda: operators.conv2d(2, 7, 7, 32, 48, 3, 3, pad=1, groups=2),
        lambda: operators.conv2d(1, 7, 7, 96, 40, 1, 1),
        lambda: operators.dense(5, 48, 96, dtype="uint8"),
    ],
)
def test_results_are_right(make: Callable[[], Workload], order: str) -> None:
    workload = make()
    check_some(RegisterBlocked(), workload, {"order": order})


@pytest.mark.compiles
@pytest.mark.parametrize("order", ["fused", "tiles", "columns"])
@pytest.mark.parametrize("m", [2, 4])
def test_results_by_winograd_are_right(m: int, order: str) -> None:
    check_some(Winograd(m), operators.conv2d(1, 9, 11, 24, 40, 3, 3, pad=1), {"order": order})


def check_some(sketch: Any, workload: Workload, fixed: dict[str, str]) -> None:
    """Checks three points that fetch ahead."""
    space = sketch.space(workload, SMALL)
    rng = np.random.default_rng(0)
    fixed = {**fixed, PREFETCH: 1}  # type: ignore[dict-item]
    points = (space.sample(rng) for _ in range(2_000))
    wanted = [point for point in points if fixed.items() <= space.config(point).items()][:3]
    assert len(wanted) == 3
    for point in wanted:
        check_point(sketch, workload, SMALL, space, point)
