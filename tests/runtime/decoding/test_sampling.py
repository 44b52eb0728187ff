"""Which token follows: what may be drawn, how often, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stormdrop.errors import ArtifactError, InputError
from stormdrop.runtime.decoding import Sampling
from stormdrop.runtime.decoding.sampling import drawn, likeliest

LOGITS = np.log(np.array([0.1, 0.4, 0.3, 0.2], "float32"))


def shares(sampling: Sampling, draws: int = 4000) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    return np.bincount([drawn(LOGITS, sampling, rng) for _ in range(draws)], minlength=4) / draws


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.1, 0.4, 0.3, 0.2]),
        (Sampling(top_k=2), [0, 4 / 7, 3 / 7, 0]),
        (Sampling(top_k=9), [0.1, 0.4, 0.3, 0.2]),
        (Sampling(top_p=0.6), [0, 4 / 7, 3 / 7, 0]),
        (Sampling(top_p=0.4), [0, 1, 0, 0]),
        (Sampling(top_p=0.01), [0, 1, 0, 0]),
        (Sampling(top_k=3, top_p=0.7), [0, 4 / 7, 3 / 7, 0]),  # 0.7 of the three, whose probabilities add up to 0.9
        (Sampling(temperature=0.5), np.array([1, 16, 9, 4]) / 30),
    ],
)
def test_tokens_are_drawn_by_their_probabilities(sampling: Sampling, expected: Any) -> None:
    found = shares(sampling)
    np.testing.assert_allclose(found, expected, atol=0.03)
    assert (found[np.array(expected) == 0] == 0).all()


def test_the_likeliest_token() -> None:
    assert likeliest(np.array([1.0, 3.0, 3.0])) == 1
    assert likeliest(np.array([-np.inf, -2.0])) == 1
    for broken in ([np.nan, 1.0], [np.inf, 1.0]):
        with pytest.raises(ArtifactError, match=r"the model makes (nan|inf) of a token"):
            likeliest(np.array(broken))


def test_a_hidden_token_is_never_drawn() -> None:
    rng = np.random.default_rng(0)
    assert {drawn(np.array([-np.inf, 0.0, 0.0]), Sampling(), rng) for _ in range(50)} == {1, 2}


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0}, {"temperature": np.inf}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.1}, {"seed": -1}]
)
def test_what_is_no_sampling_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InputError, match=f"^{name}=.*must be"):
        Sampling(**wrong)
