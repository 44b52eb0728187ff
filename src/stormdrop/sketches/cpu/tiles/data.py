"""The data of a contraction by tiles: what tiles load them from, and who computes that.

    as they are    the data lie in memory, or stages before the contraction have made them (padding)
    in parts       two stages before the contraction compute the parts of all data
    in rows        a group of steps computes the parts of its own rows, which stay in the first or second cache

`parts` says what the parts are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tvm.ir import Var
from tvm.tirx import BufferStore, For, ForKind, SeqStmt

from ....ir.contractions.contraction import Contraction
from ....ir.dtypes import BFLOAT16
from ....ir.expressions import Expr, rewrite_loads, substitute
from ....ir.stages import Stage, intermediate, shape_of, variable
from ..contractions.dot_products import DotProducts
from ..nests import load_stride
from .instructions import WORD_BYTES
from .parts import HIGH, LOW, apart, low_parts
from .rows import Rows

_ON_STACK = 64 << 10  # bytes; larger buffers are TVM's workspace of a thread
_BYTES = 2  # of a part


def scope_of(size: int) -> str:
    """Where a task has a buffer of so many bytes."""
    return "local" if size <= _ON_STACK else "global"


class TileData:
    """The data of a contraction.

    Args:
        contraction: The contraction; if there are parts, that of the high ones.
        dots: How tiles multiply it.
        rows: How tiles walk through its rows.
        by_column: Whether a task walks through all rows before it goes on to the next columns.
        tiles: The tiles of rows of a group of steps.
        tile_rows: The rows of a tile.

    Attributes:
        sources: The buffers of the whole data, one for each part.
        rows: The same of the rows of one group; empty if steps read the whole data.
        inside: The stages that groups compute by themselves.
    """

    def __init__(
        self, contraction: Contraction, dots: DotProducts, rows: Rows, by_column: bool, *, tiles: int, tile_rows: int
    ) -> None:
        self._load, self._dots, self._tile_rows = contraction.other, dots, tile_rows
        self._row, self._before = contraction.rows[-1].var, contraction.before
        self._stages: list[Stage] = []
        if dots.parts > 1:
            assert contraction.prologue is not None  # `with_high_parts` has made it
            self._stages = [contraction.prologue, low_parts(contraction.prologue)]
        self.sources = [stage.buffer for stage in self._stages] or [contraction.other.source]
        self.rows: list[Any] = []
        if self._stages and not by_column and _reads_whole_rows(contraction, rows):
            shape = [tiles * tile_rows, self._width + apart(self._width)]
            scope = scope_of(_BYTES * len(self._stages) * math.prod(shape))
            self.rows = [intermediate(f"rows_{stage.name}", shape, BFLOAT16, scope) for stage in self._stages]
        self.inside = self._stages if self.rows else []

    @property
    def spaced(self) -> list[Any]:
        """The buffers whose rows may have a gap behind them. TVM has to see that their last element is written."""
        return self.rows or [stage.buffer for stage in self._stages if shape_of(stage.buffer)[-1] != self._width]

    @property
    def before(self) -> list[Stage]:
        """The stages that run before the contraction."""
        if not self._stages:
            return list(self._before)
        position = self._before.index(self._stages[HIGH])
        made = [] if self.rows else self._stages
        return [*self._before[:position], *made, *self._before[position + 1 :]]

    @property
    def stride(self) -> int:
        """The bytes from one row of a tile to the next."""
        elements = shape_of(self.rows[HIGH])[-1] if self.rows else load_stride(self._load, self._row)
        assert elements is not None  # `tile_products` has asked
        return elements * WORD_BYTES // self._dots.group

    def element(self, part: int, where: Mapping[Any, Expr], row: Expr) -> Expr:
        """The first element of a tile.

        Args:
            part: The part.
            where: The position on each axis of the contraction.
            row: The row of the group.
        """
        indices = [substitute(index, where) for index in self._load.indices]
        return self.rows[part][row, indices[-1]] if self.rows else self.sources[part][tuple(indices)]

    def compute_tile(self, lanes: int, first: Expr, where: Callable[[Expr], Mapping[Any, Expr]]) -> Any:
        """Computes the rows of a tile.

        Args:
            lanes: The lanes of a vector.
            first: The first row, among those of the group.
            where: The positions on the axes of the contraction, but for the reductions, at a row of the tile.
        """
        lanes = math.gcd(self._width, lanes)
        row, vector = variable("row"), variable("vector")
        leading = [substitute(index, where(row)) for index in self._load.indices[:-1]]

        def stored(part: int) -> Any:
            lane = variable("lane")
            column = vector * lanes + lane
            stage = self._stages[part]
            places = {axis.var: index for axis, index in zip(stage.axes, [*leading, column], strict=True)}
            high = self.sources[HIGH]
            value = rewrite_loads(
                substitute(stage.value, places),
                lambda load: self.rows[HIGH][first + row, column] if load.source.same_as(high) else None,
            )
            return For(lane, 0, lanes, ForKind.VECTORIZED, BufferStore(self.rows[part], value, [first + row, column]))

        vectors = For(vector, 0, self._width // lanes, ForKind.SERIAL, SeqStmt([stored(HIGH), stored(LOW)]))
        return For(row, 0, self._tile_rows, ForKind.SERIAL, vectors)

    @property
    def _width(self) -> int:
        """The elements of a row."""
        return self._stages[HIGH].axes[-1].extent


def _reads_whole_rows(contraction: Contraction, rows: Rows) -> bool:
    """Whether each row of the contraction takes one row of the data: of a matrix, or the channels of a pixel."""
    *_, last = contraction.other.indices
    return not rows.pitch and len(contraction.stage.reductions) == 1 and isinstance(last, Var)
