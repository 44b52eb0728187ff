"""The surrogate of NoSE, compared with the equations of its paper."""

from collections.abc import Sequence

import numpy as np
import pytest

from stormdrop.surrogate.neighbours import WeightedNeighbours


def canberra(x: Sequence[float], z: Sequence[float]) -> float:
    return sum(abs(a - b) / (abs(a) + abs(b)) for a, b in zip(x, z, strict=True) if a or b)


def f_hat(c: Sequence[float], observed: list[tuple[Sequence[float], float]], k: int) -> float:
    """Equations 1 to 3, for a c that was not observed."""
    nearest = sorted(observed, key=lambda pair: canberra(c, pair[0]))[:k]
    w = [1 / canberra(c, c_i) for c_i, _ in nearest]
    return sum(w_i * y_i for w_i, (_, y_i) in zip(w, nearest, strict=True)) / sum(w)


def having(pairs: Sequence[tuple[Sequence[float], float]], k: int = 9, remembered: int = 100) -> WeightedNeighbours:
    neighbours = WeightedNeighbours(k, remembered)
    for c, y in pairs:
        neighbours.observe(c, y)
    return neighbours


def test_the_equations_by_hand() -> None:
    """d((1, 2), (3, 2)) = 2/4, d((1, 2), (1, 6)) = 4/8: both weigh 2; d((1, 2), (4, 2)) = 3/5 is out with k = 2."""
    neighbours = having([((3, 2), 10.0), ((1, 6), 20.0), ((4, 2), 1000.0)], k=2)
    assert neighbours.estimate([(1, 2)]).tolist() == pytest.approx([15.0])
    # d((2, 2), (3, 2)) = 1/5, d((2, 2), (4, 2)) = 1/3: weights 5 and 3
    assert neighbours.estimate([(2, 2)]).tolist() == pytest.approx([(5 * 10 + 3 * 1000) / 8])


def test_many_estimates_at_once_follow_the_equations() -> None:
    rng = np.random.default_rng(0)
    rows = np.unique(rng.integers(0, 8, (90, 6)), axis=0)
    observed: list[tuple[Sequence[float], float]]
    observed = [(tuple(c), float(y)) for c, y in zip(rows[:60].tolist(), rng.random(60), strict=True)]
    unseen = [tuple(c) for c in rows[60:].tolist()]
    assert having(observed).estimate(unseen) == pytest.approx([f_hat(c, observed, 9) for c in unseen])


def test_an_observed_configuration_has_its_own_performance() -> None:
    neighbours = having([((1, 1), 3.0), ((1, 2), 5.0), ((0, 0), 7.0)])
    assert neighbours.estimate([(1, 2), (0, 0)]).tolist() == [5.0, 7.0]


def test_fewer_observations_than_neighbours_all_count() -> None:
    assert having([((1,), 2.0), ((3,), 4.0)], k=9).estimate([(2,)])[0] == pytest.approx((3 * 2 + 5 * 4) / 8)


def test_of_equally_near_neighbours_the_first_count() -> None:
    pairs = [((2, 1), 1.0), ((1, 2), 2.0)]
    assert having(pairs, k=1).estimate([(1, 1)]).tolist() == [1.0]
    assert having(pairs[::-1], k=1).estimate([(1, 1)]).tolist() == [2.0]


def test_failures_pull_an_estimate_down() -> None:
    around = [((1, 2), 0.0), ((2, 1), 0.0), ((3, 3), 9.0)]
    assert having(around).estimate([(1, 1)])[0] < having([((1, 2), 9.0), *around[1:]]).estimate([(1, 1)])[0] < 9.0


def test_the_oldest_observations_are_forgotten() -> None:
    pairs = [((1,), 1.0), ((2,), 2.0), ((9,), 9.0)]
    assert having(pairs, remembered=2).estimate([(1,)]) == pytest.approx(having(pairs[1:]).estimate([(1,)]))


def test_what_makes_no_sense_is_refused() -> None:
    for k, remembered in [(0, 1), (1, 0)]:
        with pytest.raises(ValueError, match="k >= 1"):
            WeightedNeighbours(k, remembered)
    with pytest.raises(ValueError, match="nothing was observed"):
        WeightedNeighbours(9, 9).estimate([(1,)])
