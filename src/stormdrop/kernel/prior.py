"""What to expect of a schedule before anything is measured: it picks the origin of a space."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..space import Space
from .expressions import coefficients
from .roles import Contraction
from .stages import shape_of
from .target import Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Two fused multiply-adds and two loads per cycle, and a latency of four cycles: eight independent accumulators hide
# it. So it is on x86 cores since Haswell and Zen 2, and nearly so on large ARM cores.
_FMA_PER_CYCLE = 2
_LOADS_PER_CYCLE = 2
_IN_FLIGHT = 8
# Addresses that are a multiple of this apart share a set of the first cache, which has eight to twelve ways.
_SAME_SET = 4096
_WAYS = 8
_CONFLICT = 2.0  # measured: 14 rows 4096 bytes apart run at 0.42 of the speed of 7


def register_fill(space: Space, parts: Contraction, extents: Sequence[int], target: Target) -> Mapping[str, Any]:
    """The configuration with the least expected cycles per useful multiply-add.

    A register tile of R rows and V vectors needs R V multiply-adds and R + V loads per reduction step, and R V
    independent accumulators to hide the latency; what tiles compute twice and what cores wait for is added. Among
    tiles that this leaves equal, two vectors and as few loads per multiply-add as possible are best. Then memory:
    the operand that is smaller as a whole is the one to stream again and again, and padding is computed per task
    where a task covers all columns; rows that share a set of the first cache evict each other. (Measured on
    ResNet-50's layers: the order alone is worth up to 14%.)
    """
    streamed = _elements(parts.packable)
    rows_first = 2 * streamed <= _elements(parts.stage.value.a, parts.stage.value.b)
    best = min(space.points(), key=lambda point: _cost(space.config(point), parts, extents, target, rows_first))
    return space.config(best)


def _row_stride(parts: Contraction) -> int:
    """Bytes between what two neighbouring rows read; 1 where that is no constant."""
    row = parts.rows[-1].var
    for load in (parts.stage.value.a, parts.stage.value.b):
        factors = [coefficients(index, {row}) for index in load.indices]
        if None in factors:
            return 1
        shape = shape_of(load.source)
        elements = sum((each or {}).get(row, 0) * math.prod(shape[at + 1 :]) for at, each in enumerate(factors))
        if elements:
            return int(elements) * np.dtype(str(load.source.dtype)).itemsize
    return 1


def _elements(*loads: Any) -> int:
    return sum(math.prod(shape_of(load.source)) for load in loads if load is not None)


def _cost(
    config: Mapping[str, Any], parts: Contraction, extents: Sequence[int], target: Target, rows_first: bool
) -> tuple[float, ...]:
    sizes = [config["rows"]] if len(extents) == 1 else [config["rows_outer"], config["rows"]]
    rows, vectors = math.prod(sizes), math.ceil(config["columns"] / target.lanes)
    lanes_used = config["columns"] / (vectors * target.lanes)
    fma = rows * vectors / _FMA_PER_CYCLE
    loads = (rows + vectors) / _LOADS_PER_CYCLE
    latency = _IN_FLIGHT / _FMA_PER_CYCLE
    cycles = max(fma, loads, latency) / (rows * vectors) / lanes_used
    if sizes[-1] > _WAYS and _row_stride(parts) % _SAME_SET == 0:
        cycles *= _CONFLICT
    tiles = [-(-extent // size) for extent, size in zip(extents, sizes, strict=True)]
    columns = -(-parts.column.extent // config["columns"])
    waste = math.prod(count * size for count, size in zip(tiles, sizes, strict=True)) / math.prod(extents)
    waste *= columns * config["columns"] / parts.column.extent
    tasks = math.prod(axis.extent for axis in parts.outer)
    blocks = [-(-tiles[0] // config["block"])] if len(extents) == 1 else tiles
    tasks *= {"columns": columns * blocks[0], "rows": math.prod(blocks), "mixed": columns * blocks[0]}[config["order"]]
    rounds = -(-tasks // target.cores)
    imbalance = rounds * target.cores / tasks
    order = "rows" if rows_first and columns > 1 else "columns"
    preference = (
        abs(vectors - 2),
        round((rows + vectors) / (rows * vectors), 2),
        0 if config["order"] == order else 1,
        0 if config.get("prologue") in (None, "task" if order == "rows" else "apart") else 1,
        abs(config["unroll"] - 2),
        config.get("block", 1),
        config.get("pack", 0),
        sizes[0],
    )
    return (round(cycles * waste * imbalance, 2), *preference)
