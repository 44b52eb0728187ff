"""The Gaussian process against textbook formulas, finite differences and functions that it should learn."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal, spearmanr

from stormdrop.space import Categorical, Ordinal, Space, Tile
from stormdrop.surrogate.gaussian import GaussianProcess
from stormdrop.surrogate.levels import Levels

SIZES = (8, 5, 1, 3)


def points(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.stack([rng.integers(size, size=n) for size in SIZES], axis=1)


def smooth(levels: np.ndarray) -> np.ndarray:
    return 0.1 * (levels[:, 0] - 5.0) ** 2 + 0.3 * levels[:, 1] + 0.2 * (levels[:, 3] == 1)


def kernel(a: np.ndarray, b: np.ndarray, length: float, floor: float) -> np.ndarray:
    """The module's formula, written out."""
    product = np.ones((len(a), len(b)))
    for column, size in enumerate(SIZES):
        if size > 1:
            r = np.sqrt(5) * np.abs(a[:, None, column] - b[None, :, column]) / (size - 1) / length
            product *= floor + (1 - floor) * (1 + r + r**2 / 3) * np.exp(-r)
    return product


def test_the_prediction_is_the_conditional_normal() -> None:
    rng = np.random.default_rng(0)
    x, z = points(rng, 12), points(rng, 5)
    y, groups = rng.normal(3.0, 2.0, 12), rng.integers(1, 4, 12).astype(float)
    model = GaussianProcess(SIZES, floor=0.6, length=0.5)
    model.fit(x, y, groups, learn=False)
    prediction = model.predict(z)
    noisy = kernel(x, x, 0.5, 0.6) + np.diag(0.02 / groups + 1e-8)
    standard = (y - y.mean()) / y.std()
    weights = np.linalg.solve(noisy, standard)
    cross = kernel(z, x, 0.5, 0.6)
    scale = standard @ weights / len(y)
    variance = scale * (1 - np.einsum("ij,ji->i", cross, np.linalg.solve(noisy, cross.T)))
    assert prediction.mean == pytest.approx(y.mean() + y.std() * (cross @ weights))
    assert prediction.deviation == pytest.approx(y.std() * np.sqrt(variance))


def test_to_believe_is_to_observe_what_is_expected() -> None:
    rng = np.random.default_rng(4)
    x, z, extra = points(rng, 12), points(rng, 6), np.array([[7, 4, 0, 1]])
    y = smooth(x)
    model, again = GaussianProcess(SIZES), GaussianProcess(SIZES)
    model.fit(x, y, np.ones(12), learn=False)
    kept = model.predict(z)
    before = kept.deviation
    expected = model.predict(extra).mean
    model.believe(extra, [kept])
    assert (kept.deviation <= before).all() and (kept.deviation < 0.999 * before).any()
    assert kept.deviation == pytest.approx(model.predict(z).deviation)
    assert kept.mean == pytest.approx(model.predict(z).mean)
    again.fit(np.vstack([x, extra]), np.append(y, expected), np.ones(13), learn=False)
    assert again.predict(z).mean == pytest.approx(kept.mean, rel=0.01)  # it is centred anew


def test_learning_raises_the_likelihood_and_finds_what_matters() -> None:
    """A column without effect gets a longer length than a column with one."""
    rng = np.random.default_rng(1)
    x = points(rng, 60)
    y = np.sin(2.0 * x[:, 0]) + 0.01 * rng.normal(size=60)
    model = GaussianProcess(SIZES)
    before = model._parameters.copy()
    model.fit(x, y, np.ones(60))
    lengths = np.exp(model._parameters)
    assert lengths[0] < 0.5 * min(lengths[1], lengths[2])

    def evidence(parameters: np.ndarray) -> float:
        tables = model._covariance_tables(parameters)
        product = np.ones((60, 60))
        for column, table in zip([0, 1, 3], tables, strict=True):
            product *= table[np.ix_(x[:, column], x[:, column])]
        covariance = product + np.exp(parameters[-1]) * np.eye(60)
        standard = (y - y.mean()) / y.std()
        scale = standard @ np.linalg.solve(covariance, standard) / 60
        return float(multivariate_normal(np.zeros(60), scale * covariance).logpdf(standard))

    assert evidence(model._parameters) > evidence(before) + 5


def test_it_predicts_a_smooth_function_and_knows_where_it_has_not_been() -> None:
    rng = np.random.default_rng(2)
    x, z = points(rng, 40), points(rng, 60)
    model = GaussianProcess(SIZES)
    model.fit(x, smooth(x), np.ones(40))
    assert spearmanr(model.predict(z).mean, smooth(z)).statistic > 0.97
    left = np.array([[level, 0, 0, 0] for level in range(4)])
    model.fit(left, smooth(left), np.ones(4), learn=False)
    deviation = model.predict(np.array([[1, 0, 0, 0], [7, 4, 0, 2]])).deviation
    assert deviation[1] > 3 * deviation[0]


def test_a_point_seen_often_is_trusted_more() -> None:
    x = np.array([[0, 0, 0, 0], [7, 4, 0, 2]])
    y = np.array([1.0, 2.0])
    off = []
    for count in (1.0, 100.0):
        model = GaussianProcess(SIZES)
        model.fit(x, y, np.array([count, 1.0]), learn=False)
        off.append(abs(float(model.predict(x).mean[0]) - 1.0))
    assert off[1] < 0.1 * off[0]


def test_values_that_are_all_the_same_and_no_columns() -> None:
    model = GaussianProcess(SIZES)
    x = points(np.random.default_rng(3), 6)
    model.fit(x, np.full(6, 2.5), np.ones(6))
    assert model.predict(x).mean == pytest.approx(np.full(6, 2.5))
    empty = GaussianProcess(())
    empty.fit(np.empty((1, 0), dtype=np.intp), np.array([1.0]), np.ones(1))
    assert empty.predict(np.empty((1, 0), dtype=np.intp)).mean == pytest.approx([1.0])


def test_levels_are_ranks_and_alignments() -> None:
    space = Space("s", [Ordinal("x", [16, 32, 48, 64]), Ordinal("p", [1, 2, 4]), Categorical("c", ["a", "b"])])
    levels = Levels(space)
    assert levels.sizes == (4, 3, 3, 2, 2)
    # x has its rank and its alignment (the same for 16 and 48, most for 64); p holds powers of two: the rank suffices.
    assert levels([(0, 0, 0), (2, 1, 1), (3, 2, 0)]).tolist() == [[0, 0, 0, 1, 0], [2, 0, 1, 0, 1], [3, 2, 2, 1, 0]]
    assert Levels(space, alignments=False).sizes == (4, 3, 2, 2)


def test_levels_of_tiles() -> None:
    space = Space("s", [Tile("t", 12, 3)])
    levels = Levels(space)
    point = space.point({"t": (2, 3, 2)})
    row = dict(zip(range(len(levels.sizes)), levels([point])[0].tolist(), strict=True))
    assert len(levels.sizes) > len(space.knobs[0].sizes)
    assert all(0 <= rank < size for rank, size in zip(row.values(), levels.sizes, strict=True))
    assert len({tuple(row) for row in levels(space.points()).tolist()}) == space.size
