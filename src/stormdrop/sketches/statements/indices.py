"""Indices of n schedules at once, in the form that TVM's simplifier gives them.

An index is a sum of terms, a term (a sum of atoms) % modulus // divisor, and an atom coefficient * (variable % modulus
// divisor). All of these numbers are arrays of shape (n,). So are masks: what is absent in some of the schedules, such
as a loop of one iteration, is masked there. The order of terms and atoms is that of TVM's expression, because Ansor's
strides depend on it.

    (F * 28 + t // 2) % 6 + B % 112 // 8 * 4 - 1
    |atom|   |atom|         |atom, and term |  constant
    |term              |
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
"""An integer of each schedule, shape (n,)."""
Mask = NDArray[np.bool_]
"""Whether something is so in each schedule, shape (n,)."""

_NOWHERE: Any = np.bool_(False)


@dataclass(frozen=True, eq=False)
class Atom:
    """The coefficient times (the variable % modulus // divisor).

    Attributes:
        variable: The loop that counts it.
        present: Where it is there.
        coefficient: A factor of at least 1.
        modulus: 0 where there is none.
        divisor: 1 where there is none.
    """

    variable: str
    present: Mask
    coefficient: Ints
    modulus: Ints
    divisor: Ints

    @classmethod
    def of(cls, variable: str, present: Any, coefficient: Any = 1, modulus: Any = 0, divisor: Any = 1) -> Atom:
        """The atom with integers for what is the same in all schedules. `present` has shape (n,)."""
        arrays = (
            np.broadcast_to(np.asarray(value, np.int64), present.shape) for value in (coefficient, modulus, divisor)
        )
        return cls(variable, present, *arrays)

    def largest(self, last: Mapping[str, Ints], seen: bool = False) -> Any:
        """Its largest value if each variable goes from 0 to `last`; `seen` as for an index."""
        value = _divided(last[self.variable], self.modulus, self.divisor, seen)
        return np.where(self.present, self.coefficient * value, 0)


@dataclass(frozen=True, eq=False)
class Term:
    """A sum of atoms % modulus // divisor.

    Attributes:
        atoms: The atoms, from left to right.
        modulus: 0 where there is none.
        divisor: 1 where there is none.
    """

    atoms: tuple[Atom, ...]
    modulus: Any = 0
    divisor: Any = 1

    @functools.cached_property
    def variables(self) -> frozenset[str]:
        """The variables of its atoms."""
        return frozenset(atom.variable for atom in self.atoms)

    @functools.cached_property
    def present(self) -> Mask:
        """Where any of its atoms is."""
        return functools.reduce(np.logical_or, (atom.present for atom in self.atoms))

    @property
    def coefficient(self) -> Any:
        """By what it is multiplied as a whole."""
        return self.atoms[0].coefficient if len(self.atoms) == 1 else np.int64(1)

    def where(self, mask: Mask) -> Term:
        """The term where the mask holds, and nothing elsewhere."""
        atoms = tuple(replace(atom, present=atom.present & mask) for atom in self.atoms)
        return Term(atoms, self.modulus, self.divisor)

    def largest(self, last: Mapping[str, Ints], seen: bool = False) -> Any:
        """Its largest value if each variable goes from 0 to `last`; `seen` as for an index."""
        value = sum((atom.largest(last, seen) for atom in self.atoms), np.zeros(self.present.shape, np.int64))
        return _divided(value, self.modulus, self.divisor, seen)


def merged(first: Sequence[Term], second: Sequence[Term]) -> tuple[Term, ...]:
    """The terms of a sum in the order of the simplifier: larger coefficients first, those of equal ones as they stand.

    Where a term stands depends on the schedule, so it may be there several times, each time in other schedules.

    Args:
        first: Terms in this order.
        second: Other terms in this order, which come after those of the first with equal coefficients.
    """
    places: list[list[Term]] = [[] for _ in range(len(first) + 1)]
    for term in second:
        place = np.zeros(term.present.shape, np.int64)
        for position, before in enumerate(first):
            place = np.where(before.present & (before.coefficient >= term.coefficient), position + 1, place)
        for position, terms in enumerate(places):
            terms.append(term.where(place == position))
    return (*places[0], *(each for term, after in zip(first, places[1:], strict=True) for each in (term, *after)))


@dataclass(frozen=True, eq=False)
class Index:
    """A sum of terms and a constant.

    Attributes:
        terms: The terms, from left to right. Those that are nowhere are left out.
        constant: What is added at the end, or subtracted if it is less than 0.
    """

    terms: tuple[Term, ...]
    constant: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(term for term in self.terms if term.present.any()))

    @functools.cached_property
    def count(self) -> Any:
        """How many terms there are."""
        return sum((term.present.astype(np.int64) for term in self.terms), np.int64(0))

    def largest(self, last: Mapping[str, Ints], seen: bool = False) -> Any:
        """Its largest value without the constant.

        Args:
            last: What each variable goes to, from 0.
            seen: Whether as the extraction of features sees it: there a remainder is 0. (It first binds all variables
                to 0, then to their ranges; TVM's modular sets keep the former, and bound remainders.)
        """
        return sum((term.largest(last, seen) for term in self.terms), np.int64(0))

    def operations(self) -> tuple[Any, Any, Any]:
        """The additions and subtractions, the multiplications, and the divisions and remainders."""
        adds: Any = np.maximum(self.count - 1, 0) + (np.asarray(self.count > 0) if self.constant else 0)
        muls: Any = 0
        divisions: Any = 0
        for term in self.terms:
            atoms = sum(atom.present.astype(np.int64) for atom in term.atoms)
            adds = adds + np.maximum(atoms - 1, 0)
            divisions = divisions + term.present * (1 * np.not_equal(term.modulus, 0) + np.not_equal(term.divisor, 1))
            for atom in term.atoms:
                muls = muls + (atom.present & (atom.coefficient != 1))
                divisions = divisions + atom.present * (1 * (atom.modulus != 0) + (atom.divisor != 1))
        return adds, muls, divisions

    def has(self, variable: str) -> Any:
        """Where the variable is in it."""
        atoms = (atom.present for term in self.terms for atom in term.atoms if atom.variable == variable)
        return functools.reduce(np.logical_or, atoms, _NOWHERE)

    def coefficient(self, variable: str) -> Any:
        """The stride of a variable as Ansor finds it, going through the expression from left to right.

        It is that of the last product with a constant after the variable, if there is one before a sum; else 1; 0 if
        the variable is not there.
        """
        if not any(variable in term.variables for term in self.terms):
            return np.int64(0)
        stride: Any = np.int64(1)
        visited: Any = _NOWHERE
        added, multiplied = _NOWHERE, _NOWHERE
        outside: Any = _NOWHERE  # whether a term stands before
        for term in self.terms:
            inside: Any = _NOWHERE  # whether an atom of the term stands before
            for atom in term.atoms:
                if atom.variable == variable:
                    visited = visited | atom.present
                if visited is not _NOWHERE:
                    product = atom.present & (atom.coefficient != 1) & visited & ~added
                    stride, multiplied = np.where(product, atom.coefficient, stride), multiplied | product
                    added = added | (atom.present & inside & visited & ~multiplied)
                inside = inside | atom.present
            if visited is not _NOWHERE:
                added = added | (term.present & outside & visited & ~multiplied)
            outside = outside | term.present
        return np.where(visited, stride, 0)

    def text(self, row: int) -> str:
        """The index of one of the schedules, as TVM prints it."""
        parts = []
        for term in self.terms:
            atoms = [_text(atom, row) for atom in term.atoms if atom.present[row]]
            if atoms:
                whole = " + ".join(atoms)
                outside = _suffix(_at(term.modulus, row), _at(term.divisor, row))
                parts.append(f"({whole}){outside}" if outside else whole)
        return (" + ".join(parts) or "0") + (f" - {-self.constant}" if self.constant < 0 else "")


def _text(atom: Atom, row: int) -> str:
    factor = int(atom.coefficient[row])
    inner = atom.variable + _suffix(int(atom.modulus[row]), int(atom.divisor[row]))
    return inner if factor == 1 else f"{inner} * {factor}"


def _suffix(modulus: int, divisor: int) -> str:
    return (f" % {modulus}" if modulus else "") + (f" // {divisor}" if divisor != 1 else "")


def _at(value: Any, row: int) -> int:
    return int(np.broadcast_to(value, (row + 1,))[row]) if np.ndim(value) == 0 else int(value[row])


def _divided(largest: Any, modulus: Any, divisor: Any, seen: bool) -> Any:
    """The largest value of x % modulus // divisor if x goes from 0 to `largest`."""
    remainder = 0 if seen else np.minimum(largest, modulus - 1)
    return np.where(modulus != 0, remainder, largest) // divisor
