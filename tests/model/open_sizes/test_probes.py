"""What numbers are at any size."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stormdrop.errors import UnsupportedFunction
from stormdrop.model.open_sizes.probes import Probes
from stormdrop.runtime.open_size import Terms

ONE = [{"n": n} for n in (5, 17, 18, 40, 64, 65, 99)]
TWO = [{"b": b, "n": n} for b in (1, 2, 5) for n in (7, 16, 30)]


@pytest.mark.parametrize(
    "number",
    [
        lambda n: 7,
        lambda n: n,
        lambda n: 384 * n + 3,
        lambda n: n - 16,
        lambda n: n * n,
        lambda n: 3 * n * n - 2 * n,
        lambda n: -(-n // 16),
        lambda n: 12 * -(-n // 16),
        lambda n: n // 16,
        lambda n: (2 * n + 5) // 16,
    ],
)
def test_numbers_of_one_parameter(number: Callable[[int], int]) -> None:
    terms = Probes(ONE, divisors=[16]).terms([number(sizes["n"]) for sizes in ONE])
    for n in (5, 16, 17, 33, 48, 99, 1000):
        assert terms.at({"n": n}) == number(n)
    assert terms.open == (number(5) != number(6) or number(5) != number(99))


@pytest.mark.parametrize("number", [lambda b, n: b * n, lambda b, n: 12 * b * n + 4 * b, lambda b, n: b * n * n])
def test_numbers_of_two_parameters(number: Callable[[int, int], int]) -> None:
    sizes = [*TWO, {"b": 3, "n": 11}]
    terms = Probes(sizes).terms([number(each["b"], each["n"]) for each in sizes])
    assert terms.at({"b": 4, "n": 1000}) == number(4, 1000)


def test_a_number_of_tiles_is_rather_too_large() -> None:
    # 3 at all of 33 to 40 leaves open where it becomes 4.
    sizes = [{"n": n} for n in (33, 35, 36, 39)]
    terms = Probes([*sizes, {"n": 50}], divisors=[16]).terms([3, 3, 3, 3, 4])
    assert terms == Terms(((("n",), 1), ((), 15)), 16)


def test_a_number_of_no_terms() -> None:
    with pytest.raises(UnsupportedFunction, match="no sum of products"):
        Probes(ONE).terms([1, 2, 4, 8, 16, 32, 64])


def test_too_few_probes() -> None:
    with pytest.raises(ValueError, match="3 different sizes or more are needed, not 2"):
        Probes(ONE[:2])
    with pytest.raises(ValueError, match="3 different sizes"):
        Probes([{"n": 4}] * 5)
