"""Dot products of bytes, of int16 and of bfloat16 become the machine's instructions, and words become loads.

A sketch writes `stormdrop_word(a[i], a[i + 1], a[i + 2], a[i + 3])` for a word of bytes, or with two arguments for one
of int16 or bfloat16, and LLVM's instruction over words for a dot product: `sum + vpdpbusd(0, word, words)`. Each is one
lane until the loops are vectorised. This pass then

- adds the products to the sum by the instruction itself: `vpdpbusd(sum, word, words)`. vpmaddwd does not add to a sum:
  a second instruction does,
- takes the instruction of the vector's length, and hands the operands over in the type that it wants,
- loads a word at once if its elements lie side by side, and otherwise composes it.

TVM cannot name LLVM's type for bfloat16. Therefore those instructions stand in functions in LLVM's language, which LLVM
inlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Call, StringImm, TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer
from tvm.tirx import AttrStmt, PrimFunc
from tvm_ffi import structural_map, structural_walk

from ..errors import UnsupportedFunction
from ..ir.attributes import WORD
from .bfloat16 import lanes_of

_X86 = ("llvm.x86.avx512.vpdpbusd", "llvm.x86.avx512bf16.dpbf16ps", "llvm.x86.avx512.pmaddw.d")
_ARM = tuple(f"llvm.aarch64.neon.{name}" for name in ("sdot", "udot", "usdot", "bfdot"))
_OF_BFLOAT16 = (f"{_X86[1]}.512", _ARM[3])
_OF_INT16 = f"{_X86[2]}.512"
_SHORTER = {8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}  # of int16, by lanes
_NAMES = (*(f"{name}.512" for name in _X86), *_ARM)
_FEWEST_LANES = 4


def with_dot_products(function: PrimFunc) -> PrimFunc:
    """A vectorised function with the machine's instructions for its dot products; others stay as they are.

    Args:
        function: The function. Its buffers have one dimension.

    Raises:
        UnsupportedFunction: A dot product is in a vector of less than four lanes, or is not added to a sum.
    """
    calls = _calls(function.body)
    if not any(map(_is_word, calls)):
        return function
    # Checked before the rewrite: an error from inside of TVM's `structural_map` corrupts the memory of the process.
    dots = sorted({(name, lanes_of(call)) for call in calls if (name := _dot_name(call)) is not None})
    least = min((lanes for _, lanes in dots), default=_FEWEST_LANES)
    if least < _FEWEST_LANES:
        raise UnsupportedFunction(f"a dot product has {least} lanes: it needs {_FEWEST_LANES} or more")
    body = structural_map(function.body, ((Call, _with_word), (prim.Add, _with_instruction)))
    if any(_dot_name(call) is not None for call in _calls(body)):
        raise UnsupportedFunction("a dot product is not added to a sum")
    definitions = [_definition(name, lanes) for name, lanes in dots if name in _OF_BFLOAT16]
    if definitions:
        body = AttrStmt(IntImm("int32", 0), "pragma_import_llvm", StringImm("\n".join(definitions)), body)
    return function.with_body(body)


def _calls(body: Any) -> list[Any]:
    calls: list[Any] = []
    structural_walk(body, (Call, calls.append))
    return calls


@cache
def _names_by_number() -> dict[int, str]:
    """The instructions by the numbers that stand for their names in calls."""
    zeros = [IntImm("int32", 0)] * 3
    return {int(tirx.call_llvm_pure_intrin("int32", name, *zeros).args[0]): name for name in _NAMES}


def _is_word(call: Any) -> bool:
    return call.op.name == "tirx.call_pure_extern" and str(call.args[0].value) == WORD


def _dot_name(node: Any) -> str | None:
    """The instruction of a dot product as sketches write it; None for anything else."""
    if not isinstance(node, Call) or node.op.name != "tirx.call_llvm_pure_intrin":
        return None
    if not str(node.args[-1].ty.dtype).startswith("int32"):
        return None
    return _names_by_number().get(int(node.args[0]))


def _with_instruction(node: Any) -> Any:
    """The instruction in place of the sum of a value and a dot product."""
    for total, product in ((node.a, node.b), (node.b, node.a)):
        name = _dot_name(product)
        if name is not None:
            return _instruction(name, total, product.args[-2:])
    return node


def _instruction(name: str, total: Any, words: Sequence[Any]) -> Any:
    lanes = lanes_of(total)
    if name in _OF_BFLOAT16:
        return tirx.call_pure_extern(f"float32x{lanes}", _function(lanes), total, *words)
    if name == _OF_INT16:
        operands = [tirx.reinterpret(f"int16x{2 * lanes}", word) for word in words]
        return total + tirx.call_llvm_pure_intrin(f"int32x{lanes}", _SHORTER.get(lanes, name), *operands)
    operands = [tirx.reinterpret(f"int8x{4 * lanes}", word) for word in words]
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", _of_length(name, lanes), total, *operands)


def _of_length(name: str, lanes: int) -> str:
    """The instruction for vectors of this many words."""
    return name.removesuffix("512") + str(32 * lanes) if name.endswith(".512") else name


def _function(lanes: int) -> str:
    return f"stormdrop_dot_bfloat16_{lanes}"


def _definition(name: str, lanes: int) -> str:
    """The function that adds dot products of bfloat16, whose words come as integers, to sums."""
    instruction = _of_length(name, lanes)
    if name in _ARM:
        instruction += f".v{lanes}f32.v{2 * lanes}bf16"
    sums, words, factors = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{2 * lanes} x bfloat>"
    return f"""declare {sums} @{instruction}({sums}, {factors}, {factors})
        define linkonce_odr {sums} @{_function(lanes)}({sums} %sum, {words} %a, {words} %b) alwaysinline {{
            %left = bitcast {words} %a to {factors}
            %right = bitcast {words} %b to {factors}
            %result = call {sums} @{instruction}({sums} %sum, {factors} %left, {factors} %right)
            ret {sums} %result
        }}"""


def _with_word(call: Any) -> Any:
    """A load, or what composes the elements, in place of a word."""
    if not _is_word(call):
        return call
    elements = list(call.args[1:])
    bits = 8 * np.dtype(str(elements[0].ty.dtype)).itemsize
    if len(elements) * bits == 32 and _side_by_side(elements):
        first = elements[0]
        ramp = prim.Ramp(first.indices[0], IntImm("int32", 1), len(elements))
        return tirx.reinterpret("int32", first.source[ramp])
    word: Any = IntImm("int32", 0)
    for number, element in enumerate(elements):
        digit = prim.Cast("int32", tirx.reinterpret(f"uint{bits}", element))
        word = tirx.bitwise_or(word, tirx.shift_left(digit, IntImm("int32", bits * number)))
    return word


def _side_by_side(elements: Sequence[Any]) -> bool:
    first, analyzer = elements[0], Analyzer()
    return all(
        isinstance(element, TensorLoad)
        and element.source.same_as(first.source)
        and analyzer.can_prove_equal(element.indices[0] - first.indices[0], number)
        for number, element in enumerate(elements)
    )
