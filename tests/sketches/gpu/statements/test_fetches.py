"""The index of what a thread fetches is the expression that TVM's simplifier makes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tvm import tirx
from tvm.ir import Range
from tvm.sym import Analyzer

from stormdrop.sketches.gpu.statements.fetches import Fetch
from stormdrop.sketches.statements.indices import Index

EXTENTS = [1, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 28, 30, 32, 48, 56, 58, 64, 96]
THREADS = [2, 6, 16, 28, 32, 36, 40, 48, 56, 64, 84, 96, 112, 128, 192, 196, 224, 256, 384, 392, 512]


def simplified(rounds: int, threads: int, width: int, extent: int, stride: int, outermost: bool) -> str:
    """What TVM makes of a digit of F * threads * width + t * width + v."""
    analyzer, (F, t, v) = Analyzer(), (tirx.Var(name, "int32") for name in "Ftv")
    for variable, iterations in ((F, rounds), (t, threads), (v, width)):
        analyzer.bind(variable, Range(0, iterations))
    number = t * width + v if rounds == 1 else F * (threads * width) + t * width + v
    remainder = number if outermost else tirx.floormod(number, extent * stride)
    return str(analyzer.simplify(tirx.floordiv(remainder, stride)))


@pytest.mark.parametrize("dimensions", [2, 3, 4])
def test_digits_are_those_of_the_simplifier(dimensions: int) -> None:
    rng = np.random.default_rng(dimensions)
    shapes = rng.choice(EXTENTS, size=(150, dimensions))
    shapes = shapes[(shapes.prod(axis=1) <= 12_000) & (shapes.prod(axis=1) > 1)]
    threads, width = rng.choice(THREADS, size=len(shapes)), rng.choice([1, 2, 4], size=len(shapes))
    rounds = -(-shapes.prod(axis=1) // (threads * width))
    nowhere = np.zeros(len(shapes), bool)
    digits, known = Fetch(rounds, threads, width, ("F", "t", "v")).digits(list(shapes.T), nowhere)
    assert known.mean() > 0.9
    for row in np.flatnonzero(known):
        for position, digit in enumerate(digits):
            extent, outermost = int(shapes[row, position]), math.prod(shapes[row, :position]) == 1
            stride = int(math.prod(shapes[row, position + 1 :]))
            sizes = int(rounds[row]), int(threads[row]), int(width[row])
            expected = simplified(*sizes, extent, stride, outermost) if extent > 1 else "0"
            assert Index(digit.terms).text(int(row)) == expected, (*sizes, shapes[row], position)
            assert digit.stride[row] == stride


def test_an_unknown_number_of_elements_leaves_remainders() -> None:
    rows = np.array([3])
    fetch = Fetch(rows, np.array([32]), np.array([1]), ("F", "t", "v"))
    shape = [np.array([1]), np.array([7]), np.array([10])]
    for remainders, expected in ((False, "(F * 32 + t) // 10"), (True, "(F * 32 + t) % 70 // 10")):
        digits, _ = fetch.digits(shape, np.array([remainders]))
        assert Index(digits[1].terms).text(0) == expected
