"""Boosted trees: what the objectives learn, sums over rows, and the bounded training set."""

import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from stormdrop.surrogate.boosted import BoostedTrees, TreeObjective

Array = NDArray[np.float64]
OBJECTIVES: tuple[TreeObjective, ...] = get_args(TreeObjective)


def data(n: int, rows: int, seed: int = 0) -> tuple[list[Array], Array]:
    """Candidates with 1 to `rows` rows of 8 columns. A row adds more if three of its columns are nearer to 5."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, rows + 1, n)
    features = [rng.integers(0, 11, (count, 8)).astype(float) for count in counts]
    return features, np.array([np.sum(1e9 / (1 + np.sum((x[:, :3] - 5) ** 2, axis=1) / 20)) for x in features])


def fitted(objective: TreeObjective, features: list[Array], targets: Array, most: int = 4_000) -> BoostedTrees:
    trees = BoostedTrees(np.random.default_rng(1), objective=objective, most=most)
    trees.fit(features, targets)
    return trees


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("rows", [1, 4])
def test_they_order_what_they_have_not_seen(objective: TreeObjective, rows: int) -> None:
    trees = fitted(objective, *data(600, rows))
    unseen, truth = data(300, rows, seed=1)
    assert spearmanr(trees.predict(unseen), truth)[0] > 0.95


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("rows", [1, 4])
def test_a_generator_decides_everything(objective: TreeObjective, rows: int) -> None:
    features, targets = data(200, rows)
    once, again = (fitted(objective, features, targets).predict(features) for _ in range(2))
    assert np.array_equal(once, again)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_score_is_the_sum_over_rows(objective: TreeObjective) -> None:
    features, targets = data(200, 4)
    trees = fitted(objective, features, targets)
    by_rows = [trees.predict([row[None, :] for row in rows]).sum() for rows in features]
    assert trees.predict(features) == pytest.approx(np.array(by_rows), abs=1e-5)


@pytest.mark.parametrize("objective", ["regression", "pack-sum"])
def test_scores_estimate_the_throughput_over_the_best(objective: TreeObjective) -> None:
    features, targets = data(600, 3)
    errors = fitted(objective, features, targets).predict(features) - targets / targets.max()
    assert np.sqrt(np.mean(errors**2)) < 0.03


def test_one_row_and_several_are_trained_alike() -> None:
    features, targets = data(300, 1)
    # A candidate with two rows leads to our own objective. It is a failure, so it has no weight.
    more = fitted("pack-sum", [*features, np.full((2, 8), 5.0)], np.append(targets, 0.0))
    assert more.predict(features) == pytest.approx(fitted("pack-sum", features, targets).predict(features), abs=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_equal_rows_do_not_make_steps_overshoot(objective: TreeObjective) -> None:
    features, targets = data(200, 1)
    features = [np.tile(rows, (16, 1)) for rows in features]
    assert spearmanr(fitted(objective, features, targets).predict(features), targets)[0] > 0.95


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("targets", [[0.0] * 5, [1.0] * 5, [7.0], [0.0, 0.0, 0.0, 0.0, 1e-12]])
def test_they_survive_targets_without_information(objective: TreeObjective, rows: int, targets: list[float]) -> None:
    features = [np.arange(2.0 * rows).reshape(rows, 2) + i for i in range(len(targets))]
    trees = fitted(objective, features, np.array(targets))
    assert np.isfinite(trees.predict(features)).all()


def test_failures_are_learned_except_by_pack_sum() -> None:
    features = [np.array([[float(i)]]) for i in range(40)]
    targets = np.array([1.0 if i < 20 else 0.0 for i in range(40)])
    for objective in ("rank", "regression"):
        scores = fitted(objective, features, targets).predict(features)
        assert scores[:20].min() > scores[20:].max() + 0.5
    assert np.ptp(fitted("pack-sum", features, targets).predict(features)) < 0.01


def test_too_many_candidates_are_thinned_out_except_for_the_best() -> None:
    features = [np.array([[float(i)]]) for i in range(2_000)]
    targets = np.array([1.0] * 1_950 + [2.0] * 45 + [3.0] * 5)
    scores = fitted("regression", features, targets, most=100).predict(features)
    assert not np.array_equal(scores, fitted("regression", features, targets).predict(features))
    assert scores[1_950:].min() > 0.6  # all of the 50 best are trained on, and the others still show where they begin
    assert scores[:1_900].max() < 0.4


def test_rows_without_columns_all_score_the_same() -> None:
    features = [np.zeros((1, 0)), np.zeros((1, 0))]
    assert np.ptp(fitted("rank", features, np.array([1.0, 2.0])).predict(features)) == 0.0


def test_what_makes_no_sense_is_refused() -> None:
    trees = BoostedTrees(np.random.default_rng(0), objective="rank")
    assert not trees.fitted
    with pytest.raises(ValueError, match="before `fit` was called"):
        trees.predict([np.zeros((1, 2))])
    with pytest.raises(ValueError, match="as many targets"):
        trees.fit([np.zeros((1, 2))], np.zeros(2))
    with pytest.raises(ValueError, match="as many targets"):
        trees.fit([], np.zeros(0))
    trees.fit([np.zeros((1, 2))], np.ones(1))
    assert trees.fitted
    assert trees.predict([]).shape == (0,)  # type: ignore[unreachable]


def test_xgboost_is_loaded_by_the_first_fit_only() -> None:
    program = (
        "import sys, stormdrop.search as search\nsearch.names()\nassert not {'xgboost', 'pandas'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})
