"""Contractions of float32 by the tiles of AMX: executed by loops in place of the instructions, and by these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tvm import te, topi

from stand_ins.assembly import assembly
from stand_ins.emulated_tiles import run_all_emulated, run_emulated
from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.stages import shape_of
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.sketches.cpu.tiles.data import TileData
from stormdrop.sketches.cpu.tiles.groups import steps_per_group
from stormdrop.sketches.cpu.tiles.loops import TileLoops
from stormdrop.sketches.cpu.tiles.rows import rows_of
from stormdrop.sketches.cpu.tiles.sketch import TilesOfParts
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.sketches import covering_points, run, run_all
from stormdrop.trial import Point

SKETCH = TilesOfParts()
TARGET = Cpu.detect()
V4 = parse_machine("cpu/x86-64-v4")
assert isinstance(V4, Cpu)
AMX = replace(V4, cores=2, features=("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512vnni"))
POINTS = 8  # they have every level of the knobs but `rows`, all of whose levels `test_tiles` executes
EMULATED = 2 if "amx-bf16" in TARGET.features else POINTS  # where there are tiles, their instructions execute more

WORKLOADS = [
    operators.dense(37, 49, 64, bias=1, act="relu", residual=1),
    operators.dense(37, 49, 66),  # 33 words: tiles of 11
    operators.dense(4, 40, 96, bias=1),
    operators.dense(70, 40, 512, bias=1),
    operators.dense(20, 17, 1),
    operators.dense(20, 33, 31, bias=1),
    operators.matmul(20, 48, 32),
    operators.matmul(70, 80, 192),
    operators.matmul(40, 50, 66),
    operators.batch_matmul(2, 13, 35, 34, transpose_b=1),
    operators.batch_matmul(3, 17, 20, 33),
    operators.conv2d(1, 9, 11, 24, 40, 3, 3, pad=1, bias=1),
    operators.conv2d(1, 10, 10, 6, 24, 3, 3, stride=2),
    operators.conv2d(2, 7, 7, 64, 32, 1, 1, act="relu", bias=1),
    operators.conv2d(1, 8, 8, 20, 32, 1, 1, stride=2),
    operators.conv2d(1, 20, 22, 3, 24, 7, 7, stride=2, pad=3, bias=1, act="relu"),
    operators.conv2d(1, 7, 7, 32, 40, 3, 3, pad=1, bias=1, act="relu"),
    operators.conv2d(1, 9, 9, 32, 64, 3, 3, pad=1, groups=2, bias=1),
    operators.conv2d(1, 14, 14, 96, 20, 3, 3, pad=1),
]


def numbers(workload: Workload, seed: int) -> list[NDArray[np.float32]]:
    """Inputs with all digits of float32."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(spec.shape).astype(np.float32) for spec in workload.inputs]


def exact(workload: Workload, inputs: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    (result,) = workload.reference([array.astype(np.float64) for array in inputs])
    return result


def levels(points: Sequence[Point]) -> set[tuple[int, int]]:
    """The levels of the knobs but the first, `rows`, that points have."""
    return {(knob, level) for point in points for knob, level in enumerate(point) if knob}


def check(workload: Workload, outputs: Sequence[NDArray[Any]], inputs: Sequence[NDArray[Any]], message: str) -> None:
    (found,) = outputs
    expected = exact(workload, inputs)
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error <= SKETCH.max_error, message


@pytest.mark.any_cpu
@pytest.mark.compiles
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_level_computes_the_contraction(workload: Workload) -> None:
    space, inputs = SKETCH.space(workload, AMX), numbers(workload, 1)
    assert space is not None
    configs = [space.config(point) for point in covering_points(space)[:EMULATED]]
    variants = [SKETCH.apply(workload, AMX, config) for config in configs]
    for config, outputs in zip(configs, run_all_emulated(variants, workload, TARGET, inputs), strict=True):
        check(workload, outputs, inputs, str(config))


@pytest.mark.any_cpu
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_few_points_have_every_level(workload: Workload) -> None:
    space = SKETCH.space(workload, AMX)
    assert space is not None
    assert levels(covering_points(space)[:POINTS]) == levels(list(space.points()))


@pytest.mark.compiles
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_instructions_compute_the_contraction(workload: Workload) -> None:
    space, inputs = SKETCH.space(workload, TARGET), numbers(workload, 1)
    if space is None:
        pytest.skip("this machine has no tiles")
    configs = [space.config(point) for point in covering_points(space)[:POINTS]]
    variants = [SKETCH.apply(workload, TARGET, config) for config in configs]
    for config, outputs in zip(configs, run_all(variants, workload, TARGET, inputs), strict=True):
        check(workload, outputs, inputs, str(config))


@pytest.mark.compiles
def test_numbers_of_eight_digits_have_no_low_part() -> None:
    workload = operators.dense(20, 33, 31, bias=1)
    space, inputs = SKETCH.space(workload, AMX), workload.random_inputs(1)
    assert space is not None
    variant = SKETCH.apply(workload, AMX, space.config(space.origin))
    (found,) = run_emulated(variant, workload, TARGET, inputs)
    np.testing.assert_array_equal(found, workload.reference(inputs)[0])


@pytest.mark.compiles
def test_each_step_computes_the_parts_of_its_rows_if_its_columns_follow() -> None:
    workload = operators.conv2d(1, 14, 14, 96, 64, 1, 1, bias=1)
    space = SKETCH.space(workload, AMX)
    assert space is not None
    config = {**space.config(space.origin), "rows": 14, "row_tiles": 1, "column_tiles": 1, "tasks": 1}
    for order, own in (("rows", True), ("columns", False)):
        contraction, dots = SKETCH.contraction(workload, AMX)
        data = TileData(contraction, dots, rows_of(contraction), order == "columns", tiles=1, tile_rows=14)
        assert bool(data.rows) == own
        text = assembly(SKETCH.apply(workload, AMX, {**config, "order": order}).main, AMX.tvm())
        assert len(re.findall(r"\ttdpbf16ps\t", text)) >= 3
        assert "vcvtneps2bf16" in text


@pytest.mark.compiles
def test_a_panel_that_is_read_once_is_fetched_block_by_block() -> None:
    small = replace(AMX, l2=4096)
    workload = operators.dense(37, 80, 256, bias=1)
    space, inputs = SKETCH.space(workload, small), numbers(workload, 1)
    assert space is not None
    common = {"rows": 13, "row_tiles": 1, "column_tiles": 2, "order": "columns", "tasks": 1, "prefetch": 1}
    for block in (4, 8):
        variant = SKETCH.apply(workload, small, {**common, "block": block})
        assert "prefetcht1" in assembly(variant.main, small.tvm())
        check(workload, run_emulated(variant, workload, TARGET, inputs), inputs, f"block {block}")


@pytest.mark.compiles
@pytest.mark.parametrize("prefetch", [0, 1])
def test_groups_of_steps_keep_the_parts_of_their_rows(prefetch: int) -> None:
    """The last group overlaps the one before, and tasks begin inside of a group."""
    small = replace(AMX, l2=1 << 18, cores=3)
    workload = operators.dense(16 * 23, 64, 256, bias=1)
    space, inputs = SKETCH.space(workload, small), numbers(workload, 1)
    assert space is not None
    config = {"rows": 16, "row_tiles": 1, "column_tiles": 1, "order": "rows", "tasks": 4, "block": 4}
    config["prefetch"] = prefetch
    loops = TileLoops(*SKETCH.contraction(workload, small), small, config)
    assert loops.group > 1 and loops.groups > 1 and 23 % loops.group and len(loops.data.rows) == 2
    assert loops.total % loops.tasks
    variant = SKETCH.apply(workload, small, config)
    check(workload, run_emulated(variant, workload, TARGET, inputs), inputs, str(config))


@pytest.mark.compiles
@pytest.mark.parametrize("order", ["rows", "columns"])
def test_rows_that_would_share_sets_of_a_cache_are_moved_apart(order: str) -> None:
    workload = operators.conv2d(1, 5, 6, 512, 32, 3, 3, pad=1)
    space, inputs = SKETCH.space(workload, AMX), numbers(workload, 1)
    assert space is not None
    contraction, _ = SKETCH.contraction(workload, AMX)
    assert shape_of(contraction.other.source)[-1] == 512 + 32
    config = {**space.config(space.origin), "order": order}
    variant = SKETCH.apply(workload, AMX, config)
    check(workload, run_emulated(variant, workload, TARGET, inputs), inputs, str(config))


@pytest.mark.compiles
def test_large_rows_of_parts_are_no_part_of_the_stack() -> None:
    workload = operators.dense(64, 64, 4096)
    space, inputs = SKETCH.space(workload, TARGET), numbers(workload, 1)
    contraction, dots = SKETCH.contraction(workload, AMX)
    data = TileData(contraction, dots, rows_of(contraction), False, tiles=2, tile_rows=16)
    assert {buffer.scope() for buffer in data.rows} == {"global"}
    if space is None:
        pytest.skip("this machine has no tiles")
    config = {**space.config(space.origin), "rows": 16, "row_tiles": 2, "column_tiles": 2, "order": "rows"}
    check(workload, run(SKETCH.apply(workload, TARGET, config), workload, TARGET, inputs), inputs, str(config))


def softmax_then_product() -> Workload:
    """Scores that a softmax makes, times values: the contraction reads what several stages have computed."""
    x, v = te.placeholder((2, 20, 48), name="x"), te.placeholder((2, 48, 24), name="v")
    e = topi.nn.softmax(x, axis=-1)
    k = te.reduce_axis((0, 48), name="k")
    y = te.compute((2, 20, 24), lambda b, i, j: te.sum(e[b, i, k] * v[b, k, j], axis=k), name="y")
    return Workload.create("softmax_then_product", te.create_prim_func([x, v, y]))


@pytest.mark.compiles
def test_stages_before_the_data_stay() -> None:
    workload = softmax_then_product()
    space, inputs = SKETCH.space(workload, AMX), numbers(workload, 1)
    assert space is not None
    for order in ("rows", "columns"):
        config = {**space.config(space.origin), "order": order}
        variant = SKETCH.apply(workload, AMX, config)
        check(workload, run_emulated(variant, workload, TARGET, inputs), inputs, str(config))


def test_groups_are_of_one_size() -> None:
    workload = operators.dense(16 * 17, 64, 256)
    contraction, dots = SKETCH.contraction(workload, AMX)
    steps, panels, sums = np.array([17, 17, 1, 50]), np.array([4, 4, 4, 4]), np.array([1024, 1024, 256, 256])
    by_column = np.array([True, False, False, True])
    together = steps_per_group(contraction, dots, AMX, steps, panels, sums, by_column)
    alone = [
        int(steps_per_group(contraction, dots, AMX, int(count), 4, int(size), bool(order)))
        for count, size, order in zip(steps, sums, by_column, strict=True)
    ]
    assert together.tolist() == alone == [9, 9, 1, 50]
    for target in (replace(AMX, l2=0), replace(AMX, l2=64)):
        assert steps_per_group(contraction, dots, target, 17, 4, 1024, False) == 1


@pytest.mark.parametrize(
    ("workload", "target"),
    [
        (operators.dense(32, 32, 64), V4),
        (operators.dense(32, 32, 64, dtype="bfloat16"), AMX),
        (operators.dense(32, 32, 64, dtype="uint8"), AMX),
        (operators.weight_only_dense(2, 32, 64), AMX),
        (operators.depthwise_conv2d(1, 9, 9, 32, 3, 3), AMX),
        (operators.softmax(32, 32), AMX),
        (operators.dense(3, 32, 64), AMX),
        (operators.dense(32, 32, 64), replace(AMX, keep_denormals=True)),
    ],
    ids=["no tiles", "bfloat16", "bytes", "codes", "depthwise", "softmax", "few rows", "denormals"],
)
def test_other_functions_have_no_such_space(workload: Workload, target: Cpu) -> None:
    assert SKETCH.space(workload, target) is None
    with pytest.raises(UnsupportedFunction):
        SKETCH.contraction(workload, target)


def test_whoever_wants_exact_sums_does_not_get_it() -> None:
    def names(max_error: float) -> list[str]:
        return [sketch.name for sketch, _ in sketches_for(operators.dense(64, 64, 64), AMX, max_error=max_error)]

    assert names(1e-4) == ["register_blocked", "tiles_of_parts"]
    assert names(1e-5) == names(0.0) == ["register_blocked"]
