"""Our searches as search strategies of MetaSchedule, inside `ms.tune_tir` itself."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from stormdrop import operators
from stormdrop.errors import SearchError
from stormdrop.integrations.meta_schedule_strategy import storm_strategy
from stormdrop.sketches.meta_schedule import tunable

logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)


@derived_object
class Future(ms.runner.PyRunnerFuture):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.kept = result

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self.kept


@pytest.fixture(autouse=True)
def _without_intrinsics(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM loads all tensor intrinsics for each tuning, which takes half a minute. None of them is used here.

    Its loggers cannot be made twice in a process in which others, such as pytest, have added handlers.
    """
    loggers = "tvm.s_tir.meta_schedule.tir_integration.get_loggers_from_work_dir"
    monkeypatch.setattr(loggers, lambda folder, names: [logging.getLogger(name) for name in names])
    monkeypatch.setitem(sys.modules, "tvm.s_tir.tensor_intrin", ModuleType("tensor_intrin"))


def tuned(strategy: Any, folder: Path, trials: int) -> tuple[list[float], list[str]]:
    """The times that MetaSchedule recorded, and the structure of each trace. Nothing is built."""
    built: list[Any] = []

    @derived_object
    class Builder(ms.builder.PyBuilder):
        def build(self, build_inputs: Any) -> Any:
            built.extend(build_inputs)
            return [ms.builder.BuilderResult(f"artifact {index}", None) for index in range(len(build_inputs))]

    @derived_object
    class Runner(ms.runner.PyRunner):
        def run(self, runner_inputs: Any) -> Any:
            return [
                Future(
                    ms.runner.RunnerResult(None, "made to fail")
                    if index % 5 == 4
                    else ms.runner.RunnerResult([1.0], None)
                )
                for index in range(len(runner_inputs))
            ]

    database = ms.tune_tir(
        tunable(operators.matmul(64, 64, 64))["main"],
        tvm.target.Target({"kind": "llvm", "num-cores": 1}),
        str(folder),
        max_trials_global=trials,
        num_trials_per_iter=8,
        builder=Builder(),
        runner=Runner(),
        database="memory",
        cost_model="random",
        measure_callbacks=[ms.measure_callback.AddToDatabase()],
        strategy=strategy,
        seed=3,
    )
    records = database.get_all_tuning_records()
    return [float(run) for record in records for run in record.run_secs], [str(record.trace) for record in records]


def test_tune_tir_takes_our_search(tmp_path: Path) -> None:
    times, traces = tuned(storm_strategy(), tmp_path, 20)
    assert len(times) == 20
    assert len(set(traces)) == 20  # nothing is measured twice
    failed = [seconds for seconds in times if seconds != 1.0]  # TVM writes a huge time
    assert failed and min(failed) > 1e9


@pytest.mark.parametrize("search", ["random", "genetic"])
def test_no_more_trials_than_asked_for(search: str, tmp_path: Path) -> None:
    times, _ = tuned(storm_strategy(search), tmp_path, 21)
    assert len(times) == 21


def test_a_search_that_has_finished_ends_the_tuning(tmp_path: Path) -> None:
    times, _ = tuned(storm_strategy("droplet", max_iterations=1, restarts=0), tmp_path, 1_000)
    assert 0 < len(times) < 1_000


def test_an_unknown_search_is_one_line() -> None:
    with pytest.raises(SearchError, match="unknown search 'strom'; did you mean 'storm'"):
        storm_strategy("strom")
