"""What a number of a model is at any size, found from what it is at a few."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedFunction
from ...runtime.open_size import Factors, Sizes, Terms

Products = list[tuple[str, ...]]


class _Form(NamedTuple):
    """Products, and their values at the probes."""

    products: Products
    values: NDArray[np.float64]


class Probes:
    """The sizes at which a model was looked at.

    A number that differs between them is a sum of products of parameters, or one that is divided and rounded down, as
    the number of tiles of an axis is. The probes must be more than the products: so one of them at least checks what
    the others have determined.

    Args:
        sizes: The parameters at each of them.
        divisors: By what numbers may be divided, besides 1.
        generous: Whether a quotient is the largest one that the sizes allow, not the one that is rounded up. Extents
            that tiles divide are often no probes, because the functions have another form there. So the probes may
            leave open whether such an extent needs one tile more.
        exact: Whether nothing is rounded: a sum is divided only if the divisor divides it at all of the sizes. A few
            sizes fit many quotients that are rounded.

    Raises:
        ValueError: They do not determine the terms of a number and check them.

    Example:
        >>> probes = Probes([{"n": n} for n in (16, 17, 40, 99)], divisors=[16])
        >>> probes.terms([193, 205, 481, 1189])
        Terms(factors=((('n',), 12), ((), 1)), divisor=1, times=1)
        >>> probes.terms([8, 16, 24, 56])
        Terms(factors=((('n',), 1), ((), 15)), divisor=16, times=8)
    """

    def __init__(
        self, sizes: Sequence[Sizes], divisors: Collection[int] = (), generous: bool = False, exact: bool = False
    ) -> None:
        self.sizes = tuple(sizes)
        self.parameters = tuple(sizes[0])
        self._divisors = sorted(set(divisors) - {1})
        self._rounding = (False,) if generous or exact else (True, False)
        self._exact = exact
        different = len({tuple(each.values()) for each in sizes})
        powers = sorted(itertools.product((1, 2), repeat=len(self.parameters)), key=sum)
        self._forms = [
            _Form(products, matrix)
            for products in [_products(self.parameters, of_each) for of_each in powers]
            for matrix in [_values(products, sizes)]
            if different > len(products) == np.linalg.matrix_rank(matrix)
        ]
        if not self._forms:
            needed = len(_products(self.parameters, powers[0])) + 1
            raise ValueError(f"{needed} different sizes or more are needed, not {different}")

    def terms(self, numbers: Sequence[int]) -> Terms:
        """What a number is at any size.

        Args:
            numbers: The number at each probe.

        Raises:
            UnsupportedFunction: No terms give it at all probes.
        """
        if len(set(numbers)) == 1:
            return Terms((((), numbers[0]),))
        common = math.gcd(*numbers)
        every_time = [times for times in (*reversed(self._divisors), 1) if common % times == 0]
        tries = [(1, (1,)), *((times, (1, *self._divisors)) for times in dict.fromkeys((common, *every_time)))]
        for times, divisors in tries:
            quotients = [number // times for number in numbers]
            for form, rounds_up in itertools.product(self._forms, self._rounding):
                solution, *_ = np.linalg.lstsq(form.values, np.array(quotients, np.float64), rcond=None)
                for divisor in divisors:
                    factors = np.rint(solution * divisor).astype(np.int64).tolist()
                    terms = self._rounded(form.products, factors, divisor, quotients, rounds_up)
                    if terms is not None:
                        return Terms(_multiplied(terms.factors, times)) if divisor == 1 else replace(terms, times=times)
        raise UnsupportedFunction(f"{', '.join(map(str, numbers))} at its sizes is no sum of products of them")

    def _rounded(
        self, products: Products, factors: Sequence[int], divisor: int, numbers: Sequence[int], rounds_up: bool
    ) -> Terms | None:
        """The terms with these factors and the constant that fits all probes; None if none fits.

        Args:
            products: The products.
            factors: Their factors; that of the empty product does not count.
            divisor: By what the sum is divided.
            numbers: The number at each probe.
            rounds_up: Whether the constant must be such that the quotient is rounded up, as numbers of tiles are. Else
                it is the largest one that fits: a tile too many overlaps another one, one too few would be missing.
        """
        if self._exact:
            return self._divided(products, factors, divisor, numbers)
        pairs = tuple((names, each) for names, each in zip(products, factors, strict=True) if each and names)
        sums = [Terms(pairs).at(each) for each in self.sizes]
        most = min(number * divisor - total for number, total in zip(numbers, sums, strict=True)) + divisor - 1
        least = max(number * divisor - total for number, total in zip(numbers, sums, strict=True))
        constant = divisor - 1 if rounds_up and divisor > 1 else most
        if not least <= constant <= most or not pairs:
            return None
        return Terms((*pairs, ((), constant)) if constant else pairs, divisor)

    def _divided(
        self, products: Products, factors: Sequence[int], divisor: int, numbers: Sequence[int]
    ) -> Terms | None:
        """The terms with these factors, if they give all numbers and nothing is rounded."""
        terms = Terms(tuple((names, each) for names, each in zip(products, factors, strict=True) if each), divisor)
        sums = [replace(terms, divisor=1).at(each) for each in self.sizes]
        return terms if sums == [number * divisor for number in numbers] else None


def _products(parameters: Sequence[str], most: Sequence[int]) -> Products:
    """The products in which each parameter occurs at most so many times, the empty one last."""
    powers = itertools.product(*(range(power, -1, -1) for power in most))
    return [tuple(name for name, count in zip(parameters, each, strict=True) for _ in range(count)) for each in powers]


def _values(products: Products, sizes: Sequence[Sizes]) -> NDArray[np.float64]:
    """The value of each product at each of the sizes, which is a row."""
    return np.array([[math.prod(each[name] for name in names) for names in products] for each in sizes], np.float64)


def _multiplied(factors: Factors, times: int) -> Factors:
    return tuple((names, factor * times) for names, factor in factors)
