"""Which token follows, by the logits: the likeliest one, or a drawn one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...errors import ArtifactError, InputError
from ..inputs import Array


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    The logits are divided by the temperature. Of the `top_k` likeliest tokens the fewest remain whose probabilities add
    up to `top_p` or more, and one of them is drawn by its probability.

    Attributes:
        temperature: More than 0; below 1 likely tokens are drawn more often than the model says.
        top_k: How many tokens may be drawn; None for all.
        top_p: The sum of the probabilities of those that may be drawn: more than 0, at most 1.
        seed: The same seed draws the same tokens.

    Raises:
        InputError: A value is none of these.

    Example:
        >>> Sampling(temperature=0.7, top_p=0.9)
        Sampling(temperature=0.7, top_k=None, top_p=0.9, seed=0)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InputError(
                f"temperature={self.temperature!r}: must be more than 0; without sampling the likeliest token follows"
            )
        if self.top_k is not None and (not isinstance(self.top_k, int) or self.top_k < 1):
            raise InputError(f"top_k={self.top_k!r}: must be a whole number from 1 on, or None for all tokens")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p!r}: must be more than 0 and at most 1")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise InputError(f"seed={self.seed!r}: must be a whole number from 0 on")


def likeliest(logits: Array) -> int:
    """The token with the largest logit; the first of equal ones.

    Args:
        logits: A number for each token.

    Raises:
        ArtifactError: The largest one is no finite number.
    """
    token = int(logits.argmax())
    if not math.isfinite(logits[token]):
        raise ArtifactError(
            f"the model makes {float(logits[token])} of a token: its numbers overflow, or it is damaged"
        )
    return token


def drawn(logits: Array, sampling: Sampling, rng: np.random.Generator) -> int:
    """A token that is drawn.

    Args:
        logits: A number for each token.
        sampling: How it is drawn.
        rng: Draws it.

    Raises:
        ArtifactError: The largest logit is no finite number.
    """
    largest = float(logits[likeliest(logits)])
    scaled = (logits.astype(np.float64) - largest) / sampling.temperature
    count = len(scaled) if sampling.top_k is None else min(sampling.top_k, len(scaled))
    tokens = np.arange(len(scaled)) if count == len(scaled) else np.argpartition(-scaled, count - 1)[:count]
    tokens = tokens[np.argsort(-scaled[tokens], kind="stable")]
    sums = np.exp(scaled[tokens]).cumsum()
    kept = int(np.searchsorted(sums, sampling.top_p * sums[-1])) + 1
    sums = sums[:kept]
    return int(tokens[min(int(np.searchsorted(sums, rng.random() * sums[-1], side="right")), len(sums) - 1)])
