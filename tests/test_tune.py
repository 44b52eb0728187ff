"""The tuning loop: budgets, records, resume, interruption, faults. Speed is no matter here."""

from __future__ import annotations

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

from stormdrop.errors import InputError, SearchError, UnsupportedFunction
from stormdrop.kernel import operators
from stormdrop.kernel.registry import sketches_for
from stormdrop.kernel.target import Target
from stormdrop.measure.local import LocalMeasurer
from stormdrop.measure.replay import ReplayMeasurer
from stormdrop.records import SqlStore, State, open_store
from stormdrop.testing.faults import FAULTS, Plain, RandomFaults
from stormdrop.trial import Candidate, Measurement, Request, Status, Trial
from stormdrop.tune import BATCH, Progress, TuneResult, tune

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
    return tune(WORKLOAD, target=TARGET, store=store, measurer=measurer, **settings)


def stored_trials(store: SqlStore) -> list[tuple[str, str, tuple[float, ...]]]:
    (summary,) = store.sessions()
    trials = store.records(store.session(summary.id))
    return [(each.sketch, json.dumps(dict(each.config)), each.measurement.seconds) for each in trials]


@pytest.mark.parametrize("search", ["droplet", "random"])
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
        with pytest.raises(InputError, match="time=-1"):
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
        LocalMeasurer(WORKLOAD, TARGET, [sketch], [space], build_timeout=1.5, run_timeout=1.0) as measurer,
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
from stormdrop.kernel import operators
from stormdrop.records import open_store
from stormdrop.tune import tune

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
