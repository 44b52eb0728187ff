"""Which functions are products with weights that are codes, with a scale and perhaps a zero point for each group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer

from ....errors import UnsupportedFunction
from ....ir.contractions.contraction import Contraction
from ....ir.contractions.factors import factor_of
from ....ir.expressions import Expr, loads_in, simplified, substitute, variables
from ....ir.kept import kept
from ....ir.stages import Axis, Stage, intermediate, shape_of, variable
from ....ir.workload import Workload

WORD = 4
"""The bytes of a word of codes."""

DIGITS = 3
"""The digits of a byte that data are written in: 24 bits of the largest number of a group, as float32 has."""


@dataclass(frozen=True, eq=False)
class Product:
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
        return WORD * 8 // self.bits

    @property
    def words(self) -> int:
        """The words of a group."""
        return self.bytes_axis.extent // WORD

    @property
    def codes(self) -> int:
        """The codes of a group."""
        return self.words * self.places

    @property
    def largest_code(self) -> int:
        """The largest distance of a code from a zero point."""
        highest = (1 << self.bits) - 1
        zero = 0 if self.zero is None or not isinstance(self.zero, IntImm) else int(self.zero)
        return max(abs(zero), abs(highest - zero))

    @property
    def of_row(self) -> tuple[Any, ...]:
        """The indices of a row and of a group in what `of_data` makes."""
        return tuple(axis.var for axis in (*self.contraction.rows, *self.groups))

    def byte(self, number: Expr) -> Expr:
        """A byte of a group's codes, from 0 to 255."""
        return prim.Cast("int32", substitute(self.contraction.operand, {self.bytes_axis.var: number}))

    def of_data(self, name: str, inside: Sequence[Axis], code: Expr, dtype: str = "float32") -> Stage:
        """A stage over rows, groups, and axes of its own that reads the data.

        Args:
            name: Its name.
            inside: The axes of its own. Those that do not reduce are the last dimensions of its buffer.
            code: The number of a code of the group, in terms of these axes.
            dtype: The type of its buffer.
        """
        old = (*self.contraction.rows, *self.groups)
        new = tuple(Axis(variable(axis.name), axis.extent) for axis in old)
        position: dict[Any, Expr] = {before.var: after.var for before, after in zip(old, new, strict=True)}
        position |= {axis.var: IntImm("int32", 0) for axis in self.contraction.outer}
        if self.halves is None:
            position[self.bytes_axis.var] = code
        else:
            position |= {self.bytes_axis.var: code // 2, self.halves.var: code % 2}
        stored = [axis for axis in (*new, *inside) if not axis.reduce]
        buffer = intermediate(name, [axis.extent for axis in stored], dtype)
        value = simplified(substitute(self.data, position))
        return Stage(name, (*new, *inside), buffer, tuple(axis.var for axis in stored), value)


@kept
def product_of(workload: Workload) -> Product:
    """Reads the product off a workload.

    Raises:
        UnsupportedFunction: The function is no product with constant codes.
    """
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
    if len(of_bytes) != 1 or of_bytes[0].extent % WORD:
        raise UnsupportedFunction("the codes of a group are no words")
    bits = 8 if halves is None else 4
    return Product(contraction, factor.load, bits, zero, decoded.b, groups, of_bytes[0], halves)


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
