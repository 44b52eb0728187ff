"""Trees on top of those of other kernels: the discount, the margins, and what happens without a base."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from stormdrop.surrogate.boosted import BoostedTrees
from stormdrop.surrogate.transferred_trees import TransferredTrees, discount

Array = NDArray[np.float64]


def data(n: int, rows: int, seed: int) -> tuple[list[Array], Array]:
    """Candidates with `rows` rows of 4 columns, and throughputs that fall with the distance of the first three to 5."""
    rng = np.random.default_rng(seed)
    features = [rng.integers(0, 11, (rows, 4)).astype(float) for _ in range(n)]
    return features, np.array([1 / (1 + np.mean((x[:, :3] - 5) ** 2) / 20) for x in features])


def trees(seed: int = 1, objective: str = "regression") -> BoostedTrees:
    return BoostedTrees(np.random.default_rng(seed), objective=objective)  # type: ignore[arg-type]


def base_of(rows: int, objective: str = "regression") -> BoostedTrees:
    base = trees(0, objective)
    base.fit(*data(600, rows, 0))
    return base


def test_the_discount_halves_every_64_trials_until_the_base_is_dropped() -> None:
    assert [discount(n) for n in (0, 32, 64, 128, 192)] == pytest.approx([1, 2**-0.5, 0.5, 0.25, 0.125])
    assert discount(276) == pytest.approx(2 ** (-276 / 64)) and discount(276) >= 0.05
    assert discount(277) == discount(10_000) == 0


def test_without_trials_the_base_predicts() -> None:
    base, (unseen, _) = base_of(1), data(50, 1, 2)
    model = TransferredTrees(trees(), base)
    assert np.array_equal(model.predict(unseen), base.predict(unseen))


@pytest.mark.parametrize("objective", ["rank", "regression", "pack-sum"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_few_trials_beside_a_base_order_better_than_alone(rows: int, objective: str) -> None:
    unseen, truth = data(300, rows, 2)
    ranks = []
    for base in (base_of(rows, objective), None):
        model = TransferredTrees(trees(1, objective), base)
        model.fit(*data(24, rows, 3))
        ranks.append(spearmanr(model.predict(unseen), truth)[0])
    assert ranks[0] > ranks[1] + 0.05


@pytest.mark.parametrize("rows", [1, 3])
def test_the_trees_learn_what_the_discounted_base_leaves(rows: int) -> None:
    """The base contradicts the kernel: the sum of both still fits, because the trees begin at the base's scores."""
    features, targets = data(64, rows, 3)
    base = trees(0)
    base.fit(features, 1 - targets)
    model = TransferredTrees(trees(), base)
    model.fit(features, targets)
    assert np.abs(model.predict(features) - targets / targets.max()).mean() < 0.05
    own = model.predict(features) - 0.5 * base.predict(features)
    assert np.abs(own - targets / targets.max()).mean() > 0.1


def test_a_base_that_has_faded_makes_no_difference() -> None:
    features, targets = data(277, 1, 3)
    with_base, without = TransferredTrees(trees(), base_of(1)), TransferredTrees(trees(), None)
    for model in (with_base, without):
        model.fit(features, targets)
    assert np.array_equal(with_base.predict(features), without.predict(features))


def test_without_a_base_it_is_the_trees_alone() -> None:
    features, targets = data(100, 2, 3)
    model, alone = TransferredTrees(trees()), trees()
    model.fit(features, targets)
    alone.fit(features, targets)
    assert np.array_equal(model.predict(features), alone.predict(features))


def test_margins_are_picked_with_their_candidates_if_there_are_too_many() -> None:
    """Targets and margins are equal, so nothing is left to learn whichever candidates are picked."""
    features, targets = data(200, 1, 3)
    model = BoostedTrees(np.random.default_rng(0), objective="regression", most=50)
    model.fit(features, targets, targets / targets.max())
    assert np.abs(model.predict(features)).max() < 1e-3
    with pytest.raises(ValueError, match="as many margins as candidates, not 3 for 200"):
        model.fit(features, targets, np.zeros(3))
