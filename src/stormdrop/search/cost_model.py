"""Ansor's cost model with its training set: boosted trees over what was measured, trained anew on demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..surrogate import Features
from ..surrogate.boosted import BoostedTrees
from ..trial import Candidate, Trial
from .genetic import fitness


class CostModel:
    """Ansor's cost model together with its training set. Features are computed once per candidate.

    Args:
        features: What the model sees of a candidate.
        rng: The source of all randomness.
        mean: Whether seconds are the mean of the samples, as in TVM, not their median.

    Attributes:
        measured: The throughput of each measured candidate in executions per second, 0 for a failure.
        failed: The candidates that failed.
        best: The best throughput so far.
    """

    def __init__(self, features: Features, rng: np.random.Generator, mean: bool = False) -> None:
        self.measured: dict[Candidate, float] = {}
        self.failed: set[Candidate] = set()
        self.best = 0.0
        self._features = features
        self._mean = mean
        self._rows: dict[Candidate, NDArray[np.float64]] = {}
        self._trees = BoostedTrees(rng, objective="pack-sum")

    def record(self, trials: Sequence[Trial]) -> None:
        """Add trials to the training set. The scores do not change before the next `train`."""
        for trial in trials:
            self.measured[trial.candidate] = throughput = fitness(trial, self._mean)
            self.best = max(self.best, throughput)
            if not trial.ok:
                self.failed.add(trial.candidate)

    def train(self) -> None:
        """Train anew with all measured candidates. At least one of them must have worked."""
        rows = self._rows_of(list(self.measured))
        # Only the rows of measured candidates are sure to be needed again. The others are dropped, so that memory grows
        # with the trials and not with the scored candidates.
        self._rows = dict(zip(self.measured, rows, strict=True))
        self._trees.fit(rows, np.array(list(self.measured.values())))

    def scores(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Estimated throughputs as shares of the best measured one, shape `(n,)`."""
        return self._trees.predict(self._rows_of(candidates))

    def _rows_of(self, candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
        """The features of candidates, computed if they are not known yet."""
        missing = [candidate for candidate in dict.fromkeys(candidates) if candidate not in self._rows]
        if missing:
            self._rows.update(zip(missing, self._features(missing), strict=True))
        return [self._rows[candidate] for candidate in candidates]
