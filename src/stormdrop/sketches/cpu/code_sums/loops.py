"""The loops of a product with codes in one configuration, and how its constants are laid out.

    for tiles of columns:                                  parallel
        for tiles of rows:
            accumulators[rows, columns] = 0
            for group:
                sums[..., rows, columns] = start
                for step, for word in step:
                    sums += term                           each code of a word
                accumulators += value of the sums
            output[rows, columns] = epilogue(accumulators)

What a group sums up is the business of a subclass: `sum_loops` and `dot_loops`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.tirx import For, ForKind, PrimFunc

from ....ir.elementary import expand_for_cpu
from ....ir.expressions import Expr, loads_in, rewrite_loads, substitute, variables
from ....ir.stages import Axis, Stage, StageGraph, assemble, intermediate, loads_of, sequence, variable
from ....machine.cpu import Cpu
from ...contract import Variant
from ..contractions.tiled_contraction import tiled_axis
from ..loops import ROW, Loops, default_loops, vector_axes
from ..nest_rewrites import unravel_axes
from ..prefetch import fetch_statements
from .product import WORD, Product


@dataclass(frozen=True, eq=False)
class Place:
    """Where in the loops something is computed.

    Attributes:
        row: The row of a tile.
        column: The column of a tile.
        groups: The position on each axis over groups of the product, by variable.
        word: The number of a word of a group.
    """

    row: Expr
    column: Expr
    groups: Mapping[Any, Expr]
    word: Expr


@dataclass(frozen=True, eq=False)
class GroupSums:
    """What the codes of a group are summed up to.

    Attributes:
        buffer: The sums, [..., rows, columns], in registers.
        several: The axes that come first in them, if each element has several sums.
        start: What they start from.
        inside: The reductions inside of a word.
        term: What they sum.
        value: What is added to the accumulators in the end.
    """

    buffer: Any
    several: tuple[Axis, ...]
    start: Expr
    inside: tuple[Axis, ...]
    term: Expr
    value: Expr


class CodeLoops(ABC):
    """One product; `variant` is the result.

    Args:
        product: The product.
        config: The values of the knobs, see `CodeSums.space`.
        target: The machine.
    """

    def __init__(self, product: Product, config: Mapping[str, Any], target: Cpu) -> None:
        contraction = product.contraction
        self.product, self.config, self._target = product, config, target
        (extent,) = contraction.row_extents
        self._rows = tiled_axis("row", extent, config["rows"])
        self._columns = tiled_axis("column", contraction.column.extent, config["columns"])
        self._parameters = list(contraction.graph.parameters)
        self._transforms: dict[int, PrimFunc] = {}

    @abstractmethod
    def prepared(self) -> tuple[Stage, ...]:
        """What is computed from the data before the loops."""

    @abstractmethod
    def sums(self, place: Place) -> GroupSums:
        """What the codes of a group are summed up to, in terms of the axes of the contraction and of a place."""

    @abstractmethod
    def byte(self, word: Expr, number: int) -> Expr:
        """A byte of a word of codes as it is laid out, from 0 to 255.

        Args:
            word: The word of the group.
            number: The number of the byte in the word, from the lowest one on.
        """

    def variant(self) -> Variant:
        """The scheduled function between the stages before and after it, and what lays the constants out."""
        contraction, target = self.product.contraction, self._target
        before = (*contraction.before, *self.prepared())
        loops = first_loops, start_sums, add_words, add_group, last_loops = self._loops()
        tile, task = variable("tile"), variable("task")
        (of_rows,), (of_columns,) = self._rows.tiles, self._columns.tiles
        *of_groups, of_steps = add_words.outer[2:]
        groups, step = [variable(axis.name) for axis in of_groups], variable(of_steps.name)
        added = sequence([*self._fetches(task, groups, step), add_words.body([task, tile, *groups, step])])
        added = For(step, 0, of_steps.extent, ForKind.SERIAL, added)
        within = [task, tile, *groups]
        group: Any = sequence([start_sums.body(within), added, add_group.body(within)])
        for name, axis in zip(reversed(groups), reversed(of_groups), strict=True):
            group = For(name, 0, axis.extent, ForKind.SERIAL, group)
        body: Any = sequence([first_loops.body([task, tile]), group, last_loops.body([task, tile])])
        body = For(tile, 0, of_rows.extent, ForKind.SERIAL, body)
        kernel = For(task, 0, of_columns.extent, ForKind.PARALLEL, body)
        inside = [stage for each in loops for stage in each.stages]
        kept = {*self._parameters, *loads_of(inside, contraction.after)}
        first, made = default_loops(before, kept, target)
        last, made_after = default_loops(contraction.after, {*self._parameters, *loads_of(inside, before)}, target)
        main = assemble(self._parameters, (*made, *inside, *made_after), [*first, kernel, *last])
        return Variant(expand_for_cpu(main, target.keep_denormals), self._transforms)

    def _loops(self) -> tuple[Loops, ...]:
        """Those before the groups; of a group those before, over and after its steps; and those after the groups."""
        product, contraction = self.product, self.product.contraction
        rows, columns, lanes = self.config["rows"], self.config["columns"], self._target.lanes
        unroll = self.config["unroll"]
        outer = (*self._columns.tiles, *self._rows.tiles)
        row, (inner, element) = Axis(variable(ROW), rows), vector_axes(columns, lanes)
        tile, at = (row, *inner), (row.var, element)
        accumulators = intermediate("all", [rows, columns], "float32", "local")
        groups = tuple(Axis(variable("group"), axis.extent) for axis in product.groups)
        of_groups = {old.var: new.var for old, new in zip(product.groups, groups, strict=True)}
        position = self._position(row.var, element) | of_groups
        step, within = Axis(variable("step"), product.words // unroll, True), Axis(variable("within"), unroll, True)
        sums = self.sums(Place(row.var, element, of_groups, step.var * unroll + within.var))

        def placed(node: Expr) -> Expr:
            return substitute(node, position)

        epilogue, result = contraction.epilogue, contraction.stage.buffer
        value = rewrite_loads(epilogue.value, lambda load: accumulators[at] if load.source.same_as(result) else None)
        indices = tuple(map(placed, epilogue.indices))
        store = replace(epilogue, axes=(*outer, *tile), indices=indices, value=placed(value))
        in_group, in_step = (*outer, *groups), (*outer, *groups, step)
        each, at_each = (*sums.several, *tile), (*(axis.var for axis in sums.several), *at)
        start = Stage("sums_init", (*in_group, *each), sums.buffer, at_each, placed(sums.start))
        axes = (*in_step, within, *sums.inside, *each)
        update = Stage("sums_update", axes, sums.buffer, at_each, placed(sums.term), "sum")
        zero = FloatImm("float32", 0.0)
        return (
            Loops(outer, [Stage("init", (*outer, *tile), accumulators, at, zero)], 1),
            Loops(in_group, [start], 1),
            Loops(in_step, [update], unroll * product.places),
            Loops(in_group, [Stage("group", (*in_group, *tile), accumulators, at, placed(sums.value), "sum")], 1),
            Loops(outer, [store], 1),
        )

    def _fetches(self, task: Expr, groups: Sequence[Expr], step: Expr) -> list[Any]:
        """What fetches the words that are so many bytes ahead of those of a step."""
        ahead, unroll, contraction = self.config.get("ahead", 0), self.config["unroll"], self.product.contraction
        if not ahead:
            return []
        words = self._parameters[contraction.graph.parameters.index(contraction.operand.source)]

        def element(position: Expr) -> Any:
            indices = (task, *groups, step * unroll, position + ahead // WORD)
            return words[indices]

        return fetch_statements(element, unroll * self._columns.inner.extent, 1, IntImm("int32", 0))

    def _position(self, row: Expr, column: Expr) -> dict[Any, Expr]:
        """The position on the spatial axes of the contraction, by variable."""
        contraction = self.product.contraction
        in_columns = substitute(self._columns.position, {self._columns.inner.var: column})
        in_rows = substitute(self._rows.position, {self._rows.inner.var: row})
        position: dict[Any, Expr] = {axis.var: IntImm("int32", 0) for axis in contraction.outer}
        return position | {contraction.column.var: in_columns} | unravel_axes(contraction.rows, in_rows)

    def words(self, place: Place) -> Any:
        """The load of a word of codes, which are laid out ahead of time as [tile, groups..., word, column]."""
        product, digits = self.product, IntImm("int32", 0)
        axis = Axis(variable("word"), product.words)
        for number in range(WORD):
            byte = self.byte(axis.var, number)
            # The highest byte has the sign of the word.
            byte = prim.FloorMod(byte + 128, IntImm("int32", 256)) - 128 if number == WORD - 1 else byte
            digits = digits + byte * (1 << 8 * number)
        return self._laid_out(product.contraction.operand, digits, place.column, ((axis, place.word),))

    def scale(self, place: Place) -> Any:
        """The load of the scale of a group."""
        return self._laid_out(self.product.scale, self.product.scale, place.column, ())

    def zero(self, place: Place, dtype: str) -> Expr:
        """The zero point of a group in a type."""
        zero = self.product.zero
        if zero is None or isinstance(zero, IntImm):
            number = 0 if zero is None else int(zero)
            return FloatImm(dtype, float(number)) if dtype == "float32" else IntImm(dtype, number)
        (load,) = loads_in(zero)
        return self._laid_out(load, prim.Cast(dtype, zero), place.column, ())

    def _laid_out(self, load: Any, value: Expr, column: Expr, inside: tuple[tuple[Axis, Expr], ...]) -> Any:
        """The load of a value that is laid out ahead of time as [tile, groups..., inside..., column].

        Args:
            load: The load of the constant.
            value: What is computed from it.
            column: The column of the tile.
            inside: Axes of the value, and the position on each of them where it is loaded.
        """
        used = variables(load)
        old = [axis for axis in self.product.groups if axis.var in used]
        new = [Axis(variable(axis.name), axis.extent) for axis in old]
        contraction = self.product.contraction
        columns = tiled_axis("pack_column", contraction.column.extent, self._columns.inner.extent)
        axes = (*columns.tiles, *new, *(axis for axis, _ in inside), columns.inner)
        position = {before.var: after.var for before, after in zip(old, new, strict=True)}
        position[contraction.column.var] = columns.position
        buffer = intermediate(f"packed_{load.source.name}", [axis.extent for axis in axes], str(value.ty.dtype))
        stage = Stage("pack", axes, buffer, tuple(axis.var for axis in axes), substitute(value, position))
        parameter = self._parameters.index(load.source)
        self._transforms[parameter] = StageGraph((load.source, buffer), (stage,)).function()
        self._parameters[parameter] = buffer
        (tile,) = self._columns.tiles
        indices = (tile.var, *(axis.var for axis in old), *(at for _, at in inside), column)
        return buffer[indices]
