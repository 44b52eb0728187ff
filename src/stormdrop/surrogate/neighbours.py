"""The weighted k-nearest-neighbour regression with Canberra distance that NoSE picks its elite with.

Source: the NoSE paper, section III-B1; its symbols and equation numbers stand beside the code. What it leaves open:

- *c_i itself is asked for*: its distance is 0 and equation 1 has no value there; the estimate is then y_i, which
  is the limit of equation 3.
- *0 / 0 in equation 4*, where both coordinates are 0, counts 0.
- *Equally near neighbours*: the ones observed first.
- *Growth*: all distances are computed, so a prediction takes time in proportion to |D| (k-d trees, which the paper
  points to, do not know the Canberra distance). Only the latest `remembered` observations are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class WeightedNeighbours:
    """D, the observed pairs (c_n, y_n) of one sketch, and the estimate f^(c | k, D).

    `k` is the number of neighbours, `remembered` bounds |D|. Raises ValueError where either is below 1.
    """

    def __init__(self, k: int, remembered: int) -> None:
        if k < 1 or remembered < 1:
            raise ValueError(f"neighbours need k >= 1 and remembered >= 1, not {k} and {remembered}")
        self.k = k
        self._observed: deque[tuple[Sequence[float], float]] = deque(maxlen=remembered)

    def observe(self, c: Sequence[float], y: float) -> None:
        """Add a configuration, a vector of L variables, and the performance measured there (0 for a failure)."""
        self._observed.append((c, y))

    def estimate(self, c: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """f^ of M configurations, shape `(M,)`, in the unit of y. Raises ValueError while nothing was observed."""
        from scipy.spatial.distance import cdist  # here: a command that estimates nothing need not wait for it

        if not self._observed:
            raise ValueError("nothing was observed: there is no neighbour to estimate from")
        c_n, y = map(np.array, zip(*self._observed, strict=True))
        d = cdist(np.array(c), c_n, "canberra")  # (4)
        nearest = np.argsort(d, axis=1, kind="stable")[:, : self.k]  # (2)
        d, y = np.take_along_axis(d, nearest, axis=1), y[nearest]
        with np.errstate(divide="ignore"):
            w = np.where((d == 0).any(axis=1, keepdims=True), d == 0, 1 / d)  # (1)
        estimates: NDArray[np.float64] = (w * y).sum(axis=1) / w.sum(axis=1)  # (3)
        return estimates
