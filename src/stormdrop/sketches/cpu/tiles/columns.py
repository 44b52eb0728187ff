"""The column operand of a contraction by tiles: where its words come from, and what is fetched ahead.

    constant    packed ahead of time
    apart       a stage before the contraction packs all of it
    by panel    tasks pack their panels, each while the panel before it is multiplied: a slice for each group of steps.
                A group fetches what the next one packs. There is room for two panels.

A matrix of 8 MB is read once by panel. Apart it is read, written as words and read again. A panel that is packed right
before it is read waits for each line of the matrix, whose rows lie far from each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, SeqStmt

from ....ir.contractions.contraction import Contraction
from ....ir.expressions import Expr, substitute
from ....ir.stages import Stage, intermediate, shape_of, variable
from ..contractions.dot_products import DotProducts
from ..contractions.packed_words import packed_columns
from ..contractions.tiled_contraction import tiled_axis
from ..prefetch import LINE
from .data import scope_of
from .groups import walks_inside
from .instructions import TILE, WORD_BYTES


def packs_by_panel(contraction: Contraction) -> bool:
    """Whether tasks that walk through all rows pack their panels.

    They do if the columns vary, are the same for all these rows, and are contiguous: else vectors would gather them.
    """
    return contraction.constant is None and not contraction.must_pack and not walks_inside(contraction)


class TileColumns:
    """The column operand of a contraction.

    Args:
        contraction: The contraction.
        dots: How tiles multiply it.
        column_tiles: The tiles of columns of a panel.
        by_column: Whether a task walks through all rows before it goes on to the next panel.

    Attributes:
        buffer: What the words lie in: all of them [outer..., panel, word, column], or those of two panels.
        first: The number of the first word that tiles multiply; behind a correction it is not 0.
        by_panel: Whether tasks pack their panels.
    """

    def __init__(self, contraction: Contraction, dots: DotProducts, column_tiles: int, by_column: bool) -> None:
        self._contraction, self._dots, self._width = contraction, dots, TILE * column_tiles
        self._axis = tiled_axis("pack_column", contraction.column.extent, self._width)
        self._columns = packed_columns(contraction, dots, self._axis)
        self.first = self._columns.first
        self.by_panel = by_column and packs_by_panel(contraction)
        self.buffer = self._columns.buffer
        if self.by_panel:
            shape = [2, *shape_of(self.buffer)[-2:]]
            self.buffer = intermediate("panels", shape, "int32", scope_of(WORD_BYTES * math.prod(shape)))

    @property
    def before(self) -> list[Stage]:
        """The stages that run before the contraction; for a constant ahead of time."""
        *sums, pack = self._columns.stages
        if self.by_panel:
            return sums
        if self._contraction.constant is None and not self._contraction.must_pack:
            # It reads whole rows of the column operand, because these are contiguous.
            *leading, tile, row, column = pack.axes
            pack = replace(pack, axes=(*leading, row, tile, column))
        return [*sums, pack]

    @property
    def inside(self) -> list[Stage]:
        """The stages that tasks compute by themselves."""
        return list(self._columns.stages[-1:]) if self.by_panel else []

    def element(self, outer: Mapping[Any, Expr], panel: Expr, word: Expr, column: Expr) -> Expr:
        """A word.

        Args:
            outer: The position on each outer axis.
            panel: The panel; if tasks pack their panels, the one that they read or the next one.
            word: The number of the word in the panel.
            column: The column in the panel.
        """
        if self.by_panel:
            return self.buffer[prim.FloorMod(panel, IntImm("int32", 2)), word, column]
        indices = (*(outer[axis.var] for axis in self._columns.leading), panel, word, column)
        return self.buffer[indices]

    def packing(self, panel: Expr, group: Expr, groups: int, is_first: Expr, follows: Expr, lanes: int) -> list[Any]:
        """What a group packs: its slice of the next panel.

        Args:
            panel: The panel that the group reads.
            group: The number of the group among those of the panel.
            groups: How many these are, and how many slices a panel has.
            is_first: Whether it is the first one of its task. That packs its own panel before, and the slices of the
                next one that groups before it would have packed.
            follows: Whether the task goes on to the next panel.
            lanes: The most lanes of a vector.
        """
        number = variable("slice")
        missed = IfThenElse(number < group, self._packed_slice(panel + 1, number, groups, lanes), None)
        ahead = [
            IfThenElse(is_first, For(number, 0, groups, ForKind.SERIAL, missed), None),
            self._packed_slice(panel + 1, group, groups, lanes),
        ]
        whole = self._packed_slice(panel, IntImm("int32", 0), 1, lanes)
        return [IfThenElse(is_first, whole, None), IfThenElse(follows, SeqStmt(ahead), None)]

    def of_panel(self, outer: Mapping[Any, Expr], panel: Expr) -> tuple[Callable[[Expr], Any], int]:
        """The words of a panel in memory: the load of one at a position, and how many there are."""
        words = shape_of(self.buffer)[-2]
        return partial(self.element, outer, panel, IntImm("int32", 0)), words * self._width

    @property
    def can_fetch(self) -> bool:
        """Whether what tasks pack can be fetched: the rows of a matrix."""
        return self.by_panel and len(self._contraction.stage.reductions) == 1 and self._dots.parts == 1

    def of_slice(self, panel: Expr, number: Expr, slices: int) -> tuple[Callable[[Expr], Any], int]:
        """What a slice of a panel is packed from: the load of an element at a position, and how many there are."""
        contraction = self._contraction
        (step,), load = contraction.stage.reductions, contraction.operand
        line = LINE // np.dtype(str(load.source.dtype)).itemsize
        span = -(-self._width // line) * line  # whole lines of each row
        rows = self._words_of_slice(slices) * self._dots.group
        places: dict[Any, Expr] = {self._axis.tiles[0].var: panel, self._axis.inner.var: IntImm("int32", 0)}
        start = substitute(self._axis.position, places)

        def element(position: Expr) -> Any:
            row = number * rows + prim.FloorDiv(position, IntImm("int32", span))
            column = start + prim.FloorMod(position, IntImm("int32", span))
            where = {axis.var: IntImm("int32", 0) for axis in contraction.outer}
            where |= {step.var: row, contraction.column.var: column}
            return load.source[tuple(substitute(index, where) for index in load.indices)]

        return element, rows * span

    def _packed_slice(self, panel: Expr, number: Expr, slices: int, lanes: int) -> Any:
        (stage,) = self.inside
        *leading, tile, row, column = stage.axes
        lanes, each = math.gcd(self._width, lanes), self._words_of_slice(slices)
        within, vector, lane = (variable(name) for name in ("word", "vector", "lane"))
        word = number * each + within
        where: dict[Any, Expr] = {axis.var: IntImm("int32", 0) for axis in leading}  # their extents are 1
        where |= {tile.var: panel, row.var: word, column.var: vector * lanes + lane}
        place = [prim.FloorMod(panel, IntImm("int32", 2)), word, where[column.var]]
        body: Any = BufferStore(self.buffer, substitute(stage.value, where), place)
        body = For(lane, 0, lanes, ForKind.VECTORIZED, body)
        body = For(vector, 0, self._width // lanes, ForKind.UNROLLED, body)
        body = body if slices * each == row.extent else IfThenElse(word < row.extent, body, None)
        return For(within, 0, each, ForKind.SERIAL, body)

    def _words_of_slice(self, slices: int) -> int:
        """The words of each column in a slice, but for the last one."""
        words: int = shape_of(self.buffer)[-2]
        return -(-words // slices)
