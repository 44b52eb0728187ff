"""Products with weights that are codes, with the scale and the zero point of a group left to one correction.

    sum of a[k] (code[k, j] - zero[g, j]) scale[g, j]  =
        sum over groups of scale[g, j] (sum of a[k] code[k, j]  -  zero[g, j] sum of a[k])

    for tiles of columns and rows, in parallel over columns:
        accumulators[rows, columns] = 0
        for group:
            sums[rows, columns] = 0                                        registers
            for word of four bytes, for code in word, unrolled:
                sums[rows, columns] += scaled[rows, k] float32(word[columns] & mask of the code)
            accumulators += scale[group, columns] (sums - zero[group, columns] total[rows, group])
        output[rows, columns] = epilogue(accumulators)

A word holds the codes of one column for several steps. A code that is masked and not shifted is 16 or 256 times as
large for each place in the word, so the data are that much smaller there. The factors are powers of two, so this is
exact, but for data below 1e-30, which may become denormals. Only the last code of a word, beside the sign, is shifted.
A weight takes three instructions of a vector in place of five: a mask, a conversion and a multiply-add. The sums of the
data of each group, `total`, are computed once before. With few rows of data decoding is what bounds such layers.

The result is rounded otherwise than in the other order, because the difference is taken after the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.sym import Analyzer
from tvm.tirx import For, ForKind, PrimFunc

from ...errors import UnsupportedFunction
from ...ir.contractions.contraction import Contraction
from ...ir.contractions.factors import factor_of
from ...ir.elementary import EXPONENT_BIAS, MANTISSA_BITS, expand_for_cpu
from ...ir.expressions import Expr, loads_in, rewrite_loads, substitute, variables
from ...ir.kept import kept
from ...ir.stages import Axis, Stage, StageGraph, assemble, intermediate, loads_of, shape_of, variable
from ...ir.workload import Workload
from ...machine.cpu import Cpu
from ...space import Constraint, Knob, Ordinal, Space
from ..contract import Variant
from .contractions.contraction_shape import fits_registers
from .contractions.register_blocked import column_tiles
from .contractions.tiled_contraction import tiled_axis
from .loops import ROW, Loops, default_loops, sequence, vector_axes
from .nest_rewrites import unravel_axes
from .origin import with_cheapest_origin
from .prefetch import fetch_statements, prefetch_knob

_MOST_ROWS = 16  # of data: with more, decoding is shared by so many products that it counts for little
_VECTORS = (1, 2, 3, 4, 6, 8)
_UNROLLS = (1, 2, 4, 8)
_WORD = 4  # bytes
_AHEAD = (0, 1024, 2048, 4096, 8192)  # bytes

# Costs in cycles of a core that starts one multiply-add per cycle.
_DECODING = 1.5  # of a vector of codes
_BROADCAST = 0.5  # of an element of the data
_LOOP = 2.0  # per iteration over codes
_GROUP = 6.0  # per vector of sums and group
_TILE = 200.0
_WAITING = 1.1  # times that codes take from memory if nothing fetches them ahead


@dataclass(frozen=True)
class CodeSums:
    """A sketch for products with grouped codes, see the module."""

    name: ClassVar[str] = "code_sums"
    max_error: ClassVar[float] = 1e-5

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        """The tilings whose sums fit the register file; None for another function.

        The knobs:

        - `rows`, `columns`: of a tile
        - `unroll`: words of a group that are unrolled
        - `ahead`: by how many bytes words are fetched ahead, if they are no small part of a second cache
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Cpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The expected cycles of n configurations."""
        return _cycles(_product(workload), knobs, target)

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        return _Kernel(_product(workload), config, target).variant()


@dataclass(frozen=True, eq=False)
class _Product:
    """A contraction whose weights are codes with a scale for each group.

    Attributes:
        contraction: The contraction.
        data: The load of the data.
        bits: The bits of a code.
        zero: The zero point as an integer; None if there is none.
        scale: The load of the scale.
        groups: The reductions over groups.
        bytes_axis: The reduction over the bytes of a group.
        halves: The reduction over the two codes of a byte; None if there is one.
    """

    contraction: Contraction
    data: Any
    bits: int
    zero: Expr | None
    scale: Any
    groups: tuple[Axis, ...]
    bytes_axis: Axis
    halves: Axis | None

    @property
    def rows(self) -> int:
        """The rows of data."""
        return math.prod(self.contraction.row_extents)

    @property
    def column_bytes(self) -> int:
        """The size of the codes."""
        return math.prod(shape_of(self.contraction.operand.source))

    @property
    def places(self) -> int:
        """The codes of a word."""
        return _WORD * 8 // self.bits

    @property
    def words(self) -> int:
        """The words of a group."""
        return self.bytes_axis.extent // _WORD

    def at(self, word: Expr, place: Expr) -> dict[Any, Expr]:
        """The positions of a code on the reductions inside of a group, by variable."""
        if self.halves is None:
            return {self.bytes_axis.var: word * _WORD + place}
        return {self.bytes_axis.var: word * _WORD + place // 2, self.halves.var: place % 2}


@kept
def _product(workload: Workload) -> _Product:
    """Reads a product off a function. Raises `UnsupportedFunction` if it is none."""
    contraction = workload.contraction
    stage = contraction.stage
    if contraction.constant is None or not contraction.decoders:
        raise UnsupportedFunction("its weights are no constant codes")
    if len(contraction.row_extents) > 1 or any(axis.extent > 1 for axis in contraction.outer):
        raise UnsupportedFunction("its rows are not one axis")
    if str(stage.buffer.dtype) != "float32":
        raise UnsupportedFunction("its sums are not float32")
    if len({load.source for load in (contraction.operand, *contraction.decoders)}) <= len(contraction.decoders):
        raise UnsupportedFunction("its codes, zero points and scales are not tensors of their own")
    left, right = stage.value.a, stage.value.b
    decoded, data = (left, right) if isinstance(left, prim.Mul) else (right, left)
    factor = factor_of(data)
    if factor is None or factor.widened or factor.decoders or contraction.column.var in variables(factor.load):
        raise UnsupportedFunction("its data are no rows of floats")
    code, zero = _code_and_zero(decoded.a.value)
    groups = tuple(axis for axis in stage.reductions if axis.var in variables(decoded.b))
    inside = [axis for axis in stage.reductions if axis not in groups]
    of_zero = set() if zero is None else variables(zero)
    if of_zero.intersection(axis.var for axis in inside):
        raise UnsupportedFunction("its scales or zero points are not those of groups")
    if zero is not None and not isinstance(zero, IntImm) and len(loads_in(zero)) != 1:
        raise UnsupportedFunction("a zero point is computed from several numbers")
    halves = _halves(code, inside)
    byte = code if halves is None else code.a.a
    if not isinstance(byte, prim.Cast) or not contraction.operand.same_as(byte.value):
        raise UnsupportedFunction("its codes are no bytes")
    if str(contraction.operand.source.dtype) != "uint8":
        raise UnsupportedFunction("its codes are not uint8")
    of_bytes = [axis for axis in inside if axis is not halves]
    if len(of_bytes) != 1 or of_bytes[0].extent % _WORD:
        raise UnsupportedFunction("the codes of a group are no words")
    bits = 8 if halves is None else 4
    return _Product(contraction, factor.load, bits, zero, decoded.b, groups, of_bytes[0], halves)


def _halves(code: Expr, inside: Sequence[Axis]) -> Axis | None:
    """The axis over the halves of a byte, if a code is `byte >> 4 half & 15`."""
    if not isinstance(code, prim.BitwiseAnd) or not isinstance(code.b, IntImm) or int(code.b) != 15:
        return None
    if not isinstance(code.a, prim.RShift) or not isinstance(code.a.a, prim.Cast):
        return None
    halves = next((axis for axis in inside if axis.extent == 2 and axis.var in variables(code.a.b)), None)
    if halves is None:
        return None
    shifts = (substitute(code.a.b, {halves.var: IntImm("int32", half)}) for half in range(2))
    return halves if [str(Analyzer().simplify(shift)) for shift in shifts] == ["0", "4"] else None


def _code_and_zero(value: Expr) -> tuple[Expr, Expr | None]:
    """A code less its zero point; TVM adds the negative of a constant one."""
    if isinstance(value, prim.Sub):
        return value.a, value.b
    if isinstance(value, prim.Add) and isinstance(value.b, IntImm):
        return value.a, IntImm("int32", -int(value.b))
    return value, None


@kept
def _space(workload: Workload, target: Cpu) -> Space | None:
    try:
        product = _product(workload)
    except UnsupportedFunction:
        return None
    if product.rows > _MOST_ROWS or target.keep_denormals:
        return None  # scaled data may be denormals
    knobs: list[Knob] = [
        Ordinal("rows", range(1, product.rows + 1)),
        Ordinal("columns", column_tiles(product.contraction.column.extent, target.lanes, _VECTORS)),
        Ordinal("unroll", [factor for factor in _UNROLLS if product.words % factor == 0]),
    ]
    if prefetch_knob(product.column_bytes, target):
        knobs.append(Ordinal("ahead", _AHEAD))
    fits = Constraint(
        ("rows", "columns"),
        lambda rows, columns: bool(fits_registers(rows, columns, target)),
        f"sums, a row of columns and one more fit {target.registers} registers of {target.lanes}",
    )
    space = Space(CodeSums.name, knobs, [fits])
    return with_cheapest_origin(space, lambda columns: _cycles(product, columns, target))


def _cycles(product: _Product, knobs: Mapping[str, NDArray[Any]], target: Cpu) -> NDArray[np.float64]:
    rows, vectors = knobs["rows"], np.ceil(knobs["columns"] / target.lanes)
    steps = product.words * product.places
    groups = math.prod(axis.extent for axis in product.groups)
    step = vectors * (rows + _DECODING) + _BROADCAST * rows
    group = steps * np.maximum(step, 4.0) + product.words / knobs["unroll"] * _LOOP + _GROUP * rows * vectors
    tiles = np.ceil(product.rows / rows) * np.ceil(product.contraction.column.extent / knobs["columns"])
    waiting = np.where(knobs["ahead"] > 0, 1.0, _WAITING) if "ahead" in knobs else 1.0
    return np.asarray(np.ceil(tiles / target.cores) * (groups * group + _TILE) * waiting, float)


class _Kernel:
    """The loops of a product at a configuration."""

    def __init__(self, product: _Product, config: Mapping[str, Any], target: Cpu) -> None:
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
            indices = (task, *groups, step * unroll, position + ahead // _WORD)
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
        for number in range(_WORD):
            place = {product.bytes_axis.var: axis.var * _WORD + number}
            byte = prim.Cast("int32", substitute(load, place))
            # The highest byte has the sign of the word.
            byte = prim.FloorMod(byte + 128, IntImm("int32", 256)) - 128 if number == _WORD - 1 else byte
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
    last = _WORD * 8 // bits - 1
    mask = (1 << bits) - 1
    shifted = prim.BitwiseAnd(word >> (bits * last), IntImm("int32", mask))
    # The mask of the last place, which is not taken, would exceed 32 bits.
    masked = prim.BitwiseAnd(word, IntImm("int32", mask) << (prim.FloorMod(place, IntImm("int32", last)) * bits))
    return tirx.if_then_else(prim.EQ(place, IntImm("int32", last)), shifted, masked)
