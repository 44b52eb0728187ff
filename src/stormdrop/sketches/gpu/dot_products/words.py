"""A contraction of bytes as one of words: four neighbours along a reduction are staged as 32 bits.

    Before:     y[i, j] += int32(x[i, k]) * int32(w[j, k])
    After:      a[i, q] = x[i, 4 q] ... x[i, 4 q + 3];  b[j, q] = likewise of w;  y[i, j] += dot(a[i, q], b[j, q])

Bytes that are neighbours in memory are fetched as the word that they are; others, as those of a w[k, j], one by one.
What is missing in the last word is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.script import tirx as script
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc
from tvm_ffi import structural_map

from ....errors import UnsupportedFunction
from ....ir.attributes import DOT, WORD
from ....ir.contractions.factors import factors_of
from ....ir.expressions import Expr, coefficients, intrinsic, substitute, variables, walk
from ....ir.stages import Axis, Stage, StageGraph, intermediate, shape_of, variable
from ..contraction import FusedContraction, named_axes

_BYTES = 4  # of a word
_TYPES = {"int8": "s32", "uint8": "u32"}  # in the instruction, which takes four of them
_SUMS = "int32"
_DOT = """
__forceinline__ __device__ int {name}(int a, int b, int c) {{
  int sum;
  asm("dp4a.{types} %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}}
"""


@dataclass(frozen=True, eq=False)
class Words:
    """A contraction of words.

    Attributes:
        fused: The contraction.
        loads: For each operand the loads from memory that make a word: one, or one of each byte.
    """

    fused: FusedContraction
    loads: tuple[int, int]


def in_words(fused: FusedContraction) -> Words:
    """A contraction of bytes as one of words.

    Args:
        fused: The contraction.

    Raises:
        UnsupportedFunction: It does not multiply bytes, or no reduction goes along four neighbours of both operands.
    """
    stage, factors = fused.stage, factors_of(fused.stage)
    if factors is None or str(stage.buffer.dtype) != _SUMS or any(factor.dtype not in _TYPES for factor in factors):
        raise UnsupportedFunction("no sum of products of bytes")
    loads = [factor.load for factor in factors]
    possible = [axis for axis in stage.reductions if all(_place(load, axis) is not None for load in loads)]
    if not possible:
        raise UnsupportedFunction("no reduction goes along four neighbours of both operands")
    along = max(possible, key=lambda axis: axis.extent)
    words = Axis(variable(along.name), -(-along.extent // _BYTES), True)
    packed = [_packed(fused, load, along, words, position) for position, load in enumerate(loads)]
    (first, a), (second, b) = packed
    value = _dot(a, b, factors[0].dtype, factors[1].dtype)
    axes = tuple(words if axis is along else axis for axis in stage.axes)
    product = replace(stage, axes=axes, value=value)
    rest = fused.graph.stages[fused.graph.stages.index(stage) + 1 :]
    read = {load.source for other in rest for load in other.loads()}
    producers = (*(other for other in fused.producers if other.buffer in read), first, second)
    graph = StageGraph(fused.graph.parameters, (*producers, product, *rest))
    words_of = FusedContraction(graph, product, producers, fused.epilogue, named_axes(product))
    return Words(words_of, (_loads_of(first), _loads_of(second)))


def _loads_of(made: Stage) -> int:
    """The loads from memory that make a word."""
    whole = any(intrinsic(node) == "call_pure_extern" for node in walk(made.value))
    return 1 if whole else _BYTES


def _place(load: Any, axis: Axis) -> tuple[int, int] | None:
    """The dimension along which a load goes with an axis, and how far; None if words begin elsewhere than the axis."""
    found = [position for position, index in enumerate(load.indices) if axis.var in variables(index)]
    if len(found) != 1 or axis.extent < _BYTES:
        return None
    index, extent = load.indices[found[0]], shape_of(load.source)[found[0]]
    factors, first = _affine(index)
    if factors is None or factors.pop(axis.var) != 1 or any(each % _BYTES for each in (first, *factors.values())):
        return None
    if not factors and first == 0:
        return found[0], axis.extent
    return (found[0], extent) if axis.extent % _BYTES == 0 else None


def _affine(index: Expr) -> tuple[dict[Any, int] | None, int]:
    """The factors of the variables of an index, and what is added to them; no factors if it is something else."""
    names = variables(index)
    first = Analyzer().simplify(substitute(index, dict.fromkeys(names, IntImm("int32", 0))))
    return (coefficients(index, names), int(first)) if isinstance(first, IntImm) else (None, 0)


def _packed(fused: FusedContraction, load: Any, along: Axis, words: Axis, position: int) -> tuple[Stage, Expr]:
    """The stage that makes words of an operand, and the word that the product reads."""
    found = _place(load, along)
    assert found is not None
    place, extent = found
    of_bytes = [Axis(variable("at"), size) for size in shape_of(load.source)]
    byte = of_bytes[place] = Axis(variable("at"), extent)
    value = _of_parameters(fused, load.source[tuple(axis.var for axis in of_bytes)], of_bytes)
    axes = [*of_bytes]
    axes[place] = Axis(variable("word"), -(-byte.extent // _BYTES))
    buffer = intermediate(f"words{position}", [axis.extent for axis in axes], _SUMS)
    word = _word(value, byte, axes[place].var * _BYTES)
    made = Stage(buffer.name, tuple(axes), buffer, tuple(axis.var for axis in axes), word)
    factors, begin = _affine(load.indices[place])
    assert factors is not None
    index: Expr = words.var
    for name, factor in factors.items():
        if not name.same_as(along.var):
            index = index + name * (factor // _BYTES)
    indices = [*load.indices]
    indices[place] = index + begin // _BYTES
    return made, buffer[tuple(indices)]


def _of_parameters(fused: FusedContraction, element: Expr, axes: Sequence[Axis]) -> Expr:
    """An element of an operand, with what producers compute in it.

    Raises:
        UnsupportedFunction: It is computed by more than elementwise stages.
    """
    result = intermediate("element", [axis.extent for axis in axes], str(element.source.dtype))
    stage = Stage("element", tuple(axes), result, tuple(axis.var for axis in axes), element)
    parameters = (*fused.graph.parameters, result)
    alone = StageGraph(parameters, (*fused.producers, stage)).inlined(lambda _: False).stages[-1]
    if any(load.source not in parameters for load in alone.loads()):
        raise UnsupportedFunction("an operand is computed by more than elementwise stages")
    return alone.value


def _word(value: Expr, byte: Axis, first: Expr) -> Expr:
    """The word of the four values of an expression from a position on an axis on."""
    if intrinsic(value) == "if_then_else" and byte.var not in variables(value.args[0]):
        condition, *others = value.args
        return tirx.if_then_else(condition, *(_word(other, byte, first) for other in others))
    values = [substitute(value, {byte.var: first + number}) for number in range(_BYTES)]
    if isinstance(value, TensorLoad) and _is_word(value, byte):
        return tirx.call_pure_extern(_SUMS, WORD, *values)
    word: Expr = IntImm(_SUMS, 0)
    for number, element in enumerate(values):
        digit = prim.BitwiseAnd(prim.Cast(_SUMS, element), IntImm(_SUMS, 255))
        digit = digit << IntImm(_SUMS, 8 * number) if number else digit
        if byte.extent % _BYTES:
            digit = tirx.if_then_else(first + number < byte.extent, digit, IntImm(_SUMS, 0))
        word = word + digit
    return word


def _is_word(load: Any, byte: Axis) -> bool:
    """Whether four bytes that a load reads along an axis are an aligned word in memory, wherever a word begins."""
    *leading, last = load.indices
    factors, first = _affine(last)
    if factors is None or factors.pop(byte.var, 0) != 1 or any(byte.var in variables(index) for index in leading):
        return False
    sizes = (byte.extent, shape_of(load.source)[-1], first, *factors.values())
    return all(size % _BYTES == 0 for size in sizes)


def _dot(a: Expr, b: Expr, first: str, second: str) -> Expr:
    """What adds up the products of the bytes of two words."""
    types = f"{_TYPES[first]}.{_TYPES[second]}"
    name = f"{DOT}_{types.replace('.', '_')}"
    source = _DOT.format(name=name, types=types)
    return script.cuda.func_call(name, a, b, IntImm(_SUMS, 0), source_code=source, return_type=_SUMS)


def with_arithmetic(function: PrimFunc) -> PrimFunc:
    """A function with arithmetic in place of the instruction that multiplies words, to compute it elsewhere.

    Args:
        function: A scheduled function.
    """

    def computed(call: Any) -> Any:
        if intrinsic(call) != "func_call" or not (name := str(call.args[0].value)).startswith(DOT):
            return call
        *_, first, second = name.split("_")
        _, a, b, total, _ = call.args
        for number in range(_BYTES):
            total = total + _digit(a, number, first) * _digit(b, number, second)
        return total

    return function.with_body(structural_map(function.body, ((Call, computed),)))


def _digit(word: Expr, number: int, kind: str) -> Expr:
    """A byte of a word as a number."""
    (dtype,) = (name for name, each in _TYPES.items() if each == kind)
    return prim.Cast(_SUMS, prim.Cast(dtype, word >> IntImm(_SUMS, 8 * number) if number else word))
