"""A model of the time that n tilings of a product of matrices take on tensor cores.

    busy       cycles of a multiprocessor for a step of a block: the most of multiplying, shared memory and the second
               cache, and a part of the others
    latency    cycles that a step of a block takes at least: a warp multiplies in its turn, waits at a barrier, and for
               copies, beside which earlier steps multiply if there are several stages
    waves, memory    as in `waves.py`

A fragment has 16 rows and 16 columns and takes two instructions, each of which a warp issues to one of the four tensor
cores of its multiprocessor. There are no measurements of such kernels behind this: what no data sheet says was taken
from `tilings.py`, and from how NVIDIA describes its instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....machine.gpu import BANKS, SECTOR, WARP, WORD, Gpu
from ....machine.known_gpus import tensor_rate
from .waves import CACHE_PORT, CHOSEN, SCHEDULERS, Array, overlapped, seconds_in_waves

_SIDE = 16
_HALF = 2  # bytes
_INSTRUCTIONS = 2  # of a product of fragments of 16-bit elements
_DEPENDENT = 33  # cycles until a product of fragments can be added to
_LINE = BANKS * WORD  # bytes that shared memory moves in a cycle
_BARRIER = 50.0  # cycles


@dataclass(frozen=True)
class FragmentTilings:
    """n tilings of products of matrices, in fragments.

    Attributes:
        batches: The products.
        rows: The factors of rows: blocks, warps of a block, fragments of a warp. Shape (3, n).
        columns: The same of columns.
        steps: The factors of the depth: steps, fragments of a step. Shape (2, n).
        stages: The steps whose parts are on their way or in use at a time, shape (n,); 1 without asynchronous copies.
        registers: The registers of a thread, shape (n,).
        shared: Bytes of shared memory of a block, shape (n,).
        fetch: For each operand the elements that a thread fetches at a time, each an integer or shape (n,).
        conflicts: How often a load of a fragment from shared memory is repeated, an integer or shape (n,).
        element_bytes: The bytes of an element of the operands.
        depth: The depth of a fragment. A product of fragments takes as long as its operands have bytes.
    """

    batches: int
    rows: Array
    columns: Array
    steps: Array
    stages: Array
    registers: Array
    shared: Array
    fetch: Sequence[Any]
    conflicts: Any
    element_bytes: int = _HALF
    depth: int = _SIDE


def expected_seconds(tilings: FragmentTilings, device: Gpu, moved: float) -> NDArray[np.float64]:
    """The time that the model expects of n tilings.

    Args:
        tilings: The tilings.
        device: The GPU. It has tensor cores.
        moved: The bytes of all inputs and outputs.

    Returns:
        Seconds, shape (n,).
    """
    _, row_warps, row_fragments = tilings.rows
    _, column_warps, column_fragments = tilings.columns
    steps, depth = tilings.steps
    warps, fragments = row_warps * column_warps, row_fragments * column_fragments
    sides = depth * row_warps * row_fragments, depth * column_warps * column_fragments  # fragments of a step
    staged, threads = sum(sides), warps * WARP
    fetches = sum(
        np.ceil(side * _SIDE * tilings.depth / threads / width)
        for side, width in zip(sides, tilings.fetch, strict=True)
    )

    fragment = _SIDE * tilings.depth * tilings.element_bytes  # bytes
    halves = fragment / (_SIDE * _SIDE * _HALF)
    product = 2 * _SIDE**3 * halves / tensor_rate(device.name, device.arch)  # cycles, if all four cores multiply
    multiply = warps * fragments * depth * product
    loaded = warps * depth * (row_fragments + column_fragments) * tilings.conflicts
    shared = (loaded + staged) * fragment / _LINE
    issue = warps * (depth * fragments * _INSTRUCTIONS * halves + CHOSEN.fetch * fetches) / SCHEDULERS
    cache = staged * fragment / CACHE_PORT
    busy = overlapped(CHOSEN, np.maximum(multiply, issue), shared, cache)

    turns = depth * np.maximum(SCHEDULERS * fragments * product, _DEPENDENT)
    fetched = CHOSEN.latency + CHOSEN.another_fetch * (fetches - 1)
    ahead = tilings.stages - 1  # steps whose copies are on their way
    latency = _BARRIER + np.where(ahead, np.maximum(turns, fetched / np.maximum(ahead, 1)), turns + fetched)

    sectors = warps * fragments * _SIDE * _SIDE * WORD / SECTOR
    write = CHOSEN.store * sectors * SECTOR / CACHE_PORT

    def wave(blocks: Array) -> Array:
        return np.asarray(steps * overlapped(CHOSEN, blocks * busy, latency) + blocks * write)

    blocks = tilings.batches * tilings.rows[0] * tilings.columns[0]
    resident = device.blocks_per_multiprocessor(threads, tilings.registers, tilings.shared)
    return seconds_in_waves(device, blocks, resident, wave, moved)
