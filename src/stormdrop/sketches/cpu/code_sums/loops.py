"""The loops of a product with codes in one configuration; `sketch` draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.tirx import For, ForKind, PrimFunc

from ....ir.elementary import EXPONENT_BIAS, MANTISSA_BITS, expand_for_cpu
from ....ir.expressions import Expr, loads_in, rewrite_loads, substitute, variables
from ....ir.stages import Axis, Stage, StageGraph, assemble, intermediate, loads_of, sequence, variable
from ....machine.cpu import Cpu
from ...contract import Variant
from ..contractions.tiled_contraction import tiled_axis
from ..loops import ROW, Loops, default_loops, vector_axes
from ..nest_rewrites import unravel_axes
from ..prefetch import fetch_statements
from .product import WORD, Product


class CodeSumLoops:
    """One product; `variant` is the result.

    Args:
        product: The product.
        config: The values of the knobs, see `CodeSums.space`.
        target: The machine.
    """

    def __init__(self, product: Product, config: Mapping[str, Any], target: Cpu) -> None:
        contraction = product.contraction
        self._product, self._config, self._target = product, config, target
        (extent,) = contraction.row_extents
        self._rows = tiled_axis("row", extent, config["rows"])
        self._columns = tiled_axis("column", contraction.column.extent, config["columns"])
        self._parameters = list(contraction.graph.parameters)
        self._transforms: dict[int, PrimFunc] = {}

    def variant(self) -> Variant:
        """The scheduled function between the stages before and after it, and what lays the constants out."""
        contraction, target = self._product.contraction, self._target
        totals, total = self._totals()
        scaled, data = self._scaled()
        loops = first_loops, zero_sums, add_words, scale_sums, last_loops = self._loops(data, total)
        tile, task = variable("tile"), variable("task")
        (of_rows,), (of_columns,) = self._rows.tiles, self._columns.tiles
        *of_groups, of_steps = add_words.outer[2:]
        groups, step = [variable(axis.name) for axis in of_groups], variable(of_steps.name)
        added = sequence([*self._fetches(task, groups, step), add_words.body([task, tile, *groups, step])])
        added = For(step, 0, of_steps.extent, ForKind.SERIAL, added)
        within = [task, tile, *groups]
        group: Any = sequence([zero_sums.body(within), added, scale_sums.body(within)])
        for name, axis in zip(reversed(groups), reversed(of_groups), strict=True):
            group = For(name, 0, axis.extent, ForKind.SERIAL, group)
        body: Any = sequence([first_loops.body([task, tile]), group, last_loops.body([task, tile])])
        body = For(tile, 0, of_rows.extent, ForKind.SERIAL, body)
        kernel = For(task, 0, of_columns.extent, ForKind.PARALLEL, body)
        before = (*contraction.before, totals, scaled)
        inside = [stage for each in loops for stage in each.stages]
        kept = {*self._parameters, *loads_of(inside, contraction.after)}
        first, made = default_loops(before, kept, target)
        last, made_after = default_loops(contraction.after, {*self._parameters, *loads_of(inside, before)}, target)
        main = assemble(self._parameters, (*made, *inside, *made_after), [*first, kernel, *last])
        return Variant(expand_for_cpu(main, target.keep_denormals), self._transforms)

    def _loops(self, data: Callable[[Expr, Expr], Expr], total: Expr) -> tuple[Loops, ...]:
        """Those before the groups; of a group those before, over and after its steps; and those after the groups.

        Args:
            data: The load of the scaled data at a word and a place in it.
            total: The load of the sum of a group's data.
        """
        product, contraction = self._product, self._product.contraction
        rows, columns, lanes = self._config["rows"], self._config["columns"], self._target.lanes
        unroll = self._config["unroll"]
        outer = (*self._columns.tiles, *self._rows.tiles)
        row, (inner, element) = Axis(variable(ROW), rows), vector_axes(columns, lanes)
        tile, at = (row, *inner), (row.var, element)
        accumulators, sums = (intermediate(name, [rows, columns], "float32", "local") for name in ("all", "sums"))
        groups = tuple(Axis(variable("group"), axis.extent) for axis in product.groups)
        position = self._position(row.var, element)
        position |= {old.var: new.var for old, new in zip(product.groups, groups, strict=True)}
        step, within = Axis(variable("step"), product.words // unroll, True), Axis(variable("within"), unroll, True)
        place = Axis(variable("place"), product.places, True)
        word = step.var * unroll + within.var
        code = _code(self._words(word, element), place.var, product.bits)
        scaled = self._packed(product.scale, product.scale, element) * (sums[at] - self._zero(element) * total)
        zero = FloatImm("float32", 0.0)

        def placed(node: Expr) -> Expr:
            return substitute(node, position)

        term = placed(data(word, place.var) * prim.Cast("float32", code))
        epilogue, result = contraction.epilogue, contraction.stage.buffer
        value = rewrite_loads(epilogue.value, lambda load: accumulators[at] if load.source.same_as(result) else None)
        indices = tuple(map(placed, epilogue.indices))
        store = replace(epilogue, axes=(*outer, *tile), indices=indices, value=placed(value))
        in_group, in_step = (*outer, *groups), (*outer, *groups, step)
        update = Stage("sums_update", (*in_step, within, place, *tile), sums, at, term, "sum")
        return (
            Loops(outer, [Stage("init", (*outer, *tile), accumulators, at, zero)], 1),
            Loops(in_group, [Stage("sums_init", (*in_group, *tile), sums, at, zero)], 1),
            Loops(in_step, [update], unroll * product.places),
            Loops(in_group, [Stage("group", (*in_group, *tile), accumulators, at, placed(scaled), "sum")], 1),
            Loops(outer, [store], 1),
        )

    def _fetches(self, task: Expr, groups: Sequence[Expr], step: Expr) -> list[Any]:
        """What fetches the words that are so many bytes ahead of those of a step."""
        ahead, unroll, contraction = self._config.get("ahead", 0), self._config["unroll"], self._product.contraction
        if not ahead:
            return []
        words = self._parameters[contraction.graph.parameters.index(contraction.operand.source)]

        def element(position: Expr) -> Any:
            indices = (task, *groups, step * unroll, position + ahead // WORD)
            return words[indices]

        return fetch_statements(element, unroll * self._columns.inner.extent, 1, IntImm("int32", 0))

    def _position(self, row: Expr, column: Expr) -> dict[Any, Expr]:
        """The position on the spatial axes of the contraction, by variable."""
        contraction = self._product.contraction
        in_columns = substitute(self._columns.position, {self._columns.inner.var: column})
        in_rows = substitute(self._rows.position, {self._rows.inner.var: row})
        position: dict[Any, Expr] = {axis.var: IntImm("int32", 0) for axis in contraction.outer}
        return position | {contraction.column.var: in_columns} | unravel_axes(contraction.rows, in_rows)

    def _totals(self) -> tuple[Stage, Expr]:
        """The stage that adds up the data of each row and group, and the load of the sum."""
        word, place = (Axis(variable(name), extent, True) for name, extent in self._inside())
        stage, at = self._of_data("totals", (word, place))
        return replace(stage, combine="sum", identity=FloatImm("float32", 0.0)), stage.buffer[at]

    def _scaled(self) -> tuple[Stage, Callable[[Expr, Expr], Expr]]:
        """The stage that makes data smaller by what their codes are too large, and the load of such data."""
        word, place = (Axis(variable(name), extent) for name, extent in self._inside())
        stage, at = self._of_data("scaled", (word, place))
        last = prim.EQ(place.var, IntImm("int32", place.extent - 1))
        exponent = prim.Select(last, IntImm("int32", EXPONENT_BIAS), EXPONENT_BIAS - self._product.bits * place.var)
        power = tirx.reinterpret("float32", exponent << MANTISSA_BITS)
        stage = replace(stage, value=stage.value * power)

        def load(at_word: Expr, at_place: Expr) -> Expr:
            indices = (*at, at_word, at_place)
            return stage.buffer[indices]

        return stage, load

    def _inside(self) -> list[tuple[str, int]]:
        return [("word", self._product.words), ("place", self._product.places)]

    def _of_data(self, name: str, inside: tuple[Axis, Axis]) -> tuple[Stage, tuple[Any, ...]]:
        """A stage over rows, groups, words and places that reads the data, and the indices of a row and a group."""
        product, contraction = self._product, self._product.contraction
        old = (*contraction.rows, *product.groups)
        new = tuple(Axis(variable(axis.name), axis.extent) for axis in old)
        position: dict[Any, Expr] = {before.var: after.var for before, after in zip(old, new, strict=True)}
        position |= {axis.var: IntImm("int32", 0) for axis in contraction.outer}
        position |= product.at(inside[0].var, inside[1].var)
        stored = [axis for axis in (*new, *inside) if not axis.reduce]
        buffer = intermediate(name, [axis.extent for axis in stored], "float32")
        indices = tuple(axis.var for axis in stored)
        stage = Stage(name, (*new, *inside), buffer, indices, substitute(product.data, position))
        return stage, tuple(axis.var for axis in old)

    def _words(self, word: Expr, column: Expr) -> Any:
        """The load of a word of codes, which are laid out ahead of time as [tile, groups..., word, column]."""
        product, load = self._product, self._product.contraction.operand
        digits: Expr = IntImm("int32", 0)
        axis = Axis(variable("word"), product.words)
        for number in range(WORD):
            place = {product.bytes_axis.var: axis.var * WORD + number}
            byte = prim.Cast("int32", substitute(load, place))
            # The highest byte has the sign of the word.
            byte = prim.FloorMod(byte + 128, IntImm("int32", 256)) - 128 if number == WORD - 1 else byte
            digits = digits + byte * (1 << 8 * number)
        return self._laid_out(load, digits, column, ((axis, word),))

    def _zero(self, column: Expr) -> Expr:
        """The zero point of a group as a float."""
        zero = self._product.zero
        if zero is None or isinstance(zero, IntImm):
            return FloatImm("float32", 0.0 if zero is None else float(int(zero)))
        (load,) = loads_in(zero)
        return self._packed(load, prim.Cast("float32", zero), column)

    def _packed(self, load: Any, value: Expr, column: Expr) -> Any:
        """The load of a value of each group that is computed from a constant."""
        return self._laid_out(load, value, column, ())

    def _laid_out(self, load: Any, value: Expr, column: Expr, inside: tuple[tuple[Axis, Expr], ...]) -> Any:
        """The load of a value that is laid out ahead of time as [tile, groups..., inside..., column].

        Args:
            load: The load of the constant.
            value: What is computed from it.
            column: The column of the tile.
            inside: Axes of the value, and the position on each of them where it is loaded.
        """
        used = variables(load)
        old = [axis for axis in self._product.groups if axis.var in used]
        new = [Axis(variable(axis.name), axis.extent) for axis in old]
        contraction = self._product.contraction
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


def _code(word: Expr, place: Expr, bits: int) -> Expr:
    """The code at a place of a word, which is 2 ** (bits place) times as large unless it is the last one."""
    last = WORD * 8 // bits - 1
    mask = (1 << bits) - 1
    shifted = prim.BitwiseAnd(word >> (bits * last), IntImm("int32", mask))
    # The mask of the last place, which is not taken, would exceed 32 bits.
    masked = prim.BitwiseAnd(word, IntImm("int32", mask) << (prim.FloorMod(place, IntImm("int32", last)) * bits))
    return tirx.if_then_else(prim.EQ(place, IntImm("int32", last)), shifted, masked)
