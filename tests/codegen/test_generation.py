"""The generation of the code: machine code that changes for the same schedule makes recorded times invalid."""

from __future__ import annotations

import hashlib

from stand_ins.assembly import assembly
from stormdrop import operators
from stormdrop.codegen.compile import GENERATION
from stormdrop.machine.cpu import parse_machine
from stormdrop.sketches.registry import sketches_for

DIGESTS = {1: "13a66538d5f8519e"}
"""By generation: a digest of the machine code of three kernels for a CPU with AVX-512.

Generation 1 has had other digests: bounds have become the first operand of a maximum, and kernels set the mode for
denormals when they begin and restore it when they end. It is still the same generation, because times remain valid:
the loops have the same instructions, and what was recorded was measured on numbers that are no denormals. Then an exp
took one power of two: kernels without one have the same code, and those with one are faster than what was recorded.
Then a maximum of two values that may both be NaN took a comparison more: kernels without one have the same code, and
pools, maxima and softmaxes took the same time within the noise. Then the dense kernel, a small one, lost its threads:
that is another schedule, and its space has another fingerprint.
"""


def digest() -> str:
    target, texts = parse_machine("cpu/x86-64-v4"), []
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
