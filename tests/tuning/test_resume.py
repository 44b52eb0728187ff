"""Interrupted and killed tunings continue where they were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replayed_tuning import (
    TARGET,
    WORKLOAD,
    Counting,
    stored_trials,
    tune_replayed,
    tune_similar_kernel,
)

from stormdrop.measure.account import Account
from stormdrop.measure.contract import KernelSetup
from stormdrop.records import Filter, State, open_store
from stormdrop.tuning.request import BATCH
from stormdrop.tuning.result import Progress
from stormdrop.tuning.trace import Trace
from stormdrop.tuning.tune import tune


@pytest.mark.parametrize("search", ["droplet", "random", "storm"])
@pytest.mark.parametrize("prefix", [0, 1, 5, 8, 13])
def test_a_resumed_run_ends_as_an_undisturbed_one(search: str, prefix: int) -> None:
    settings = {"search": search, "seed": 3, "trials": 40}
    with open_store("sqlite://") as undisturbed, open_store("sqlite://") as store:
        whole = tune_replayed(undisturbed, Counting(), **settings)
        first, second = Counting(interrupt_after=prefix), Counting()
        cut = tune_replayed(store, first, **settings)
        assert cut.interrupted
        kept = stored_trials(store)
        assert len(kept) == prefix
        second.resume(first.trials)  # the device goes on where it was
        resumed = tune_replayed(store, second, resume=True, **settings)
        assert stored_trials(store)[:prefix] == kept
        assert stored_trials(store) == stored_trials(undisturbed)
        assert not resumed.interrupted
        assert resumed.best == whole.best
        assert len(first.candidates) + len(second.candidates) == len(stored_trials(undisturbed))


def test_a_resumed_run_keeps_its_starts() -> None:
    """What the records have learned since the session began does not move its search."""
    settings = {"search": "storm", "seed": 3, "trials": 20}
    with open_store("sqlite://") as undisturbed, open_store("sqlite://") as store:
        tune_replayed(undisturbed, Counting(), **settings)
        first, second = Counting(interrupt_after=6), Counting()
        tune_replayed(store, first, **settings)
        tune_similar_kernel(store)
        second.resume(first.trials)
        tune_replayed(store, second, resume=True, **settings)
        whole = [trial.config for trial in undisturbed.records(undisturbed.session(undisturbed.sessions()[0].id))]
        (summary,) = store.sessions(Filter(search="storm"))
        assert [trial.config for trial in store.records(store.session(summary.id))] == whole


def test_resuming_what_is_finished_is_answered_from_the_record() -> None:
    with open_store("sqlite://") as store:
        first = tune_replayed(store, Counting(), trials=12)
        measurer = Counting()
        again = tune_replayed(store, measurer, trials=12, resume=True)
        assert measurer.candidates == []
        assert (again.reused, again.trials) == (first.trials, first.trials)


def test_a_resumed_run_goes_on_where_it_was() -> None:
    settings = {"search": "random", "seed": 3, "trials": 24}
    with open_store("sqlite://") as store:
        first, second = Counting(interrupt_after=12), Counting()
        tune_replayed(store, first, **settings)
        (summary,) = store.sessions()
        before = store.records(store.session(summary.id))
        second.resume(first.trials)
        seen: list[Progress] = []
        resumed = tune_replayed(store, second, resume=True, on_progress=seen.append, **settings)
        after = store.records(store.session(summary.id))[len(before) :]
        best_before = min(float(np.median(trial.measurement.seconds)) for trial in before)
        assert resumed.curve[0] == (before[0].elapsed, float(np.median(before[0].measurement.seconds)))
        assert all(progress.best_seconds is not None and progress.best_seconds <= best_before for progress in seen)
        assert [entry[0] for entry in resumed.curve] == sorted(entry[0] for entry in resumed.curve)
        assert min(trial.elapsed for trial in after) >= before[-1].elapsed
        assert min(trial.batch for trial in after) > max(trial.batch for trial in before)
        seconds = sum(trial.measurement.phases.run for trial in after)
        assert resumed.phases["run"] == pytest.approx(seconds)


def test_a_resumed_measurer_knows_what_is_hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    measurers: list[Any] = []

    class Local(Counting):
        account = Account()

        def __init__(self, setup: KernelSetup, **_: Any) -> None:
            super().__init__()
            self.best = setup.best
            measurers.append(self)

    monkeypatch.setattr("stormdrop.measure.sites.LocalMeasurer", Local)
    with open_store("sqlite://") as store:
        first = Counting(interrupt_after=12)
        tune_replayed(store, first, trials=24)
        tune(WORKLOAD, target=TARGET, store=store, search="droplet", trials=24, resume=True)
    trace = Trace()
    for trial in first.trials:
        trace.record(trial)
    assert measurers[0].best == trace.fastest is not None


KILLED = """
import sys, time
from stormdrop import operators
from stormdrop.records import open_store
from stormdrop.tuning.tune import tune

def show(progress):
    print(progress.trials, flush=True)
    if progress.trials >= int(sys.argv[3]):
        time.sleep(600)

if __name__ == "__main__":
    with open_store(sys.argv[1]) as store:
        result = tune(operators.matmul(48, 64, 32), store=store, search="random", seed=1, trials=int(sys.argv[2]),
                      resume=True, on_progress=show)
    print("done", result.trials, result.reused, flush=True)
"""


@pytest.mark.compiles
def test_killed_and_resumed(tmp_path: Path) -> None:
    """kill -9 in mid-run: the recorded prefix stays as it is, and nothing is measured twice."""
    script, database = tmp_path / "run.py", tmp_path / "records.db"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(database), "40"]
    # It is still at work when the signal comes, however late that is.
    run = subprocess.Popen([*command, "32"], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert run.stdout is not None
    assert run.stdout.readline()  # the first batch is in
    run.send_signal(signal.SIGKILL)
    run.wait()
    time.sleep(0.2)
    with open_store(database) as store:
        kept = stored_trials(store)
        assert BATCH <= len(kept) < 40
    done = subprocess.run([*command, "1000"], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.splitlines()[-1] == f"done 40 {len(kept)}"
    with open_store(database) as store:
        everything = stored_trials(store)
        assert store.sessions()[0].state is State.FINISHED
    assert everything[: len(kept)] == kept
    assert len({(sketch, config) for sketch, config, _ in everything}) == len(everything) == 40
