"""Products of few rows: they have wide tiles, which read long pieces of the column operand's rows, and are right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Target
from stormdrop.sketches.cpu.register_blocked import RegisterBlocked
from stormdrop.testing.sketches import check_point

WIDE = replace(Target.parse("cpu/x86-64-v4"), lanes=16, registers=32)


def columns(workload: Workload, target: Target) -> list[int]:
    space = RegisterBlocked().space(workload, target)
    assert space is not None
    (knob,) = [knob for knob in space.knobs if knob.name == "columns"]
    return list(knob.values)


def test_few_rows_have_wide_tiles_and_many_have_not() -> None:
    assert columns(operators.matmul(1, 4096, 1024), WIDE) == [16, 32, 48, 64, 96, 128, 192]
    assert max(columns(operators.matmul(4, 4096, 1024), WIDE)) == 192
    assert max(columns(operators.matmul(5, 4096, 1024), WIDE)) == 64


def test_a_wide_tile_fits_the_registers() -> None:
    space = RegisterBlocked().space(operators.matmul(4, 4096, 1024), WIDE)
    assert space is not None
    configs = [space.config(point) for point in space.points()]
    assert {config["rows"] for config in configs if config["columns"] == 192} == {1}
    assert {config["rows"] for config in configs if config["columns"] == 96} == {1, 2, 4}


@pytest.mark.compiles
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("n", [192, 768, 777])
def test_the_widest_tiles_are_right(rows: int, n: int) -> None:
    sketch, target, workload = RegisterBlocked(), Target.detect(), operators.matmul(rows, n, 33)
    space = sketch.space(workload, target)
    assert space is not None
    points = sorted(space.points(), key=lambda point: -space.config(point)["columns"])
    assert space.config(points[0])["columns"] > 4 * target.lanes
    for point in points[:2]:
        check_point(sketch, workload, target, space, point)
