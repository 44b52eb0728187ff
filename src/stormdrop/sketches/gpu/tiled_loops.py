"""The loops of a tiled contraction on a GPU: split by level and bound to blocks and threads, and those of a fetch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule

from ...ir.stages import Stage
from .tiling import THREAD, ContractionAxes

STAGES = (1, 2)
"""The steps whose operands are in shared memory at a time."""

ASYNCHRONOUS_BYTES = {4, 8, 16}
"""What a thread can copy to shared memory at a time beside other work (`cp.async`)."""


@dataclass(frozen=True)
class TiledLoops:
    """The loops that others are computed in.

    Attributes:
        blocks: The loop over the blocks of the grid.
        threads: The loop over the threads of a block, inside the one over virtual threads.
        steps: The loops over what is staged at a time, the outermost first.
    """

    blocks: Any
    threads: Any
    steps: Sequence[Any]


def schedule_tiles(
    schedule: Schedule,
    block: Any,
    output: Any,
    loops: Mapping[str, Any],
    axes: ContractionAxes,
    factors: Mapping[str, Sequence[int]],
    config: Mapping[str, Any],
    producers: Sequence[Stage] = (),
    asynchronous: bool = False,
) -> None:
    """Schedules a contraction in tiles, with its operands in shared memory and its sums in registers.

    Args:
        schedule: The schedule.
        block: The contraction.
        output: The block that writes what is in registers.
        loops: The loop of each axis, by the axis's name.
        axes: The axes of the contraction.
        factors: Five factors for each spatial axis and three for each reduction, by the axis's name.
        config: The elements of a fetch of each operand (`fetch0`, `fetch1`), the steps that are unrolled (`unroll`),
            and the `stages`, 1 if it has none.
        producers: The stages that are computed while fetching.
        asynchronous: Whether the device can copy the operands beside other work.
    """
    tiled = tile_and_bind(schedule, loops, axes, factors)
    schedule.reverse_compute_at(output, tiled.threads, preserve_unit_loops=True)
    pipelined = config.get("stages", 1) > 1
    steps = [schedule.fuse(*tiled.steps)] if pipelined else tiled.steps
    threads, widths = math.prod(factors[name][THREAD] for name, _ in axes.spatial), (config["fetch0"], config["fetch1"])
    copies = []
    for position, width in enumerate(widths):
        copies.append(schedule.cache_read(block, position, "shared", [block]))  # what follows may read it as well
        fetch_together(schedule, copies[-1], steps, threads, width)
    for stage in producers:
        schedule.compute_inline(schedule.get_sblock(stage.name))
    if config["unroll"]:
        schedule.annotate(tiled.blocks, "pragma_auto_unroll_max_step", config["unroll"])
        schedule.annotate(tiled.blocks, "pragma_unroll_explicit", 1)
    schedule.decompose_reduction(block, steps[0])
    if pipelined:
        sizes = {axes.item_bytes * width for width in widths}
        overlap_copies(schedule, steps[0], copies, asynchronous and sizes <= ASYNCHRONOUS_BYTES)


def tile_and_bind(
    schedule: Schedule, loops: Mapping[str, Any], axes: ContractionAxes, factors: Mapping[str, Sequence[int]]
) -> TiledLoops:
    """Splits the loops of a contraction, orders them as "SSSRRSRS", and binds the first three levels.

    Args:
        schedule: The schedule.
        loops: The loop of each axis, by the axis's name.
        axes: The axes of the contraction.
        factors: Five factors for each spatial axis and three for each reduction, by the axis's name.
    """
    spatial = [schedule.split(loops[name], list(factors[name])) for name, _ in axes.spatial]
    reduced = [schedule.split(loops[name], list(factors[name])) for name, _ in axes.reductions]

    def level(split_axes: Sequence[Any], number: int) -> list[Any]:
        return [parts[number] for parts in split_axes]

    steps = level(reduced, 0)
    outer = [level(spatial, 0), level(spatial, 1), level(spatial, 2)]
    inner = [steps, level(reduced, 1), level(spatial, 3), level(reduced, 2), level(spatial, 4)]
    schedule.reorder(*itertools.chain(*outer, *inner))
    blocks, virtual, threads = (schedule.fuse(*level_loops) for level_loops in outer)
    for loop, axis in ((blocks, "blockIdx.x"), (virtual, "vthread.x"), (threads, "threadIdx.x")):
        schedule.bind(loop, axis)
    return TiledLoops(blocks, threads, steps)


def fetch_together(schedule: Schedule, copy: Any, steps: Sequence[Any], threads: int, width: int) -> None:
    """Computes a copy inside of the loops over steps, by all threads of a block together.

    Neighbouring threads fetch neighbouring vectors.

    Args:
        schedule: The schedule.
        copy: The block that copies into shared memory.
        steps: The loops over what is staged at a time, inside of three loops that are bound.
        threads: The threads of a block.
        width: The elements that a thread fetches at a time.
    """
    schedule.compute_at(copy, steps[-1], preserve_unit_loops=True)
    fetch = schedule.fuse(*schedule.get_loops(copy)[3 + len(steps) :])
    _, lane, elements = schedule.split(fetch, [None, threads, width])
    schedule.bind(lane, "threadIdx.x")
    schedule.vectorize(elements)


def overlap_copies(schedule: Schedule, step: Any, copies: Sequence[Any], asynchronous: bool) -> None:
    """Has the copies of the next step run beside the products of this one, in a second half of shared memory.

    Args:
        schedule: The schedule.
        step: The loop over steps. It holds the copies, and then the products.
        copies: The blocks that copy into shared memory.
        asynchronous: Whether the device copies beside other work. Else what is fetched waits in registers.
    """
    count = len(copies)
    if asynchronous:
        schedule.annotate(step, "software_pipeline_stage", [0] * count + [1])
        schedule.annotate(step, "software_pipeline_order", list(range(count + 1)))
        schedule.annotate(step, "software_pipeline_async_stages", [0])
        return
    for copy in copies:
        schedule.annotate(copy, "tirx.manifest_shared_memory_local_stage", 1)
        schedule.annotate(copy, "double_buffer_scope", 0)
    # Each copy is a fetch into registers before the products, and a store to shared memory after them.
    orders = [order for position in range(count) for order in (position, count + 1 + position)]
    schedule.annotate(step, "software_pipeline_stage", [0] * (2 * count) + [1])
    schedule.annotate(step, "software_pipeline_order", [*orders, count])
