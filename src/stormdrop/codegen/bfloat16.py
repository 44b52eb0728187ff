"""bfloat16 becomes its bits: integers of 16 bits, which are widened to float32 by a shift, and rounded to the nearest.

    float32(x[i])        becomes   reinterpret(uint32(x[i]) << 16)
    y[i] = bfloat16(v)   becomes   y[i] = round(v), to the nearest, ties to even; NaN stays NaN
    y[i] = x[i] + x[j]   becomes   the same with the sum in float32
    a pointer to x       becomes   a pointer to the bits; instructions of tensor cores say what these are

TVM has passes of its own for this (`BF16ComputeLegalize`), but those turn every local buffer of bfloat16 into one of
float32. That takes twice the memory, and a dot product of bfloat16 cannot read it.

`round` is nine instructions for integers, or one of the CPU (AVX512-BF16, ARM's bf16 extension), which takes denormals
for zeros: it is used where kernels flush them. TVM cannot name LLVM's type for bfloat16. Therefore the instruction
stands in a function in LLVM's language, which LLVM inlines; its vectors are known once the loops are vectors, so
`with_rounding` comes after TVM's vectorisation. NVIDIA's GPUs since sm_80 round two numbers by an instruction, which
`with_rounding_on_cuda` writes; it keeps denormals.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Call, StringImm, TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.target import codegen
from tvm.tirx import AllocBuffer, AttrStmt, BufferStore, DeclBuffer, Evaluate, PrimFunc, SeqStmt
from tvm_ffi import structural_map, structural_walk

from ..ir.dtypes import BFLOAT16
from ..ir.expressions import Expr, children, is_selection, rebuild, transform, transform_statement
from ..ir.stages import shape_of
from ..machine.cpu import KEEP_DENORMALS

_BITS = "uint16"
_EXPONENT = 0x7F800000  # the bits of infinity; those of a NaN are larger
_HALF = 0x7FFF  # one less than half of the last digit that stays
_QUIET = 0x40  # the digit that every NaN keeps
_UNITS = {"avx512bf16", "bf16"}  # LLVM's names of the extensions that have the instruction, on x86 and ARM
_SINCE = 80  # the first of NVIDIA's architectures that has it
_CUDA_TYPES = {1: ("float", "ushort"), 2: ("float2", "ushort2"), 4: ("float4", "ushort4")}  # by lanes
_MARK = "llvm.x86.avx512bf16.cvtneps2bf16.512"  # stands for that function: TVM makes vectors of intrinsics


def with_bits(function: PrimFunc) -> PrimFunc:
    """A function without values of bfloat16; its parameters keep their types, and their elements are read as bits.

    Args:
        function: The function. Its buffers have one dimension.
    """
    found: list[Any] = []
    kinds = ((AllocBuffer, found.append), (DeclBuffer, found.append), (prim.Cast, found.append))
    structural_walk(function.body, kinds)
    values = [*function.params, *(node.ty if isinstance(node, prim.Cast) else node.buffer for node in found)]
    if not any(str(value.dtype) == BFLOAT16 for value in values):
        return function
    bits = _Bits(_rounds(function.attrs["target"]))
    body = transform_statement(function.body, bits.statement)
    parameters = set(function.params)
    declared = [DeclBuffer(new, data=old.data) for old, new in bits.buffers.items() if old in parameters]
    return function.with_body(SeqStmt([*declared, body]) if declared else body)


def _rounds(target: Any) -> bool:
    """Whether an instruction of the target rounds as its kernels should."""
    if str(target.kind.name) == "cuda":
        return int(str(target.attrs["arch"]).removeprefix("sm_")) >= _SINCE
    if str(target.kind.name) != "llvm":
        return False
    return bool(_UNITS & set(map(str, codegen.llvm_get_cpu_features(target)))) and KEEP_DENORMALS not in target.keys


class _Bits:
    """Rewrites statements.

    Args:
        unit: Whether an instruction rounds.

    Attributes:
        buffers: The buffer of bits for each buffer of bfloat16.
        variables: The same for variables of a `Let`.
    """

    def __init__(self, unit: bool) -> None:
        self.unit = unit
        self.variables: dict[Any, Any] = {}
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
            if isinstance(item, Call) and item.op.name == "tirx.buffer_data" and _is_bfloat16(item.args[0]):
                return self.buffer(item.args[0]).data
            if isinstance(item, Call) and item.op.name == "tirx.type_annotation" and _is_bfloat16(item):
                return tirx.type_annotation(_BITS)
            if isinstance(item, prim.Let) and not _is_bfloat16(item):
                return self.let(item, self.value)
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
        if isinstance(node, prim.Let):
            return self.let(node, self.bits)
        if isinstance(node, Var):
            return self.variables[node]
        if isinstance(node, TensorLoad):
            return self.buffer(node.source)[tuple(self.value(index) for index in node.indices)]
        if isinstance(node, FloatImm):
            return self.rounded(FloatImm("float32", float(node.value)))
        if isinstance(node, prim.Cast):
            value = self.value(node.value)
            return self.rounded(value if str(value.ty.dtype) == "float32" else prim.Cast("float32", value))
        if is_selection(node):
            condition, *values = children(node)
            select = prim.Select if isinstance(node, prim.Select) else tirx.if_then_else
            return select(self.value(condition), *map(self.bits, values))
        return self.rounded(self.float32(node))

    def float32(self, node: Expr) -> Expr:
        """An expression of type bfloat16 in float32: arithmetic is done in it, everything else is widened."""
        if isinstance(node, FloatImm):
            return FloatImm("float32", float(node.value))
        if isinstance(node, prim.Let):
            return self.let(node, self.float32)
        if isinstance(node, TensorLoad | prim.Cast | Var) or is_selection(node):
            return _widened(self.bits(node))
        operands = [self.float32(each) if _is_bfloat16(each) else self.value(each) for each in children(node)]
        if isinstance(node, Call):
            return Call(node.op, operands, attrs=node.attrs, ret_ty=FloatImm("float32", 0.0).ty)
        return rebuild(node, operands)

    def let(self, node: Any, rewritten: Callable[[Expr], Expr]) -> Expr:
        """A `Let` with a rewritten body. A variable of type bfloat16 becomes its bits."""
        if not _is_bfloat16(node.var):
            return prim.Let(node.var, self.value(node.value), rewritten(node.body))
        self.variables[node.var] = Var(node.var.name, _BITS)
        return prim.Let(self.variables[node.var], self.bits(node.value), rewritten(node.body))

    def rounded(self, value: Expr) -> Expr:
        """The bits of a float32, rounded to bfloat16."""
        if isinstance(value, FloatImm) and float(value.value) == 0.0:
            return IntImm(_BITS, 0)
        if self.unit:
            return tirx.call_llvm_pure_intrin(_BITS, _MARK, value)
        word = Var("word", "uint32")
        upper = tirx.shift_right(word, _unsigned(16))
        odd = tirx.bitwise_and(upper, _unsigned(1))
        nearest = tirx.shift_right(word + _unsigned(_HALF) + odd, _unsigned(16))
        is_nan = tirx.bitwise_and(word, _unsigned(0x7FFFFFFF)) > _unsigned(_EXPONENT)
        rounded = prim.Select(is_nan, tirx.bitwise_or(upper, _unsigned(_QUIET)), nearest)
        return prim.Let(word, tirx.reinterpret("uint32", value), prim.Cast(_BITS, rounded))


def _is_bfloat16(node: Expr) -> bool:
    return str(getattr(node.ty, "dtype", "")) == BFLOAT16


def _widened(bits: Expr) -> Expr:
    """The float32 whose upper half these bits are."""
    return tirx.reinterpret("float32", tirx.shift_left(prim.Cast("uint32", bits), _unsigned(16)))


def _unsigned(number: int) -> IntImm:
    return IntImm("uint32", number)


def with_rounding(function: PrimFunc) -> PrimFunc:
    """A vectorised function in which the CPU's instruction rounds to bfloat16, where `with_bits` has chosen it.

    Args:
        function: What `with_bits` has made, with its loops as vectors.
    """
    calls: list[Any] = []
    structural_walk(function.body, (Call, calls.append))
    lengths = sorted({lanes_of(call) for call in calls if _is_rounding(call)})
    if not lengths:
        return function

    def visit(call: Any) -> Any:
        if not _is_rounding(call):
            return call
        return tirx.call_pure_extern(call.ty.dtype, _function(lanes_of(call)), call.args[1])

    code = StringImm("\n".join(map(_definition, lengths)))
    body = structural_map(function.body, ((Call, visit),))
    return function.with_body(AttrStmt(IntImm("int32", 0), "pragma_import_llvm", code, body))


def with_rounding_on_cuda(function: PrimFunc) -> PrimFunc:
    """A vectorised function for CUDA in which an instruction rounds to bfloat16, where `with_bits` has chosen it.

    Args:
        function: What `with_bits` has made, with its loops as vectors.
    """

    def visit(call: Any) -> Any:
        if not _is_rounding(call):
            return call
        source = _cuda_definition(lanes_of(call))
        name = _function(lanes_of(call))
        return cuda_func_call(name, call.args[1], source_code=source, return_type=call.ty.dtype)

    return function.with_body(structural_map(function.body, ((Call, visit),)))


def _cuda_definition(lanes: int) -> str:
    """A function that rounds numbers; of two that an instruction takes, the second becomes the lower half."""
    real, bits = _CUDA_TYPES[lanes]
    numbers = [f"value.{axis}" for axis in "xyzw"[:lanes]] if lanes > 1 else ["value", "0.0f"]
    pairs = [
        f'asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words[{at // 2}]) : "f"({numbers[at + 1]}), "f"({numbers[at]}));'
        for at in range(0, len(numbers), 2)
    ]
    return f"""__forceinline__ __device__ {bits} {_function(lanes)}({real} value) {{
  alignas(8) unsigned int words[{len(pairs)}];
  {" ".join(pairs)}
  return *({bits}*)words;
}}"""


def lanes_of(node: Expr) -> int:
    """The number of lanes of an expression.

    Args:
        node: The expression.
    """
    return int(str(node.ty.dtype).partition("x")[2] or 1)


@cache
def _number_of_mark() -> int:
    return int(tirx.call_llvm_pure_intrin(_BITS, _MARK, FloatImm("float32", 0.0)).args[0])


def _is_rounding(call: Any) -> bool:
    return call.op.name == "tirx.call_llvm_pure_intrin" and int(call.args[0]) == _number_of_mark()


def _function(lanes: int) -> str:
    return f"stormdrop_round_bfloat16_{lanes}"


def _definition(lanes: int) -> str:
    real, low, bits = (f"<{lanes} x {kind}>" if lanes > 1 else kind for kind in ("float", "bfloat", "i16"))
    return f"""define linkonce_odr {bits} @{_function(lanes)}({real} %value) alwaysinline {{
            %rounded = fptrunc {real} %value to {low}
            %bits = bitcast {low} %rounded to {bits}
            ret {bits} %bits
        }}"""
