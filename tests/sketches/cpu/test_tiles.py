"""Contractions by the tiles of AMX: executed by loops in place of the instructions, and compiled for a CPU with AMX."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stand_ins.assembly import assembly
from stand_ins.emulated_tiles import run_all_emulated, run_emulated
from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.sketches.cpu.tiles.instructions import configuration
from stormdrop.sketches.cpu.tiles.loops import TileLoops
from stormdrop.sketches.cpu.tiles.reductions import block_sizes, split_at
from stormdrop.sketches.cpu.tiles.rows import rows_of
from stormdrop.sketches.cpu.tiles.sketch import Tiles, contraction_of
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.sketches import covering_points, run_all

SKETCH = Tiles()
TARGET = Cpu.detect()
V4 = parse_machine("cpu/x86-64-v4")
assert isinstance(V4, Cpu)
AMX = replace(V4, cores=2, features=("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512vnni"))
EMULATED = 2 if "amx-bf16" in TARGET.features else None  # where there are tiles, their instructions execute the others

WORKLOADS = [
    operators.dense(37, 49, 64, bias=1, act="relu", residual=1, dtype="bfloat16"),
    operators.dense(37, 49, 66, dtype="bfloat16"),  # 33 words: tiles of 11
    operators.matmul(20, 48, 32, dtype="bfloat16"),
    operators.matmul(90, 80, 512, dtype="bfloat16"),
    operators.matmul(40, 50, 66, dtype="int8"),
    operators.matmul(33, 17, 31, dtype="bfloat16"),
    operators.batch_matmul(1, 40, 48, 64, dtype="bfloat16"),
    operators.batch_matmul(2, 13, 35, 34, transpose_b=1, dtype="bfloat16"),
    operators.conv2d(1, 9, 11, 24, 40, 3, 3, pad=1, bias=1, dtype="bfloat16"),
    operators.conv2d(1, 10, 10, 6, 24, 3, 3, stride=2, dtype="bfloat16"),
    operators.conv2d(2, 7, 7, 64, 32, 1, 1, act="relu", bias=1, dtype="bfloat16"),
    operators.dense(19, 33, 68, bias=1, act="relu", dtype="uint8", zero_point=5),
    operators.conv2d(1, 9, 11, 20, 40, 3, 3, pad=1, dtype="int8", zero_point=-7),
    operators.conv2d(1, 8, 8, 16, 32, 1, 1, dtype="uint8", requantize=1, bias=1, act="relu"),
    operators.batch_matmul(2, 13, 35, 36, dtype="int8"),
    # Groups do not divide the reduction.
    operators.dense(20, 17, 1, dtype="bfloat16"),
    operators.dense(20, 33, 31, bias=1, dtype="bfloat16"),
    operators.dense(20, 33, 74, dtype="bfloat16"),  # 37 words become 39
    operators.dense(20, 33, 65, dtype="uint8", zero_point=128),
    operators.batch_matmul(2, 17, 20, 33, dtype="bfloat16"),
    operators.conv2d(1, 20, 22, 3, 24, 7, 7, stride=2, pad=3, bias=1, act="relu", dtype="bfloat16"),
    operators.conv2d(1, 11, 13, 3, 17, 3, 3, dtype="bfloat16"),
    operators.conv2d(2, 9, 11, 3, 16, 3, 3, pad=1, dtype="uint8", zero_point=7),
    operators.conv2d(1, 6, 9, 5, 16, 2, 3, stride=2, pad=1, dtype="int8", zero_point=-1),
    # Tiles run on from one row of an image to the next.
    operators.conv2d(1, 7, 7, 32, 40, 3, 3, pad=1, bias=1, act="relu", dtype="bfloat16"),
    operators.conv2d(2, 17, 17, 8, 16, 1, 7, dtype="bfloat16"),
    operators.conv2d(1, 17, 17, 3, 20, 3, 3, stride=2, pad=1, dtype="uint8", zero_point=3, requantize=1, bias=1),
    # Groups, one row, and blocks of a long reduction.
    operators.conv2d(1, 9, 9, 32, 64, 3, 3, pad=1, groups=2, bias=1, dtype="bfloat16"),
    operators.conv2d(1, 9, 9, 16, 64, 3, 3, pad=1, groups=2, dtype="uint8", zero_point=9),
    operators.conv2d(1, 8, 8, 68, 64, 1, 1, groups=2, dtype="bfloat16"),  # 17 words stay 17
    operators.dense(1, 40, 96, bias=1, dtype="bfloat16"),
    operators.dense(70, 40, 512, bias=1, dtype="bfloat16"),
    operators.conv2d(1, 14, 14, 96, 20, 3, 3, pad=1, dtype="int8", zero_point=2),
]


def space_of(workload: Workload) -> Any:
    space = SKETCH.space(workload, AMX)
    assert space is not None
    return space


@pytest.mark.any_cpu
@pytest.mark.compiles
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_level_computes_the_contraction(workload: Workload) -> None:
    space, inputs = space_of(workload), workload.random_inputs(1)
    (expected,) = workload.reference(inputs)
    configs = [space.config(point) for point in covering_points(space)[:EMULATED]]
    variants = [SKETCH.apply(workload, AMX, config) for config in configs]
    for config, (found,) in zip(configs, run_all_emulated(variants, workload, TARGET, inputs), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=str(config))


@pytest.mark.compiles
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_instructions_compute_the_contraction(workload: Workload) -> None:
    space = SKETCH.space(workload, TARGET)
    if space is None:
        pytest.skip("this machine has no tiles for this type")
    inputs = workload.random_inputs(1)
    (expected,) = workload.reference(inputs)
    configs = [space.config(point) for point in covering_points(space)]
    variants = [SKETCH.apply(workload, TARGET, config) for config in configs]
    for config, (found,) in zip(configs, run_all(variants, workload, TARGET, inputs), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=str(config))


@pytest.mark.compiles
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_llvm_makes_tile_instructions_for_a_machine_that_has_them(workload: Workload) -> None:
    space = space_of(workload)
    config = space.config(space.origin)
    text = assembly(SKETCH.apply(workload, AMX, config).main, AMX.tvm())
    count = len(re.findall(r"\ttdp(bf16ps|b[su]{2}d)\t", text))
    assert count >= config["row_tiles"] * config["column_tiles"]
    assert len(re.findall(r"\tldtilecfg\t", text)) == len(re.findall(r"\ttilerelease", text)) > 0


@pytest.mark.parametrize(
    ("workload", "target"),
    [
        (operators.dense(32, 32, 64, dtype="bfloat16"), V4),
        (operators.dense(32, 32, 64), AMX),
        (operators.dense(32, 15, 64, dtype="bfloat16"), AMX),
        (operators.conv2d(1, 8, 8, 16, 32, 3, 3, layout="NCHW", dtype="bfloat16"), AMX),
        (operators.dense(4, 32, 33100, dtype="uint8"), AMX),
        (operators.softmax(32, 32), AMX),
        (operators.dense(32, 32, 64, dtype="bfloat16"), replace(AMX, keep_denormals=True)),
    ],
    ids=[
        "no tiles",
        "float32",
        "few columns",
        "channels second",
        "overflow",
        "softmax",
        "denormals",
    ],
)
def test_other_functions_have_no_such_space(workload: Workload, target: Cpu) -> None:
    assert SKETCH.space(workload, target) is None
    with pytest.raises(UnsupportedFunction):
        SKETCH.apply(workload, target, {"rows": 1, "row_tiles": 1, "column_tiles": 1, "order": "rows", "tasks": 1})


def test_it_is_there_only_where_the_machine_has_tiles() -> None:
    workload = operators.dense(64, 64, 64, dtype="bfloat16")
    assert [sketch.name for sketch, _ in sketches_for(workload, AMX, [SKETCH])] == ["tiles"]
    assert sketches_for(workload, V4, [SKETCH]) == []
    behind = replace(AMX, runner="127.0.0.1:9190")
    assert sketches_for(workload, behind, [SKETCH]) == [], "nobody asks for tiles there"


def test_a_configuration_is_what_the_manual_says() -> None:
    words = configuration(rows=14, depth=12, sums=4, data=2)
    described = words.view("uint8")
    assert described[0] == 1 and not described[1:16].any()
    assert described[16:32].view("uint16").tolist() == [64, 64, 64, 64, 48, 48, 64, 64]
    assert described[48:56].tolist() == [14, 14, 14, 14, 14, 14, 12, 12]


@pytest.mark.compiles
def test_a_missing_unit_costs_one_candidate() -> None:
    from stormdrop.codegen.compile import TunedKernel
    from stormdrop.errors import TargetError

    if "amx-tile" in TARGET.features:
        pytest.skip("this machine has tiles")
    workload = operators.dense(32, 32, 64, dtype="bfloat16")
    space = space_of(workload)
    variant = SKETCH.apply(workload, AMX, space.config(space.origin))
    with pytest.raises(TargetError, match="amx-"):
        TunedKernel(workload, TARGET, variant)


@pytest.mark.compiles
def test_constant_columns_are_fetched_ahead() -> None:
    small = replace(AMX, l2=4096)
    workload = operators.dense(37, 80, 64, bias=1, dtype="bfloat16")
    space, inputs = SKETCH.space(workload, small), workload.random_inputs(1)
    assert space is not None
    configs = [config for config in map(space.config, space.points()) if config["prefetch"]]
    assert {config["order"] for config in configs} == {"columns", "rows"}
    for config in configs[:: len(configs) // 6]:
        variant = SKETCH.apply(workload, small, config)
        assert "prefetcht1" in assembly(variant.main, small.tvm())
        (found,) = run_emulated(variant, workload, TARGET, inputs)
        np.testing.assert_array_equal(found, workload.reference(inputs)[0], err_msg=str(config))


@pytest.mark.compiles
def test_sums_wait_while_tiles_walk_through_a_block() -> None:
    """Several groups of steps, of which the last one overlaps the one before, also while panels are fetched."""
    small = replace(AMX, l2=1 << 17, cores=7)
    workload = operators.dense(16 * 50, 48, 256, bias=1, dtype="bfloat16")
    space, inputs = SKETCH.space(workload, small), workload.random_inputs(1)
    assert space is not None
    common = {"rows": 16, "row_tiles": 1, "tasks": 1, "block": 4}
    for order, column_tiles, prefetch in (
        *(("columns", 1, 0), ("columns", 1, 1), ("columns", 3, 1)),
        *(("rows", 1, 0), ("rows", 3, 1)),
    ):
        config = {**common, "order": order, "column_tiles": column_tiles, "prefetch": prefetch}
        loops = TileLoops(*contraction_of(workload, small, parts=False), small, config)
        assert loops.group > 1 and 50 % loops.group and loops.groups > 1
        assert space.contains(space.point(config))
        variant = SKETCH.apply(workload, small, config)
        (found,) = run_emulated(variant, workload, TARGET, inputs)
        np.testing.assert_array_equal(found, workload.reference(inputs)[0], err_msg=str(config))


def test_blocks_divide_the_loops_over_products() -> None:
    assert block_sizes([3, 3, 8]) == [1, 2, 4, 8, 24, 72]
    for loops in ([8], [3, 3, 8], [7, 2], [1, 5]):
        for size in block_sizes(loops):
            outside, inside = split_at(loops, size)
            assert math.prod(inside) == size and math.prod(outside) * size == math.prod(loops)
    with pytest.raises(ValueError, match="blocks of 5"):
        split_at([3, 3, 8], 5)


@pytest.mark.parametrize(
    ("height", "width", "extents"),
    [(7, 7, [61]), (17, 17, [16 * 19 + 17]), (14, 14, [14, 14]), (56, 56, [56, 56]), (5, 64, [5, 64])],
)
def test_tiles_of_narrow_images_run_on(height: int, width: int, extents: list[int]) -> None:
    workload = operators.conv2d(1, height, width, 32, 32, 3, 3, pad=1, dtype="bfloat16")
    contraction, _ = contraction_of(workload, AMX, parts=False)
    assert rows_of(contraction).extents == extents
