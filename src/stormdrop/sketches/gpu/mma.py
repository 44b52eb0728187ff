"""The sketch `gpu_mma`: products of 16-bit floats, TF32 or bytes on tensor cores since sm_80, fed by copies.

    for blocks of rows and columns:                                         blockIdx.x
        for warps:                                                          threadIdx.y
            for steps:
                shared memory = the parts of both operands of a later step  cp.async, 16 bytes a thread
                wait until the parts of this step are there
                for fragments of the step:
                    registers = fragments of both operands                  ldmatrix
                    for fragments of rows, of columns:
                        sums += product of fragments                        mma.sync.m16n8k16
            output = epilogue(sums), from registers, two elements at a time

Blocks that run at the same time share operands in the second cache: `panel` rows of blocks are gone through column by
column. `stages` parts are on their way or in use at a time. Rows in shared memory are followed by 16 unused bytes, so
that the eight rows that `ldmatrix` reads at once are in different banks. Operands are float16, bfloat16 or bytes. In
TF32 they are float32, and lanes load a [depth, column] one by one (see `tf32`). Sums are float32, or int32 of bytes.
Other axes, such as that of a batch, are blocks. Rows, columns and depth that are no multiples of 16 are filled up with
zeros in shared memory. If rows of an operand are no multiples of 16 bytes, copies are smaller. A convolution is such a
product, too: `matrix_product` says how.

The default is the best of some thousand tilings by `estimate`, which was not compared with measurements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc
from tvm.tirx.function import IndexMap

from ...errors import UnsupportedFunction
from ...ir.dtypes import TF32
from ...ir.kept import kept
from ...ir.workload import Workload
from ...machine.gpu import Gpu
from ...space import Constraint, Ordinal, Space, Tile
from ...space.tile import largest_divisor
from ..contract import Variant
from .intrinsics import mma_intrinsics
from .matrix_product import (
    MOST_FRAGMENTS,
    MOST_WARPS,
    SIDE,
    HalfMatmul,
    Layout,
    find_matmul,
    layout_of,
    pairs_by_lanes,
    share_among_threads,
    speedup_of_tensor_cores,
    split_into_fragments,
    thread_registers,
    tile_in_warps,
)
from .streaming import schedule_sums, seconds_of_sums
from .tiling import shared_bytes
from .times.fragments import FragmentTilings, expected_seconds

_PADDING = 16  # bytes after each row in shared memory that `ldmatrix` reads
_PADDING_OF_WORDS = 32  # bytes after each row whose words lanes load one by one
_STAGES = (1, 2, 3, 4)
_PANELS = (1, 2, 4, 8)
_SHARED = "shared.dyn"

Tiles = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]
"""Factors of rows and columns (blocks, warps, fragments of a warp) and of steps (steps, fragments of a step)."""


class GpuMma:
    """The sketch that this module describes."""

    name: ClassVar[str] = "gpu_mma"
    max_error: ClassVar[float] = 0.0

    def speedup_bound(self, workload: Workload, target: Gpu) -> float:
        """See `Bounded`: how much faster tensor cores multiply such factors than lanes multiply float32."""
        return speedup_of_tensor_cores(find_matmul(workload), target)

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The tilings of a matmul within the device's limits; None if the function or the device is none for it.

        The knobs are blocks, warps and fragments of rows and of columns, the depth of a step, the stages, and how many
        rows of blocks are a panel.
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The seconds that `times/fragments.py` expects of n configurations, shape (n,)."""
        matmul = find_matmul(workload)
        rows, columns, steps = (np.asarray(knobs[name]).T for name in ("rows", "columns", "steps"))
        registers, stages = thread_registers(rows, columns, matmul.words), knobs["stages"]
        shared = _shared_bytes(matmul, (rows, columns, steps), stages)
        sizes = (matmul.batches, rows, columns, steps, stages, registers, shared)
        tilings = FragmentTilings(*sizes, matmul.vectors, 1, matmul.element_bytes, matmul.fragment_depth)
        seconds = expected_seconds(tilings, target, workload.bytes)
        return seconds + sum(seconds_of_sums(each, target) for each in matmul.bare.before)

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        plain = partial(_schedule, workload, config, tensorized=False)
        return Variant(_schedule(workload, config), find_matmul(workload).bare.transforms, plain)


def _schedule(workload: Workload, config: Mapping[str, Any], tensorized: bool = True) -> PrimFunc:
    """The schedule at a configuration; if not `tensorized`, plain loops do what a warp does, one step at a time."""
    matmul = find_matmul(workload)
    schedule = Schedule(tvm.IRModule({"main": matmul.fused.graph.function()}), debug_mask=0)
    block, output = _with_sums_in_registers(schedule, matmul, "warp" if tensorized else "local")
    loops = tile_in_warps(schedule, block, config, matmul.fragment_depth)
    schedule.reverse_compute_at(output, loops.warps, preserve_unit_loops=True)
    _write_by_lanes(schedule, output, matmul.written)
    if tensorized:
        schedule.transform_layout(block, ("write", 0), _by_lanes(schedule, block))
    loaded = []
    for position in range(2):
        scope = _SHARED if tensorized else "shared"
        staged = schedule.cache_read(block, position, scope, [block])  # what follows may read it as well
        schedule.compute_at(staged, loops.steps)
        share_among_threads(schedule, staged, 3, config["rows"][1] * config["columns"][1], matmul.vectors[position])
        schedule.storage_align(staged, 0, -2, matmul.fragment_depth, _paddings(matmul)[position])
        loaded.append(schedule.cache_read(block, position, "warp" if tensorized else "local"))
        schedule.compute_at(loaded[-1], loops.fragments)
    for stage in matmul.fused.producers:
        schedule.compute_inline(schedule.get_sblock(stage.name))
    initial = schedule.decompose_reduction(block, loops.steps)
    if tensorized and config["stages"] > 1:
        schedule.annotate(loops.steps, "software_pipeline_stage", [0, 0, config["stages"] - 1])
        schedule.annotate(loops.steps, "software_pipeline_order", [0, 1, 2])
        schedule.annotate(loops.steps, "software_pipeline_async_stages", [0])
    if tensorized:
        names = mma_intrinsics(_SHARED, matmul.dtypes, matmul.transposed)
        for position, load in enumerate(loaded):
            sides = (SIDE, matmul.fragment_depth)
            sides = sides[::-1] if position == 1 and not matmul.transposed else sides
            loop = split_into_fragments(schedule, load, sides)
            by_lanes = _by_lanes(schedule, load, layout_of(matmul, position), sides)
            schedule.transform_layout(load, ("write", 0), by_lanes)
            schedule.tensorize(loop, names[("load_a", "load_b")[position]])
        schedule.tensorize(loops.product, names["compute"])
        schedule.tensorize(schedule.get_loops(initial)[-2], names["init"])
    return matmul.bare.with_sums(schedule.mod["main"], schedule_sums)


def _with_sums_in_registers(schedule: Schedule, matmul: HalfMatmul, scope: str) -> tuple[Any, Any]:
    """The block of the products, whose sums are in registers, and that which writes the output."""
    block = schedule.get_sblock(matmul.fused.stage.name)
    if matmul.fused.epilogue is None:
        return block, schedule.cache_write(block, 0, scope)
    schedule.set_scope(block, 0, scope)
    return block, schedule.get_sblock(matmul.fused.epilogue.name)


def _write_by_lanes(schedule: Schedule, output: Any, vector: int) -> None:
    """Has each lane write what it has: of each fragment two neighbours in both halves of rows and of columns."""
    row, column = schedule.get_loops(output)[-2:]
    i0, i1, i2 = schedule.split(row, [None, 2, 8])
    j0, j1, j2, j3 = schedule.split(column, [None, 2, 4, 2])
    schedule.reorder(i0, j0, i2, j2, j1, i1, j3)
    schedule.bind(schedule.fuse(i2, j2), "threadIdx.x")
    if vector > 1:
        schedule.vectorize(j3)


def _by_lanes(
    schedule: Schedule, block: Any, layout: Layout = pairs_by_lanes, sides: Sequence[int] = (SIDE, SIDE)
) -> IndexMap:
    """Where the elements of fragments are: the fragment, the lane of the warp, and the position in its registers."""
    (written,) = schedule.get(block).writes

    def position(*index: Any) -> list[Any]:
        *batch, i, j = index
        return [*batch, i // sides[0], j // sides[1], *layout(i % sides[0], j % sides[1])]

    return IndexMap.from_func(position, ndim=len(written.region), index_dtype="int32")


def _paddings(matmul: HalfMatmul) -> tuple[int, int]:
    """The unused elements after each row of the operands in shared memory."""
    words = matmul.dtype == TF32 and not matmul.transposed
    first, second = _PADDING, _PADDING_OF_WORDS if words else _PADDING
    return first // matmul.element_bytes, second // matmul.element_bytes


@kept
def _space(workload: Workload, target: Gpu) -> Space | None:
    if not target.asynchronous_copies:
        return None
    try:
        matmul = find_matmul(workload)
    except UnsupportedFunction:
        return None
    if matmul.fused.axes.read_once:  # each element is used once: it is as fast as memory is
        return None
    knobs = [
        Tile("rows", matmul.rows // SIDE, 3),
        Tile("columns", matmul.columns // SIDE, 3),
        Tile("steps", matmul.depth // matmul.fragment_depth, 2),
        Ordinal("stages", _STAGES),
        Ordinal("panel", _PANELS, absent=1),
    ]
    constraints = [
        Constraint(
            ("rows", "columns"),
            lambda rows, columns: _fits_registers(matmul, rows, columns, target),
            f"{MOST_WARPS} warps, {MOST_FRAGMENTS} fragments of a warp, and their registers",
        ),
        Constraint(
            ("rows", "columns", "steps", "stages"),
            lambda *values: _shared_bytes(matmul, values[:3], values[3]) <= target.shared_opt_in,
            f"{target.shared_opt_in} bytes of shared memory",
        ),
        Constraint(
            ("steps", "stages"), lambda steps, stages: stages == 1 or steps[0] >= stages, "no more stages than steps"
        ),
        Constraint(("rows", "panel"), lambda rows, panel: rows[0] % panel == 0, "whole panels of blocks"),
    ]
    fitting = [
        config
        for config in _candidates(matmul)
        if all(constraint.predicate(*(config[name] for name in constraint.knobs)) for constraint in constraints)
    ]
    columns = {knob.name: np.array([config[knob.name] for config in fitting]) for knob in knobs}
    fastest = int(np.argmin(GpuMma().estimate(workload, target, columns)))
    return Space(GpuMma.name, knobs, constraints, fitting[fastest])


def _candidates(matmul: HalfMatmul) -> Iterator[dict[str, Any]]:
    """What the default is chosen from."""
    for row_warps, row_fragments, column_warps, column_fragments, depth in itertools.product(
        (1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2, 4)
    ):
        tiles: dict[str, Any] = {}
        for name, extent, warps, fragments in (
            ("rows", matmul.rows, row_warps, row_fragments),
            ("columns", matmul.columns, column_warps, column_fragments),
        ):
            inner = largest_divisor(extent // SIDE, fragments)
            outer = largest_divisor(extent // SIDE // inner, warps)
            tiles[name] = (extent // SIDE // inner // outer, outer, inner)
        fragments = matmul.depth // matmul.fragment_depth
        inner = largest_divisor(fragments, depth)
        tiles |= {"steps": (fragments // inner, inner), "panel": math.gcd(tiles["rows"][0], _PANELS[-1])}
        yield from ({**tiles, "stages": stages} for stages in _STAGES)


def _fits_registers(matmul: HalfMatmul, rows: Sequence[int], columns: Sequence[int], target: Gpu) -> bool:
    warps = min(MOST_WARPS, target.warps_by_registers(thread_registers(rows, columns, matmul.words)))
    return rows[1] * columns[1] <= warps and rows[2] * columns[2] <= MOST_FRAGMENTS


def _shared_bytes(matmul: HalfMatmul, tiles: Tiles, stages: Any) -> Any:
    """Bytes of shared memory of a block."""
    sides = SIDE, SIDE, matmul.fragment_depth
    height, width, depth = (side * math.prod(tile[1:]) for side, tile in zip(sides, tiles, strict=True))
    first, second = _paddings(matmul)
    parts = height * (depth + first), width * (depth + second) if matmul.transposed else depth * (width + second)
    return shared_bytes(stages * matmul.element_bytes * elements for elements in parts)
