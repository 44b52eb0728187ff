"""The sketches on awkward shapes: every point schedules, is right to the last element, and has no predicate."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tvm import te

from stand_ins.assembly import assembly
from stand_ins.cpus import cpu
from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.sketches.contract import AnySketch
from stormdrop.sketches.cpu.code_sums.dots import CodeDots
from stormdrop.sketches.cpu.contractions.dot_products import unit_for_bytes, unit_for_int16
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.streaming import Streaming
from stormdrop.sketches.cpu.tiles.sketch import Tiles
from stormdrop.sketches.cpu.winograd.sketch import WinogradOfBytes
from stormdrop.sketches.registry import cpu_sketches, sketches_for
from stormdrop.testing.sketches import check_points, check_sketch

TARGET = Cpu.detect()

CONTRACTIONS = [
    operators.matmul(64, 64, 64),
    operators.matmul(37, 149, 17),
    operators.matmul(1, 1000, 24),
    operators.matmul(100, 7, 12),
    operators.matmul(5, 3, 2),
    operators.dense(9, 100, 32, bias=1, act="relu"),
    operators.dense(1, 1000, 64),
    operators.batch_matmul(3, 17, 35, 8),
    operators.batch_matmul(2, 17, 35, 8, transpose_b=1),
    operators.conv2d(1, 14, 14, 16, 32, 3, 3, pad=1, bias=1, act="relu"),
    operators.conv2d(1, 17, 17, 24, 48, 1, 1),
    operators.conv2d(1, 15, 13, 3, 27, 7, 7, stride=2, pad=3),
    operators.conv2d(2, 9, 11, 8, 20, 3, 3, pad=2, dilation=2),
    operators.conv2d(1, 14, 14, 16, 32, 3, 3, pad=1, layout="NCHW", bias=1),
    operators.conv2d(1, 9, 9, 16, 24, 3, 3, pad=1, groups=4),
    operators.conv2d(1, 9, 9, 12, 68, 1, 1, groups=2, bias=1, act="relu", residual=1),
    operators.conv2d(1, 9, 9, 10, 34, 3, 3, pad=1, groups=2, layout="NCHW"),
    operators.conv2d(1, 9, 9, 16, 32, 1, 1, stride=2),
    operators.depthwise_conv2d(1, 13, 13, 40, 3, 3, pad=1, bias=1, act="relu"),
    operators.depthwise_conv2d(1, 13, 13, 8, 5, 5, stride=2, pad=2, layout="NCHW"),
]
STREAMS = [
    operators.pool2d(1, 15, 15, 20, 3, 3, stride=2, pad=1),
    operators.pool2d(1, 15, 15, 20, 3, 3, stride=2, layout="NCHW"),
    operators.pool2d(1, 7, 7, 1000, 7, 7, kind="avg"),
    operators.reduce((6, 35, 100), 2),
    operators.reduce((6, 35, 100), 1),
    operators.reduce((149, 7), 0, kind="max"),
    operators.reduce((149,), 0),
    operators.softmax(17, 100),
    operators.softmax(3, 7),
    operators.elementwise((17, 149)),
    operators.elementwise((4, 3, 2), kind="add"),
]


@pytest.mark.compiles
@pytest.mark.parametrize("workload", CONTRACTIONS, ids=lambda workload: workload.name)
def test_register_blocks(workload: Workload) -> None:
    check_sketch(RegisterBlocked(), workload, TARGET, samples=4)


@pytest.mark.compiles
@pytest.mark.parametrize("workload", STREAMS, ids=lambda workload: workload.name)
def test_streams(workload: Workload) -> None:
    check_sketch(Streaming(), workload, TARGET, samples=4)


@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [operators.conv2d(1, 9, 9, 16, 32, 3, 3, pad=1, bias=1), operators.matmul(37, 35, 17)],
    ids=lambda workload: workload.name,
)
def test_streams_take_contractions_too(workload: Workload) -> None:
    check_sketch(Streaming(), workload, TARGET, samples=2)


@pytest.mark.compiles
@pytest.mark.parametrize(
    "target",
    [dataclasses.replace(TARGET, lanes=8, registers=16), dataclasses.replace(TARGET, lanes=4, registers=32)],
    ids=["AVX2", "NEON"],
)
def test_other_vector_units(target: Cpu) -> None:
    """The schedules of a narrower machine run here too: its vectors are parts of ours."""
    if TARGET.lanes < target.lanes:
        pytest.skip(f"this machine's vectors hold {TARGET.lanes} values")
    check_sketch(RegisterBlocked(), operators.conv2d(1, 13, 13, 8, 24, 3, 3, pad=1), target, samples=3)
    check_sketch(RegisterBlocked(), operators.matmul(37, 149, 17), target, samples=3)


def test_the_body_has_no_predicate() -> None:
    """Prime extents: the last tile overlaps the one before it, so no store and no load is conditional."""
    for workload in (operators.matmul(37, 149, 17), operators.conv2d(1, 17, 17, 8, 32, 1, 1)):
        space = RegisterBlocked().space(workload, TARGET)
        assert space is not None
        for point in [space.origin, *space.neighbours(space.origin)]:
            text = RegisterBlocked().apply(workload, TARGET, space.config(point)).main.script()
            assert "T.where" not in text
            assert "if_then_else" not in text


def test_a_1x1_convolution_walks_rows_and_columns_as_one() -> None:
    space = RegisterBlocked().space(operators.conv2d(1, 17, 17, 8, 32, 1, 1), TARGET)
    strided = RegisterBlocked().space(operators.conv2d(1, 17, 17, 8, 32, 1, 1, stride=2), TARGET)
    assert space is not None and "rows_outer" not in space.config(space.origin)
    assert strided is not None and "rows_outer" in strided.config(strided.origin)


@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [
        operators.depthwise_conv2d(1, 13, 13, 40, 3, 3, pad=1, bias=1, act="relu6"),
        operators.depthwise_conv2d(2, 17, 7, 7, 5, 5, stride=2, pad=2),
    ],
    ids=str,
)
def test_depthwise_pads_in_registers_too(workload: Workload) -> None:
    """Right at random tiles; the padded image is nowhere in memory then."""
    sketch = RegisterBlocked()
    space = sketch.space(workload, TARGET)
    assert space is not None
    rng = np.random.default_rng(0)
    points = [space.sample(rng) for _ in range(60)]
    chosen = [point for point in points if space.config(point)["prologue"] == "tile"][:8]
    assert len(chosen) == 8
    check_points(sketch, workload, TARGET, space, chosen)
    for point in chosen:
        function = sketch.apply(workload, TARGET, space.config(point)).main
        assert {buffer.scope() for buffer in function.body.block.alloc_buffers} == {"local"}


def test_only_depthwise_pads_in_registers() -> None:
    space = RegisterBlocked().space(operators.conv2d(1, 14, 14, 16, 32, 3, 3, pad=1), TARGET)
    assert space is not None
    (knob,) = [knob for knob in space.knobs if knob.name == "prologue"]
    assert [knob.value(coords) for coords in knob] == ["apart", "task"]


def test_tiles_stay_within_groups() -> None:
    wide = dataclasses.replace(TARGET, lanes=16, registers=32)
    for columns, tiles in ((34, {16}), (48, {16, 24, 48}), (14, {8}), (64, {16, 32, 64})):
        space = RegisterBlocked().space(operators.conv2d(1, 9, 9, 24, 2 * columns, 1, 1, groups=2), wide)
        assert space is not None
        assert {space.config(point)["columns"] for point in space.points()} == tiles


def test_accumulators_fit_the_registers() -> None:
    space = RegisterBlocked().space(operators.conv2d(1, 56, 56, 64, 64, 3, 3, pad=1), TARGET)
    assert space is not None
    for point in space.points():
        config: Mapping[str, Any] = space.config(point)
        vectors = -(-config["columns"] // TARGET.lanes)
        assert (config["rows_outer"] * config["rows"] + 1) * vectors < TARGET.registers


def test_the_origin_fills_the_registers() -> None:
    """The prior's choice keeps at least eight independent accumulators, which hides the latency of an FMA."""
    for workload in (operators.matmul(512, 512, 512), operators.conv2d(1, 56, 56, 64, 64, 3, 3, pad=1)):
        space = RegisterBlocked().space(workload, TARGET)
        assert space is not None
        config: Mapping[str, Any] = space.config(space.origin)
        rows = config["rows"] * config.get("rows_outer", 1)
        assert rows * (config["columns"] / TARGET.lanes) >= 8


def test_the_origin_keeps_rows_apart_in_the_cache() -> None:
    """Rows 4096 bytes apart share a set of the first cache: no more of them than it has ways."""
    conflicting, harmless = (
        operators.conv2d(1, 28, 28, 512, 256, 1, 1, stride=2),  # 4096 bytes from column to column
        operators.conv2d(1, 28, 28, 96, 256, 1, 1, stride=2),
    )
    target = cpu("cpu/x86-64-v4")  # with 16 registers a tile has fewer rows than the cache has ways
    rows = []
    for workload in (conflicting, harmless):
        space = RegisterBlocked().space(workload, target)
        assert space is not None
        config: Mapping[str, Any] = space.config(space.origin)
        rows.append((config["rows_outer"], config["rows"]))
    # The strides of an output row and column of the first one are multiples of 4096 bytes.
    assert math.prod(rows[0]) <= 8 < math.prod(rows[1])


@pytest.mark.compiles
@pytest.mark.parametrize("sketch", cpu_sketches(), ids=lambda sketch: sketch.name)
def test_every_sketch_that_exists_keeps_its_promises(sketch: AnySketch) -> None:
    samples = [
        operators.matmul(17, 35, 8),
        operators.conv2d(1, 9, 9, 4, 20, 3, 3, pad=1),
        operators.softmax(9, 20),
        operators.attention(2, 9, 20, 4, 8),
        operators.weight_only_dense(2, 20, 32),
        operators.conv2d(1, 9, 9, 4, 20, 3, 3, pad=1, dtype="uint8"),
        operators.dense(9, 20, 33, bias=1, dtype="bfloat16"),
    ]
    # Dot products of bytes would leave nothing to the sketch for pairs of int16, and another one has no other unit.
    without = dataclasses.replace(TARGET, features=tuple(name for name in TARGET.features if "vnni" not in name))
    target = TARGET if sketch == CodeDots() else without
    if sketch == CodeDots() and unit_for_bytes(target) is None:
        pytest.skip("this machine has no instruction for dot products of bytes")
    if isinstance(sketch, Tiles) and "amx-bf16" not in target.features:
        pytest.skip("this machine has no tiles")
    if sketch == WinogradOfBytes() and unit_for_int16(target) is None:
        pytest.skip("this machine has no instruction for dot products of int16")
    taken = [workload for workload in samples if sketch.space(workload, target) is not None]
    assert taken
    for workload in taken:
        check_sketch(sketch, workload, target, samples=2)


def test_what_applies() -> None:
    def names(workload: Workload) -> list[str]:
        return [sketch.name for sketch, _ in sketches_for(workload, TARGET, max_error=0.0)]

    assert names(operators.matmul(8, 64, 8)) == ["register_blocked"]
    assert names(operators.softmax(8, 8)) == ["streaming"]
    assert RegisterBlocked().space(operators.softmax(8, 8), TARGET) is None


@pytest.mark.compiles
def test_a_function_of_the_user() -> None:
    """Two branches into one residual: what is fused around the contraction is the user's own."""
    x, w = te.placeholder((1, 9, 9, 8), name="x"), te.placeholder((3, 3, 8, 24), name="w")
    r, b = te.placeholder((1, 7, 7, 24), name="r"), te.placeholder((24,), name="b")
    ry, rx, rc = (te.reduce_axis((0, extent)) for extent in (3, 3, 8))
    y = te.compute(
        (1, 7, 7, 24),
        lambda n, h, v, o: te.sum(x[n, h + ry, v + rx, rc] * w[ry, rx, rc, o], axis=[ry, rx, rc]),
    )
    scaled = te.compute(y.shape, lambda n, h, v, o: y[n, h, v, o] * b[o])
    z = te.compute(y.shape, lambda n, h, v, o: te.max(scaled[n, h, v, o] + r[n, h, v, o], 0.0))
    workload = Workload.create("user", te.create_prim_func([x, w, r, b, z]))
    sketch = RegisterBlocked()
    space = sketch.space(workload, TARGET)
    assert space is not None
    assert space.config(space.origin)["pack"] == 0  # [ky, kx, c, o] is contiguous in the columns as it is
    check_sketch(sketch, workload, TARGET, samples=6)


@pytest.mark.compiles
@pytest.mark.parametrize("contraction", [False, True], ids=["streaming", "register_blocked"])
def test_overlapping_steps_do_not_read_what_was_written_over(contraction: bool) -> None:
    """Intermediates that die where the next is written: TVM would let them share memory, and the last step, which
    overlaps the one before it, would read the wrong one."""
    shape = (5, 37)
    x = te.placeholder(shape, name="x")
    first = te.compute(shape, lambda i, j: te.exp(x[i, j]))
    inputs = [x]
    if contraction:
        p, q, r = te.placeholder((5, 8), name="p"), te.placeholder((8, 37), name="q"), te.reduce_axis((0, 8))
        product = te.compute(shape, lambda i, j: te.sum(p[i, r] * q[r, j], axis=r))
        result = te.compute(shape, lambda i, j: product[i, j] * first[i, j] + first[i, j] * first[i, j])
        inputs += [p, q]
    else:
        second = te.compute(shape, lambda i, j: te.exp(first[i, j]) * first[i, j])
        result = te.compute(shape, lambda i, j: second[i, j] * second[i, j] + second[i, j])
    workload = Workload.create("chain", te.create_prim_func([*inputs, result]))
    for sketch, space in sketches_for(workload, TARGET):
        check_points(sketch, workload, TARGET, space, list(space.points())[::7])


@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [
        operators.matmul(4096, 1, 1024),
        operators.dense(64, 1, 1024),
        operators.batch_matmul(8, 1, 128, 64, transpose_b=1),
        operators.matmul(100, 3, 64),
    ],
    ids=str,
)
def test_few_columns_or_rows_have_vectors_along_the_reduction(workload: Workload) -> None:
    target = parse_machine("cpu/x86-64-v3")
    by_name = {sketch.name: sketch for sketch, _ in sketches_for(workload, target)}
    assert "streaming" in by_name
    check_sketch(by_name["streaming"], workload, TARGET, samples=2)


@pytest.mark.compiles
@pytest.mark.parametrize("workload", [operators.matmul(64, 1, 1024), operators.batch_matmul(8, 1, 128, 64, 1)], ids=str)
def test_those_vectors_are_whole(workload: Workload) -> None:
    target = parse_machine("cpu/x86-64-v3")
    (sketch, space) = next(pair for pair in sketches_for(workload, target) if pair[0].name == "streaming")
    code = assembly(sketch.apply(workload, target, space.config(space.origin)).main, target.tvm())
    assert len(re.findall(r"vfmadd\w+ps\s.*%ymm", code)) >= 2
