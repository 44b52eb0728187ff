"""Gradient-boosted regression trees by XGBoost: the cost model of AutoTVM and of Ansor.

Sources: AutoTVM's XGBTuner, a baseline of the Droplet Search, DPAnsor and NoSE papers, for "rank" and "regression";
Ansor's cost model, which DPAnsor uses and the AF-DS paper keeps (section 4), for "pack-sum". Tree depth, learning rate
and regularisation are theirs. What differs:

- *Rounds* are fixed. AutoTVM and Ansor stop when the fit to the training set no longer gets better.
- *Trees* are grown on histograms, in a half to a third of the time that the exact method takes.
- *Pairs* of "rank" are drawn at random, eight per candidate and round. XGBoost's default by now, pairs with the 32
  that the model ranks highest, leaves 1,000 training targets in an order that correlates with theirs by 0.7, not 0.99.
- *Rows.* AutoTVM has one per candidate; here its losses too take a candidate's score as the sum over its rows.
- *The second derivative* of a loss is multiplied by the candidate's number of rows, which bounds the loss from above.
  Ansor's is not: where ten rows of a candidate fall into the same leaf, its steps of 0.2 overshoot more and more.
- *The training set* is bounded (`most`), else the time spent in fits grows with the square of the trials.

A fit takes 6 to 30 ms for 1,000 candidates with one row of 10 to 40 columns ("rank" is the slowest) and 110 to 170 ms
for up to 8 rows of 164 columns; a prediction of 128 candidates 0.2 ms. The first fit loads XGBoost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

if TYPE_CHECKING:
    import xgboost

Array = NDArray[np.float64]
TreeObjective = Literal["rank", "regression", "pack-sum"]

_AUTOTVM = {"max_depth": 3, "gamma": 1e-4, "min_child_weight": 1, "eta": 0.3}
_PAIRS = 8  # per candidate and round
_PARAMETERS: dict[TreeObjective, dict[str, Any]] = {
    "rank": {
        **_AUTOTVM,
        "objective": "rank:pairwise",
        "lambdarank_pair_method": "mean",
        "lambdarank_num_pair_per_sample": _PAIRS,
    },
    "regression": {**_AUTOTVM, "objective": "reg:squarederror"},
    "pack-sum": {"max_depth": 10, "gamma": 1e-3, "min_child_weight": 0, "eta": 0.2, "objective": "reg:squarederror"},
}


class BoostedTrees:
    """Gradient-boosted regression trees over rows of features; a candidate's score is the sum over its rows.

    Higher is better. Targets are throughputs, normalised to the best of a fit. The objectives:

        rank         logistic loss of pairs; scores tell an order and nothing else
        regression   squared error
        pack-sum     squared error weighted by the target: a failure, whose target is 0, has no weight

    Deterministic for a generator and a sequence of fits. Uses one thread.
    """

    def __init__(
        self, rng: np.random.Generator, *, objective: TreeObjective, rounds: int = 50, most: int = 4_000
    ) -> None:
        """`rounds`: trees to grow; `most`: candidates in a fit, one half the best of all, the other at random."""
        self.fitted = False
        self._rng = rng
        self._objective = objective
        self._rounds = rounds
        self._most = most
        self._booster: xgboost.Booster | None = None

    def fit(self, features: Sequence[Array], targets: Array) -> None:
        """Train anew, on an array of shape `(rows, d)` per candidate and targets `(n,)`, higher ones being better.

        Raises ValueError without candidates, and where the two differ in length.
        """
        import xgboost

        if len(features) != len(targets) or not len(targets):
            raise ValueError(f"trees need as many targets as candidates, not {len(targets)} for {len(features)}")
        if len(targets) > self._most:
            picked = self._picked(targets)
            features, targets = [features[i] for i in picked], targets[picked]
        targets = targets / (targets.max() or 1.0)
        counts = np.array([len(rows) for rows in features])
        weights = targets if self._objective == "pack-sum" else np.ones(len(targets))
        single = bool((counts == 1).all())  # then XGBoost's own objectives do, and are faster
        ranked = single and self._objective == "rank"
        # Not a QuantileDMatrix: building one starts all threads, which takes 30 ms.
        data = xgboost.DMatrix(
            _stacked(features),
            np.repeat(targets, counts),
            weight=None if ranked else np.repeat(weights, counts),  # a ranking's would be per group
            group=[len(targets)] if ranked else None,
            nthread=1,
        )
        parameters = {
            **_PARAMETERS[self._objective],
            "base_score": 0.0,  # XGBoost would add its own to every row, and finds none where all weights are zero
            "tree_method": "hist",
            "seed": int(self._rng.integers(2**31)),
            "nthread": 1,
        }
        own = None if single else self._summed(counts, targets, weights)
        self._booster = xgboost.train(parameters, data, self._rounds, obj=own)
        self.fitted = True

    def predict(self, features: Sequence[Array]) -> Array:
        """Scores, shape `(n,)`, of candidates given as to `fit`. Raises ValueError before the first fit."""
        if self._booster is None:
            raise ValueError("trees cannot predict before they were fitted")
        if not len(features):
            return np.zeros(0)
        counts = np.array([len(rows) for rows in features])
        return _sums(self._booster.inplace_predict(_stacked(features)), counts)

    def _picked(self, targets: Array) -> NDArray[np.intp]:
        """Which of too many candidates are trained on."""
        order = np.argsort(-targets, kind="stable")
        half = self._most // 2
        others = self._rng.choice(order[half:], self._most - half, replace=False)
        return np.sort(np.concatenate([order[:half], others]))

    def _summed(self, counts: NDArray[np.intp], targets: Array, weights: Array) -> Callable[..., tuple[Array, Array]]:
        """An objective for XGBoost: the first and second derivative, per row, of the loss of the summed scores."""

        def derivatives(scores: Array, _: xgboost.DMatrix) -> tuple[Array, Array]:
            sums = _sums(scores, counts)
            if self._objective == "rank":
                gradient, hessian = self._pairwise(sums, targets)
            else:
                gradient, hessian = weights * (sums - targets), weights
            return np.repeat(gradient, counts), np.repeat(hessian * counts, counts)

        return derivatives

    def _pairwise(self, scores: Array, targets: Array) -> tuple[Array, Array]:
        """Derivatives of the logistic loss of random pairs, as `rank:pairwise` has them, per candidate."""
        gradient, hessian = np.zeros((2, len(scores)))
        for _ in range(_PAIRS):
            other = self._rng.permutation(len(scores))
            better = np.sign(targets - targets[other])
            wrong = expit(better * (scores[other] - scores)) * np.abs(better)
            gradient -= better * wrong
            gradient[other] += better * wrong
            hessian += wrong * (1 - wrong)
            hessian[other] += wrong * (1 - wrong)
        return gradient, np.maximum(hessian, 1e-16)


def _stacked(features: Sequence[Array]) -> Array:
    """All rows, with a column of zeros where there is none, as in a space without knobs: XGBoost wants one."""
    rows = np.concatenate(features)
    return rows if rows.shape[1] else np.zeros((len(rows), 1))


def _sums(scores: Array, counts: NDArray[np.intp]) -> Array:
    """The sum over each candidate's rows."""
    return np.bincount(np.repeat(np.arange(len(counts)), counts), scores, len(counts)).astype(np.float64)
