"""`Tile`: a perfect factorisation of an extent, level by level."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SpaceError
from .knob import Coords, Knob, checked_name, whole_number

_LEVELS = 64  # at most
_TRIED = 1_000_000  # numbers that are tried as factors of an extent, which finds the primes of all up to 10^12

_RARE = 1_000  # draws of any factorisation for one whose innermost factor fits, from which on only such are drawn


class Tile(Knob):
    """Factors (outermost, ..., innermost) whose product is the extent.

    There is one coordinate for each inner factor: its index in the sorted divisors of the extent. The outermost
    factor is what remains. A step moves one inner factor to the next value that still divides. An exchange step moves
    a prime factor from one inner level to another and leaves their product, such as the size of a register tile, as
    it is:

        extent 24, value (2, 4, 3)   up: (1, 8, 3), (1, 4, 6)   down: (4, 2, 3), (3, 4, 2)
                                     exchange: (2, 2, 6), (2, 12, 1)

    Args:
        name: The knob's name.
        extent: The extent of the loop that is tiled. An extent above 10^12 is refused if two of its prime factors
            exceed 10^6, or one exceeds 10^12.
        levels: The number of factors, the outermost included; at most 64.
        max_inner: The largest innermost factor, if there is a limit.
        exchange: Whether there are exchange steps. They are off if a paper's search is run as printed.

    Raises:
        SpaceError: The extent, `levels` or `max_inner` is not positive or too large, or no factorisation is possible.

    Example:
        >>> tile = Tile("columns", 24, levels=3, exchange=False)
        >>> steps = tile.directions(tile.coordinates((2, 4, 3)))
        >>> [tile.value(next(direction)) for direction in steps]
        [(1, 8, 3), (4, 2, 3), (1, 4, 6), (3, 4, 2)]
    """

    kind = "tile"

    def __init__(
        self, name: str, extent: int, levels: int, max_inner: int | None = None, *, exchange: bool = True
    ) -> None:
        name, extent = checked_name(name), whole_number(name, "the extent", extent)
        levels = whole_number(name, "levels", levels)
        max_inner = None if max_inner is None else whole_number(name, "max_inner", max_inner)
        if extent < 1 or levels < 1:
            raise SpaceError(f"knob {name!r} needs a positive extent and levels, not {extent} and {levels}")
        if levels > _LEVELS:
            raise SpaceError(f"knob {name!r} has {levels} levels; at most {_LEVELS} are possible")
        if max_inner is not None and max_inner < 1:
            raise SpaceError(f"knob {name!r} needs a positive max_inner, not {max_inner}")
        if levels == 1 and max_inner is not None and max_inner < extent:
            raise SpaceError(f"knob {name!r} has no values: its one level is {extent}, max_inner {max_inner}")
        self.name, self.extent, self.levels = name, extent, levels
        self.max_inner, self.exchange = max_inner, exchange
        primes = _prime_exponents(extent)
        if primes is None:
            raise SpaceError(f"knob {name!r}: the prime factors of the extent {extent} are too large to be found")
        self._primes = primes
        self.divisors = tuple(_divisors(primes))
        self._index = {divisor: index for index, divisor in enumerate(self.divisors)}
        self.sizes = (len(self.divisors),) * (levels - 1)

    @property
    def count(self) -> int:
        """The number of valid values."""
        return self._count

    @cached_property
    def _count(self) -> int:
        return sum(self._ways_by_innermost) if self._limited else _ways(self._primes, self.levels)

    @property
    def _limited(self) -> bool:
        return self.max_inner is not None and self.max_inner < self.extent

    @cached_property
    def _ways_by_innermost(self) -> list[int]:
        """For each divisor, in how many ways the rest is factorised if it is innermost; 0 if it does not fit."""
        return [
            _ways(self._exponents_of(self.extent // innermost), self.levels - 1)
            if self._innermost_fits(innermost)
            else 0
            for innermost in self.divisors
        ]

    @cached_property
    def _chances(self) -> NDArray[np.float64] | None:
        """The probability of each divisor to be innermost, if nearly all factorisations have one that does not fit."""
        if not self._limited or _ways(self._primes, self.levels) <= _RARE * self.count:
            return None
        ways = np.array(self._ways_by_innermost, dtype=np.float64)
        chances: NDArray[np.float64] = ways / ways.sum()
        return chances

    def _exponents_of(self, divisor: int) -> list[tuple[int, int]]:
        """The primes of the extent, with the exponents that they have in one of its divisors."""
        exponents = []
        for prime, most in self._primes:
            exponent = 0
            while exponent < most and divisor % prime == 0:
                divisor, exponent = divisor // prime, exponent + 1
            exponents.append((prime, exponent))
        return exponents

    def __iter__(self) -> Iterator[Coords]:
        def extend(coords: Coords, rest: int) -> Iterator[Coords]:
            if len(coords) == len(self.sizes):
                yield coords
                return
            innermost = len(coords) == len(self.sizes) - 1
            for index, divisor in enumerate(self.divisors):
                if rest % divisor == 0 and (not innermost or self._innermost_fits(divisor)):
                    yield from extend((*coords, index), rest // divisor)

        return extend((), self.extent)

    def contains(self, coords: Coords) -> bool:
        """Whether these are the coordinates of a valid value."""
        if len(coords) != len(self.sizes):
            return False
        rest = self.extent
        for index in coords:
            if not 0 <= index < len(self.divisors) or rest % self.divisors[index]:
                return False
            rest //= self.divisors[index]
        return not coords or self._innermost_fits(self.divisors[coords[-1]])

    def value(self, coords: Coords) -> tuple[int, ...]:
        """All factors, the outermost first."""
        if not self.contains(coords):
            raise self._reject(coords)
        inner = tuple(self.divisors[index] for index in coords)
        return (self.extent // math.prod(inner), *inner)

    def coordinates(self, value: Any) -> Coords:
        """The coordinates of a full tuple of factors, the outermost included."""
        if not isinstance(value, (list, tuple)) or len(value) != self.levels:
            raise self._reject(value)
        if not all(isinstance(factor, int | np.integer) for factor in value):
            raise self._reject(value)
        coords = tuple(self._index.get(factor, -1) for factor in value[1:])
        if not self.contains(coords) or self.value(coords) != tuple(value):
            raise self._reject(value)
        return coords

    def directions(self, coords: Coords) -> Iterator[Iterator[Coords]]:
        """Each inner factor up and down the divisors that still divide; then the exchange steps."""
        factors = self.value(coords)
        for axis in range(len(coords)):
            # factors[0] is the outermost, so coordinate `axis` belongs to factors[axis + 1]
            shared = factors[0] * factors[axis + 1]
            yield self._steps(coords, axis, range(coords[axis] + 1, len(self.divisors)), shared)
            yield self._steps(coords, axis, range(coords[axis] - 1, -1, -1), shared)
        if self.exchange:
            yield from self._exchanges(coords, factors)

    def _steps(self, coords: Coords, axis: int, indices: range, shared: int) -> Iterator[Coords]:
        """The steps of one coordinate. `shared` is the product of its factor and the outermost one."""
        innermost = axis == len(coords) - 1
        for index in indices:
            divisor = self.divisors[index]
            if shared % divisor == 0 and (not innermost or self._innermost_fits(divisor)):
                yield (*coords[:axis], index, *coords[axis + 1 :])

    def _exchanges(self, coords: Coords, factors: tuple[int, ...]) -> Iterator[Iterator[Coords]]:
        for giver in range(1, self.levels):
            for taker in range(1, self.levels):
                if giver == taker:
                    continue
                for prime, _ in self._primes:
                    if factors[giver] % prime:
                        continue
                    if taker == self.levels - 1 and not self._innermost_fits(factors[taker] * prime):
                        continue
                    moved = list(coords)
                    moved[giver - 1] = self._index[factors[giver] // prime]
                    moved[taker - 1] = self._index[factors[taker] * prime]
                    yield iter((tuple(moved),))

    def sample(self, rng: np.random.Generator) -> Coords:
        """Uniform over the factorisations: the exponent of each prime is dealt to the levels independently.

        What has too large an innermost factor is dealt again. If nearly everything has, the innermost factor is drawn
        first, by the number of ways to deal the rest.
        """
        if self._chances is not None:
            innermost = self.divisors[int(rng.choice(len(self._chances), p=self._chances))]
            outer = _dealt(self._exponents_of(self.extent // innermost), self.levels - 1, rng)
            return tuple(self._index[factor] for factor in [*outer[1:], innermost])
        while True:
            factors = _dealt(self._primes, self.levels, rng)
            if self._innermost_fits(factors[-1]):
                return tuple(self._index[factor] for factor in factors[1:])

    def encode(self, coords: Coords) -> tuple[float, ...]:
        """The binary logarithms of all factors, the outermost first."""
        return tuple(math.log2(factor) for factor in self.value(coords))

    def describe(self) -> dict[str, Any]:
        """The kind and the constructor's arguments."""
        return {
            "kind": self.kind,
            "name": self.name,
            "extent": self.extent,
            "levels": self.levels,
            "max_inner": self.max_inner,
            "exchange": self.exchange,
        }

    def _innermost_fits(self, factor: int) -> bool:
        return self.max_inner is None or factor <= self.max_inner


def proper_factors(n: int) -> list[int]:
    """The divisors of a positive number without 1, in ascending order, as far as its primes are found."""
    return _divisors(_prime_exponents(n) or [(n, 1)])[1:]


def _divisors(primes: Sequence[tuple[int, int]]) -> list[int]:
    """All divisors of the number with these primes and exponents, in ascending order."""
    divisors = [1]
    for prime, exponent in primes:
        divisors = [divisor * prime**power for divisor in divisors for power in range(exponent + 1)]
    return sorted(divisors)


def _prime_exponents(n: int) -> list[tuple[int, int]] | None:
    """The primes of n in ascending order, each with its exponent; None if they are too large to be found."""
    exponents: list[tuple[int, int]] = []
    prime = 2
    while prime * prime <= n:
        if prime > _TRIED:
            return None
        exponent = 0
        while n % prime == 0:
            n //= prime
            exponent += 1
        if exponent:
            exponents.append((prime, exponent))
        prime += 1
    if n > 1:
        exponents.append((n, 1))
    return exponents


def _ways(primes: Sequence[tuple[int, int]], levels: int) -> int:
    """The number of ordered factorisations into `levels` factors of the number with these primes and exponents."""
    if levels == 0:
        return int(not any(exponent for _, exponent in primes))
    return math.prod(math.comb(exponent + levels - 1, levels - 1) for _, exponent in primes)


def _dealt(primes: Sequence[tuple[int, int]], levels: int, rng: np.random.Generator) -> list[int]:
    """One of the ordered factorisations into `levels` factors, each with the same probability."""
    factors = [1] * levels
    for prime, exponent in primes:
        # Stars and bars: each choice of places for the bars is one way to deal, and all are equally likely.
        places = exponent + levels - 1
        bars: list[int] = rng.choice(places, size=levels - 1, replace=False).tolist()
        before = -1
        for level, bar in enumerate((*sorted(bars), places)):
            factors[level] *= prime ** (bar - before - 1)
            before = bar
    return factors


def largest_divisor(extent: int, most: int) -> int:
    """The largest divisor of `extent` that is at most `most`; 1 if `most` is less.

    Args:
        extent: A positive integer.
        most: The bound.
    """
    return max(size for size in range(1, min(extent, max(1, most)) + 1) if extent % size == 0)
