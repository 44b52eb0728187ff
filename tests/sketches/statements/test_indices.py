"""Indices of several schedules at once: what TVM counts in them, their ranges, and Ansor's strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stormdrop.sketches.statements.indices import Atom, Index, Term, merged


def term(variable: str, coefficient: int = 1, modulus: int = 0, divisor: int = 1, there: bool = True) -> Term:
    return Term((Atom.of(variable, np.array([there, True]), coefficient, modulus, divisor),))


def brackets(modulus: int, divisor: int, *terms: Term) -> Term:
    return Term(tuple(each.atoms[0] for each in terms), modulus, divisor)


# The first schedule lacks what is not there; the second one has everything.
INDICES = [
    (Index((term("B", 4, 112, 8), term("t"), term("r", 3)), -1), "B % 112 // 8 * 4 + t + r * 3 - 1", (3, 2, 2)),
    (Index((term("B", 2, there=False), term("t", 1, 6))), "t % 6", (0, 0, 1)),
    (Index((brackets(6, 1, term("F", 28), term("t", 1, 0, 2)),)), "(F * 28 + t // 2) % 6", (1, 1, 2)),
    (Index((term("B", there=False),)), "0", (0, 0, 0)),
]


@pytest.mark.parametrize(("index", "text", "operations"), INDICES, ids=[text for _, text, _ in INDICES])
def test_operations_are_those_of_the_text(index: Index, text: str, operations: tuple[int, int, int]) -> None:
    assert index.text(0) == text
    assert tuple(int(number[0]) for number in index.operations()) == operations
    assert tuple(text.count(sign) for sign in ("*",)) == operations[1:2]


def test_what_one_schedule_lacks_another_one_has() -> None:
    index = INDICES[1][0]
    assert index.text(1) == "B * 2 + t % 6"
    assert [number.tolist() for number in index.operations()] == [[0, 1], [0, 1], [1, 1]]
    assert index.has("B").tolist() == [False, True] and not index.has("V").any()


@pytest.mark.parametrize(
    ("index", "variable", "stride"),
    [
        (Index((term("i"),)), "i", 1),
        (Index((term("i", 8), term("j"))), "i", 8),
        (Index((term("i", 8), term("j"))), "j", 1),
        (Index((term("i", 8), term("j", 3))), "i", 3),  # the last product before any sum
        (Index((term("j"), term("i"), term("k", 5))), "i", 1),  # after a sum, products do not count
        (Index((brackets(48, 6, term("F", 128), term("v")),)), "F", 128),
        (Index((term("i"),)), "j", 0),
    ],
)
def test_strides_are_found_from_left_to_right(index: Index, variable: str, stride: int) -> None:
    assert np.broadcast_to(index.coefficient(variable), 2).tolist() == [stride, stride]


def test_a_remainder_is_0_as_the_extraction_sees_it() -> None:
    last: dict[str, Any] = {"t": np.array([3, 20]), "r": np.array([1, 1])}
    index = Index((term("t", 2, 6), term("r", 5)))
    assert index.largest(last).tolist() == [2 * 3 + 5, 2 * 5 + 5]
    assert index.largest(last, seen=True).tolist() == [5, 5]


def test_terms_are_in_the_order_of_their_coefficients() -> None:
    there = np.array([True, True, True])
    step = Term((Atom.of("r", there, np.array([1, 3, 9])),))
    inner = Term((Atom.of("i", np.array([True, True, False]), 3),))
    index = Index(merged([term_of("B", 8), inner], [step, term_of("q", 1)]))
    expected = ["B * 8 + i * 3 + r + q", "B * 8 + i * 3 + r * 3 + q", "r * 9 + B * 8 + q"]
    assert [index.text(row) for row in range(3)] == expected
    # A term that stands in several places is there once.
    assert index.count.tolist() == [4, 4, 3]
    assert index.largest({name: np.ones(3, np.int64) for name in "Biqr"}).tolist() == [13, 15, 18]


def term_of(variable: str, coefficient: int) -> Term:
    return Term((Atom.of(variable, np.array([True, True, True]), coefficient),))
