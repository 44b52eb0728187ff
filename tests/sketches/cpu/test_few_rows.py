"""Products of few rows: they have wide tiles, which read long pieces of the column operand's rows, and are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from stand_ins.cpus import cpu
from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.space import Ordinal, Space
from stormdrop.testing.sketches import check_points
from stormdrop.trial import Point

WIDE = replace(cpu("cpu/x86-64-v4"), lanes=16, registers=32)


REGISTERS = 192
"""The columns of the widest tile whose accumulators are in registers of 16 lanes."""


def columns(workload: Workload, target: Cpu) -> list[Any]:
    space = RegisterBlocked().space(workload, target)
    assert space is not None
    (knob,) = [knob for knob in space.knobs if knob.name == "columns"]
    assert isinstance(knob, Ordinal)
    return list(knob.values)


def columns_at(space: Space, point: Point) -> Any:
    return space.config(point)["columns"]


def test_few_rows_have_wide_tiles_and_many_have_not() -> None:
    two_cores = replace(WIDE, cores=2)
    in_registers = [16, 32, 48, 64, 96, 128, REGISTERS]
    assert columns(operators.dense(1, 4096, 1024), two_cores) == in_registers
    assert columns(operators.matmul(1, 4096, 1024), two_cores) == [*in_registers, 512, 1024, 2048]
    assert columns(operators.matmul(5, 4096, 1024), two_cores) == [16, 32, 48, 64, 512, 1024, 2048]
    assert max(columns(operators.matmul(17, 4096, 1024), two_cores)) == 64


def test_tiles_in_a_cache_read_the_operand_as_it_lies_and_fit() -> None:
    target = replace(WIDE, cores=2)
    space = RegisterBlocked().space(operators.matmul(16, 8192, 64), target)
    assert space is not None
    configs: list[Mapping[str, Any]] = [space.config(point) for point in space.points()]
    wide = [config for config in configs if config["columns"] > 64]
    assert wide and not any(config["pack"] for config in wide)
    assert max(4 * config["rows"] * config["columns"] for config in wide) <= 128 << 10


def test_a_row_with_weights_in_memory_begins_with_tiles_in_a_cache() -> None:
    target = replace(WIDE, cores=2, l2=1 << 20, l3=1 << 25)
    space = RegisterBlocked().space(operators.matmul(1, 11008, 4096), target)
    assert space is not None and columns_at(space, space.origin) > REGISTERS


def test_a_wide_tile_fits_the_registers() -> None:
    space = RegisterBlocked().space(operators.matmul(4, 4096, 1024), WIDE)
    assert space is not None
    configs = [space.config(point) for point in space.points()]
    assert {config["rows"] for config in configs if config["columns"] == REGISTERS} == {1}
    assert {config["rows"] for config in configs if config["columns"] == 96} == {1, 2, 4}


@pytest.mark.compiles
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("n", [192, 768, 777])
def test_the_widest_tiles_are_right(rows: int, n: int) -> None:
    sketch, target, workload = RegisterBlocked(), Cpu.detect(), operators.matmul(rows, n, 33)
    space = sketch.space(workload, target)
    assert space is not None
    points = sorted(space.points(), key=lambda point: -columns_at(space, point))
    assert columns_at(space, points[0]) > 4 * target.lanes
    check_points(sketch, workload, target, space, points[:2])


@pytest.mark.compiles
@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("n", [1024, 1500])
@pytest.mark.parametrize("order", ["columns", "rows", "mixed"])
def test_tiles_in_a_cache_are_right(rows: int, n: int, order: str) -> None:
    sketch, target, workload = RegisterBlocked(), replace(Cpu.detect(), cores=2), operators.matmul(rows, n, 24)
    space = sketch.space(workload, target)
    assert space is not None
    chosen = [
        point
        for point in space.points()
        if columns_at(space, point) > 12 * target.lanes and space.config(point)["order"] == order
    ]
    check_points(sketch, workload, target, space, [chosen[0], chosen[len(chosen) // 2], chosen[-1]])
