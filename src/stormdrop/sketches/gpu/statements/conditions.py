"""Conditions of padding, in the form that TVM's simplifier gives them.

What is fetched at an index of a window, 1 <= index and index < 58, depends on such conditions:

    1 <= (...) // 12            becomes  12 <= ...
    (...) // 12 < 58            becomes  ... < 696
    F * 8 + t * 4 + v < 32      becomes  F < 4, because the rest is less than 8
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ...statements.indices import Atom, Index, Ints, Mask, Term, merged
from .fetches import Digit


@dataclass(frozen=True)
class Window:
    """Where a producer reads, along an axis; elsewhere it gives zeros.

    Attributes:
        low: The first position, 0 if all from the beginning are read.
        high: One past the last position; None if all to the end are read.
    """

    low: int = 0
    high: int | None = None


@dataclass(frozen=True, eq=False)
class Counts:
    """What conditions compute.

    Attributes:
        adds: Additions.
        products: Multiplications.
        divisions: Divisions and remainders.
        comparisons: The conditions.
        known: Where this is sure.
    """

    adds: Any
    products: Any
    divisions: Any
    comparisons: Any
    known: Any

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.adds + other.adds,
            self.products + other.products,
            self.divisions + other.divisions,
            self.comparisons + other.comparisons,
            self.known & other.known,
        )

    def where(self, mask: Mask, other: Counts) -> Counts:
        """These counts where the mask holds, and others elsewhere."""
        pairs = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return Counts(*(np.where(mask, mine, its) for mine, its in pairs))


NO_CONDITIONS = Counts(0, 0, 0, 0, np.bool_(True))
"""None at all."""


def within(start: Sequence[Term], digit: Digit, window: Window, last: Mapping[str, Ints]) -> Counts:
    """The conditions that an index is in a window.

    Args:
        start: Where what is staged begins.
        digit: Where an element lies in it.
        window: The window.
        last: The last iteration of each loop.
    """
    index, undivided = Index(merged(start, digit.terms)), Index(digit.undivided)
    # TVM compares a quotient by itself before it simplifies it. Of whole vectors it is not known what that leaves.
    alone = index.count == 1
    divided = functools.reduce(np.logical_or, (_is_divided(term) for term in digit.terms)) & alone
    counts = replace(NO_CONDITIONS, known=~(digit.vectors & alone)) if window != Window() else NO_CONDITIONS
    if window.low > 0:
        before = _at_least(undivided, window.low * digit.stride)
        counts = counts + before.where(divided, _at_least(index, np.full(divided.shape, window.low)))
    if window.high is not None:
        before = _below(undivided, window.high * digit.stride, last)
        whole = _below(index, np.full(divided.shape, window.high), last)
        # If a factor is common to the limit and to the start, TVM may see the rest as one remainder, and divide it.
        common = np.full(divided.shape, window.high)
        for term in start:
            common = np.where(term.present & (term.coefficient != 1), np.gcd(common, term.coefficient), common)
        sure = (common == window.high) | (digit.extent % common != 0) | (common == 1) | (whole.comparisons == 0)
        counts = counts + before.where(divided, replace(whole, known=whole.known & sure))
    return counts


def _is_divided(term: Term) -> Any:
    """Where a term is a quotient."""
    (last, *others) = term.atoms
    if others:
        return term.present & np.not_equal(term.divisor, 1)
    return term.present & (last.divisor != 1) & (last.coefficient == 1)


def _at_least(index: Index, low: Ints) -> Counts:
    """The condition `low <= index`, for a `low` of at least 1."""
    known = _known(index)
    for term in index.terms:
        known = known & ~((index.count == 1) & _is_divided(term))
    return Counts(*index.operations(), np.ones_like(low), known)


def _known(index: Index) -> Any:
    """Where a comparison is known: TVM would take a factor out that all terms have."""
    units = (term.present & (term.coefficient == 1) for term in index.terms)
    return functools.reduce(np.logical_or, units, np.zeros_like(index.count, bool))


def _below(index: Index, high: Ints, last: Mapping[str, Ints]) -> Counts:
    """The condition `index < high`, which is left out where the range of the index says it."""
    needed, limit = index.largest(last) >= high, high
    parts = [_part(term, last) for term in index.terms if len(term.atoms) > 1]
    parts += [_part(term, last) for term in index.terms if len(term.atoms) == 1]
    known = _known(index)
    # TVM divides by what all factors have in common, and leaves out a rest that is less than it, as often as it can.
    for _ in range(3):
        factor, several = limit, np.zeros_like(needed)
        rest, others = np.zeros_like(limit), np.zeros_like(limit)
        for part in parts:
            scaled = part.there & (part.scale != 1)
            factor, several = np.where(scaled, np.gcd(factor, part.scale), factor), several | scaled
            single = part.there & (part.scale == 1)
            rest, others = rest + np.where(single, part.largest, 0), others + single
        common = several & (factor > 1)
        drop = common & (rest < factor)
        for part in parts:  # TVM divides a remainder that is all the rest
            split = (part.modulus % (factor * part.divisor) == 0) & np.not_equal(part.modulus, 0) & (others == 1)
            rest_is_split = part.there & (part.scale == 1) & (split | part.hidden)
            known = known & ~(common & ~drop & rest_is_split)
            part.there = part.there & ~(drop & (part.scale == 1))
            part.scale = np.where(drop, part.scale // factor, part.scale)
        limit = np.where(drop, limit // factor, limit)
    adds = sum(part.there * (1 + part.adds) for part in parts) - 1
    products = sum(part.there * ((part.scale != 1) + part.products) for part in parts)
    # Of one that is left it multiplies both sides by the divisor.
    alone = sum(part.there.astype(np.int64) for part in parts) == 1
    stripped = (part.there & alone & (part.scale == 1) & np.not_equal(part.divisor, 1) for part in parts)
    divisions = sum(part.there * part.divisions for part in parts) - sum(mask.astype(np.int64) for mask in stripped)
    return Counts(adds * needed, products * needed, divisions * needed, needed.astype(np.int64), known | ~needed)


@dataclass(eq=False)
class _Part:
    """A factor times something: where it is there, how large the latter gets, and what computes it.

    It may be a remainder: openly, or `hidden`, because its atoms are remainders.
    """

    there: Mask
    scale: Ints
    largest: Ints
    modulus: Any
    divisor: Any
    hidden: Any
    adds: Any
    products: Any
    divisions: Any


def _part(term: Term, last: Mapping[str, Ints]) -> _Part:
    """A term as part of a sum."""
    adds, products, divisions = Index((term,)).operations()
    if len(term.atoms) > 1:
        scale = np.ones_like(adds)
        size, hidden = term.largest(last), sum(atom.present & (atom.modulus != 0) for atom in term.atoms) > 0
        of_term = (term.modulus, term.divisor, hidden, adds, products, divisions)
        return _Part(term.present, scale, size, *of_term)
    (atom,) = term.atoms
    plain = Atom.of(atom.variable, atom.present, 1, atom.modulus, atom.divisor)
    of_atom = (atom.modulus, atom.divisor, np.bool_(False), 0, 0, divisions)
    return _Part(atom.present, atom.coefficient, plain.largest(last), *of_atom)
