"""Gradient-boosted regression trees by XGBoost: the cost model of AutoTVM and of Ansor.

Sources: the objectives "rank" and "regression" are those of AutoTVM's XGBTuner, a baseline of the Droplet Search,
DPAnsor and NoSE papers. The objective "pack-sum" is that of Ansor's cost model, which DPAnsor uses and the AF-DS paper
keeps (section 4). Tree depth, learning rate and regularisation are theirs. What differs:

- *Rounds* are fixed. AutoTVM and Ansor stop when the fit to the training set no longer improves.
- *Trees* are grown on histograms, which takes a half to a third of the time of the exact method.
- *Pairs* of "rank" are drawn at random, eight per candidate and round. XGBoost's present default is pairs with the 32
  candidates that the model ranks highest. With it, the scores of 1,000 training candidates correlate with their targets
  by 0.7 only, not by 0.99.
- *Rows*: AutoTVM has one row per candidate. Here its losses, too, take the sum over a candidate's rows as its score.
- *The second derivative* of a loss is multiplied by the candidate's number of rows, which bounds the loss from above.
  Ansor's is not, so its steps of 0.2 overshoot more and more if ten rows of a candidate fall into the same leaf.
- *The training set* is bounded (`most`). Without a bound, the time of all fits grows with the square of the trials.

A fit takes 6 to 30 ms for 1,000 candidates with one row of 10 to 40 columns ("rank" is the slowest), and 110 to 170 ms
for up to 8 rows of 164 columns. A prediction of 128 candidates takes 0.2 ms. The first fit loads XGBoost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

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
    """Gradient-boosted regression trees over rows of features. A candidate's score is the sum over its rows.

    Higher scores are better. Targets are throughputs, divided by the best one of a fit. The objectives:

        rank         logistic loss of pairs; the scores show an order and nothing else
        regression   squared error
        pack-sum     squared error weighted by the target: a failure, whose target is 0, has no weight

    The model is deterministic for a generator and a sequence of fits. It uses one thread.

    Args:
        rng: The source of all randomness.
        objective: "rank", "regression" or "pack-sum".
        rounds: The number of trees.
        most: The largest number of candidates in a fit. If there are more, one half are the best ones and the other
            half are drawn at random.

    Attributes:
        fitted: Whether `fit` was called.
    """

    def __init__(
        self, rng: np.random.Generator, *, objective: TreeObjective, rounds: int = 50, most: int = 4_000
    ) -> None:
        self.fitted = False
        self._rng = rng
        self._objective = objective
        self._rounds = rounds
        self._most = most
        self._booster: xgboost.Booster | None = None

    def fit(self, features: Sequence[Array], targets: Array, margins: Array | None = None) -> None:
        """Trains anew.

        Args:
            features: One array of shape `(rows, d)` per candidate.
            targets: The throughputs, shape `(n,)`; higher ones are better.
            margins: Scores of the candidates that the trees only correct, shape `(n,)`; zeros by default. `predict`
                leaves them out.

        Raises:
            ValueError: There is no candidate, or there are not as many targets or margins as candidates.
        """
        import xgboost

        if len(features) != len(targets) or not len(targets):
            raise ValueError(f"trees need as many targets as candidates, not {len(targets)} for {len(features)}")
        if margins is not None and len(margins) != len(targets):
            raise ValueError(f"trees need as many margins as candidates, not {len(margins)} for {len(features)}")
        if len(targets) > self._most:
            picked = self._picked(targets)
            features, targets = [features[i] for i in picked], targets[picked]
            margins = None if margins is None else margins[picked]
        targets = targets / (targets.max() or 1.0)
        counts = np.array([len(rows) for rows in features])
        weights = targets if self._objective == "pack-sum" else np.ones(len(targets))
        single = bool((counts == 1).all())  # then XGBoost's own objectives suffice, which are faster
        ranked = single and self._objective == "rank"
        # It is no QuantileDMatrix, because building one starts all threads, which takes 30 ms.
        data = xgboost.DMatrix(
            _stacked(features),
            np.repeat(targets, counts),
            weight=None if ranked else np.repeat(weights, counts),  # the weights of a ranking would be per group
            group=[len(targets)] if ranked else None,
            base_margin=margins if single else None,  # else the objective adds them, once for each candidate
            nthread=1,
        )
        parameters = {
            **_PARAMETERS[self._objective],
            "base_score": 0.0,  # by default XGBoost adds an estimate to every row, which fails if all weights are zero
            "tree_method": "hist",
            "seed": int(self._rng.integers(2**31)),
            "nthread": 1,
        }
        objective = None if single else self._summed(counts, targets, weights, 0.0 if margins is None else margins)
        self._booster = xgboost.train(parameters, data, self._rounds, obj=objective)
        self.fitted = True

    def predict(self, features: Sequence[Array]) -> Array:
        """The scores of candidates.

        Args:
            features: One array of shape `(rows, d)` per candidate.

        Returns:
            Shape `(n,)`.

        Raises:
            ValueError: The model was not fitted yet.
        """
        if self._booster is None:
            raise ValueError("boosted trees cannot predict before `fit` was called")
        if not len(features):
            return np.zeros(0)
        counts = np.array([len(rows) for rows in features])
        return _sums(self._booster.inplace_predict(_stacked(features)), counts)

    def _picked(self, targets: Array) -> NDArray[np.intp]:
        """The indices of `most` candidates, of too many, on which the trees are trained."""
        order = np.argsort(-targets, kind="stable")
        half = self._most // 2
        others = self._rng.choice(order[half:], self._most - half, replace=False)
        return np.sort(np.concatenate([order[:half], others]))

    def _summed(
        self, counts: NDArray[np.intp], targets: Array, weights: Array, margins: Array | float
    ) -> Callable[..., tuple[Array, Array]]:
        """An objective for XGBoost: the first and second derivative per row of the loss of the summed scores."""

        def derivatives(scores: Array, _: xgboost.DMatrix) -> tuple[Array, Array]:
            sums = _sums(scores, counts) + margins
            if self._objective == "rank":
                gradient, hessian = self._pairwise(sums, targets)
            else:
                gradient, hessian = weights * (sums - targets), weights
            return np.repeat(gradient, counts), np.repeat(hessian * counts, counts)

        return derivatives

    def _pairwise(self, scores: Array, targets: Array) -> tuple[Array, Array]:
        """The derivatives per candidate of the logistic loss of random pairs, as in XGBoost's `rank:pairwise`."""
        from scipy.special import expit  # imported late: it takes 0.3 s, and every command imports this module

        gradient, hessian = np.zeros((2, len(scores)))
        for _ in range(_PAIRS):
            partner = self._rng.permutation(len(scores))
            better = np.sign(targets - targets[partner])
            wrong = expit(better * (scores[partner] - scores)) * np.abs(better)
            gradient -= better * wrong
            gradient[partner] += better * wrong
            hessian += wrong * (1 - wrong)
            hessian[partner] += wrong * (1 - wrong)
        return gradient, np.maximum(hessian, 1e-16)


def _stacked(features: Sequence[Array]) -> Array:
    """All rows. If they have no columns, as in a space without knobs, one of zeros, because XGBoost needs one."""
    rows = np.concatenate(features)
    return rows if rows.shape[1] else np.zeros((len(rows), 1))


def _sums(scores: Array, counts: NDArray[np.intp]) -> Array:
    """The sum over each candidate's rows."""
    return np.bincount(np.repeat(np.arange(len(counts)), counts), scores, len(counts)).astype(np.float64)
