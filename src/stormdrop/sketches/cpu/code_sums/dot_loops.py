"""The loops of a product that multiplies codes by digits of the data; `dots` draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm

from ....ir.attributes import WORD as WORD_OF
from ....ir.elementary import EXPONENT_BIAS, MANTISSA_BITS
from ....ir.expressions import Expr
from ....ir.stages import Axis, Stage, intermediate, variable
from ....machine.cpu import Cpu
from ..loops import CHUNK
from .loops import CodeLoops, GroupSums, Place
from .product import DIGITS, WORD, Product

_TOP = 22  # the largest number of a group becomes 2 ** 22 or more, and less than 2 ** 23
_NEAR_TWO = 0x10200  # added to the mantissa of a number that would not fit the digits, it is 2 or more
_WITHOUT_SIGN = 0x7FFFFFFF
_INFINITE = 0x7F800000  # the bits of infinity; those of NaN are more
_LARGEST_DIGIT = 128
_HALVES = 0x808080  # 128 in each digit
_LOW = 0x0F0F0F0F  # the lower half of each byte


class CodeDotLoops(CodeLoops):
    """The loops of `CodeDots` for one product.

    Args:
        product: The product.
        config: The values of the knobs, see `CodeDots.space`.
        target: The machine.
        instruction: LLVM's name of the instruction that adds up products of four bytes.
    """

    def __init__(self, product: Product, config: Mapping[str, Any], target: Cpu, instruction: str) -> None:
        super().__init__(product, config, target)
        self._instruction = instruction

    def prepared(self) -> tuple[Stage, ...]:
        """The largest number of each row and group, its unit, the digits of the data, and their sums."""
        product = self.product
        code, digit = Axis(variable("code"), product.codes), Axis(variable("digit"), DIGITS)
        each = replace(code, reduce=True)
        bits = product.of_data("bounds", [each], code.var, "int32")
        # The bits of numbers without their sign are in the order of the numbers, and those of NaN are the largest.
        value = prim.BitwiseAnd(tirx.reinterpret("int32", bits.value), IntImm("int32", _WITHOUT_SIGN))
        bounds = replace(bits, value=value, combine="max", identity=IntImm("int32", -(2**31)))
        bound = bounds.buffer[bounds.indices]
        unit = tirx.reinterpret("float32", (_exponent(bound) - _TOP) << MANTISSA_BITS)
        unit = prim.Select(bound < _INFINITE, unit, FloatImm("float32", math.nan))
        units = _beside(bounds, "units", "float32", unit)
        whole = product.of_data("digits", [digit, code], code.var, "int8")
        bound = bounds.buffer[whole.indices[:-2]]
        power = tirx.reinterpret("float32", (2 * EXPONENT_BIAS + _TOP - _exponent(bound)) << MANTISSA_BITS)
        number = prim.Cast("int32", tirx.nearbyint(whole.value * power)) + IntImm("int32", _HALVES)
        part = prim.BitwiseAnd(number >> (8 * (DIGITS - 1) - 8 * digit.var), IntImm("int32", 255))
        digits = replace(whole, value=prim.Cast("int8", part - 128))
        axes = tuple(each if axis is code else axis for axis in digits.axes)
        total = prim.Cast("int32", digits.buffer[digits.indices])
        totals = _beside(replace(digits, axes=axes, indices=digits.indices[:-1]), "totals", "int32", total)
        totals = replace(totals, combine="sum", identity=IntImm("int32", 0))
        self._digits, self._totals, self._units = digits.buffer, totals.buffer, units.buffer
        return bounds, units, digits, totals

    def sums(self, place: Place) -> GroupSums:
        """A sum for each digit of the data, which starts from what the zero point takes off."""
        product, of_row = self.product, self.product.of_row
        sums = intermediate("sums", [DIGITS, self.config["rows"], self.config["columns"]], "int32", "local")
        digit, part = Axis(variable(CHUNK), DIGITS), Axis(variable("part"), product.places // WORD, True)
        words = self.words(place)
        codes = prim.BitwiseAnd(words >> (part.var * 4), IntImm("int32", _LOW)) if product.bits == 4 else words
        first = (place.word * part.extent + part.var) * WORD
        at = [(*of_row, digit.var, first + number) for number in range(WORD)]
        data = [self._digits[indices] for indices in at]
        word = tirx.call_pure_extern("int32", WORD_OF, *data)
        term = tirx.call_llvm_pure_intrin("int32", self._instruction, IntImm("int32", 0), codes, word)
        of_digit = (*of_row, digit.var)
        start = IntImm("int32", 0) - self.zero(place, "int32") * self._totals[of_digit]
        value = self._joined([sums[(number, place.row, place.column)] for number in range(DIGITS)])
        return GroupSums(sums, (digit,), start, (part,), term, self.scale(place) * (value * self._units[of_row]))

    def _joined(self, sums: Sequence[Expr]) -> Expr:
        """The number whose digits have these sums, in float32: integers are added as long as they fit 32 bits."""
        product = self.product
        value, largest, integer = sums[0], _LARGEST_DIGIT, True
        for lower in sums[1:]:
            largest = 256 * largest + _LARGEST_DIGIT
            if integer and product.largest_code * product.codes * largest >= 2**31:
                value, integer = prim.Cast("float32", value), False
            value = (value << 8) + lower if integer else value * 256.0 + prim.Cast("float32", lower)
        return prim.Cast("float32", value) if integer else value

    def byte(self, word: Expr, number: int) -> Expr:
        """Of 4 bits, two codes that lie four apart: each half of a word has four codes side by side."""
        product = self.product
        if product.halves is None:
            return product.byte(word * WORD + number)
        codes = []
        for place in (number, number + WORD):
            byte = product.byte(word * WORD + place // 2)
            codes.append(prim.BitwiseAnd(byte >> (4 * (place % 2)), IntImm("int32", 15)))
        return codes[0] + codes[1] * 16


def _exponent(bound: Expr) -> Expr:
    """The exponent of the largest number of a group; one more if three digits end before that number."""
    exponent = (bound + IntImm("int32", _NEAR_TWO)) >> MANTISSA_BITS
    return prim.Max(exponent, IntImm("int32", _TOP + 1))


def _beside(stage: Stage, name: str, dtype: str, value: Expr) -> Stage:
    """A stage that writes a number for each one that a reduction gives."""
    axes = stage.axes if stage.combine is None else stage.spatial
    extents = [axis.extent for axis in axes if not axis.reduce]
    return Stage(name, axes, intermediate(name, extents, dtype), stage.indices, value)
