"""`minimize` with whatever an objective does, and whatever its settings are: a recorded failure, or one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stormdrop as sd
from stormdrop.errors import MeasureError, SearchError, SpaceError, StormdropError
from stormdrop.records import State, open_store
from stormdrop.search.contract import Steps
from stormdrop.search.random import Random
from stormdrop.statistics import Interval, median_interval, rank
from stormdrop.trial import Candidate, Request

SPACE = sd.Space("s", [sd.Ordinal("x", range(6)), sd.Categorical("kind", ["a", "\ud800", "\0"])])


ONES = np.ones(3)


class Silent(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class Unshown:
    """An object that cannot be shown or converted."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no")


def raising(error: BaseException) -> Callable[[], Any]:
    def result() -> Any:
        raise error

    return result


def numbers() -> Iterator[float]:
    yield 1.0


GOOD: dict[str, Any] = {
    "1,100 samples": [1e-3 + 1e-6 * i for i in range(1_100)],
    "100,000 samples": np.linspace(1e-3, 2e-3, 100_000),
    "a long double": np.longdouble("1e-3"),
    "a number of NumPy": np.float16(0.5),
    "an array of no dimension": np.array(1e-3),
    "a whole number": 3,
    "a tuple": (1.0, 2.0),
    "the least": 1e-100,
    "the greatest": [1e100, 1e100],
}
BAD: dict[str, Any] = {
    "none": None,
    "not a number": math.nan,
    "infinite": math.inf,
    "a negative number": -1.0,
    "zero": 0.0,
    "a truth value": True,
    "a complex number": 1j,
    "a decimal": Decimal(1),
    "a fraction": Fraction(1, 2),
    "a generator": numbers(),
    "text": "1.0",
    "bytes": b"1",
    "a mapping": {"seconds": 1.0},
    "an object": object(),
    "what cannot be shown": Unshown(),
    "lists of different lengths": [(1.0, 2.0), (1.0,)],
    "no samples": [],
    "a matrix": [[1.0]],
    "too small": 5e-324,
    "too large": 1.7e308,
    "a longer long double": np.longdouble("1e4000"),
    "a number of many digits": 10**5000,
    "two million samples": np.ones(2_000_000),
}
RAISED: dict[str, BaseException] = {
    "an exception without text": Silent(),
    "an exception with odd letters": ValueError("\ud800\0\x1b[2J"),
    "a long exception": ValueError("x" * 10**6),
    "no memory": MemoryError(),
    "a recursion": RecursionError("deep"),
    "an iteration": StopIteration(),
    "a group": sd.StormdropError("ours"),
}


@pytest.mark.parametrize("kind", GOOD)
def test_what_counts_as_seconds(kind: str) -> None:
    result = sd.minimize(SPACE, lambda config: GOOD[kind], trials=4, search="random")
    assert (result.trials, result.failed) == (4, 0)
    assert result.best is not None
    assert result.best.seconds == pytest.approx(float(np.median(GOOD[kind])))


@pytest.mark.parametrize("kind", [*BAD, *RAISED])
def test_every_other_result_is_a_failure_of_its_candidate(kind: str) -> None:
    def objective(config: dict[str, Any]) -> Any:
        if config["x"] < 3:
            return raising(RAISED[kind])() if kind in RAISED else BAD[kind]
        return 1e-3 * config["x"]

    with open_store("sqlite://") as store:
        result = sd.minimize(SPACE, objective, search="grid", store=store, name=kind)
        (summary,) = store.sessions()
        records = list(store.records(store.session(summary.id)))
    assert (result.trials, result.failed) == (18, 9)
    assert result.best is not None
    assert result.best.config["x"] == 3
    assert len(records) == 18
    errors = {record.measurement.error for record in records if not record.measurement.ok}
    assert all(error and len(error) <= 303 and error.isprintable() for error in errors)


@pytest.mark.parametrize("search", ["droplet", "storm", "genetic", "annealing", "nose", "gradient", "evolutionary"])
def test_searches_compute_with_the_least_and_the_greatest_seconds(search: str) -> None:
    space = sd.Space("s", [sd.Ordinal("x", range(40)), sd.Ordinal("y", range(40))])
    result = sd.minimize(space, lambda config: 1e-100 if config["x"] % 2 else 1e100, search=search, trials=70)
    assert result.best is not None and result.best.seconds == 1e-100


def test_an_objective_that_always_fails_ends_in_a_line() -> None:
    space = sd.Space("s", [sd.Ordinal("x", range(100))])
    with pytest.raises(
        MeasureError, match=r"all 32 candidates failed in the same way .*Silent: its message cannot be shown"
    ):
        sd.minimize(space, lambda config: raising(Silent())(), search="grid")


def test_a_constraint_that_raises_later_keeps_what_was_measured() -> None:
    def partial(x: int) -> bool:
        if x >= 98_000:
            raise ValueError("not here")
        return True

    space = sd.Space("s", [sd.Ordinal("x", range(10**5))], [sd.Constraint(("x",), partial, "partial")])
    result = sd.minimize(space, lambda config: 1.0 + config["x"], search="random", trials=1_000)
    assert not result.interrupted
    assert "constraint 'partial' fails for {'x': 9" in result.ended_by and "not here" in result.ended_by
    assert result.error == "" and result.to_json()["ended_by"] == result.ended_by
    assert f"ended by an error: {result.ended_by}" in repr(result) and "budget" not in repr(result)
    assert 0 < result.trials < 400
    assert result.best is not None


def test_a_search_that_breaks_is_no_result_and_its_records_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(self: Random) -> Steps:
        yield [Request(Candidate("s", SPACE.origin), 1)]
        raise SearchError("it is broken")

    monkeypatch.setattr(Random, "steps", steps)
    with open_store("sqlite://") as store:
        with pytest.raises(SearchError, match="it is broken"):
            sd.minimize(SPACE, lambda config: 1.0, search="random", store=store, name="broken")
        (summary,) = store.sessions()
        assert (summary.state, summary.trials) == (State.INTERRUPTED, 1)


def test_a_constraint_that_raises_at_once_is_a_line() -> None:
    def never(x: int) -> bool:
        raise Silent

    with pytest.raises(SpaceError, match=r"'never' fails for .*: Silent: its message cannot be shown"):
        sd.Space("s", [sd.Ordinal("x", [1, 2])], [sd.Constraint(("x",), never, "never")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1.5}, "seed=1.5 must be a whole number"),
        ({"seed": None}, "seed=None must be a whole number"),
        ({"seed": "1"}, "seed='1' must be a whole number"),
        ({"seed": -1}, "seed=-1 must be 0 or more"),
        ({"trials": 2.5}, "trials=2.5 must be a whole number"),
        ({"trials": "2"}, "trials='2' must be a whole number"),
        ({"time": []}, r"time \[\]: not a duration"),
        ({"time": math.nan}, "time nan: must be greater than zero"),
        ({"time": math.inf}, "time inf: too long"),
        ({"time": "9" * 400}, "time 9+...: too long"),
        ({"time": 10**400}, "time .*: too long"),
        ({"time": 1j}, "time 1j: not a duration"),
        ({"search": 5}, "search=5 must be the name of a search"),
        ({"search": []}, r"search=\[\] must be the name of a search"),
        ({"options": [("repeats", 1)]}, "options=.* must be the values of a search's options"),
        ({"options": {"repeats": "x"}}, "repeats='x' must be a whole number"),
        ({"options": {"repeats": 1.5}}, "repeats=1.5 must be a whole number"),
        ({"options": {"repeats": True}}, "repeats=True must be a whole number"),
        ({"options": {5: 1}}, "options={5: 1} must be the values of a search's options"),
        ({"store": "records.db"}, "store='records.db' must be a store"),
        ({"on_progress": 5}, "on_progress=5 must be a function"),
        ({"name": 5}, "name=5 must be text"),
        ({"space": None}, "space=None must be a Space or a list of them"),
        ({"space": [SPACE, 5]}, "space=.* must be a Space or a list of them"),
        ({"space": []}, "needs at least one space"),
        ({"objective": None}, "objective=None must be a function"),
        ({"objective": Unshown()}, "objective=an object of type Unshown must be a function"),
    ],
)
def test_settings_that_are_none(change: dict[str, Any], message: str) -> None:
    called: list[dict[str, Any]] = []
    settings = {"space": SPACE, "objective": called.append, "trials": 2, "search": "random", **change}
    with pytest.raises(StormdropError, match=message) as caught:
        sd.minimize(settings.pop("space"), settings.pop("objective"), **settings)
    assert "\n" not in str(caught.value)
    assert not called


def test_numbers_of_numpy_as_settings(tmp_path: Any) -> None:
    options = {"repeats": np.int64(2)}
    with open_store(tmp_path / "records.db") as store:
        result = sd.minimize(
            SPACE,
            lambda config: 1.0,
            seed=np.int32(3),
            trials=np.uint8(2),
            time=np.float32(5),
            options=options,
            search="random",
            store=store,
            name="n",
        )
    assert (result.seed, result.trials) == (3, 2)


@pytest.mark.parametrize(
    ("configurations", "settings", "message"),
    [
        (5, {}, "what may vary of .* is a list, not 5"),
        ({"block": 5}, {}, "what may vary of .* is a list, not 5"),
        ([5], {}, "a configuration of .* is a value per parameter, not 5"),
        ([{"block": [1]}], {}, "'block' of .* is a number, a truth value or text, not list"),
        ({"block": [1, float("nan")]}, {}, "finite number or text, not nan"),
        ({"block": [1, 2]}, {"key": 5}, "key=5 is neither a function nor a sequence of names"),
        ({"block": [1, 2]}, {"restore": 5}, "restore=5 is no sequence of names"),
        ({"block": [1, 2]}, {"seed": 1.5}, "seed=1.5 must be a whole number"),
    ],
)
def test_hostile_settings_of_autotune(configurations: Any, settings: dict[str, Any], message: str) -> None:
    def function(values: Any, block: Any = ONES) -> None: ...

    with pytest.raises(sd.InputError, match=message):
        sd.autotune(configurations, **settings)(function)


def test_autotune_of_what_is_no_function() -> None:
    with pytest.raises(sd.InputError, match="5 is no function whose parameters are known"):
        sd.autotune({"block": [1, 2]})(5)  # type: ignore[arg-type]


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.complex_numbers(),
        st.decimals(),
    ),
    lambda values: st.one_of(st.lists(values, max_size=3), st.tuples(values), st.dictionaries(st.text(), values)),
    max_leaves=4,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(anything, min_size=4, max_size=4))
def test_any_results(results: list[Any]) -> None:
    space = sd.Space("s", [sd.Ordinal("x", range(4))])
    result = sd.minimize(space, lambda config: results[config["x"]], search="grid", trials=4)
    assert result.trials == 4
    assert (result.best is None) == (result.failed == 4)


@settings(max_examples=60, deadline=None)
@given(st.lists(anything, max_size=4))
def test_any_values_of_a_knob(values: list[Any]) -> None:
    try:
        space = sd.Space("s", [sd.Ordinal("x", values), sd.Categorical("y", values)])
    except SpaceError:
        return
    with open_store("sqlite://") as store:
        result = sd.minimize(space, lambda config: 1.0, trials=3, search="random", store=store, name="any")
    assert result.failed == 0


@pytest.mark.parametrize("count", [999, 1_000, 1_001, 1_075, 5_000, 100_000])
def test_intervals_of_many_samples(count: int) -> None:
    found = median_interval(range(1, count + 1))
    half = 1.96 * math.sqrt(count) / 2
    assert isinstance(found, Interval)
    assert found.estimate == (count + 1) / 2
    assert found.low == pytest.approx(found.estimate - half, abs=1.5)
    assert found.high == pytest.approx(found.estimate + half, abs=1.5)


def test_ranks_of_many_samples() -> None:
    rng = np.random.default_rng(0)
    slow = rng.normal(1.0, 0.1, 20_000)
    assert rank((slow * 0.99).tolist(), slow.tolist())
    assert not rank(slow.tolist(), (slow * 0.99).tolist())
