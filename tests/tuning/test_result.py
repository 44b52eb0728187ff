"""What a result of a tuning says if there is no schedule, or no peak to compare it with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from replayed_tuning import TARGET, WORKLOAD, Counting, tune_replayed

from stormdrop.errors import UnsupportedFunction
from stormdrop.machine.limits.peak import Peak
from stormdrop.measure.contract import Measurer
from stormdrop.records import StoredSession, open_store
from stormdrop.report.traces.announcement import Run, runs_at_work
from stormdrop.space import Ordinal, Space
from stormdrop.trial import Candidate, Measurement, Request, Status
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.minimize import minimize
from stormdrop.tuning.tune import tune


def test_a_result_without_a_schedule_says_so() -> None:
    class Broken(Counting):
        def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
            for _ in requests:
                yield Measurement(Status.RUNTIME, (), "died")

        def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
            return [Measurement(Status.RUNTIME, (), "died")] * len(candidates)

    with open_store("sqlite://") as store:
        result = tune_replayed(store, Broken(), trials=5)
    assert (result.best, result.failed) == (None, 5)
    with pytest.raises(UnsupportedFunction, match="no candidate worked"):
        _ = result.variant
    with pytest.raises(UnsupportedFunction, match="no candidate worked"):
        result.schedule()


def test_nothing_that_was_tried_is_told_from_nothing_that_worked() -> None:
    with open_store("sqlite://") as store:
        result = tune_replayed(store, Counting(), time=1e-6)
    assert (result.trials, result.best) == (0, None)
    assert "no time was left to measure" in repr(result) and "no candidate worked" not in repr(result)
    with pytest.raises(UnsupportedFunction, match="no time was left to measure"):
        result.schedule()


@pytest.mark.parametrize(
    ("budget", "tried"), [({"time": 1e-6}, "nothing was measured"), ({"trials": 2}, "no candidate")]
)
def test_an_error_that_ended_a_search_is_why_nothing_was_found(budget: dict[str, Any], tried: str) -> None:
    with open_store("sqlite://") as store:
        result = replace(tune_replayed(store, Counting(), **budget), best=None, ended_by="a bad constraint")
    assert result.why_no_best.startswith(tried) and result.why_no_best.endswith("the search: a bad constraint")
    with pytest.raises(UnsupportedFunction, match="a bad constraint"):
        result.schedule()


@pytest.mark.parametrize("trials", [None, 4, 100])
def test_a_space_that_was_measured_as_a_whole_did_not_end_by_its_budget(trials: int | None) -> None:
    result = minimize(
        Space("s", [Ordinal("x", [1, 2, 4, 8])]), lambda config: config["x"], search="grid", trials=trials
    )
    assert result.trials == 4
    assert (result.end, result.converged) == ("exhausted", False)
    assert repr(result).endswith("ended because every candidate was measured")


def test_the_end_of_a_search() -> None:
    space = Space("s", [Ordinal("x", list(range(1, 60)))])
    ends = {
        search: minimize(space, lambda config: config["x"], search=search, trials=30) for search in ("grid", "droplet")
    }
    assert {search: result.end for search, result in ends.items()} == {"grid": "budget", "droplet": "converged"}
    assert repr(ends["grid"]).endswith("ended because its budget was spent")
    assert repr(ends["droplet"]).endswith("converged")


def test_the_end_of_a_recorded_search_is_kept() -> None:
    space = Space("s", [Ordinal("x", [1, 2, 4, 8])])
    with open_store("sqlite://") as store:
        first = minimize(space, lambda config: config["x"], search="grid", store=store, name="f")
        again = minimize(space, lambda config: config["x"], search="grid", store=store, name="f", resume=True)
    assert again.reused == 4
    assert first.end == again.end == "exhausted"


def test_the_end_of_a_search_of_version_0_3_is_known() -> None:
    """Its records hold no `end`, but whether the search was exhausted."""
    space = Space("s", [Ordinal("x", [1, 2, 4, 8])])

    def older(session: StoredSession) -> StoredSession:
        assert session.outcome is not None
        kept = {key: value for key, value in session.outcome.extra.items() if key != "end"}
        return replace(session, outcome=replace(session.outcome, extra=kept))

    with open_store("sqlite://") as now, open_store("sqlite://") as store:
        minimize(space, lambda config: config["x"], search="grid", store=now, name="f")
        store.absorb(((older(session), trials) for session, trials in now.dump()), measured_here=True)
        again = minimize(space, lambda config: config["x"], search="grid", store=store, name="f", resume=True)
    assert (again.reused, again.end) == (4, "exhausted")


def test_a_result_says_that_it_was_disturbed() -> None:
    class Disturbed(Counting):
        def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
            return [replace(each, suspect=True) for each in super().race(candidates, rounds)]

    with open_store("sqlite://") as store:
        quiet, disturbed = (tune_replayed(store, each, trials=6, fresh=True) for each in (Counting(), Disturbed()))
    assert "disturbed" not in repr(quiet)
    assert "during the last race: no speed-up is claimed" in repr(disturbed)


def test_the_dashboard_knows_a_tuning_that_python_began() -> None:
    runs: list[Run] = []
    with open_store("sqlite://") as store:
        tune_replayed(store, Counting(), trials=6, on_progress=lambda _: runs.extend(runs_at_work()))
    assert {run.what for run in runs} == {WORKLOAD.name}
    assert {run.budget_trials for run in runs} == {6}
    assert runs[-1].phase == "searching"
    assert runs_at_work() == []


def measured_too_late(*_: Any, **__: Any) -> None:
    raise AssertionError("the peak is measured after the tuning has ended")


@pytest.mark.parametrize("known", [None, Peak(1e9, 1e9, undisturbed=False)])
def test_a_document_measures_nothing(known: Peak | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a tuning is over then, and a model has many documents."""
    monkeypatch.setattr("stormdrop.machine.limits.peak._measure_in_child", measured_too_late)
    monkeypatch.setattr("stormdrop.machine.limits.peak.known_peak", lambda target: known)
    with open_store("sqlite://") as store:
        result = tune_replayed(store, Counting(), trials=8)
        document = result.to_json()
    rate = document["best"]["gflops"]
    assert rate > 0
    assert document["best"]["percent_of_peak"] == (None if known is None else pytest.approx(100 * rate))


def test_the_peak_is_measured_before_the_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time counts, and a request that the records answer does not need it."""
    steps: list[Any] = []

    def make(task: KernelTask, fastest: float | None) -> AbstractContextManager[Measurer]:
        steps.append("workers")
        return nullcontext(Counting())

    monkeypatch.setattr("stormdrop.measure.sites.peak_within", lambda target, seconds: steps.append(seconds))
    monkeypatch.setattr(KernelTask, "measurer", make)
    with open_store("sqlite://") as store:
        for _ in range(2):
            tune(WORKLOAD, target=TARGET, store=store, search="grid", trials=8, time=500.0)
    assert steps == [pytest.approx(15.0), "workers"]  # at most 3% of its time


def test_a_result_is_a_few_lines_of_text() -> None:
    with open_store("sqlite://") as store:
        result = tune_replayed(store, Counting(), trials=8)
    assert result.best is not None
    title, best, schedule, search = repr(result).splitlines()
    assert title == f"TuneResult of {WORKLOAD.name} on {TARGET.machine}:"
    assert best.startswith("  best      ") and " to " in best
    assert schedule == f"  schedule  {result.schedule()}"
    assert search.startswith("  search    ") and "8 trials, " in search
    assert repr(result.best) == f"{result.schedule()}: {result.best.timing()}"
    assert repr(result.variant).startswith("Variant of ")
    assert repr(TARGET).startswith(f"Cpu({TARGET.name!r}: ") and repr(WORKLOAD) == f"Workload({WORKLOAD.name!r})"
    assert all(len(line) < 200 for line in (title, best, schedule, search, repr(TARGET)))
