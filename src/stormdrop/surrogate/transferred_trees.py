"""Boosted trees that correct what other kernels have taught: the transfer of AutoTVM's `XGBTuner`.

Source: footnote 2 of the NoSE paper (section V-D), which prints nothing more. The numbers are those of AutoTVM's
`XGBoostCostModel`. A *base* model is trained on the trials of earlier kernels. Its scores, times a discount of
1 / 2^(n/64), are the margins from which the trees of this kernel begin, where n is the number of this kernel's trials.
As soon as the discount is below 0.05, after 277 trials, there is no base any more. What differs:

- *Margins stay with their rows.* AutoTVM shuffles the rows and the targets of a fit, but not the margins, so most rows
  begin at the score of another candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .boosted import BoostedTrees

_HALVED_AFTER = 64.0  # trials
_LEAST = 0.05


def discount(trials: int) -> float:
    """The weight of the base beside so many trials of the kernel itself, from 1 down to 0.

    Example:
        >>> [discount(trials) for trials in (0, 64, 128, 277)]
        [1.0, 0.5, 0.25, 0.0]
    """
    weight = 2.0 ** (-trials / _HALVED_AFTER)
    return weight if weight >= _LEAST else 0.0


class TransferredTrees:
    """The trees of a kernel on top of those of a base.

    Args:
        trees: They learn from the kernel itself.
        base: Trees that were trained on other kernels, with features of the same columns; None for no transfer.
    """

    def __init__(self, trees: BoostedTrees, base: BoostedTrees | None = None) -> None:
        self._trees = trees
        self._base = base
        self._weight = 1.0  # of the base

    def fit(self, features: Sequence[NDArray[np.float64]], targets: NDArray[np.float64]) -> None:
        """Trains the kernel's trees anew, see `BoostedTrees.fit`. The base stays as it is."""
        self._weight = discount(len(targets))
        if not self._weight:
            self._base = None
        self._trees.fit(features, targets, self._margins(features))

    def predict(self, features: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """The scores of candidates, see `BoostedTrees.predict`."""
        margins = self._margins(features)
        if margins is None or self._trees.fitted:
            own = self._trees.predict(features)
            return own if margins is None else own + margins
        return margins

    def _margins(self, features: Sequence[NDArray[np.float64]]) -> NDArray[np.float64] | None:
        return None if self._base is None else self._weight * self._base.predict(features)
