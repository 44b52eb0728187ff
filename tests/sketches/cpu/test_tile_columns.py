"""Columns that vary: tasks of tiles pack their panels, each while the panel before it is multiplied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import te

from stand_ins.emulated_tiles import run_emulated
from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.sketches.cpu.tiles.columns import packs_by_panel
from stormdrop.sketches.cpu.tiles.loops import TileLoops
from stormdrop.sketches.cpu.tiles.sketch import Tiles, contraction_of
from stormdrop.testing.sketches import run

SKETCH = Tiles()
TARGET = Cpu.detect()
V4 = parse_machine("cpu/x86-64-v4")
assert isinstance(V4, Cpu)
AMX = replace(V4, cores=2, features=("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512vnni"))


def config(rows: int, row_tiles: int, column_tiles: int, tasks: int, **others: Any) -> dict[str, Any]:
    shape = {"rows": rows, "row_tiles": row_tiles, "column_tiles": column_tiles}
    return {**shape, "order": "columns", "tasks": tasks, **others}


def of_bytes(m: int, n: int, k: int, zero_point: int) -> Workload:
    """A product of two matrices that vary, of data with a zero point: a panel begins with a correction."""
    a, b = te.placeholder((m, k), "uint8", name="a"), te.placeholder((k, n), "int8", name="b")
    r = te.reduce_axis((0, k), name="r")

    def element(i: Any, j: Any) -> Any:
        return te.sum((a[i, r].astype("int32") - zero_point) * b[r, j].astype("int32"), axis=r)

    return Workload.create("bytes", te.create_prim_func([a, b, te.compute((m, n), element, name="c")]))


def loops(workload: Workload, point: dict[str, Any]) -> TileLoops:
    return TileLoops(*contraction_of(workload, AMX, False), AMX, point)


def check(workload: Workload, point: dict[str, Any]) -> None:
    inputs = workload.random_inputs(1)
    (expected,) = workload.reference(inputs)
    variant = SKETCH.apply(workload, AMX, point)
    (found,) = run_emulated(variant, workload, TARGET, inputs)
    np.testing.assert_array_equal(found, expected)
    if SKETCH.space(workload, TARGET) is not None:
        (found,) = run(SKETCH.apply(workload, TARGET, point), workload, TARGET, inputs)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.compiles
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_tasks_begin_inside_of_a_panel_and_go_on_with_the_next_ones(dtype: str) -> None:
    workload, point = operators.matmul(90, 150, 128, dtype=dtype), config(15, 1, 2, 1)
    made = loops(workload, point)
    each = -(-made.total // made.tasks)
    assert made.columns.by_panel
    assert each % made.groups != 0
    assert each > 2 * made.groups
    check(workload, point)


@pytest.mark.compiles
def test_a_panel_may_have_fewer_words_than_there_are_groups() -> None:
    workload, point = operators.matmul(96, 80, 10, dtype="bfloat16"), config(8, 1, 1, 1)
    assert loops(workload, point).groups > 5
    check(workload, point)


@pytest.mark.compiles
def test_the_last_group_may_overlap_the_one_before_it() -> None:
    workload, point = operators.matmul(75, 96, 256, dtype="bfloat16"), config(15, 1, 2, 1, block=4)
    made = loops(workload, point)
    assert made.group * made.groups >= 5
    check(workload, point)


@pytest.mark.compiles
def test_large_panels_are_a_workspace_of_the_task() -> None:
    workload, point = operators.matmul(64, 128, 512, dtype="bfloat16"), config(16, 1, 3, 1)
    assert loops(workload, point).columns.buffer.scope() == "global"
    check(workload, point)


@pytest.mark.compiles
@pytest.mark.parametrize("tasks", [1, 4])
def test_a_panel_begins_with_the_correction(tasks: int) -> None:
    workload, point = of_bytes(64, 80, 72, 5), config(16, 1, 1, tasks)
    assert loops(workload, point).columns.first == 1
    check(workload, point)


def test_rows_of_the_next_slice_are_fetched() -> None:
    several, one = config(16, 1, 2, 1), config(16, 1, 4, 1)
    workload = operators.matmul(64, 128, 64, dtype="bfloat16")
    assert "llvm.prefetch" in str(SKETCH.apply(workload, AMX, several).main)
    assert "llvm.prefetch" not in str(SKETCH.apply(workload, AMX, one).main)  # each task has one panel


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (operators.matmul(32, 64, 64, dtype="bfloat16"), True),
        (operators.batch_matmul(1, 32, 64, 64, dtype="bfloat16"), True),
        (operators.batch_matmul(2, 32, 64, 64, dtype="bfloat16"), False),  # the rows of each product have other columns
        (operators.batch_matmul(1, 32, 64, 64, transpose_b=1, dtype="bfloat16"), False),  # vectors would gather them
        (operators.dense(32, 64, 64, dtype="bfloat16"), False),  # a constant
    ],
    ids=["matmul", "batch of one", "batch", "transposed", "constant"],
)
def test_columns_are_packed_by_panel_if_all_rows_share_them(workload: Workload, expected: bool) -> None:
    contraction, _ = contraction_of(workload, AMX, False)
    assert packs_by_panel(contraction) is expected
