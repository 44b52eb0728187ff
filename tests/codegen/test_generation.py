"""The generation of the code: machine code that changes for the same schedule makes recorded times invalid."""

from __future__ import annotations

import hashlib

from stormdrop import operators
from stormdrop.codegen.compile import GENERATION, assembly
from stormdrop.machine.cpu import Target
from stormdrop.sketches.registry import sketches_for

DIGESTS = {1: "245808733f60dd20"}
"""By generation: a digest of the machine code of three kernels for a CPU with AVX-512.

Since bounds are the first operand of a maximum, generation 1 has another digest than in version 0.2.0. It is still the
same generation: the instructions are the same, only two operands of some are exchanged, so that times remain valid.
"""


def digest() -> str:
    target, texts = Target.parse("cpu/x86-64-v4"), []
    for workload in (
        operators.dense(16, 48, 32, bias=1, act="relu"),
        operators.softmax(8, 64),
        operators.matmul(32, 64, 48),
    ):
        sketch, space = sketches_for(workload, target)[0]
        texts.append(assembly(sketch.apply(workload, target, space.config(space.origin)).main, target.tvm()))
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def test_another_code_for_the_same_schedule_is_another_generation() -> None:
    """If this fails, the generated code has changed: raise `GENERATION` and add its digest, unless times stay."""
    assert digest() == DIGESTS[GENERATION]
