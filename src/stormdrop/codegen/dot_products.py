"""Dot products of bytes become the machine's instructions, and words become loads.

A sketch writes `stormdrop_word(a[i], a[i + 1], a[i + 2], a[i + 3])` for a word of bytes, and LLVM's instruction over
words for a dot product: `sum + vpdpbusd(0, word, words)`. Each is one lane until the loops are vectorised. This pass
then

- adds the products to the sum by the instruction itself: `vpdpbusd(sum, word, words)`,
- takes the instruction of the vector's length, and hands the operands over as the bytes that it wants,
- loads a word at once if its bytes lie side by side, and otherwise composes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc
from tvm_ffi import structural_map, structural_walk

from ..errors import UnsupportedFunction
from ..ir.attributes import WORD

_X86 = "llvm.x86.avx512.vpdpbusd"
_NAMES = (f"{_X86}.512", "llvm.aarch64.neon.sdot", "llvm.aarch64.neon.udot", "llvm.aarch64.neon.usdot")
_FEWEST_LANES = 4


def with_dot_products(function: PrimFunc) -> PrimFunc:
    """A vectorised function with the machine's instructions for its dot products; others stay as they are.

    Args:
        function: the function. Its buffers have one dimension.

    Raises:
        UnsupportedFunction: a dot product is in a vector of less than four lanes, or is not added to a sum.
    """
    calls = _calls(function.body)
    if not any(map(_is_word, calls)):
        return function
    # Checked before the rewrite: an error from inside of TVM's `structural_map` corrupts the memory of the process.
    lanes = [_lanes(call) for call in calls if _dot_name(call) is not None]
    if lanes and min(lanes) < _FEWEST_LANES:
        raise UnsupportedFunction(f"a dot product of bytes has {min(lanes)} lanes: it needs {_FEWEST_LANES} or more")
    body = structural_map(function.body, ((Call, _with_word), (prim.Add, _with_instruction)))
    if any(_dot_name(call) is not None for call in _calls(body)):
        raise UnsupportedFunction("a dot product of bytes is not added to a sum")
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


def _lanes(node: Any) -> int:
    return int(str(node.ty.dtype).partition("x")[2] or 1)


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
    lanes = _lanes(total)
    operands = [tirx.reinterpret(f"int8x{4 * lanes}", word) for word in words]
    if name.startswith(_X86):
        name = f"{_X86}.{32 * lanes}"
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, total, *operands)


def _with_word(call: Any) -> Any:
    """A load, or what composes the bytes, in place of a word."""
    if not _is_word(call):
        return call
    elements = list(call.args[1:])
    if len(elements) == 4 and _side_by_side(elements):
        first = elements[0]
        return tirx.reinterpret("int32", first.source[prim.Ramp(first.indices[0], IntImm("int32", 1), 4)])
    word: Any = IntImm("int32", 0)
    for number, element in enumerate(elements):
        byte = prim.Cast("int32", tirx.reinterpret("uint8", element))
        word = tirx.bitwise_or(word, tirx.shift_left(byte, IntImm("int32", 8 * number)))
    return word


def _side_by_side(elements: Sequence[Any]) -> bool:
    first, analyzer = elements[0], Analyzer()
    return all(
        isinstance(element, TensorLoad)
        and element.source.same_as(first.source)
        and analyzer.can_prove_equal(element.indices[0] - first.indices[0], number)
        for number, element in enumerate(elements)
    )
