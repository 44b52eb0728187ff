"""Tuning a model: the budget over its tasks, what the records answer, what must not be saved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from tiny_models import residual_model

from stormdrop.errors import MeasureError, ModelError, UnsupportedFunction
from stormdrop.kernel.target import Target
from stormdrop.model import sharing, tune_model, tuning
from stormdrop.model.graph import Graph
from stormdrop.model.sharing import Budget, TunedTask, tune_tasks
from stormdrop.model.verify import Verification
from stormdrop.model.weights import seed_weights
from stormdrop.records import SqlStore, open_store
from stormdrop.trial import Candidate, Measurement, Request, Status
from stormdrop.tune import tune


class Even:
    """Every candidate works and takes a millisecond; `asked` collects the distinct ones by workload."""

    def __init__(self) -> None:
        self.asked: set[tuple[str, Candidate]] = set()
        self.workload = ""

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            self.asked.add((self.workload, request.candidate))
            yield Measurement(Status.OK, (1e-3,) * request.repeats)

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return [Measurement(Status.OK, (1e-3,) * rounds)] * len(candidates)

    def close(self) -> None: ...

    def __enter__(self) -> Even:
        return self

    def __exit__(self, *_: object) -> None: ...


class Pool:
    """No processes."""

    def __init__(self, *_: object) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> Even:
    measurer = Even()

    def replaced(workload: Any, **settings: Any) -> Any:
        measurer.workload = workload.key
        settings.pop("pool")
        return tune(workload, measurer=measurer, **settings)

    monkeypatch.setattr(sharing, "tune", replaced)
    monkeypatch.setattr(sharing, "WorkerPool", Pool)
    return measurer


def tuned(graph: Graph, target: Target, store: SqlStore, **budget: Any) -> list[TunedTask]:
    granted = Budget(budget.get("trials"), budget.get("seconds"), budget.get("begin", perf_counter()))
    tasks, interrupted = tune_tasks(
        graph,
        granted,
        target=target,
        search="random",
        options={},
        seed=0,
        store=store,
        resume=False,
        fresh=False,
        max_error=None,
        on_progress=None,
    )
    assert not interrupted
    return tasks


@pytest.mark.parametrize("trials", [1, 2, 7, 25])
def test_trials_bound_the_whole_command(residual: Graph, target: Target, even: Even, trials: int) -> None:
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, trials=trials)
        assert len(even.asked) <= trials
        assert len(even.asked) == sum(each.result.trials for each in tasks if each.result)
        starved = [each for each in tasks if each.workload is not None and each.result is None]
        tunable = sum(each.workload is not None for each in tasks)
        assert len(starved) == max(0, tunable - trials)
        assert all(each.reason and "no trials left" in each.reason for each in starved)
        assert not any(each.converged for each in starved)
        assert all(each.to_json()["trials"] == 0 for each in starved)
        even.asked.clear()
        again = tuned(residual, target, store, trials=trials)
        # The same command again: what the first run did is the answer and costs nothing, so others get their turn.
        kept = {each.task.index: each for each in tasks if each.result is not None}
        assert len(even.asked) <= trials
        for each in again:
            if each.task.index in kept:
                assert each.result is not None and each.result.reused == each.result.trials
                assert each.result.workload.key not in {key for key, _ in even.asked}


def test_the_same_command_again_is_answered_from_the_records(residual: Graph, target: Target, even: Even) -> None:
    with open_store("sqlite://") as store:
        first = tuned(residual, target, store, trials=30)
        assert even.asked
        even.asked.clear()
        again = tuned(residual, target, store, trials=30)
        assert even.asked == set()
        assert [each.result.trials for each in again if each.result] == [e.result.trials for e in first if e.result]


def test_without_time_no_task_is_measured(
    residual: Graph, target: Target, even: Even, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(sharing, "WorkerPool", refuse)
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, seconds=5.0, begin=perf_counter() - 10)
    assert even.asked == set()
    assert all(each.result is None and each.reason for each in tasks)


def test_sure_parts_are_never_more_than_what_is_granted() -> None:
    shares = sharing._shares([100.0, 1.0, 1.0, 0.0])
    assert sum(shares) == pytest.approx(1.0)
    budget = Budget(11, 1000.0, perf_counter())
    spent = 0
    for position in range(len(shares)):
        trials, _ = budget.left(spent, shares[position:])
        sure, seconds = budget.sure(position, shares)
        assert trials is not None and sure is not None and seconds is not None
        assert trials >= sure >= 1
        spent += trials
    assert spent == 11
    (_, first), (_, granted) = budget.sure(0, shares), budget.left(0, shares)
    assert first is not None and granted is not None and first <= granted


def test_a_function_that_a_sketch_refuses_becomes_a_fallback(
    residual: Graph, target: Target, even: Even, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(workload: Any, *_: Any) -> Any:
        raise UnsupportedFunction("too strange")

    monkeypatch.setattr(sharing, "sketches_for", refuses)
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, trials=4)
    assert all(each.workload is None and each.reason == "too strange" for each in tasks)


def test_a_task_that_cannot_be_measured_becomes_a_fallback(
    target: Target, even: Even, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = sharing.tune
    failed: list[str] = []

    def fails_once(workload: Any, **settings: Any) -> Any:
        if not failed:
            failed.append(workload.name)
            raise MeasureError("the expected output cannot be computed: no")
        return inner(workload, **settings)

    monkeypatch.setattr(sharing, "tune", fails_once)
    with open_store("sqlite://") as store:
        result = tune_model(
            seed_weights(residual_model(), seed=1), target=target, trials=6, store=store, out=tmp_path / "m.sd"
        )
    document = json.loads(json.dumps(result.to_json()))
    (entry,) = [each for each in document["tasks"] if each["name"] == failed[0]]
    assert "the expected output cannot be computed" in entry["reason"]
    assert failed[0] in document["fallbacks"]
    assert document["verified"]["max_error"] < 1e-4
    assert (tmp_path / "m.sd").exists()
    assert not document["converged"]


@pytest.mark.parametrize("error", [2e-3, float("inf"), float("nan")])
def test_a_wrong_model_is_not_saved(
    target: Target, even: Even, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: float
) -> None:
    monkeypatch.setattr(tuning, "verify", lambda *_: Verification(error, "onnxruntime 1.0"))
    with open_store("sqlite://") as store, pytest.raises(ModelError, match=r"against onnxruntime 1\.0 is") as caught:
        tune_model(
            seed_weights(residual_model(), seed=1), target=target, trials=1, store=store, out=tmp_path / "wrong.sd"
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "wrong.sd").exists()
