"""Dot products of bytes in expressions become the machine's instructions, and words become loads."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from tvm import tirx
from tvm.ir.prim.expr import IntImm
from tvm.tirx import ForKind, PrimFunc

from stand_ins.assembly import assembly
from stormdrop.ir.attributes import WORD
from stormdrop.ir.stages import Axis, Stage, assemble, intermediate, variable
from stormdrop.machine.cpu import Cpu, parse_machine

PLAIN = parse_machine("cpu/x86-64-v4")
assert isinstance(PLAIN, Cpu)
VNNI = replace(PLAIN, features=("avx512vnni",))
DOT = "llvm.x86.avx512.vpdpbusd.512"


def function(lanes: int, at: tuple[int, ...] = (0, 1, 2, 3), summed: bool = True) -> PrimFunc:
    """y[j] += dot(word of x[8 r + at], w[r, j]) over r, with `lanes` columns j in a vector."""
    x, w, y = (
        intermediate("x", (64,), "uint8"),
        intermediate("w", (8, lanes), "int32"),
        intermediate("y", (lanes,), "int32"),
    )
    j, r = Axis(variable("j"), lanes), Axis(variable("r"), 8, True)
    word = tirx.call_pure_extern("int32", WORD, *(x[r.var * 8 + offset] for offset in at))
    dot: Any = tirx.call_llvm_pure_intrin("int32", DOT, IntImm("int32", 0), word, w[r.var, j.var])
    if not summed:
        dot = dot * 3
    stage = Stage("dots", (r, j), y, (j.var,), dot, "sum", IntImm("int32", 0))
    return assemble((x, w, y), (stage,), [stage.statement(kinds={j.var: ForKind.VECTORIZED})])


@pytest.mark.parametrize(("lanes", "register"), [(4, "xmm"), (8, "ymm"), (16, "zmm")])
def test_each_length_of_vector_has_its_instruction(lanes: int, register: str) -> None:
    text = assembly(function(lanes), VNNI.tvm())
    assert re.search(rf"vpdpbusd\t.*%{register}", text)
    assert WORD not in text


def test_bytes_side_by_side_are_one_load() -> None:
    text = assembly(function(16), VNNI.tvm())
    assert re.search(r"vpbroadcastd\t[-\w]*\(", text)
    assert "movzbl" not in text


@pytest.mark.parametrize("at", [(0, 2, 4, 6), (1, 0, 3, 2), (0, 1, 2), (5,)])
def test_other_bytes_are_composed(at: tuple[int, ...]) -> None:
    text = assembly(function(16, at), VNNI.tvm())
    assert "vpdpbusd" in text and WORD not in text
    assert "movz" in text or "vpinsrb" in text or "vpmovzx" in text


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [(function(2), "has 2 lanes: it needs 4 or more"), (function(16, summed=False), "is not added to a sum")],
    ids=["short vector", "no sum"],
)
def test_what_no_instruction_computes_is_refused(wrong: PrimFunc, reason: str) -> None:
    with pytest.raises(RuntimeError, match=reason):  # TVM keeps the message, not the type
        assembly(wrong, VNNI.tvm())
