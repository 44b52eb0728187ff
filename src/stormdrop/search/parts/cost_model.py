"""Ansor's cost model with its training set: boosted trees over what was measured, trained anew on demand.

Ansor has one cost model for all kernels (tasks) of a neural network. It learns from the measurements of every kernel,
whose throughputs are divided by the best one of the same kernel (Ansor, OSDI 2020, section 5.2), and it is trained anew
each time. `common_model.CommonCostModel` is this model, and a `CostModel` is what one kernel sees of it. A kernel that
is tuned alone has a model of its own, which is the same with one member.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...surrogate import Features
from ...trial import Candidate, Trial
from ..common_model import CommonCostModel
from ..genetic import fitness


class TrainingSet:
    """What a kernel has measured, as cost models learn from it; it is a `common_model.Member`.

    Features are computed once per candidate.

    Args:
        features: What a model sees of a candidate.
        mean: Whether seconds are the mean of the samples, as in TVM, not their median.

    Attributes:
        measured: The throughput of each measured candidate in executions per second, 0 for a failure.
        failed: The candidates that failed.
        best: The best throughput so far; 0 if nothing has worked.
    """

    def __init__(self, features: Features, mean: bool = False) -> None:
        self.measured: dict[Candidate, float] = {}
        self.failed: set[Candidate] = set()
        self.best = 0.0
        self._features = features
        self._mean = mean
        self._rows: dict[Candidate, NDArray[np.float64]] = {}

    def record(self, trials: Sequence[Trial]) -> None:
        """Adds trials. A model that learns from them does not change before it is trained."""
        for trial in trials:
            self.measured[trial.candidate] = throughput = fitness(trial, self._mean)
            self.best = max(self.best, throughput)
            if not trial.ok:
                self.failed.add(trial.candidate)

    def training_rows(self) -> list[NDArray[np.float64]]:
        """The features of all measured candidates, in the order of `measured`."""
        rows = self._rows_of(list(self.measured))
        # Only the rows of measured candidates are sure to be needed again. The others are dropped, so that memory grows
        # with the trials and not with the scored candidates.
        self._rows = dict(zip(self.measured, rows, strict=True))
        return rows

    def _rows_of(self, candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
        """The features of candidates, computed if they are not known yet."""
        missing = [candidate for candidate in dict.fromkeys(candidates) if candidate not in self._rows]
        if missing:
            self._rows.update(zip(missing, self._features(missing), strict=True))
        return [self._rows[candidate] for candidate in candidates]


class CostModel(TrainingSet):
    """A kernel's view of Ansor's cost model: its measurements, and estimates for its candidates.

    Args:
        features: What the model sees of a candidate.
        rng: The source of all randomness of a model of its own.
        mean: Whether seconds are the mean of the samples, as in TVM, not their median.
        common: The model that it shares with other kernels; None for a model of its own.

    Example:
        >>> from stormdrop.trial import Measurement, Status
        >>> common = CommonCostModel(np.random.default_rng(0))
        >>> def features(candidates):  # of both kernels
        ...     return [np.array([[candidate.point[0]]], float) for candidate in candidates]
        >>> slow, fast = (CostModel(features, np.random.default_rng(0), common=common) for _ in range(2))
        >>> for kernel, unit in [(slow, 1.0), (fast, 1e-3)]:
        ...     kernel.record(
        ...         [Trial(Candidate("s", (x,)), Measurement(Status.OK, (unit * (9 - x),))) for x in range(8)]
        ...     )
        >>> slow.train()
        >>> scores = fast.scores([Candidate("s", (0,)), Candidate("s", (7,))])
        >>> bool(scores[0] < 0.3 < 0.9 < scores[1])
        True
    """

    def __init__(
        self,
        features: Features,
        rng: np.random.Generator,
        mean: bool = False,
        common: CommonCostModel | None = None,
    ) -> None:
        super().__init__(features, mean)
        self._common = CommonCostModel(rng, most=4_000) if common is None else common
        self._common.join(self)

    @property
    def trainable(self) -> bool:
        """Whether a candidate has worked, of this kernel or of one that shares the model."""
        return self._common.trainable

    def train(self) -> None:
        """Trains anew with all measured candidates. At least one of them must have worked."""
        self._common.train()

    def scores(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Estimated throughputs as shares of the best measured one, shape `(n,)`."""
        return self._common.predict(self._rows_of(candidates))
