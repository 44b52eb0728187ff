"""One cost model for all kernels of a neural network: boosted trees that are trained with the trials of every kernel.

Source: Ansor (OSDI 2020), section 5.2: throughputs are divided by the best one of the same kernel, and the trees are
trained anew each time. AutoTVM has a model per kernel; what the kernels before it have measured is the training set of
that model's base (`annealing`), which takes it from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..surrogate.boosted import BoostedTrees
from ..trial import Candidate

MOST = 30_000
"""Candidates that a model of several kernels is trained with at most; Ansor's section 5.2 expects fewer."""


class Member(Protocol):
    """A kernel that a common cost model learns from.

    Attributes:
        measured: The throughput of each measured candidate in executions per second, 0 for a failure.
        best: The best of them; 0 if nothing has worked.
    """

    best: float

    @property
    def measured(self) -> Mapping[Candidate, float]: ...

    def training_rows(self) -> list[NDArray[np.float64]]:
        """The features of all measured candidates, in the order of `measured`."""


class CommonCostModel:
    """One cost model that the kernels of a neural network share.

    The features of all kernels need the same columns with the same meaning, as Ansor's 164 per statement have. The
    encodings of knobs do not: another kernel has other knobs.

    Args:
        rng: The source of all randomness.
        most: The largest number of candidates that it is trained with; see `BoostedTrees`.
    """

    def __init__(self, rng: np.random.Generator, most: int = MOST) -> None:
        self._trees = BoostedTrees(rng, objective="pack-sum", most=most)
        self._members: list[Member] = []

    def join(self, member: Member) -> None:
        """Learns from this kernel, too, from the next `train` on."""
        self._members.append(member)

    @property
    def trainable(self) -> bool:
        """Whether a candidate of any kernel has worked."""
        return any(member.best for member in self._members)

    def training_set(self, without: Member | None = None) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        """What the kernels have measured.

        Args:
            without: A kernel that is left out.

        Returns:
            The features of n candidates, and their throughputs as shares of the best one of the same kernel, shape
            `(n,)`. Kernels of which nothing has worked are not among them.
        """
        rows: list[NDArray[np.float64]] = []
        targets: list[float] = []
        for member in self._members:
            if member is not without and member.best:  # without a best one there is nothing to divide by
                rows += member.training_rows()
                targets += [throughput / member.best for throughput in member.measured.values()]
        return rows, np.array(targets)

    def train(self) -> None:
        """Trains anew with all measured candidates of all kernels. At least one of them must have worked."""
        self._trees.fit(*self.training_set())

    def predict(self, rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Estimated throughputs as shares of the best measured one of the same kernel, shape `(n,)`."""
        return self._trees.predict(rows)
