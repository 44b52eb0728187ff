"""Tuning one kernel: budgets, progress, bad requests, faults, and the whole path on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replayed_tuning import RECORDED, TARGET, WORKLOAD, Counting, stored_trials, tune_replayed
from tvm import te

from stand_ins.faults import FAULTS, RandomFaults
from stormdrop import operators
from stormdrop.errors import InputError, MeasureError, SearchError, UnsupportedFunction
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import Limits, LocalMeasurer
from stormdrop.records import State, open_store
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Measurement, Request, Status
from stormdrop.tuning.request import BATCH
from stormdrop.tuning.result import Progress
from stormdrop.tuning.tune import tune


def test_trials_count_distinct_candidates() -> None:
    with open_store("sqlite://") as store:
        measurer = Counting()
        result = tune_replayed(store, measurer, search="random", trials=11)
        assert result.trials == len(set(measurer.candidates)) == 11


def test_droplet_finds_the_bottom_of_a_convex_landscape() -> None:
    with open_store("sqlite://") as store:
        result = tune_replayed(store, Counting(), search="droplet", trials=400)
        assert result.converged
        assert result.best is not None
        assert result.best.seconds <= 1.1 * min(np.median(samples) for samples in RECORDED.values())


def test_a_time_may_be_written_as_people_do() -> None:
    with open_store("sqlite://") as store:
        assert tune_replayed(store, Counting(), time="2m", trials=4).trials == 4
        with pytest.raises(InputError, match="not a duration"):
            tune_replayed(store, Counting(), time="soon")


def test_interrupted_keeps_the_best_so_far() -> None:
    with open_store("sqlite://") as store:
        result = tune_replayed(store, Counting(interrupt_after=6))
        assert result.interrupted
        assert result.best is not None
        assert store.sessions()[0].state is State.INTERRUPTED
        assert len(stored_trials(store)) == 6


def test_progress_is_told() -> None:
    seen: list[Progress] = []
    with open_store("sqlite://") as store:
        tune_replayed(store, Counting(), search="random", trials=20, on_progress=seen.append)
    assert [progress.trials for progress in seen] == sorted({min(BATCH * n, 20) for n in range(1, 4)})
    assert all(progress.best_seconds for progress in seen)


def test_bad_settings() -> None:
    with open_store("sqlite://") as store:
        with pytest.raises(InputError, match="trials=0"):
            tune_replayed(store, Counting(), trials=0)
        with pytest.raises(InputError, match="greater than zero"):
            tune_replayed(store, Counting(), time=-1)
        with pytest.raises(InputError, match="exclude each other"):
            tune_replayed(store, Counting(), resume=True, fresh=True)
        with pytest.raises(SearchError, match="did you mean 'droplet'"):
            tune_replayed(store, Counting(), search="droplets")


def test_an_unknown_option_of_a_search() -> None:
    with open_store("sqlite://") as store:
        with pytest.raises(SearchError, match="did you mean 'repeats'"):
            tune_replayed(store, Counting(), options={"repeat": 3})
        assert store.sessions() == []


def test_a_function_out_of_reach_is_refused() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    with pytest.raises(UnsupportedFunction):
        tune(te.create_prim_func([x, te.compute((n,), lambda i: x[i] + 1.0, name="y")]))


def test_a_measurer_that_gives_up_leaves_a_session_to_resume() -> None:
    class Dead(Counting):
        def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
            raise MeasureError("no worker starts")

    with open_store("sqlite://") as store:
        with pytest.raises(MeasureError):
            tune_replayed(store, Dead(), trials=8)
        assert store.sessions()[0].state is State.INTERRUPTED


@pytest.mark.compiles
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


@pytest.mark.compiles
def test_a_primfunc_of_the_user(tmp_path: Path) -> None:
    x = te.placeholder((64, 48), name="x")
    function = te.create_prim_func([x, te.compute((64, 48), lambda i, j: x[i, j] * 2.0 + 1.0, name="y")])
    with open_store(tmp_path / "records.db") as store:
        result = tune(function, store=store, trials=4)
    (values,) = result.workload.random_inputs(0)
    assert np.array_equal(result.kernel(values), values * 2 + 1)


@pytest.mark.compiles
def test_a_session_full_of_faults(tmp_path: Path) -> None:
    """A tenth and more of the candidates crash, hang, abort or answer wrongly; the session ends normally."""
    kinds = ("raise", "segfault_run", "abort_run", "kill_run", "wrong", "unwritten", "hang_build", "hang_run")
    sketch = RandomFaults(sketches_for(WORKLOAD, TARGET)[0][0], share=0.15, kinds=kinds)
    space = sketch.space(WORKLOAD, TARGET)
    assert space is not None
    with (
        open_store(tmp_path / "records.db") as store,
        LocalMeasurer(
            KernelSetup(WORKLOAD, TARGET, [(sketch, space)]), limits=Limits(build_seconds=3.0, run_seconds=2.5)
        ) as measurer,
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


@pytest.mark.parametrize("given", ["matmul", None, 7])
def test_what_is_no_workload_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"is no workload: give a TensorIR function, or an operator such as "):
        tune(given, target=TARGET)
