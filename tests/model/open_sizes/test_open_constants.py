"""Constants at any size."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop.errors import UnsupportedFunction
from stormdrop.model.open_sizes.constants import is_constant_at, open_constant
from stormdrop.model.open_sizes.probes import Probes

SIZES = [{"b": b, "n": n} for b in (2, 5, 8) for n in (2, 15, 40)]
TERMS = Probes(SIZES).terms


def test_the_first_rows_of_a_table() -> None:
    table = np.random.default_rng(0).normal(size=(64, 8)).astype("f4")
    arrays = [table[: each["n"]] for each in SIZES]
    constant = open_constant(arrays, TERMS)
    assert arrays[constant.whole].shape == (40, 8) and constant.steps == ()
    assert is_constant_at(table[:7], constant, arrays[constant.whole], lambda terms: terms.at({"b": 3, "n": 7}))
    assert not is_constant_at(table[1:8], constant, arrays[constant.whole], lambda terms: terms.at({"b": 3, "n": 7}))


def test_numbers_in_even_steps() -> None:
    """Where each word of each text begins."""

    def places(b: int, n: int) -> np.ndarray:
        return (np.arange(b)[:, None] * n + np.arange(n)).reshape(b, 1, n)

    arrays = [places(**each) for each in SIZES]
    constant = open_constant(arrays, TERMS)
    at = {"b": 3, "n": 7}
    assert [terms.at(at) for terms in constant.steps] == [0, 7, 0, 1]
    assert is_constant_at(places(**at), constant, arrays[constant.whole], lambda terms: terms.at(at))
    assert not is_constant_at(places(3, 7) + 1, constant, arrays[constant.whole], lambda terms: terms.at(at))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_other_constants(dtype: str) -> None:
    arrays = [np.arange(each["n"])[::-1].astype(dtype) ** 2 for each in SIZES]
    with pytest.raises(UnsupportedFunction, match="a constant has other values at another size"):
        open_constant(arrays, TERMS)
