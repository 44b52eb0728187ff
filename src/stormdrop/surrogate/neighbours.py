"""Weighted k-nearest-neighbour regression with Canberra distance: the surrogate by which NoSE picks its elite.

Source: the NoSE paper, section III-B1; its symbols and equation numbers stand beside the code. What it leaves open:

- *The estimate of an observed c_i*: its distance is 0, for which equation 1 has no value. The estimate is then y_i,
  which is the limit of equation 3.
- *0 / 0 in equation 4*, if both coordinates are 0, counts as 0.
- *Of equally near neighbours*, those that were observed first are taken.
- *Growth*: all distances are computed, so the time of an estimate is proportional to |D| (the k-d trees that the paper
  mentions do not support the Canberra distance). Only the latest `remembered` observations are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class WeightedNeighbours:
    """D, the observed pairs (c_n, y_n) of one sketch, and the estimate f^(c | k, D).

    Args:
        k: The number of neighbours of an estimate.
        remembered: The largest |D|.

    Raises:
        ValueError: `k` or `remembered` is below 1.
    """

    def __init__(self, k: int, remembered: int) -> None:
        if k < 1 or remembered < 1:
            raise ValueError(f"neighbours need k >= 1 and remembered >= 1, not {k} and {remembered}")
        self.k = k
        self._observed: deque[tuple[Sequence[float], float]] = deque(maxlen=remembered)

    def observe(self, c: Sequence[float], y: float) -> None:
        """Adds a configuration c of L variables and the performance y measured there, which is 0 for a failure."""
        self._observed.append((c, y))

    def estimate(self, c: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """f^ of M configurations: shape `(M,)`, in the unit of y. Raises ValueError if nothing was observed yet."""
        from scipy.spatial.distance import cdist  # imported late, because most commands estimate nothing

        if not self._observed:
            raise ValueError("nothing was observed yet, so there is no neighbour to estimate from")
        c_n, y = map(np.array, zip(*self._observed, strict=True))
        d = cdist(np.array(c), c_n, "canberra")  # (4)
        nearest = np.argsort(d, axis=1, kind="stable")[:, : self.k]  # (2)
        d, y = np.take_along_axis(d, nearest, axis=1), y[nearest]
        with np.errstate(divide="ignore"):
            w = np.where((d == 0).any(axis=1, keepdims=True), d == 0, 1 / d)  # (1)
        estimates: NDArray[np.float64] = (w * y).sum(axis=1) / w.sum(axis=1)  # (3)
        return estimates
