"""The sketch `gpu_attention`: softmax(Q K^T * scale + mask) V as one kernel on CUDA cores.

A block has some queries of a head. It walks over tiles of keys and values, and keeps the largest score, the sum and the
output of each row in registers; `loops` draws it. So no score is in global memory, however long a sequence is. It
computes in float32, also if queries, keys and values have 16 bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedFunction
from ....ir.kept import kept
from ....ir.workload import Workload
from ....machine.gpu import REGISTERS_PER_THREAD, WARP, Gpu
from ....space import Constraint, Ordinal, Space
from ...contract import Variant
from ..tiling import shared_bytes
from ..times.waves import LAUNCH
from .loops import attention_kernel
from .parts import AttentionParts, find_attention
from .sizes import QUAD, BlockSizes, whole_quads
from .split import GAIN, IDLE, PARTS, MayDivide, blocks_of, bytes_of_parts

_ROWS = (1, 2, 4, 8)  # of a thread
_ROW_THREADS = (1, 2, 4, 8, 16, 32)
_KEYS = (1, 2, 4, 8)  # of a thread
_KEY_THREADS = (4, 8, 16, 32, 64, 128)  # whole quads
_MOST_THREADS = 512
_MOST_PRODUCTS = 512  # of a step, which are unrolled
_OTHER_REGISTERS = 32  # for addresses and numbers of loops
_KNOBS = ("rows", "row_threads", "keys", "key_threads", "parts")
_FLOAT = 4  # bytes

# Cycles of a multiprocessor; a rough model that was not measured.
_ISSUED = 4.0  # instructions of a warp that start in a cycle
_SPREAD, _SHARED = 4.0, 2.0  # a quad of shared memory for each thread of a warp, and one that a row of threads shares
_SECOND_CACHE = 64.0  # bytes per cycle
_EXPONENTIAL = 8.0  # instructions of a score between the products
_BARRIERS = 100.0  # of a tile
_LATENCY = 1100.0  # of a tile that no other block hides: mostly that of a fetch from the second cache
_HIDING = 8.0  # warps that keep a multiprocessor busy


class GpuAttention:
    """The sketch that this module describes."""

    name: ClassVar[str] = "gpu_attention"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The divisions of an attention within the device's limits; None for another function.

        The knobs:

        - `rows`, `row_threads`: rows of a thread, and threads along the rows of a block
        - `keys`, `key_threads`: keys of a thread, and threads along the keys of a tile and the columns of the output
        - `parts`: parts of the keys, which blocks of their own go along; another launch adds up
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The expected seconds of n configurations, shape (n,)."""
        columns = [knobs[name].tolist() for name in _KNOBS if name in knobs]
        return np.array([_seconds(BlockSizes(*sizes), workload, target) for sizes in zip(*columns, strict=True)])

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        return Variant(attention_kernel(_parts(workload), BlockSizes(**config)))


@kept
def _parts(workload: Workload) -> AttentionParts:
    return find_attention(workload.graph)


@kept
def _space(workload: Workload, target: Gpu) -> Space | None:
    try:
        parts = _parts(workload)
    except UnsupportedFunction:
        return None
    most = min(_MOST_THREADS, target.threads_per_block)
    rows, columns = parts.row.extent, parts.column.extent

    def have_rows(count: int, threads: int) -> bool:
        return count * threads < 2 * rows

    def have_keys(count: int, threads: int) -> bool:
        return count * threads < 2 * parts.key.extent or (count == 1 and threads <= WARP)

    def fits_threads(*values: int) -> bool:
        sizes = BlockSizes(*values)
        products = QUAD * max(sizes.keys, sizes.columns(columns)) * sizes.rows
        warps = -(-sizes.threads // WARP)
        registers = _registers(sizes, columns)
        fits = registers <= REGISTERS_PER_THREAD and warps <= target.warps_by_registers(registers)
        return WARP <= sizes.threads <= most and products <= _MOST_PRODUCTS and bool(fits)

    def fits_shared(*values: int) -> bool:
        return _shared_bytes(BlockSizes(*values), parts) <= target.shared_per_block

    knobs = [
        Ordinal("rows", _ROWS),
        Ordinal("row_threads", _ROW_THREADS),
        Ordinal("keys", _KEYS),
        Ordinal("key_threads", _KEY_THREADS),
    ]
    names = tuple(knob.name for knob in knobs)
    constraints = [
        Constraint(names[:2], have_rows, "no block of twice the rows"),
        Constraint(names[2:], have_keys, "no tile of twice the keys"),
        Constraint(names, fits_threads, f"a warp to {most} threads, and their registers"),
        Constraint(names, fits_shared, f"{target.shared_per_block} bytes of shared memory"),
    ]
    fitting = [
        config
        for values in itertools.product(_ROWS, _ROW_THREADS, _KEYS, _KEY_THREADS)
        if _satisfy(config := dict(zip(names, values, strict=True)), constraints)
    ]
    if not fitting:
        return None
    knobs.append(Ordinal("parts", PARTS, absent=1))
    divided = Constraint(_KNOBS, MayDivide(parts, target, BlockSizes), IDLE)
    in_parts = [{**config, "parts": count} for config in fitting for count in PARTS[1:]]
    in_parts = [config for config in in_parts if _satisfy(config, [divided])]

    def seconds(config: Mapping[str, int]) -> float:
        return _seconds(BlockSizes(**config), workload, target)

    origin = min(({**config, "parts": 1} for config in fitting), key=seconds)
    faster = min(in_parts, key=seconds, default=origin)
    origin = faster if seconds(faster) < GAIN * seconds(origin) else origin
    return Space(GpuAttention.name, knobs, [*constraints, divided], origin)


def _satisfy(config: Mapping[str, int], constraints: Sequence[Constraint]) -> bool:
    return all(each.predicate(*(config[name] for name in each.knobs)) for each in constraints)


def _registers(sizes: BlockSizes, columns: int) -> int:
    """An estimate of the registers of a thread: scores, outputs, and what a step reads."""
    own = sizes.columns(columns)
    of_step = QUAD * (sizes.rows + min(sizes.keys, 2)) + own
    return sizes.rows * (sizes.keys + own + 3) + of_step + _OTHER_REGISTERS


def _shared_bytes(sizes: BlockSizes, parts: AttentionParts) -> int:
    elements = sizes.shared_elements(parts.depth.extent, parts.column.extent)
    return int(shared_bytes(_FLOAT * count for count in elements))


def _seconds(sizes: BlockSizes, workload: Workload, target: Gpu) -> float:
    """The expected seconds, with those of another launch that adds up what parts hand on."""
    parts, clock = _parts(workload), target.clock
    alone = max(_cycles(sizes, parts, target) / clock, workload.bytes / target.bandwidth) + LAUNCH
    handed_on = 2 * bytes_of_parts(parts, sizes.parts) / target.bandwidth
    return alone + (handed_on + LAUNCH if sizes.parts > 1 else 0.0)


def _cycles(sizes: BlockSizes, parts: AttentionParts, target: Gpu) -> float:
    """The cycles until the last block is done.

    The slowest part of a tile decides, and a third of the others is not hidden. Blocks that a multiprocessor has at
    once hide what each of them waits for.
    """
    own, depth, warps = sizes.columns(parts.column.extent), whole_quads(parts.depth.extent), sizes.threads / WARP
    tiles = sizes.tiles(parts.key.extent)
    of_each = -(-blocks_of(sizes, parts) // target.multiprocessors)
    fetched = sizes.tile * (depth + own * sizes.key_threads)
    between = sizes.rows * (_EXPONENTIAL * sizes.keys + sizes.key_threads + own)
    vector = sizes.vector(parts.column.extent)
    loads = [
        depth / QUAD * (_SHARED * sizes.rows + _SPREAD * sizes.keys),
        sizes.tile / QUAD * _SHARED * sizes.rows + sizes.tile * own / vector * _SPREAD * vector / QUAD,
    ]
    times = [
        warps * sizes.rows * (sizes.keys * depth + own * sizes.tile) * WARP / target.lanes + warps * between / _ISSUED,
        warps * sum(loads),
        fetched * _FLOAT / _SECOND_CACHE,
    ]
    busy = _BARRIERS + max(times) + (sum(times) - max(times)) / 3
    registers, shared = _registers(sizes, parts.column.extent), _shared_bytes(sizes, parts)
    resident = min(of_each, int(target.blocks_per_multiprocessor(sizes.threads, registers, shared)))
    alone = _LATENCY + busy * max(1.0, _HIDING / warps)
    return tiles * max(of_each * busy, -(-of_each // resident) * alone) if resident else math.inf
