"""The tuning loop: budgets, records, resume, interruption, faults. Speed is no matter here."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import te

from stormdrop import operators
from stormdrop.errors import InputError, MeasureError, SearchError, UnsupportedFunction
from stormdrop.machine.cpu import Target
from stormdrop.measure.local import Account, LocalMeasurer
from stormdrop.measure.replay import ReplayMeasurer
from stormdrop.records import Filter, Outcome, SqlStore, State, open_store
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.faults import FAULTS, Plain, RandomFaults
from stormdrop.trial import Candidate, Measurement, Request, Status, Trial
from stormdrop.tuning import race as finals
from stormdrop.tuning.tune import BATCH, Progress, TuneResult, tune

TARGET = Target.detect()
WORKLOAD = operators.matmul(32, 64, 32)


def landscape(noise: float = 0.01) -> dict[Candidate, list[float]]:
    """A convex time over the whole space of the workload's sketch, with recorded noise."""
    (_, space), rng = sketches_for(WORKLOAD, TARGET)[0], np.random.default_rng(0)
    points = np.array(list(space.points()))
    bottom = points[len(points) // 3]
    recorded = {}
    for point in points:
        mean = 1e-3 * (1 + 0.05 * float(((point - bottom) ** 2).sum()))
        recorded[Candidate(space.name, tuple(map(int, point)))] = list(mean * rng.lognormal(0, noise, 20))
    return recorded


RECORDED = landscape()


class Counting(ReplayMeasurer):
    """A replay that counts what it is asked, and that may be interrupted."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        super().__init__(RECORDED, np.random.default_rng(7))
        self.asked: list[Candidate] = []
        self.taken: list[Trial] = []
        self.left = interrupt_after

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request, measurement in zip(requests, super().measure(requests), strict=True):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left = None if self.left is None else self.left - 1
            self.asked.append(request.candidate)
            self.taken.append(Trial(request.candidate, measurement))
            yield measurement


def replayed(store: SqlStore, measurer: ReplayMeasurer, **settings: Any) -> TuneResult:
    return tune(WORKLOAD, target=TARGET, store=store, measurer=measurer, **{"search": "droplet", **settings})


def stored_trials(store: SqlStore) -> list[tuple[str, str, tuple[float, ...]]]:
    (summary,) = store.sessions()
    trials = store.records(store.session(summary.id))
    return [(each.sketch, json.dumps(dict(each.config)), each.measurement.seconds) for each in trials]


@pytest.mark.parametrize("search", ["droplet", "random", "storm"])
@pytest.mark.parametrize("prefix", [0, 1, 5, 8, 13])
def test_a_resumed_run_ends_as_an_undisturbed_one(search: str, prefix: int) -> None:
    settings = {"search": search, "seed": 3, "trials": 40}
    with open_store("sqlite://") as undisturbed, open_store("sqlite://") as store:
        whole = replayed(undisturbed, Counting(), **settings)
        first, second = Counting(interrupt_after=prefix), Counting()
        cut = replayed(store, first, **settings)
        assert cut.interrupted
        kept = stored_trials(store)
        assert len(kept) == prefix
        second.resume(first.taken)  # the device goes on where it was
        resumed = replayed(store, second, resume=True, **settings)
        assert stored_trials(store)[:prefix] == kept
        assert stored_trials(store) == stored_trials(undisturbed)
        assert not resumed.interrupted
        assert resumed.best == whole.best
        assert len(first.asked) + len(second.asked) == len(stored_trials(undisturbed))


OTHER = operators.matmul(32, 64, 48)  # its space has the same knobs and values


def other(store: SqlStore, **settings: Any) -> TuneResult:
    return tune(OTHER, target=TARGET, store=store, measurer=Counting(), search="droplet", **settings)


def first_asked(store: SqlStore, **settings: Any) -> Candidate:
    measurer = Counting()
    replayed(store, measurer, search="storm", trials=4, **settings)
    return measurer.asked[0]


def test_a_kernel_begins_where_similar_ones_ended() -> None:
    (_, space), (_, others) = sketches_for(WORKLOAD, TARGET)[0], sketches_for(OTHER, TARGET)[0]
    with open_store("sqlite://") as store:
        best = other(store).best
        assert best is not None
        ended = Candidate(space.name, space.point(best.config))
        assert ended not in {Candidate(space.name, space.origin), Candidate(others.name, others.origin)}
        assert first_asked(store) == ended
        assert first_asked(store, fresh=True) == Candidate(space.name, space.origin)


def test_a_resumed_run_keeps_its_starts() -> None:
    """What the records have learned since the session began does not move its search."""
    settings = {"search": "storm", "seed": 3, "trials": 20}
    with open_store("sqlite://") as undisturbed, open_store("sqlite://") as store:
        replayed(undisturbed, Counting(), **settings)
        first, second = Counting(interrupt_after=6), Counting()
        replayed(store, first, **settings)
        other(store)
        second.resume(first.taken)
        replayed(store, second, resume=True, **settings)
        whole = [each.config for each in undisturbed.records(undisturbed.session(undisturbed.sessions()[0].id))]
        (summary,) = store.sessions(Filter(search="storm"))
        assert [each.config for each in store.records(store.session(summary.id))] == whole


def test_trials_count_distinct_candidates() -> None:
    with open_store("sqlite://") as store:
        measurer = Counting()
        result = replayed(store, measurer, search="random", trials=11)
        assert result.trials == len(set(measurer.asked)) == 11


def test_droplet_finds_the_bottom_of_a_convex_landscape() -> None:
    with open_store("sqlite://") as store:
        result = replayed(store, Counting(), search="droplet", trials=400)
        assert result.converged
        assert result.best is not None
        assert result.best.seconds <= 1.1 * min(np.median(samples) for samples in RECORDED.values())


def test_resuming_what_is_finished_is_answered_from_the_record() -> None:
    with open_store("sqlite://") as store:
        first = replayed(store, Counting(), trials=12)
        measurer = Counting()
        again = replayed(store, measurer, trials=12, resume=True)
        assert measurer.asked == []
        assert (again.reused, again.trials) == (first.trials, first.trials)


def test_a_finished_record_is_the_answer() -> None:
    with open_store("sqlite://") as store:
        first = replayed(store, Counting(), trials=12)
        measurer = Counting()
        again = replayed(store, measurer, trials=12)
        assert measurer.asked == []
        assert again.best is not None and first.best is not None
        assert (again.best.config, again.reused) == (first.best.config, first.trials)
        fresh = replayed(store, measurer, trials=12, fresh=True)
        assert fresh.reused == 0
        assert len(set(measurer.asked)) == 12


def test_a_record_of_another_space_is_not_taken() -> None:
    with open_store("sqlite://") as store:
        replayed(store, Counting(), trials=4)
        result = tune(WORKLOAD, target=TARGET, store=store, sketches=[Plain()], trials=2)
        assert result.reused == 0
        assert result.best is not None and result.best.sketch == "plain"


class Disturbed(Counting):
    """A replay whose races take place beside foreign load."""

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return [dataclasses.replace(each, suspect=True) for each in super().race(candidates, rounds)]


def test_a_record_with_a_disturbed_race_is_no_answer() -> None:
    with open_store("sqlite://") as store:
        replayed(store, Disturbed(), trials=12)
        second = Counting()
        again = replayed(store, second, trials=12)
        assert len(set(second.asked)) == again.trials == 12
        third = Counting()
        assert replayed(store, third, trials=12).reused == 12
        assert third.asked == []


def test_a_time_may_be_written_as_people_do() -> None:
    with open_store("sqlite://") as store:
        assert replayed(store, Counting(), time="2m", trials=4).trials == 4
        with pytest.raises(InputError, match="not a duration"):
            replayed(store, Counting(), time="soon")


def test_interrupted_keeps_the_best_so_far() -> None:
    with open_store("sqlite://") as store:
        result = replayed(store, Counting(interrupt_after=6))
        assert result.interrupted
        assert result.best is not None
        assert store.sessions()[0].state is State.INTERRUPTED
        assert len(stored_trials(store)) == 6


def test_progress_is_told() -> None:
    seen: list[Progress] = []
    with open_store("sqlite://") as store:
        replayed(store, Counting(), search="random", trials=20, on_progress=seen.append)
    assert [each.trials for each in seen] == sorted({min(BATCH * n, 20) for n in range(1, 4)})
    assert all(each.best_seconds for each in seen)


def test_bad_settings() -> None:
    with open_store("sqlite://") as store:
        with pytest.raises(InputError, match="trials=0"):
            replayed(store, Counting(), trials=0)
        with pytest.raises(InputError, match="longer than nothing"):
            replayed(store, Counting(), time=-1)
        with pytest.raises(InputError, match="exclude each other"):
            replayed(store, Counting(), resume=True, fresh=True)
        with pytest.raises(SearchError, match="did you mean 'droplet'"):
            replayed(store, Counting(), search="droplets")


def test_on_this_machine(tmp_path: Path) -> None:
    """The whole path, with a kernel that can be called in the end."""
    with open_store(tmp_path / "records.db") as store:
        result = tune(operators.dense(24, 40, 16, bias=1, act="relu"), store=store, trials=6)
    document = json.loads(json.dumps(result.to_json()))
    assert document["trials"] == 6
    assert document["failed"] == 0
    assert document["best"]["seconds"] > 0
    assert document["baseline"]["seconds"] > 0
    assert set(document["phases"]) >= {"schedule", "build", "run", "check", "search"}
    x, w, b = result.workload.random_inputs(5)
    assert np.array_equal(result.kernel(x, w, b), np.maximum(x @ w.T + b, 0))
    with pytest.raises(ValueError, match="must be float32"):
        result.kernel(x, w[:, :8], b)


def test_a_primfunc_of_the_user(tmp_path: Path) -> None:
    x = te.placeholder((64, 48), name="x")
    function = te.create_prim_func([x, te.compute((64, 48), lambda i, j: x[i, j] * 2.0 + 1.0, name="y")])
    with open_store(tmp_path / "records.db") as store:
        result = tune(function, store=store, trials=4)
    (values,) = result.workload.random_inputs(0)
    assert np.array_equal(result.kernel(values), values * 2 + 1)


def test_a_function_out_of_reach_is_refused() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    with pytest.raises(UnsupportedFunction):
        tune(te.create_prim_func([x, te.compute((n,), lambda i: x[i] + 1.0, name="y")]))


def test_a_session_full_of_faults(tmp_path: Path) -> None:
    """A tenth and more of the candidates crash, hang, abort or answer wrongly; the session ends normally."""
    kinds = ("raise", "segfault_run", "abort_run", "kill_run", "wrong", "unwritten", "hang_build", "hang_run")
    sketch = RandomFaults(sketches_for(WORKLOAD, TARGET)[0][0], share=0.15, kinds=kinds)
    space = sketch.space(WORKLOAD, TARGET)
    assert space is not None
    with (
        open_store(tmp_path / "records.db") as store,
        LocalMeasurer(WORKLOAD, TARGET, [sketch], [space], build_timeout=3.0, run_timeout=2.5) as measurer,
    ):
        result = tune(
            WORKLOAD, target=TARGET, store=store, sketches=[sketch], measurer=measurer, search="random", trials=60
        )
        (summary,) = store.sessions()
        assert summary.state is State.FINISHED
        trials = store.records(store.session(summary.id))
    assert result.trials == 60
    for trial in trials:
        fault = sketch.fault(trial.config)
        expected = Status.OK if fault == "none" else FAULTS[fault]
        assert trial.measurement.status is expected, (fault, trial.measurement)
    assert 3 <= result.failed == sum(sketch.fault(trial.config) != "none" for trial in trials)
    assert result.best is not None
    assert sketch.fault(result.best.config) == "none"


KILLED = """
import sys
from stormdrop import operators
from stormdrop.records import open_store
from stormdrop.tuning.tune import tune

def told(progress):
    print(progress.trials, flush=True)

if __name__ == "__main__":
    with open_store(sys.argv[1]) as store:
        result = tune(operators.matmul(48, 64, 32), store=store, search="random", seed=1, trials=int(sys.argv[2]),
                      resume=True, on_progress=told)
    print("done", result.trials, result.reused, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_and_resumed(tmp_path: Path) -> None:
    """kill -9 in mid-run: the recorded prefix stays as it is, and nothing is measured twice."""
    script, database = tmp_path / "run.py", tmp_path / "records.db"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(database), "40"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert run.stdout is not None
    assert run.stdout.readline()  # the first batch is in
    run.send_signal(signal.SIGKILL)
    run.wait()
    time.sleep(0.2)
    with open_store(database) as store:
        kept = stored_trials(store)
        assert BATCH <= len(kept) < 40
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.splitlines()[-1] == f"done 40 {len(kept)}"
    with open_store(database) as store:
        everything = stored_trials(store)
        assert store.sessions()[0].state is State.FINISHED
    assert everything[: len(kept)] == kept
    assert len({(sketch, config) for sketch, config, _ in everything}) == len(everything) == 40


# What a finished record answers


def test_a_starved_record_is_no_answer_to_a_larger_request() -> None:
    with open_store("sqlite://") as store:
        replayed(store, Counting(), search="random", trials=1)
        measurer = Counting()
        result = replayed(store, measurer)  # neither trials nor time
        assert measurer.asked
        assert (result.reused, result.converged) == (0, True)


def test_a_record_answers_what_asks_for_no_more() -> None:
    with open_store("sqlite://") as store:
        replayed(store, Counting(), search="random", trials=12)
        smaller, larger, whole = Counting(), Counting(), Counting()
        assert replayed(store, smaller, search="random", trials=7).reused == 12
        assert smaller.asked == []
        assert replayed(store, larger, search="random", trials=10**6).reused == 0
        assert set(larger.asked) == set(RECORDED)
        assert replayed(store, whole, search="random", trials=10**7).reused == len(RECORDED)  # there is no more
        assert whole.asked == []


@pytest.mark.parametrize(("asked", "answered"), [(5.0, True), (10.0, True), (11.0, False), (None, False)])
def test_a_record_answers_what_asks_for_no_more_time(asked: float | None, answered: bool) -> None:
    """Of the record's 12 seconds 10 were its budget; without a limit a minute is meant."""
    (_, space), *_ = sketches_for(WORKLOAD, TARGET)
    with open_store("sqlite://") as store:
        replayed(store, Counting(), search="random", trials=1)
        first = store.session(store.sessions()[0].id)
        planted = store.open(first.problem, first.setting)
        extra = {"budget": 10.0, "seconds": 12.0}
        store.finish(planted, Outcome(space.name, space.config(space.origin), 1e-3, extra=extra))
        measurer = Counting()
        replayed(store, measurer, time=asked)
        assert (measurer.asked == []) is answered


def test_a_converged_record_answers_everything() -> None:
    with open_store("sqlite://") as store:
        first = replayed(store, Counting(), trials=400)
        assert first.converged
        for settings in ({}, {"time": 1e6}, {"trials": 10**6}, {"search": "random"}):
            measurer = Counting()
            assert replayed(store, measurer, **settings).reused == first.trials
            assert measurer.asked == []


def test_a_record_of_another_compiler_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store("sqlite://") as store:
        with monkeypatch.context() as patch:
            patch.setattr("importlib.metadata.version", lambda name: "0.1")
            first = replayed(store, Counting(), trials=400)
            assert first.converged
        again = replayed(store, Counting(), trials=400)
        assert again.reused == 0


def test_a_new_session_is_not_worse_than_the_record() -> None:
    """The recorded best is among the finalists of a search that would never have come there."""
    bottom = min(RECORDED, key=lambda each: float(np.median(RECORDED[each])))
    with open_store("sqlite://") as store:
        replayed(store, Counting(), search="random", trials=1)
        (summary,) = store.sessions(Filter())
        session = store.session(summary.id)
        (_, space), *_ = sketches_for(WORKLOAD, TARGET)
        planted = store.open(session.problem, session.setting)
        store.finish(planted, Outcome(bottom.sketch, space.config(bottom.point), float(np.median(RECORDED[bottom]))))
        result = replayed(store, Counting(), search="random", trials=3)
        assert (result.trials, result.reused) == (3, 0)
        assert result.best is not None
        assert result.best.config == space.config(bottom.point)
        assert result.best.speedup is not None and result.best.speedup[1] > 1
        fresh = replayed(store, Counting(), search="random", trials=3, fresh=True)
        assert fresh.best is not None and fresh.best.config != result.best.config


# Resuming


def test_a_resumed_run_goes_on_where_it_was() -> None:
    settings = {"search": "random", "seed": 3, "trials": 24}
    with open_store("sqlite://") as store:
        first, second = Counting(interrupt_after=12), Counting()
        replayed(store, first, **settings)
        (summary,) = store.sessions()
        before = store.records(store.session(summary.id))
        second.resume(first.taken)
        seen: list[Progress] = []
        resumed = replayed(store, second, resume=True, on_progress=seen.append, **settings)
        after = store.records(store.session(summary.id))[len(before) :]
        best_before = min(float(np.median(each.measurement.seconds)) for each in before)
        assert resumed.curve[0] == (before[0].elapsed, float(np.median(before[0].measurement.seconds)))
        assert all(each.best_seconds is not None and each.best_seconds <= best_before for each in seen)
        assert [entry[0] for entry in resumed.curve] == sorted(entry[0] for entry in resumed.curve)
        assert min(each.elapsed for each in after) >= before[-1].elapsed
        assert min(each.batch for each in after) > max(each.batch for each in before)
        here = sum(each.measurement.phases.run for each in after)
        assert resumed.phases["run"] == pytest.approx(here)


def test_a_resumed_measurer_knows_what_is_hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Local(Counting):
        account, best = Account(), None

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr("stormdrop.measure.local.LocalMeasurer", Local)
    with open_store("sqlite://") as store:
        first = Counting(interrupt_after=12)
        replayed(store, first, trials=24)
        tune(WORKLOAD, target=TARGET, store=store, search="droplet", trials=24, resume=True)
    assert made[0].best == min(trial.median for trial in first.taken)


# Time


class Clock:
    """Time that passes when something is measured."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Slow(Counting):
    """Every measurement takes a second of the clock's."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.abandoned = 0
        self.rounds = 0

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for taken, measurement in enumerate(super().measure(requests), start=1):
            self.clock.now += 1.0
            try:
                yield measurement
            except GeneratorExit:
                self.abandoned += taken < len(requests)
                raise

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        self.rounds = rounds
        return super().race(candidates, rounds)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    clock = Clock()
    for module in ("stormdrop.tuning.tune", "stormdrop.tuning.session", "stormdrop.tuning.request"):
        monkeypatch.setattr(importlib.import_module(module), "clock", clock)
    return Slow(clock)


def test_a_batch_is_cut_to_the_time_that_is_left(slow: Slow) -> None:
    """Of 20 s one is for the race: two batches of 8, and 3 more, without abandoning any."""
    with open_store("sqlite://") as store:
        result = replayed(store, slow, search="random", time=20.0)
    assert result.trials == 19
    assert slow.abandoned == 0


def test_a_batch_ends_when_the_time_is_clearly_over(slow: Slow) -> None:
    with open_store("sqlite://") as store:
        result = replayed(store, slow, search="random", time=5.0)
        assert store.sessions()[0].trials == result.trials == 5
    assert result.best is not None


def test_without_time_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    local = importlib.import_module("stormdrop.measure.local")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a measurer was started")

    monkeypatch.setattr(local, "LocalMeasurer", refuse)
    with open_store("sqlite://") as store:
        result = tune(WORKLOAD, target=TARGET, store=store, time=1e-9)
        assert store.sessions() == []
    assert (result.best, result.trials) == (None, 0)


def test_a_race_fits_its_second() -> None:
    assert finals.rounds([2e-3, 2e-3]) == 15
    assert finals.rounds([0.04] * 4) == 6
    assert finals.rounds([4.0, 6.0]) == 3


def test_a_turn_is_a_warm_up_and_a_sample() -> None:
    """Three kernels and the default, each of 10 ms: turns of 20 ms, of which 50 fit into a second."""

    class Constant(Counting):
        rounds: tuple[int, int] = (0, 0)

        def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
            return (Measurement(Status.OK, (10e-3,) * request.repeats) for request in requests)

        def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
            self.rounds = len(candidates), rounds
            return super().race(candidates, rounds)

    with open_store("sqlite://") as store:
        measurer = Constant()
        replayed(store, measurer, search="random", trials=20)
    entrants, rounds = measurer.rounds
    assert entrants in (3, 4)  # the default may be one of the three
    assert rounds == 50 // entrants


# The last decision


class Fixed(Counting):
    """Another truth in the race than the search saw: samples by candidate, failures where there are none."""

    def __init__(self, default: float, others: float) -> None:
        super().__init__()
        (_, space), *_ = sketches_for(WORKLOAD, TARGET)
        self.default = Candidate(space.name, space.origin)
        self.times = default, others
        self.entrants: list[Candidate] = []

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        self.entrants = list(candidates)
        rng = np.random.default_rng(0)
        times = [self.times[each != self.default] for each in candidates]
        return [Measurement(Status.OK, tuple(t * rng.lognormal(0, 0.02, rounds))) for t in times]


@pytest.mark.parametrize("others", [1.0, 0.995, 1.2])
def test_no_significant_difference_keeps_the_default_schedule(others: float) -> None:
    with open_store("sqlite://") as store:
        measurer = Fixed(1e-3, others * 1e-3)
        result = replayed(store, measurer, trials=60)
        assert result.best is not None and len(measurer.entrants) > 1
        (_, space), *_ = sketches_for(WORKLOAD, TARGET)
        assert result.best.config == space.config(space.origin)
        assert result.best.speedup is None
        assert result.baseline == pytest.approx(result.best.seconds)


def test_a_significant_difference_wins_with_its_interval() -> None:
    with open_store("sqlite://") as store:
        result = replayed(store, Fixed(1e-3, 0.8e-3), trials=60)
        assert result.best is not None and result.best.speedup is not None
        ratio, low, high = result.best.speedup
        assert 1 < low <= ratio <= high
        again = replayed(store, Counting(), trials=60)
        assert again.best is not None and again.best.speedup == result.best.speedup


def test_the_incumbent_of_the_search_races() -> None:
    default, incumbent, *ranked = (Candidate("s", (i,)) for i in range(9))
    assert finals.enter(default, ranked, incumbent, None) == [default, incumbent, *ranked[:3]]
    assert finals.enter(None, ranked, None, incumbent) == [incumbent, *ranked[:3]]
    with open_store("sqlite://") as store:
        measurer = Fixed(1e-3, 1e-3)
        result = replayed(store, measurer, trials=400)
        assert result.converged
        assert len(measurer.entrants) >= 3


def test_choosing_the_best_of_many_is_corrected_for() -> None:
    """A challenger that wins alone does not win as one of many."""
    rng = np.random.default_rng(3)
    default, *others = (Candidate("s", (i,)) for i in range(9))
    base = tuple(rng.lognormal(0, 0.02, 15))
    lucky = tuple(sample / ratio for sample, ratio in zip(base, [0.99] * 3 + [1.02] * 12, strict=True))
    dull = {each: tuple(1.1 * sample for sample in base) for each in others[1:]}
    alone = finals.decide(default, {default: base, others[0]: lucky})
    among = finals.decide(default, {default: base, others[0]: lucky, **dull})
    assert alone is not None and alone.winner == others[0]
    assert among is not None and among.winner == default


def test_a_default_schedule_that_failed_does_not_race() -> None:
    (_, space), *_ = sketches_for(WORKLOAD, TARGET)
    origin = Candidate(space.name, space.origin)

    class Failing(Fixed):
        def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
            for request, found in zip(requests, super().measure(requests), strict=True):
                yield Measurement(Status.RUNTIME, (), "died") if request.candidate == origin else found

    with open_store("sqlite://") as store:
        measurer = Failing(1e-3, 1e-3)
        result = replayed(store, measurer, trials=40)
    assert measurer.entrants and origin not in measurer.entrants
    assert result.baseline is None
    assert result.best is not None and result.best.speedup is None


@pytest.mark.parametrize("failures", [1, 2])
def test_a_race_in_which_everyone_fails_is_run_once_more(failures: int) -> None:
    class Disturbed(Fixed):
        disturbed = failures

        def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
            self.disturbed -= 1
            if self.disturbed >= 0:
                return [Measurement(Status.RUN_TIMEOUT, (), "not done")] * len(candidates)
            return super().race(candidates, rounds)

    with open_store("sqlite://") as store:
        result = replayed(store, Disturbed(1e-3, 0.8e-3), trials=60)
    assert result.best is not None
    assert (result.best.speedup is not None) == (result.baseline is not None) == (failures == 1)


# Errors


def test_an_unknown_option_of_a_search() -> None:
    with open_store("sqlite://") as store:
        with pytest.raises(SearchError, match="did you mean 'repeats'"):
            replayed(store, Counting(), options={"repeat": 3})
        assert store.sessions() == []


def test_a_result_without_a_schedule_says_so() -> None:
    class Broken(Counting):
        def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
            for _ in requests:
                yield Measurement(Status.RUNTIME, (), "died")

        def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
            return [Measurement(Status.RUNTIME, (), "died")] * len(candidates)

    with open_store("sqlite://") as store:
        result = replayed(store, Broken(), trials=5)
    assert (result.best, result.failed) == (None, 5)
    with pytest.raises(UnsupportedFunction, match="no candidate worked"):
        _ = result.variant
    with pytest.raises(UnsupportedFunction, match="no candidate worked"):
        result.schedule()


def test_a_document_without_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise MeasureError("no")

    monkeypatch.setattr("stormdrop.machine.peak.peak", fails)
    with open_store("sqlite://") as store:
        document = replayed(store, Counting(), trials=8).to_json()
    assert document["best"]["percent_of_peak"] is None
    assert document["best"]["gflops"] > 0


def test_a_measurer_that_gives_up_leaves_a_session_to_resume() -> None:
    class Dead(Counting):
        def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
            raise MeasureError("no worker starts")

    with open_store("sqlite://") as store:
        with pytest.raises(MeasureError):
            replayed(store, Dead(), trials=8)
        assert store.sessions()[0].state is State.INTERRUPTED
