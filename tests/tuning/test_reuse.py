"""What earlier records are good for: they answer a request, or a search begins where they ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from replayed_tuning import (
    RECORDED,
    SIMILAR_WORKLOAD,
    TARGET,
    WORKLOAD,
    Counting,
    tune_replayed,
    tune_similar_kernel,
)

from stand_ins.faults import Plain
from stormdrop.records import Filter, Outcome, Store, open_store
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Measurement
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions
from stormdrop.tuning.tune import tune


def first_candidate(store: Store, **settings: Any) -> Candidate:
    measurer = Counting()
    tune_replayed(store, measurer, search="storm", trials=4, **settings)
    return measurer.candidates[0]


def test_a_kernel_begins_where_similar_ones_ended() -> None:
    (_, space), (_, similar_space) = sketches_for(WORKLOAD, TARGET)[0], sketches_for(SIMILAR_WORKLOAD, TARGET)[0]
    with open_store("sqlite://") as store:
        best = tune_similar_kernel(store).best
        assert best is not None
        end = Candidate(space.name, space.point(best.config))
        assert end not in {Candidate(space.name, space.origin), Candidate(similar_space.name, similar_space.origin)}
        assert first_candidate(store) == end
        assert first_candidate(store, fresh=True) == Candidate(space.name, space.origin)


def test_a_finished_record_is_the_answer() -> None:
    with open_store("sqlite://") as store:
        first = tune_replayed(store, Counting(), trials=12)
        measurer = Counting()
        again = tune_replayed(store, measurer, trials=12)
        assert measurer.candidates == []
        assert again.best is not None and first.best is not None
        assert (again.best.config, again.reused) == (first.best.config, first.trials)
        fresh = tune_replayed(store, measurer, trials=12, fresh=True)
        assert fresh.reused == 0
        assert len(set(measurer.candidates)) == 12


@pytest.mark.compiles
def test_a_record_of_another_space_is_not_taken() -> None:
    with open_store("sqlite://") as store:
        tune_replayed(store, Counting(), trials=4)
        result = tune(WORKLOAD, target=TARGET, store=store, sketches=[Plain()], trials=2)
        assert result.reused == 0
        assert result.best is not None and result.best.sketch == "plain"


def imported_from(store: Store, **claims: Any) -> Store:
    """A store with the sessions of another one, which are finished and converged with these outcomes."""
    other = open_store("sqlite://")
    other.absorb(
        (dataclasses.replace(session, outcome=dataclasses.replace(session.outcome, **claims)), trials)
        for session, trials in store.dump()
        if session.outcome is not None
    )
    return other


def test_what_somebody_else_measured_is_measured_here_before_it_answers() -> None:
    with open_store("sqlite://") as store:
        slow = tune_replayed(store, Counting(), trials=4, search="random", seed=3)
        best = min(RECORDED, key=lambda candidate: float(np.median(RECORDED[candidate])))
        (_, space) = sketches_for(WORKLOAD, TARGET)[0]
        theirs = {"sketch": best.sketch, "config": space.config(best.point), "converged": True}
        for claimed in (1e-9, 1e3):  # seconds: a lie in either direction
            with imported_from(store, **theirs, seconds=claimed) as other:
                measurer = Counting()
                result = tune_replayed(other, measurer, trials=4)
                assert measurer.candidates[0] == best, "the search begins there"
                assert (result.reused, result.trials) == (0, 4)
                assert result.best is not None and slow.best is not None
                assert result.best.config == theirs["config"]
                assert result.best.seconds == pytest.approx(float(np.median(RECORDED[best])), rel=0.1)
                again = tune_replayed(other, Counting(), trials=4)
                assert again.reused == 4, "our own session answers"


def test_a_lie_about_a_slow_candidate_wins_nothing() -> None:
    with open_store("sqlite://") as store:
        tune_replayed(store, Counting(), trials=4, search="random", seed=3)
        worst = max(RECORDED, key=lambda candidate: float(np.median(RECORDED[candidate])))
        (_, space) = sketches_for(WORKLOAD, TARGET)[0]
        claims = {"sketch": worst.sketch, "config": space.config(worst.point), "seconds": 1e-9, "converged": True}
        with imported_from(store, **claims) as other:
            result = tune_replayed(other, Counting(), trials=12)
            assert result.best is not None
            assert result.best.config != claims["config"]


class Disturbed(Counting):
    """A replay whose races take place beside foreign load."""

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return [dataclasses.replace(measurement, suspect=True) for measurement in super().race(candidates, rounds)]


def test_a_record_with_a_disturbed_race_is_no_answer() -> None:
    with open_store("sqlite://") as store:
        tune_replayed(store, Disturbed(), trials=12)
        second = Counting()
        again = tune_replayed(store, second, trials=12)
        assert len(set(second.candidates)) == again.trials == 12
        third = Counting()
        assert tune_replayed(store, third, trials=12).reused == 12
        assert third.candidates == []


def test_a_starved_record_is_no_answer_to_a_larger_request() -> None:
    with open_store("sqlite://") as store:
        tune_replayed(store, Counting(), search="random", trials=1)
        measurer = Counting()
        result = tune_replayed(store, measurer)  # neither trials nor time
        assert measurer.candidates
        assert (result.reused, result.converged) == (0, True)


@pytest.mark.long
def test_a_record_answers_what_asks_for_no_more() -> None:
    with open_store("sqlite://") as store:
        tune_replayed(store, Counting(), search="random", trials=12)
        smaller, larger, whole = Counting(), Counting(), Counting()
        assert tune_replayed(store, smaller, search="random", trials=7).reused == 12
        assert smaller.candidates == []
        assert tune_replayed(store, larger, search="random", trials=10**6).reused == 0
        assert set(larger.candidates) == set(RECORDED)
        assert tune_replayed(store, whole, search="random", trials=10**7).reused == len(RECORDED)  # there is no more
        assert whole.candidates == []


@pytest.mark.parametrize(("seconds", "answered"), [(5.0, True), (10.0, True), (11.0, False), (None, False)])
def test_a_record_answers_what_asks_for_no_more_time(seconds: float | None, answered: bool) -> None:
    """Of the record's 12 seconds 10 were its budget; without a limit a minute is meant."""
    (_, space), *_ = sketches_for(WORKLOAD, TARGET)
    with open_store("sqlite://") as store:
        tune_replayed(store, Counting(), search="random", trials=1)
        first = store.session(store.sessions()[0].id)
        planted = store.open(first.problem, first.setting)
        extra = {"budget": 10.0, "seconds": 12.0}
        store.finish(planted, Outcome(space.name, space.config(space.origin), 1e-3, extra=extra))
        measurer = Counting()
        tune_replayed(store, measurer, time=seconds)
        assert (measurer.candidates == []) is answered


def test_a_converged_record_answers_everything() -> None:
    with open_store("sqlite://") as store:
        first = tune_replayed(store, Counting(), trials=400)
        assert first.converged
        for settings in ({}, {"time": 1e6}, {"trials": 10**6}, {"search": "random"}):
            measurer = Counting()
            assert tune_replayed(store, measurer, **settings).reused == first.trials
            assert measurer.candidates == []


def test_a_record_of_another_compiler_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store("sqlite://") as store:
        with monkeypatch.context() as patch:
            patch.setattr("importlib.metadata.version", lambda name: "0.1")
            first = tune_replayed(store, Counting(), trials=400)
            assert first.converged
        again = tune_replayed(store, Counting(), trials=400)
        assert again.reused == 0


def test_a_new_session_is_not_worse_than_the_record() -> None:
    """The recorded best is among the finalists of a search that would never have come there."""
    bottom = min(RECORDED, key=lambda candidate: float(np.median(RECORDED[candidate])))
    with open_store("sqlite://") as store:
        tune_replayed(store, Counting(), search="random", trials=1)
        (summary,) = store.sessions(Filter())
        session = store.session(summary.id)
        (_, space), *_ = sketches_for(WORKLOAD, TARGET)
        planted = store.open(session.problem, session.setting)
        store.finish(planted, Outcome(bottom.sketch, space.config(bottom.point), float(np.median(RECORDED[bottom]))))
        result = tune_replayed(store, Counting(), search="random", trials=3)
        assert (result.trials, result.reused) == (3, 0)
        assert result.best is not None
        assert result.best.config == space.config(bottom.point)
        assert result.best.speedup is not None and result.best.speedup[1] > 1
        fresh = tune_replayed(store, Counting(), search="random", trials=3, fresh=True)
        assert fresh.best is not None and fresh.best.config != result.best.config


def test_what_no_session_can_answer_takes_no_fingerprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what takes longest of a look at the records: a request has several schedules made for each space."""

    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("a request was made")

    with open_store("sqlite://") as store:
        assert not tune_replayed(store, Counting(), search="random", trials=3).converged
        kernels = [
            KernelTask.create(each, TARGET, TuneOptions(search="random")) for each in (WORKLOAD, SIMILAR_WORKLOAD)
        ]
        known, unknown = kernels
        assert known.answered(store, 2, None) is not None
        monkeypatch.setattr(KernelTask, "request", asked)
        assert known.answered(store, 64, None) is None, "the session had too few trials"
        assert unknown.answered(store, 2, None) is None
