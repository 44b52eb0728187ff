"""The loops of a product that converts codes to floats; `sketch` draws them."""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm

from ....ir.elementary import EXPONENT_BIAS, MANTISSA_BITS
from ....ir.expressions import Expr
from ....ir.stages import Axis, Stage, intermediate, variable
from .loops import CodeLoops, GroupSums, Place
from .product import WORD


class CodeSumLoops(CodeLoops):
    """The loops of `CodeSums` for one product."""

    def prepared(self) -> tuple[Stage, ...]:
        """The sums of the data of each row and group, and data made smaller by what their codes are too large."""
        inside = (Axis(variable("word"), self.product.words), Axis(variable("place"), self.product.places))
        code = inside[0].var * self.product.places + inside[1].var
        totals = self.product.of_data("totals", [replace(axis, reduce=True) for axis in inside], code)
        self._totals = replace(totals, combine="sum", identity=FloatImm("float32", 0.0))
        scaled = self.product.of_data("scaled", inside, code)
        place = inside[1]
        last = prim.EQ(place.var, IntImm("int32", place.extent - 1))
        exponent = prim.Select(last, IntImm("int32", EXPONENT_BIAS), EXPONENT_BIAS - self.product.bits * place.var)
        power = tirx.reinterpret("float32", exponent << MANTISSA_BITS)
        self._scaled = replace(scaled, value=scaled.value * power)
        return self._totals, self._scaled

    def sums(self, place: Place) -> GroupSums:
        """The sums of scaled data times codes, less the zero point times the data."""
        product = self.product
        shape = [self.config["rows"], self.config["columns"]]
        sums = intermediate("sums", shape, "float32", "local")
        number = Axis(variable("place"), product.places, True)
        code = prim.Cast("float32", _code(self.words(place), number.var, product.bits))
        of_code = (*product.of_row, place.word, number.var)
        data = self._scaled.buffer[of_code]
        total = self._totals.buffer[product.of_row]
        value = self.scale(place) * (sums[(place.row, place.column)] - self.zero(place, "float32") * total)
        return GroupSums(sums, (), FloatImm("float32", 0.0), (number,), data * code, value)

    def byte(self, word: Expr, number: int) -> Expr:
        """The byte as it is."""
        return self.product.byte(word * WORD + number)


def _code(word: Expr, place: Expr, bits: int) -> Expr:
    """The code at a place of a word, which is 2 ** (bits place) times as large unless it is the last one."""
    last = WORD * 8 // bits - 1
    mask = (1 << bits) - 1
    shifted = prim.BitwiseAnd(word >> (bits * last), IntImm("int32", mask))
    # The mask of the last place, which is not taken, would exceed 32 bits.
    masked = prim.BitwiseAnd(word, IntImm("int32", mask) << (prim.FloorMod(place, IntImm("int32", last)) * bits))
    return tirx.if_then_else(prim.EQ(place, IntImm("int32", last)), shifted, masked)
