"""The keys of a head in parts that blocks of their own go along, for attentions of few queries.

    for each part:   largest[p], sums[p], output[p] = those of its keys                     a launch
    output           sum over p of e[p] output[p] / sum over p of e[p] sums[p],             another one
                     where e[p] = exp(largest[p] - the largest of all)

This is what Flash-Decoding does (T. Dao et al., 2023, https://pytorch.org/blog/flash-decoding/). What parts hand on is
in global memory. A thread of the second launch adds up an element of the output, and the next thread the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir.prim.expr import FloatImm
from tvm.tirx import BufferStore, IfThenElse, SeqStmt

from ....ir.stages import intermediate, variable
from ....machine.gpu import Gpu
from .parts import AttentionParts
from .sizes import BlockSizes, FragmentSizes
from .statements import bound, heads_of, unrolled

PARTS = (1, 2, 4, 8, 16, 32)
"""Into how many parts the keys of a head may be divided."""

GAIN = 0.9
"""Of the seconds without parts: a default has parts if fewer are expected with them."""

IDLE = "tiles for each part, and multiprocessors that are idle"
"""Why the keys of a head may not have so many parts; see `MayDivide`."""

_MOST_BYTES = 32 << 20  # of what parts hand on
_TYPE = "float32"
_THREADS = 128  # of a block that adds up


def bytes_of_parts(parts: AttentionParts, count: int) -> int:
    """The bytes that so many parts hand on; none if there is one.

    Args:
        parts: The attention.
        count: How many parts its keys have.
    """
    rows = parts.row.extent * math.prod(axis.extent for axis in parts.heads)
    return 4 * count * rows * (parts.column.extent + 2) if count > 1 else 0


def blocks_of(sizes: BlockSizes | FragmentSizes, parts: AttentionParts) -> int:
    """The blocks of all heads, and of all parts of their keys.

    Args:
        sizes: How the attention is divided.
        parts: The attention.
    """
    return sizes.parts * math.prod(axis.extent for axis in parts.heads) * -(-parts.row.extent // sizes.height)


@dataclass(frozen=True, eq=False)
class MayDivide:
    """Whether the keys of a head may have so many parts, given the sizes of a division with the parts as the last one.

    Attributes:
        parts: The attention.
        target: The device.
        sizes: Makes the division of its sizes.
    """

    parts: AttentionParts
    target: Gpu
    sizes: Callable[..., BlockSizes | FragmentSizes]

    def __call__(self, *values: int) -> bool:
        sizes = self.sizes(*values)
        tiles = -(-self.parts.key.extent // sizes.tile)
        idle = blocks_of(sizes, self.parts) < sizes.parts * self.target.multiprocessors
        fits = bytes_of_parts(self.parts, sizes.parts) <= _MOST_BYTES
        return sizes.parts == 1 or (sizes.parts <= tiles and idle and fits)


class SumsOfParts:
    """What the parts of the keys hand on.

    Args:
        parts: The attention.
        count: How many parts its keys have.
    """

    def __init__(self, parts: AttentionParts, count: int) -> None:
        self._parts, self._count = parts, count
        self._rows = parts.row.extent * math.prod(axis.extent for axis in parts.heads)
        self._output = intermediate("output_of_parts", (count, self._rows, parts.column.extent), _TYPE)
        self._largest, self._sums = (
            intermediate(f"{name}_of_parts", (count, self._rows), _TYPE) for name in ("largest", "sums")
        )
        self._of_thread = [
            intermediate(name, (_THREADS,), _TYPE, "local") for name in ("largest_of_all", "all_sums", "all_outputs")
        ]

    @property
    def buffers(self) -> list[Any]:
        """All buffers that this adds to a function."""
        return [self._output, self._largest, self._sums, *self._of_thread]

    def store(self, part: Any, head: Any, row: Any, column: Any, output: Any) -> Any:
        """What hands on an element of the output."""
        return BufferStore(self._output, output, [part, head * self._parts.row.extent + row, column])

    def store_row(self, part: Any, head: Any, row: Any, largest: Any, total: Any) -> Any:
        """What hands on the largest score of a row, and the sum of its weights."""
        at = [part, head * self._parts.row.extent + row]
        return SeqStmt([BufferStore(self._largest, largest, at), BufferStore(self._sums, total, at)])

    def added(self) -> Any:
        """The second launch."""
        block, thread = variable("block"), variable("thread")
        columns, elements = self._parts.column.extent, self._rows * self._parts.column.extent
        number = block * _THREADS + thread
        body = self._add(thread, number // columns, number % columns)
        if elements % _THREADS:
            body = IfThenElse(number < elements, body, None)
        return bound(block, -(-elements // _THREADS), "blockIdx.x", bound(thread, _THREADS, "threadIdx.x", body))

    def _add(self, thread: Any, row: Any, column: Any) -> Any:
        largest, total, result = self._of_thread
        at, zero = [thread], FloatImm(_TYPE, 0.0)

        def compare(part: Any) -> Any:
            return BufferStore(largest, tirx.max(largest[thread], self._largest[part, row]), at)

        def add(part: Any) -> Any:
            weight = tirx.exp(self._largest[part, row] - largest[thread])
            return SeqStmt(
                [
                    BufferStore(total, total[thread] + weight * self._sums[part, row], at),
                    BufferStore(result, result[thread] + weight * self._output[part, row, column], at),
                ]
            )

        parts, rows = self._parts, self._parts.row.extent
        position = {parts.row.var: row % rows, parts.column.var: column, **heads_of(parts, row // rows)}
        return SeqStmt(
            [
                BufferStore(largest, tirx.min_value(_TYPE), at),
                BufferStore(total, zero, at),
                BufferStore(result, zero, at),
                unrolled(self._count, compare),
                unrolled(self._count, add),
                parts.stored(parts.divided(result[thread], total[thread]), position),
            ]
        )
