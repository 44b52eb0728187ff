"""bfloat16 becomes its bits: integers of 16 bits, which are widened to float32 by a shift, and rounded to the nearest.

    float32(x[i])        becomes   reinterpret(uint32(x[i]) << 16)
    y[i] = bfloat16(v)   becomes   y[i] = the upper half of v, rounded to the nearest, ties to even; NaN stays NaN
    y[i] = x[i] + x[j]   becomes   the same with the sum in float32

LLVM makes vectors of all of them. TVM has passes of its own for this (`BF16ComputeLegalize`), but those turn every
local buffer of bfloat16 into one of float32. That takes twice the memory, and a dot product of bfloat16 cannot read it.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.tirx import AllocBuffer, BufferStore, DeclBuffer, Evaluate, PrimFunc, SeqStmt
from tvm_ffi import structural_walk

from ..ir.dtypes import BFLOAT16
from ..ir.expressions import Expr, children, is_selection, rebuild, transform, transform_statement
from ..ir.stages import shape_of

_BITS = "uint16"
_EXPONENT = 0x7F800000  # the bits of infinity; those of a NaN are larger
_HALF = 0x7FFF  # one less than half of the last digit that stays
_QUIET = 0x40  # the digit that every NaN keeps


def with_bits(function: PrimFunc) -> PrimFunc:
    """A function without values of bfloat16; its parameters keep their types, and their elements are read as bits.

    Args:
        function: the function. Its buffers have one dimension.
    """
    found: list[Any] = []
    kinds = ((AllocBuffer, found.append), (DeclBuffer, found.append), (prim.Cast, found.append))
    structural_walk(function.body, kinds)
    values = [*function.params, *(node.ty if isinstance(node, prim.Cast) else node.buffer for node in found)]
    if not any(str(value.dtype) == BFLOAT16 for value in values):
        return function
    bits = _Bits()
    body = transform_statement(function.body, bits.statement)
    parameters = set(function.params)
    declared = [DeclBuffer(new, data=old.data) for old, new in bits.buffers.items() if old in parameters]
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
            if isinstance(item, prim.Let):
                return prim.Let(item.var, self.value(item.value), self.value(item.body))
            if _is_bfloat16(item):
                return self.bits(item)
            if isinstance(item, prim.Cast) and _is_bfloat16(item.value):
                wide = self.float32(item.value)
                return wide if str(item.ty.dtype) == "float32" else prim.Cast(item.ty, wide)
            if isinstance(item, prim.CmpExpr) and _is_bfloat16(item.a):
                return type(item)(self.float32(item.a), self.float32(item.b))
            return None

        return transform(node, visit)

    def bits(self, node: Expr) -> Expr:
        """The bits of an expression of type bfloat16."""
        if isinstance(node, TensorLoad):
            return self.buffer(node.source)[tuple(self.value(index) for index in node.indices)]
        if isinstance(node, FloatImm):
            return _rounded(FloatImm("float32", float(node.value)))
        if isinstance(node, prim.Cast):
            value = self.value(node.value)
            return _rounded(value if str(value.ty.dtype) == "float32" else prim.Cast("float32", value))
        if is_selection(node):
            condition, *values = children(node)
            select = prim.Select if isinstance(node, prim.Select) else tirx.if_then_else
            return select(self.value(condition), *map(self.bits, values))
        return _rounded(self.float32(node))

    def float32(self, node: Expr) -> Expr:
        """An expression of type bfloat16 in float32: arithmetic is done in it, everything else is widened."""
        if isinstance(node, FloatImm):
            return FloatImm("float32", float(node.value))
        if isinstance(node, TensorLoad | prim.Cast) or is_selection(node):
            return _widened(self.bits(node))
        operands = [self.float32(each) if _is_bfloat16(each) else self.value(each) for each in children(node)]
        if isinstance(node, Call):
            return Call(node.op, operands, attrs=node.attrs, ret_ty=FloatImm("float32", 0.0).ty)
        return rebuild(node, operands)


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
