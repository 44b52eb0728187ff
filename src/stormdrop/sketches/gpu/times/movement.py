"""A model of the time of n schedules that move data, or sum it up, and use none of it again.

    pass       what the threads of a block do for a stage: steps one after the other, of which some have their loads on
               their way at once
    busy       cycles of a multiprocessor for a pass: the most of issuing instructions, lines of the first cache and
               sectors that are read from the second one or written, and a part of the others
    latency    cycles that a block takes at least: its passes wait for memory, and for each other
    waves, memory    as in `waves.py`

Threads that are neighbours touch a run of elements. How far apart these are in memory says how many lines and sectors
the run takes. What a reduction reads several times, or sector by sector, is in the first cache. There are no
measurements behind the constants of this module: they are rounded from how NVIDIA describes its multiprocessors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....ir.expressions import coefficients, intrinsic, walk
from ....ir.stages import Stage, shape_of
from ....machine.gpu import BANKS, SECTOR, WARP, WORD, Gpu
from .waves import CHOSEN, SCHEDULERS, Array, overlapped, seconds_in_waves

_REGISTERS = 32  # of a thread
_LINE = BANKS * WORD  # bytes of the first cache
_ON_CHIP = 30.0  # cycles of a load from shared memory, of a barrier's half, and of a shuffle
_AT_ONCE, _UNROLLED_AT_ONCE = 4, 16  # steps whose loads `nvcc` has on their way, in a loop and without one
_ADDRESS, _FUNCTION = 4, 16  # instructions of a load, and of a function such as exp


@dataclass(frozen=True)
class Pass:
    """What the threads of a block do for a stage, in n schedules.

    Attributes:
        stage: The stage.
        work: The terms of all elements that a block computes, an integer or shape (n,).
        elements: These elements, an integer or shape (n,).
        along: The variable of the axis along which neighbouring threads have neighbours.
        run: How many neighbours they have along it, an integer or shape (n,).
        lanes: The threads that share the terms of an element, an integer or shape (n,).
        unroll: The steps up to which loops are unrolled, an integer or shape (n,).
    """

    stage: Stage
    work: Any
    elements: Any
    along: Any
    run: Any
    lanes: Any = 1
    unroll: Any = _UNROLLED_AT_ONCE


def expected_seconds(
    passes: Sequence[Pass], device: Gpu, blocks: Any, threads: Any, shared: Any = 0
) -> NDArray[np.float64]:
    """The time that the model expects of a kernel, in n schedules.

    Args:
        passes: What its blocks do, one after the other.
        device: The GPU.
        blocks: Its blocks, an integer or shape (n,).
        threads: The threads of a block, shape (n,).
        shared: Bytes of shared memory of a block, an integer or shape (n,).

    Returns:
        Seconds, shape (n,).
    """
    own = {each.stage.buffer for each in passes[:-1]}  # results that stay on the chip
    busy, latency = np.zeros(len(threads)), np.zeros(len(threads))
    moved = {passes[-1].stage.buffer}
    for each in passes:
        steps = np.ceil(each.work / threads)
        at_once = np.minimum(steps, np.where(steps <= each.unroll, _UNROLLED_AT_ONCE, _AT_ONCE))
        loads = [load for load in each.stage.loads() if load.source not in own]
        moved |= {load.source for load in loads}
        lines = sum((_pieces(load.source, load.indices, each, _LINE) for load in loads), np.zeros(len(threads)))
        sectors = sum((_sectors(load, each, blocks) for load in loads), np.zeros(len(threads)))
        if each.stage.buffer not in own:
            spread = _pieces(each.stage.buffer, each.stage.indices, each, SECTOR) * each.elements / each.work
            sectors = sectors + np.maximum(spread, each.elements * _item(each.stage.buffer) / SECTOR)
        issue = each.work / WARP * _instructions(each.stage) / SCHEDULERS
        busy = busy + overlapped(CHOSEN, issue, lines, sectors * SECTOR / CHOSEN.cache_bytes)
        latency = latency + np.ceil(steps / at_once) * (CHOSEN.latency if loads else _ON_CHIP) + 2 * _ON_CHIP
        latency = latency + _ON_CHIP * (np.log2(np.minimum(each.lanes, WARP)) + 4 * (np.asarray(each.lanes) > WARP))

    def wave(count: Array) -> Array:
        return overlapped(CHOSEN, count * busy, latency)

    resident = device.blocks_per_multiprocessor(threads, np.full_like(threads, _REGISTERS), shared)
    return seconds_in_waves(device, blocks, resident, wave, sum(map(_bytes, moved)))


def _sectors(load: Any, part: Pass, blocks: Any) -> Array:
    """The sectors that a block loads from the second cache."""
    touched = _pieces(load.source, load.indices, part, SECTOR)
    once = _bytes(load.source) / blocks / SECTOR
    return np.minimum(touched, once) if part.stage.reductions else touched


def _pieces(buffer: Any, indices: Sequence[Any], part: Pass, size: int) -> Array:
    """The lines or sectors of a size that a block touches, counted once for each run of neighbours."""
    bytes_of_run = part.run * _stride(buffer, indices, part.along) * _item(buffer)
    return np.asarray(part.work / part.run * np.clip(np.ceil(bytes_of_run / size), 1, part.run))


def _stride(buffer: Any, indices: Sequence[Any], variable: Any) -> int:
    """How many elements apart the accesses of neighbours are; 1 if nobody knows."""
    stride, size = 0, 1
    for index, extent in zip(reversed(indices), reversed(shape_of(buffer)), strict=True):
        factors = coefficients(index, {variable})
        if factors is None:
            return 1
        stride, size = stride + abs(factors.get(variable, 0)) * size, size * extent
    return stride


def _instructions(stage: Stage) -> float:
    """The instructions of a step. About half of the nodes of an expression are operations."""
    nodes, within_loads = _count(stage.value), sum(map(_count, stage.loads()))
    functions = sum(1 for node in walk(stage.value) if intrinsic(node))
    return (nodes - within_loads) / 2 + _ADDRESS * len(stage.loads()) + _FUNCTION * functions


def _count(node: Any) -> int:
    return sum(1 for _ in walk(node))


def _bytes(buffer: Any) -> int:
    return math.prod(shape_of(buffer)) * _item(buffer)


def _item(buffer: Any) -> int:
    return np.dtype(str(buffer.dtype)).itemsize
