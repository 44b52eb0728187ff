"""A model of the time that n tilings of a contraction take on a GPU, compiling none of them.

    busy       cycles of a multiprocessor for a round of a block: the most of issuing instructions, multiplying, shared
               memory and the second cache, and a part of the others
    latency    cycles that a round of a block takes at least: its fetches wait for each other and then for memory, a
               warp multiplies in its turn, and waits for shared memory wherever a loop is not unrolled; in two stages
               the next fetches run beside the products
    rounds     `resident` blocks share a multiprocessor: a round takes what keeps it busy, or the latency
    waves      full ones, and a last one with as many blocks as are left
    memory     each operand is read once, and each output written once: what blocks read again is in the second cache
    parts      if a reduction is split, another launch, and partial sums that are written and read

`benchmarks/gpu/model_of_time.py` says how well the model orders recorded spaces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....machine.gpu import REGISTERS_PER_THREAD, SECTOR, WARP, Gpu
from ..tiling import INNER, OUTER, VIRTUAL, Operand, Tilings
from .waves import CHOSEN, LAUNCH, SCHEDULERS, Array, Constants, overlapped, seconds_in_waves

_DEPENDENT = 4  # cycles until the result of a product is there


def expected_seconds(
    tilings: Tilings,
    device: Gpu,
    fetch: Sequence[Any] | None = None,
    unroll: Any = 512,
    constants: Constants = CHOSEN,
    parts: Any = 1,
    stages: Any = 1,
) -> NDArray[np.float64]:
    """The time that the model expects of n tilings.

    Args:
        tilings: The tilings of one contraction.
        device: The GPU.
        fetch: For each operand the elements that a thread fetches at a time: an integer or shape (n,). One by default.
        unroll: The steps up to which loops are unrolled: an integer or shape (n,).
        constants: Other constants, to choose them.
        parts: The parts of the longest reduction, which blocks of their own sum up: an integer or shape (n,).
        stages: The steps whose operands are in shared memory at a time, 1 or 2: an integer or shape (n,).

    Returns:
        Seconds, shape (n,).

    Example:
        >>> from stormdrop.machine.gpu import GPUS
        >>> from stormdrop.sketches.gpu.tiling import ContractionAxes
        >>> a = Operand(((("i", 1),), (("k", 1),)), (1024, 1024))
        >>> b = Operand(((("k", 1),), (("j", 1),)), (1024, 1024))
        >>> axes = ContractionAxes((("i", 1024), ("j", 1024)), (("k", 1024),), (a, b))
        >>> one, four = (32, 1, 32, 1, 1), (16, 1, 16, 1, 4)  # outputs of a thread along an axis
        >>> tiles = {"i": np.array([one, four]), "j": np.array([one, four]), "k": np.array([(64, 1, 16)] * 2)}
        >>> single, several = expected_seconds(Tilings(axes, tiles), GPUS["a100"])
        >>> bool(several < single)
        True
    """
    threads, outputs = tilings.threads, tilings.outputs
    warps = -(-threads // WARP)
    reductions = [name for name, _ in tilings.axes.reductions]
    inner_steps, steps = _factors(tilings, reductions, 2), _factors(tilings, reductions, 1, 2)
    unrolled, products = np.maximum(unroll, constants.unrolled), outputs * steps
    inner, whole = outputs * inner_steps <= unrolled, products <= unrolled
    loads, transactions = _shared_loads(tilings, inner, whole)
    widths = [1] * len(tilings.axes.operands) if fetch is None else fetch
    fetches = sum(np.ceil(n / threads / width) for n, width in zip(tilings.shared_elements, widths, strict=True))

    room = np.minimum(device.registers_per_thread(threads), REGISTERS_PER_THREAD)
    shared_bytes = tilings.shared_bytes_in(stages)
    resident = device.blocks_per_multiprocessor(threads, np.minimum(tilings.registers, room), shared_bytes)
    spilled = 2 * np.clip(tilings.least_registers - room, 0, outputs)

    issue = warps * (products + loads + constants.fetch * fetches) / SCHEDULERS
    multiply = warps * products * WARP / device.lanes
    shared = warps * (transactions + fetches + constants.spill * spilled * steps / inner_steps)
    cache = _fetched_sectors(tilings) * SECTOR / constants.cache_bytes
    busy = overlapped(constants, np.maximum(issue, multiply), shared, cache)

    turns = steps * np.maximum(SCHEDULERS * outputs * WARP / device.lanes, _DEPENDENT)
    waits = np.where(whole, 1, steps / inner_steps) * np.where(inner, 1, inner_steps)
    fetching, multiplying = constants.latency + constants.another_fetch * (fetches - 1), turns + constants.wait * waits
    pipelined = np.asarray(stages) > 1
    latency = np.where(pipelined, np.maximum(fetching, multiplying), fetching + multiplying)
    first = np.where(pipelined, fetching, 0.0)  # which nothing hides

    along = tilings.axes.spatial[-1][0]  # neighbouring threads write so many elements from each other
    stride = np.minimum(1.0, tilings.axes.item_bytes * _factors(tilings, [along], OUTER, INNER) / SECTOR)
    write = constants.store * warps * WARP * outputs * stride * SECTOR / constants.cache_bytes

    blocks, rounds = tilings.blocks * parts, tilings.rounds / parts

    def wave(blocks: Array) -> Array:
        return np.asarray(rounds * overlapped(constants, blocks * busy, latency) + blocks * write + first)

    elements = [math.prod(operand.extents) for operand in tilings.axes.operands]
    elements.append(math.prod(extent for _, extent in tilings.axes.spatial))
    moved = tilings.axes.item_bytes * sum(elements)
    adding = np.where(np.asarray(parts) > 1, LAUNCH + 2 * parts * tilings.axes.output_bytes / device.bandwidth, 0.0)
    return np.asarray(seconds_in_waves(device, blocks, resident, wave, moved, constants) + adding)


def _shared_loads(tilings: Tilings, inner: Array, whole: Array) -> tuple[Array, Array]:
    """The loads of a thread from shared memory in a round, and the transactions that they take a warp.

    Args:
        tilings: n tilings.
        inner: Whether the innermost steps are unrolled, shape (n,).
        whole: Whether all steps of a round are unrolled, too: windows that overlap are then loaded once.
    """
    spatial = [name for name, _ in tilings.axes.spatial]
    steps = _factors(tilings, [name for name, _ in tilings.axes.reductions], 1, 2)
    loads, transactions = np.zeros(len(inner)), np.zeros(len(inner))
    for operand, shape, conflicts in zip(tilings.axes.operands, tilings.shared_shapes, tilings.conflicts, strict=True):
        follows = {name for dimension in operand.dimensions for name, _ in dimension}
        elements = steps * _factors(tilings, [name for name in spatial if name in follows], VIRTUAL, OUTER, INNER)
        others = _factors(tilings, [name for name in spatial if name not in follows], OUTER)
        elements = elements * np.where(inner, 1.0, others)
        for dimension in operand.dimensions:
            if len(dimension) > 1:
                levels = [((OUTER, INNER) if name in spatial else (1, 2)) for name, _ in dimension]
                tiles = [
                    np.where(whole, _factors(tilings, [name], outer, last), _factors(tilings, [name], last))
                    for (name, _), (outer, last) in zip(dimension, levels, strict=True)
                ]
                span = 1 + sum(factor * (tile - 1) for (_, factor), tile in zip(dimension, tiles, strict=True))
                elements = elements * np.where(inner, np.minimum(1.0, span / np.prod(tiles, axis=0)), 1.0)
        width = np.where(inner, _vector(tilings, operand, shape), 1)
        loads += elements / width
        transactions += elements / width * conflicts
    return loads, transactions


def _vector(tilings: Tilings, operand: Operand, shape: Sequence[Array]) -> Array:
    """The elements of a thread that are contiguous and aligned in shared memory, up to four."""
    spatial = {name for name, _ in tilings.axes.spatial}
    run = pitch = np.ones(len(tilings.threads), dtype=np.int64)
    all_of_it = np.ones(len(run), dtype=bool)
    for dimension, extent in zip(reversed(operand.dimensions), reversed(shape), strict=True):
        own = np.ones_like(run)
        if len(dimension) == 1 and dimension[0][1] == 1:
            name = dimension[0][0]
            own = _factors(tilings, [name], *((OUTER, INNER) if name in spatial else (2,)))
        run, pitch = np.where(all_of_it, run * own, run), np.where(all_of_it, pitch * extent, pitch)
        all_of_it = all_of_it & (own == extent)
    return np.asarray(np.gcd(np.gcd(run, pitch), 4))


def _fetched_sectors(tilings: Tilings) -> Array:
    """The sectors that a block fetches in a round. Contiguous elements share sectors; most runs begin inside of one."""
    sectors, item = np.zeros(len(tilings.threads)), tilings.axes.item_bytes
    for operand, shape, elements in zip(
        tilings.axes.operands, tilings.shared_shapes, tilings.shared_elements, strict=True
    ):
        run, all_of_it = np.ones(len(sectors)), np.ones(len(sectors), dtype=bool)
        for extent, whole in zip(reversed(shape), reversed(operand.extents), strict=True):
            run = np.where(all_of_it, run * extent, run)
            all_of_it = all_of_it & (extent == whole)
        size = run * item
        sectors += elements / run * (size + np.where(size % SECTOR, SECTOR - item, 0)) / SECTOR
    return sectors


def _factors(tilings: Tilings, names: Iterable[str], *levels: int) -> Array:
    """The product of the factors of some axes at some levels, shape (n,)."""
    one = np.ones(len(tilings.threads), dtype=np.int64)
    return np.asarray(np.prod([one, *(tilings.levels[name][level] for name in names for level in levels)], axis=0))
