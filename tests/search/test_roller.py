"""The construction: aligned tiles, the order of the model, and few measurements."""

import math

import numpy as np
import pytest

from stormdrop.errors import SearchError
from stormdrop.search import Knowledge, create
from stormdrop.space import Categorical, Constraint, Ordinal, Space, Tile
from stormdrop.testing import drive, objective_of
from stormdrop.trial import Candidate

SPACE = Space(
    "s",
    [Tile("rows", 96, 3), Tile("columns", 96, 2), Ordinal("unroll", [0, 16, 64]), Categorical("order", ["ij", "ji"])],
    [Constraint(("rows", "columns"), lambda rows, columns: rows[2] * columns[1] <= 512, "fits the cache")],
)


def seconds(candidate: Candidate) -> float:
    """Best with 8 rows and 48 columns in the innermost tile."""
    config = SPACE.config(candidate.point)
    rows, columns = config["rows"], config["columns"]
    assert isinstance(rows, tuple)
    assert isinstance(columns, tuple)
    return 1e-3 * (1 + math.log2(rows[2] / 8) ** 2 + math.log2(columns[1] / 48) ** 2 + 0.1 * (config["order"] == "ij"))


def prior(candidates: list[Candidate]) -> np.ndarray:
    return np.array([seconds(candidate) for candidate in candidates])


def run(knowledge: Knowledge, **options: object) -> list[Candidate]:
    search = create("roller", [SPACE], np.random.default_rng(0), knowledge, **options)
    trials = drive(search, objective_of(seconds), 4)
    assert search.finished
    assert not search.converged
    return [trial.candidate for trial in trials]


def test_ten_candidates_are_measured_the_expected_best_first() -> None:
    measured = run(Knowledge(prior=prior, unit=16))  # type: ignore[arg-type]
    assert len(measured) == len(set(measured)) == 10
    times = [seconds(candidate) for candidate in measured]
    assert times == sorted(times)
    assert times[0] == 1e-3  # a right model finds the optimum without a measurement


def test_tiles_are_aligned_to_the_unit() -> None:
    """All tile sizes are powers of two or multiples of 16: of the divisors of 96 not 3, 6, 12 and 24."""
    for unit, allowed in [(16, {1, 2, 4, 8, 16, 32, 48, 96}), (None, {1, 2, 4, 8, 16, 32})]:
        measured = run(Knowledge(prior=prior, unit=unit), measured=200)  # type: ignore[arg-type]
        constructed = [SPACE.config(candidate.point) for candidate in measured[:100]]
        sizes = {factor for config in constructed for name in ("rows", "columns") for factor in config[name][1:]}  # type: ignore[index]
        assert sizes <= allowed
        assert (48 in sizes) == (unit == 16)


def test_without_a_model_larger_tiles_come_first() -> None:
    measured = run(Knowledge(unit=16))
    assert len(measured) == 10
    sums = [sum(candidate.point) for candidate in measured]
    assert sums == sorted(sums, reverse=True)


def test_it_goes_on_until_a_candidate_works() -> None:
    best = {Candidate("s", point) for point in SPACE.points() if seconds(Candidate("s", point)) < 1.6e-3}
    knowledge = Knowledge(prior=prior, unit=16)  # type: ignore[arg-type]
    search = create("roller", [SPACE], np.random.default_rng(0), knowledge)
    trials = drive(search, objective_of(seconds, fails=best.__contains__), 4)
    assert len(trials) >= 10
    assert trials[-1].ok or any(trial.ok for trial in trials[-4:])
    assert not any(trial.ok for trial in trials[:4])


def test_a_bad_value_is_one_line() -> None:
    with pytest.raises(SearchError, match="roller's measured must be at least 1, not 0"):
        create("roller", [SPACE], np.random.default_rng(0), measured=0)
