"""Minimizing a callable: the same loop as for kernels, and what is different about records of callables."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stormdrop as sd
from stormdrop.errors import InputError, SearchError
from stormdrop.records import State, Store, default_path, open_store
from stormdrop.tuning.result import MinimizeResult

SPACE = sd.Space(
    "plane", [sd.Ordinal("x", range(12)), sd.Ordinal("y", range(12)), sd.Categorical("kind", ["plain", "fancy"])]
)
BOTTOM = {"x": 7, "y": 4, "kind": "fancy"}


def bowl(config: dict[str, Any]) -> float:
    """Milliseconds that grow with the distance from `BOTTOM`."""
    away = sum((config[axis] - BOTTOM[axis]) ** 2 for axis in ("x", "y"))
    return 1e-3 * (1 + 0.1 * away + (config["kind"] != BOTTOM["kind"]))


class Counting:
    """An objective that keeps what it was asked, and may be interrupted."""

    def __init__(self, objective: Callable[..., Any] = bowl, interrupt_after: int | None = None) -> None:
        self.objective, self.left = objective, interrupt_after
        self.asked: list[tuple[Any, ...]] = []

    def __call__(self, config: dict[str, Any]) -> Any:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left = None if self.left is None else self.left - 1
        self.asked.append(tuple(config.values()))
        return self.objective(config)


def minimized(objective: Callable[..., Any], store: Store | None = None, **settings: Any) -> MinimizeResult:
    return sd.minimize(SPACE, objective, **{"store": store, "name": "bowl", "search": "droplet", **settings})


def stored(store: Store) -> list[tuple[str, tuple[float, ...]]]:
    (summary,) = store.sessions()
    trials = store.records(store.session(summary.id))
    return [(json.dumps(dict(trial.config)), trial.measurement.seconds) for trial in trials]


# Searching


def test_it_finds_the_bottom_and_says_what_was_gained() -> None:
    result = minimized(bowl)
    assert result.converged and not result.interrupted
    assert result.best is not None and result.best.speedup is not None
    assert (result.best.sketch, result.best.config) == ("plane", BOTTOM)
    assert result.best.seconds == bowl(BOTTOM)
    assert result.best.interval == (result.best.seconds, result.best.seconds)
    assert result.baseline == bowl(SPACE.config(SPACE.origin))
    assert result.best.speedup[0] == pytest.approx(result.baseline / result.best.seconds)
    assert result.trials < SPACE.size
    assert (result.failed, result.error, set(result.statuses)) == (0, "", {"ok"})
    assert result.curve[-1][1] == bowl(BOTTOM)


@pytest.mark.parametrize("search", ["grid", "droplet"])
def test_trials_bound_the_distinct_configurations(search: str) -> None:
    objective = Counting()
    result = minimized(objective, search=search, trials=9)
    assert len(set(objective.asked)) == result.trials == 9


def test_no_significant_difference_keeps_the_default() -> None:
    result = minimized(lambda config: 1e-3, search="random", trials=20)
    assert result.best is not None
    assert (result.best.config, result.best.speedup) == (SPACE.config(SPACE.origin), None)


def test_a_failure_is_a_value() -> None:
    def fails(config: dict[str, Any]) -> float:
        if config["kind"] == "fancy":
            raise OSError("out of\nfancy")
        return bowl(config)

    result = minimized(fails, search="grid")
    assert (result.trials, result.failed) == (SPACE.size, SPACE.size // 2)
    assert result.statuses["runtime"] == result.failed
    assert result.error == "OSError: out of fancy"
    assert result.best is not None and result.best.config == {**BOTTOM, "kind": "plain"}


def test_where_nothing_works_the_result_says_why() -> None:
    result = minimized(lambda config: None, trials=5)
    assert (result.best, result.baseline, result.failed) == (None, None, 5)
    assert result.error == "the objective must return seconds, one number or several, finite and above zero, not None"


def test_several_spaces_tell_the_objective_which() -> None:
    here, there = sd.Space("here", [sd.Ordinal("x", range(9))]), sd.Space("there", [sd.Ordinal("y", range(9))])

    def objective(sketch: str, config: dict[str, int]) -> float:
        return 2e-3 + config["x"] if sketch == "here" else 1e-3 + config["y"]

    result = sd.minimize([here, there], objective, search="random")
    assert result.trials == 18
    assert result.best is not None
    assert (result.best.sketch, result.best.config, result.baseline) == ("there", {"y": 0}, 2e-3)
    alone = sd.minimize([here], objective, search="random")
    assert (alone.trials, alone.failed) == (9, 0)


def test_races_are_as_long_as_calls_not_as_what_they_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a second that reports a microsecond: three rounds; a call of no time at all: fifteen."""

    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    def calls_in_the_race(wall: float) -> int:
        def objective(config: dict[str, Any]) -> list[float]:
            clock.now += wall
            return [1e-3 * bowl(config)] * 3

        counting = Counting(objective)
        result = minimized(counting, search="grid", trials=SPACE.size)
        assert result.best is not None and result.best.config == BOTTOM
        return len(counting.asked) - SPACE.size

    clock = Clock()
    monkeypatch.setattr("stormdrop.measure.callable.time", clock)
    assert calls_in_the_race(1.0) == 3 * 4  # the default and the fastest three
    assert calls_in_the_race(0.025) == 10 * 4
    assert calls_in_the_race(0.0) == 15 * 4


def test_progress_is_told() -> None:
    seen: list[sd.Progress] = []
    minimized(bowl, search="random", trials=20, on_progress=seen.append)
    assert [progress.trials for progress in seen] == [8, 16, 20]


def test_the_document_is_json() -> None:
    result = minimized(bowl, trials=30)
    document = json.loads(json.dumps(result.to_json()))
    assert (document["name"], document["error"]) == ("bowl", "")
    assert document["best"]["config"] == dict(result.best.config if result.best else {})
    assert document["baseline"] == {"seconds": result.baseline, "failed": False}
    assert set(document["phases"]) == {"start", "search", "run", "race", "other"}
    assert (document["trials"], document["converged"]) == (result.trials, result.converged)


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="trials=0"):
        minimized(bowl, trials=0)
    with pytest.raises(InputError, match="not a duration"):
        minimized(bowl, time="soon")
    with pytest.raises(InputError, match="needs the store"):
        minimized(bowl, resume=True)
    with pytest.raises(SearchError, match="did you mean 'droplet'"):
        minimized(bowl, search="droplets")
    with pytest.raises(SearchError, match="at least one space"):
        sd.minimize([], bowl)
    with open_store("sqlite://") as store:
        with pytest.raises(InputError, match="exclude each other"):
            minimized(bowl, store, resume=True, fresh=True)
        assert store.sessions() == []


# Records


def test_without_a_store_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert minimized(bowl, trials=3).trials == 3
    assert default_path().is_relative_to(tmp_path) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("search", ["droplet", "random"])
@pytest.mark.parametrize("calls", [0, 1, 13, 40])
def test_a_resumed_run_ends_as_an_undisturbed_one(search: str, calls: int) -> None:
    settings: dict[str, Any] = {"search": search, "seed": 3, "trials": 30}
    with open_store("sqlite://") as undisturbed, open_store("sqlite://") as store:
        whole = minimized(bowl, undisturbed, **settings)
        cut = minimized(Counting(interrupt_after=calls), store, **settings)
        assert cut.interrupted
        assert store.sessions()[0].state is State.INTERRUPTED
        kept = stored(store)
        assert cut.trials == len({config for config, _ in kept})
        again = Counting()
        resumed = minimized(again, store, resume=True, **settings)
        assert stored(store)[: len(kept)] == kept
        assert stored(store) == stored(undisturbed)
        assert (resumed.best, resumed.reused) == (whole.best, cut.trials)
        assert not resumed.interrupted


def test_a_session_with_a_preset_says_so_and_is_resumed_with_it() -> None:
    settings: dict[str, Any] = {"options": {"preset": "paper"}, "trials": 30}
    with open_store("sqlite://") as store:
        cut = minimized(Counting(interrupt_after=13), store, **settings)
        (summary,) = store.sessions()
        recorded = store.session(summary.id).setting.options
        assert (recorded["preset"], recorded["neighbourhood"]) == ("paper", "coordinates")
        ours = minimized(Counting(interrupt_after=13), store, resume=True, trials=30)
        assert ours.reused == 0  # another preset is another session
        resumed = minimized(Counting(), store, resume=True, **settings)
        assert resumed.reused == cut.trials > 0


def test_an_interrupt_brings_the_best_so_far() -> None:
    result = minimized(Counting(interrupt_after=20))
    assert result.interrupted
    assert result.best is not None
    assert result.best.seconds == result.curve[-1][1]
    assert result.best.speedup is None


def test_a_finished_record_answers_only_who_resumes() -> None:
    with open_store("sqlite://") as store:
        first = minimized(bowl, store)
        assert first.converged
        resumed, anew = Counting(), Counting()
        answer = minimized(resumed, store, resume=True)
        assert resumed.asked == []
        assert (answer.best, answer.baseline, answer.reused) == (first.best, first.baseline, first.trials)
        assert (answer.trials, answer.statuses, answer.curve) == (first.trials, first.statuses, first.curve)
        assert minimized(anew, store).reused == 0
        assert len(set(anew.asked)) == first.trials


def test_a_smaller_record_is_no_answer_to_a_larger_request() -> None:
    with open_store("sqlite://") as store:
        minimized(bowl, store, search="random", trials=5)
        larger, smaller = Counting(), Counting()
        assert minimized(larger, store, search="random", trials=12, resume=True).reused == 0
        assert len(set(larger.asked)) >= 12
        assert minimized(smaller, store, search="random", trials=4, resume=True).reused > 0
        assert smaller.asked == []


def test_the_best_of_earlier_runs_races_again() -> None:
    """As it is now, not as it is recorded: the code behind the name may have changed."""

    def slow_at_the_bottom(config: dict[str, Any]) -> float:
        return bowl(config) if config != BOTTOM else 1.0

    with open_store("sqlite://") as store:
        minimized(bowl, store)
        later = minimized(bowl, store, search="random", trials=1)
        assert later.best is not None and later.best.config == BOTTOM
        fresh = minimized(bowl, store, search="random", trials=1, fresh=True)
        assert fresh.best is not None and fresh.best.config != BOTTOM
        changed = Counting(slow_at_the_bottom)
        result = minimized(changed, store, search="random", trials=1)
        assert tuple(BOTTOM.values()) in changed.asked
        assert result.best is not None and result.best.config != BOTTOM


def test_another_name_or_space_is_another_problem() -> None:
    other = sd.Space("plane", [*SPACE.knobs[:2], sd.Categorical("kind", ["fancy", "plain"])])
    with open_store("sqlite://") as store:
        minimized(bowl, store)
        for space, name in ((SPACE, "basin"), (other, "bowl")):
            objective = Counting()
            sd.minimize(space, objective, store=store, name=name, search="droplet", resume=True)
            assert objective.asked


def test_recorded_points_that_are_none_any_more_are_left_out() -> None:
    """A constraint that was changed but still says the same: the records of before must not end the run."""

    def space(least: int) -> sd.Space:
        large = sd.Constraint(("x",), lambda x: x >= least, "x is large")
        return sd.Space("line", [sd.Ordinal("x", range(9))], [large], origin={"x": 5})

    def objective(config: dict[str, Any]) -> float:
        return 1e-3 + config["x"]

    settings: dict[str, Any] = {"name": "line", "search": "grid", "options": {"repeats": 1}}
    with open_store("sqlite://") as store:
        cut = sd.minimize(space(0), Counting(objective, interrupt_after=4), store=store, **settings)
        assert cut.interrupted and cut.trials == 4
        resumed = sd.minimize(space(2), objective, store=store, resume=True, **settings)
    assert (resumed.reused, resumed.trials) == (2, 7)
    assert resumed.best is not None and resumed.best.config == {"x": 2}


def test_records_go_by_the_qualified_name() -> None:
    with open_store("sqlite://") as store:
        result = minimized(bowl, store, trials=2, name=None)
        assert result.name == f"{__name__}.bowl" == store.sessions()[0].workload_name
        for nameless in (lambda config: 1.0, functools.partial(bowl), Counting()):
            assert minimized(nameless, trials=1, name=None).name == ""
            with pytest.raises(InputError, match="give one with name="):
                minimized(nameless, store, trials=1, name=None)
