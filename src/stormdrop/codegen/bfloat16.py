"""bfloat16 becomes its bits: integers of 16 bits, which are widened to float32 by a shift, and rounded to the nearest.

    float32(x[i])        becomes   reinterpret(uint32(x[i]) << 16)
    y[i] = bfloat16(v)   becomes   y[i] = the upper half of v, rounded to the nearest, ties to even; NaN stays NaN

LLVM makes vectors of both. TVM has passes of its own for this (`BF16ComputeLegalize`), but those turn every local
buffer of bfloat16 into one of float32, which takes twice the memory, and of which no dot product of bfloat16 can read.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.tirx import AllocBuffer, BufferStore, DeclBuffer, Evaluate, PrimFunc, SeqStmt
from tvm_ffi import structural_walk

from ..errors import UnsupportedFunction
from ..ir.dtypes import BFLOAT16
from ..ir.expressions import Expr, transform, transform_statement
from ..ir.stages import shape_of

_BITS = "uint16"
_EXPONENT = 0x7F800000  # the bits of infinity; those of a NaN are larger
_HALF = 0x7FFF  # one less than half of the last digit that stays
_QUIET = 0x40  # the digit that every NaN keeps


def with_bits(function: PrimFunc) -> PrimFunc:
    """A function without values of bfloat16; its parameters keep their types, and their elements are read as bits.

    Args:
        function: the function. Its buffers have one dimension.

    Raises:
        UnsupportedFunction: it computes in bfloat16. Operands have to be converted to float32.
    """
    found: list[Any] = []
    structural_walk(function.body, ((AllocBuffer, found.append), (DeclBuffer, found.append)))
    buffers = [*function.params, *(statement.buffer for statement in found)]
    if not any(str(buffer.dtype) == BFLOAT16 for buffer in buffers):
        return function
    bits = _Bits()
    body = transform_statement(function.body, bits.statement)
    declared = [DeclBuffer(new, data=old.data) for old, new in bits.buffers.items() if old in set(function.params)]
    return function.with_body(SeqStmt([*declared, body]) if declared else body)


class _Bits:
    """Rewrites statements.

    Attributes:
        buffers: The buffer of bits for each buffer of bfloat16.
    """

    def __init__(self) -> None:
        self.buffers: dict[Any, Any] = {}

    def statement(self, node: Any) -> Any:
        if isinstance(node, BufferStore):
            indices = [self.value(index) for index in node.indices]
            if str(node.buffer.dtype) == BFLOAT16:
                return BufferStore(self.buffer(node.buffer), self.bits(node.value), indices)
            return BufferStore(node.buffer, self.value(node.value), indices)
        if isinstance(node, AllocBuffer) and str(node.buffer.dtype) == BFLOAT16:
            return AllocBuffer(self.buffer(node.buffer), node.annotations)
        if isinstance(node, DeclBuffer) and str(node.buffer.dtype) == BFLOAT16:
            return DeclBuffer(self.buffer(node.buffer), data=node.data)
        return Evaluate(self.value(node.value)) if isinstance(node, Evaluate) else node

    def buffer(self, old: Any) -> Any:
        """The buffer of bits for a buffer of bfloat16."""
        if old not in self.buffers:
            extents = list(shape_of(old))
            self.buffers[old] = tirx.decl_buffer(extents, _BITS, old.name, scope=old.scope(), layout=None)
        return self.buffers[old]

    def value(self, node: Expr) -> Expr:
        """An expression without bfloat16 in it. One of type bfloat16 becomes its bits."""

        def visit(item: Expr) -> Expr | None:
            if isinstance(item, prim.Cast) and _is_bfloat16(item.value):
                return _widened(self.bits(item.value))
            if isinstance(item, prim.Let):
                return prim.Let(item.var, self.value(item.value), self.value(item.body))
            return self.bits(item) if _is_bfloat16(item) else None

        return transform(node, visit)

    def bits(self, node: Expr) -> Expr:
        """The bits of an expression of type bfloat16."""
        if isinstance(node, TensorLoad):
            return self.buffer(node.source)[tuple(self.value(index) for index in node.indices)]
        if isinstance(node, FloatImm):
            return _rounded(FloatImm("float32", float(node.value)))
        if isinstance(node, prim.Cast):
            return _rounded(self.value(node.value))
        if isinstance(node, prim.Select):
            return prim.Select(self.value(node.condition), self.bits(node.true_value), self.bits(node.false_value))
        if isinstance(node, Call) and node.op.name.split(".")[-1] == "if_then_else":
            condition, *values = node.args
            return tirx.if_then_else(self.value(condition), *map(self.bits, values))
        raise UnsupportedFunction(f"{type(node).__name__} in bfloat16: convert the operands to float32")


def _is_bfloat16(node: Expr) -> bool:
    return str(getattr(node.ty, "dtype", "")) == BFLOAT16


def _widened(bits: Expr) -> Expr:
    """The float32 whose upper half these bits are."""
    return tirx.reinterpret("float32", tirx.shift_left(prim.Cast("uint32", bits), _unsigned(16)))


def _rounded(value: Expr) -> Expr:
    """The bits of a float32, rounded to bfloat16."""
    if isinstance(value, FloatImm) and float(value.value) == 0.0:
        return IntImm(_BITS, 0)
    word = Var("word", "uint32")
    upper = tirx.shift_right(word, _unsigned(16))
    odd = tirx.bitwise_and(upper, _unsigned(1))
    nearest = tirx.shift_right(word + _unsigned(_HALF) + odd, _unsigned(16))
    is_nan = tirx.bitwise_and(word, _unsigned(0x7FFFFFFF)) > _unsigned(_EXPONENT)
    rounded = prim.Select(is_nan, tirx.bitwise_or(upper, _unsigned(_QUIET)), nearest)
    return prim.Let(word, tirx.reinterpret("uint32", value), prim.Cast(_BITS, rounded))


def _unsigned(number: int) -> IntImm:
    return IntImm("uint32", number)
