"""Contractions of float32 by the tiles of AMX: executed by loops in place of the instructions, and by these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Target
from stormdrop.sketches.contract import Variant
from stormdrop.sketches.cpu.tiles.data import TileData
from stormdrop.sketches.cpu.tiles.rows import rows_of
from stormdrop.sketches.cpu.tiles.sketch import TilesOfParts
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.assembly import assembly
from stormdrop.testing.emulated_tiles import emulated
from stormdrop.testing.sketches import run, some_points

SKETCH = TilesOfParts()
TARGET = Target.detect()
V4 = Target.parse("cpu/x86-64-v4")
assert isinstance(V4, Target)
AMX = replace(V4, cores=2, features=("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512vnni"))
POINTS = 8

WORKLOADS = [
    operators.dense(37, 49, 64, bias=1, act="relu", residual=1),
    operators.dense(37, 49, 66),  # 33 words: tiles of 11
    operators.dense(1, 40, 96, bias=1),
    operators.dense(70, 40, 512, bias=1),
    operators.dense(20, 17, 1),
    operators.dense(20, 33, 31, bias=1),
    operators.matmul(20, 48, 32),
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


def check(workload: Workload, variant: Variant, inputs: Sequence[NDArray[Any]], message: str) -> None:
    (found,) = run(variant, workload, TARGET, inputs)
    expected = exact(workload, inputs)
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error <= SKETCH.max_error, message


@pytest.mark.compiles
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_point_computes_the_contraction(workload: Workload) -> None:
    space, inputs = SKETCH.space(workload, AMX), numbers(workload, 1)
    assert space is not None
    for point in (space.origin, *some_points(space, POINTS)):
        config = space.config(point)
        variant = SKETCH.apply(workload, AMX, config)
        check(workload, Variant(emulated(variant.main), variant.transforms), inputs, str(config))


@pytest.mark.compiles
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_instructions_compute_the_contraction(workload: Workload) -> None:
    space, inputs = SKETCH.space(workload, TARGET), numbers(workload, 1)
    if space is None:
        pytest.skip("this machine has no tiles")
    for point in (space.origin, *some_points(space, POINTS)):
        config = space.config(point)
        check(workload, SKETCH.apply(workload, TARGET, config), inputs, str(config))


@pytest.mark.compiles
def test_numbers_of_eight_digits_have_no_low_part() -> None:
    workload = operators.dense(20, 33, 31, bias=1)
    space, inputs = SKETCH.space(workload, AMX), workload.random_inputs(1)
    assert space is not None
    variant = SKETCH.apply(workload, AMX, space.config(space.origin))
    (found,) = run(Variant(emulated(variant.main), variant.transforms), workload, TARGET, inputs)
    np.testing.assert_array_equal(found, workload.reference(inputs)[0])


@pytest.mark.compiles
def test_each_step_computes_the_parts_of_its_rows_if_its_columns_follow() -> None:
    workload = operators.conv2d(1, 14, 14, 96, 64, 1, 1, bias=1)
    space = SKETCH.space(workload, AMX)
    assert space is not None
    config = {**space.config(space.origin), "rows": 14, "row_tiles": 1, "column_tiles": 1, "tasks": 1}
    for order, own in (("rows", True), ("columns", False)):
        contraction, dots = SKETCH.contraction(workload, AMX)
        data = TileData(contraction, dots, rows_of(contraction), 1, 14, by_column=order == "columns")
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
        check(workload, Variant(emulated(variant.main), variant.transforms), inputs, f"block {block}")


@pytest.mark.parametrize(
    ("workload", "target"),
    [
        (operators.dense(32, 32, 64), V4),
        (operators.dense(32, 32, 64, dtype="bfloat16"), AMX),
        (operators.dense(32, 32, 64, dtype="uint8"), AMX),
        (operators.weight_only_dense(2, 32, 64), AMX),
        (operators.depthwise_conv2d(1, 9, 9, 32, 3, 3), AMX),
        (operators.softmax(32, 32), AMX),
        (operators.dense(32, 32, 64), replace(AMX, keep_denormals=True)),
    ],
    ids=["no tiles", "bfloat16", "bytes", "codes", "depthwise", "softmax", "denormals"],
)
def test_other_functions_have_no_such_space(workload: Workload, target: Target) -> None:
    assert SKETCH.space(workload, target) is None
    with pytest.raises(UnsupportedFunction):
        SKETCH.contraction(workload, target)


def test_whoever_wants_exact_sums_does_not_get_it() -> None:
    def names(max_error: float) -> list[str]:
        return [sketch.name for sketch, _ in sketches_for(operators.dense(64, 64, 64), AMX, max_error=max_error)]

    assert names(1e-4) == ["register_blocked", "tiles_of_parts"]
    assert names(1e-5) == names(0.0) == ["register_blocked"]
