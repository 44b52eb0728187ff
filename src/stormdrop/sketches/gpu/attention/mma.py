"""The sketch `gpu_mma_attention`: the same as one kernel on tensor cores, of 16-bit numbers, since sm_80.

Heads of up to 128 elements, in multiples of 16, are taken. `fragments` draws the kernel. The default is the fastest of
all divisions by a model of time like that of `times/fragments.py`, which was not compared with measurements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedFunction
from ....ir.kept import kept
from ....ir.workload import Workload
from ....machine.gpu import BANKS, REGISTERS_PER_THREAD, SECTOR, WARP, WORD, Gpu
from ....machine.known_gpus import tensor_rate
from ....space import Constraint, Ordinal, Space
from ...contract import Variant
from ..matrix_product import SIDE
from ..tiling import shared_bytes
from ..times.waves import CACHE_PORT, CHOSEN, LAUNCH, SCHEDULERS, Array, overlapped, seconds_in_waves
from .fragments import fragment_kernel
from .loops import attention_kernel
from .parts import AttentionParts, find_attention
from .sizes import BlockSizes, FragmentSizes
from .split import GAIN, IDLE, PARTS, MayDivide, bytes_of_parts

_ROWS = (1, 2)  # fragments of a warp; of more there are no registers
_WARPS = (1, 2, 4, 8)
_KEYS = (1, 2, 4, 8)  # fragments of a tile
_STAGES = (1, 2)
_KNOBS = ("rows", "warps", "keys", "stages", "parts")
_MOST = 128  # elements of a head
_HALF = 2  # bytes
_OTHER_REGISTERS = 44  # of a thread, as `ptxas` took them for heads of 64 and 128

# Cycles and instructions: rounded from the code that `nvcc` makes, and from `times/fragments.py`.
_SCORE = 8.0  # instructions of a score: the score itself, its maximum, its weight, the sum, the rounding
_OF_ROW = 40.0  # instructions of a row of a lane for a tile: shuffles, and exp of how the largest score changes
_WAITS = 250.0  # cycles that these take one after the other
_FRAGMENT = SIDE * SIDE * _HALF  # bytes
_LINE = BANKS * WORD  # bytes that shared memory moves in a cycle
_BARRIER = 50.0


class GpuMmaAttention:
    """The sketch that this module describes."""

    name: ClassVar[str] = "gpu_mma_attention"
    max_error: ClassVar[float] = 0.0

    def speedup_bound(self, workload: Workload, target: Gpu) -> float:
        """See `Bounded`: how much faster tensor cores multiply 16-bit numbers than lanes multiply float32."""
        return tensor_rate(target.name, target.arch) / (2 * target.lanes)

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The divisions of an attention within the device's limits; None for another function or device.

        The knobs:

        - `rows`, `warps`: fragments of rows of a warp, and warps of a block
        - `keys`: fragments of a tile of keys
        - `stages`: tiles that are in use or on their way
        - `parts`: parts of the keys, which blocks of their own go along; another launch adds up
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The expected seconds of n configurations, shape (n,)."""
        return _seconds(_parts(workload), target, workload.bytes, *(np.asarray(knobs[name]) for name in _KNOBS))

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        parts, sizes = _parts(workload), FragmentSizes(**config)
        return Variant(fragment_kernel(parts, sizes), plain=partial(_plain, parts, sizes))


def _plain(parts: AttentionParts, sizes: FragmentSizes) -> Any:
    """The same blocks and tiles, without tensor cores. Many elements of a thread would take minutes to compile."""
    row_threads, key_threads = SIDE, min(sizes.tile, WARP)
    rows, keys = sizes.height // row_threads, sizes.tile // key_threads
    return attention_kernel(parts, BlockSizes(rows, row_threads, keys, key_threads, sizes.parts))


@kept
def _parts(workload: Workload) -> AttentionParts:
    """Raises `UnsupportedFunction` if a function is no attention of such heads."""
    parts = find_attention(workload.graph)
    extents = parts.depth.extent, parts.column.extent
    if parts.dtype == "float32" or any(extent % SIDE or extent > _MOST for extent in extents):
        raise UnsupportedFunction(f"it is not in 16 bits, or heads have no multiple of {SIDE} up to {_MOST} elements")
    return parts


@kept
def _space(workload: Workload, target: Gpu) -> Space | None:
    if not target.asynchronous_copies:
        return None
    try:
        parts = _parts(workload)
    except UnsupportedFunction:
        return None

    def have_rows(rows: int, warps: int) -> bool:
        return rows * warps == 1 or SIDE * rows * warps < 2 * parts.row.extent

    def have_keys(keys: int) -> bool:
        return keys == 1 or SIDE * keys < 2 * parts.key.extent

    def fits_registers(*values: int) -> bool:
        rows, warps, keys = values
        registers = int(_registers(parts, rows, keys))
        return registers <= REGISTERS_PER_THREAD and bool(warps <= target.warps_by_registers(registers))

    def fits_shared(*values: int) -> bool:
        return bool(_shared_bytes(parts, *values) <= target.shared_opt_in)

    values_of = dict(zip(_KNOBS, (_ROWS, _WARPS, _KEYS, _STAGES, PARTS), strict=True))
    knobs = [Ordinal(name, values) for name, values in values_of.items()]
    constraints = [
        Constraint(("rows", "warps"), have_rows, "no block of twice the rows"),
        Constraint(("keys",), have_keys, "no tile of twice the keys"),
        Constraint(("keys", "stages"), lambda keys, stages: stages == 1 or SIDE * keys < parts.key.extent, "two tiles"),
        Constraint(_KNOBS[:3], fits_registers, "their registers"),
        Constraint(_KNOBS[:4], fits_shared, f"{target.shared_opt_in} bytes of shared memory"),
        Constraint(_KNOBS, MayDivide(parts, target, FragmentSizes), IDLE),
    ]
    every = [dict(zip(_KNOBS, values, strict=True)) for values in itertools.product(*values_of.values())]
    fitting = [
        config
        for config in every
        if all(each.predicate(*(config[name] for name in each.knobs)) for each in constraints)
    ]
    if not fitting:
        return None
    columns = {name: np.array([config[name] for config in fitting]) for name in _KNOBS}
    seconds = GpuMmaAttention().estimate(workload, target, columns)
    fastest = int(np.argmin(np.where(columns["parts"] == 1, GAIN * seconds, seconds)))
    return Space(GpuMmaAttention.name, knobs, constraints, fitting[fastest])


def _registers(parts: AttentionParts, rows: Any, keys: Any) -> Any:
    """An estimate of the registers of a thread: scores, outputs and queries. Weights take the place of scores."""
    steps, columns = parts.depth.extent // SIDE, parts.column.extent // SIDE
    queries = np.where(np.asarray(rows) == 1, 4 * steps, 4 * rows)
    return rows * (8 * keys + 8 * columns + 6) + queries + _OTHER_REGISTERS


def _shared_bytes(parts: AttentionParts, rows: Any, warps: Any, keys: Any, stages: Any) -> Any:
    elements = FragmentSizes(rows, warps, keys, stages).shared_elements(parts.depth.extent, parts.column.extent)
    return shared_bytes(_HALF * count for count in elements)


def _seconds(
    parts: AttentionParts,
    target: Gpu,
    moved: float,
    rows: Array,
    warps: Array,
    keys: Array,
    stages: Array,
    of_keys: Array,
) -> NDArray[np.float64]:
    """The seconds of n divisions, each given by arrays of shape (n,).

    busy       cycles of a multiprocessor for a tile of a block, as in `times/fragments.py`
    latency    cycles that a tile of a block takes at least: a warp multiplies in its turn, and computes weights; copies
               run beside that, in one stage those of values beside the products of keys and the other way round
    """
    steps, columns = parts.depth.extent // SIDE, parts.column.extent // SIDE
    threads, tile = warps * WARP, SIDE * keys
    product = 2 * SIDE**3 / tensor_rate(target.name, target.arch)  # cycles, if all four cores multiply
    fragments = rows * keys * (steps + columns)
    fetched = keys * (steps + columns)  # fragments that a block brings
    fetches = np.ceil(fetched * _FRAGMENT / (16 * threads))
    loads = fetched + np.where(rows == 1, 0, rows * steps)
    weigh = rows * (8 * keys * _SCORE + 2 * _OF_ROW + 8 * columns)

    multiply = warps * fragments * product
    issue = warps * (2 * fragments + loads + weigh + CHOSEN.fetch * fetches) / SCHEDULERS
    shared = (warps * loads + fetched) * _FRAGMENT / _LINE
    cache = fetched * _FRAGMENT / CACHE_PORT
    busy = overlapped(CHOSEN, np.maximum(multiply, issue), shared, cache)

    alone = SCHEDULERS * rows * keys * product
    wait = CHOSEN.latency + CHOSEN.another_fetch * (fetches - 1)
    weighing = weigh + _WAITS
    in_turns = np.maximum(alone * steps, wait) + np.maximum(alone * columns + weighing, wait) + 2 * _BARRIER
    latency = np.where(stages == 1, in_turns, np.maximum(alone * (steps + columns) + weighing, wait) + _BARRIER)

    tiles = -(-parts.key.extent // (tile * of_keys))
    heads = math.prod(axis.extent for axis in parts.heads)
    blocks = of_keys * heads * -(-parts.row.extent // (SIDE * rows * warps))
    written = warps * rows * columns * SIDE * SIDE * _HALF / SECTOR
    write = CHOSEN.store * written * SECTOR / CACHE_PORT
    registers, shared_of_block = _registers(parts, rows, keys), _shared_bytes(parts, rows, warps, keys, stages)
    resident = target.blocks_per_multiprocessor(threads, registers, shared_of_block)

    def wave(count: Array) -> Array:
        return np.asarray(tiles * overlapped(CHOSEN, count * busy, latency) + count * write + wait)

    handed_on = np.array([bytes_of_parts(parts, int(count)) for count in of_keys])
    adding = np.where(of_keys > 1, LAUNCH + 2 * handed_on / target.bandwidth, 0.0)
    return np.asarray(seconds_in_waves(target, blocks, resident, wave, moved) + adding)
