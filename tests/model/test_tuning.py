"""Tuning a model: the budget over its tasks, what the records answer, what must not be saved."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tiny_models import residual_model

from stormdrop.errors import MeasureError, ModelError, UnsupportedFunction
from stormdrop.machine.cpu import Target
from stormdrop.model import sharing, slices, tune_model
from stormdrop.model.budget import Budget, shares
from stormdrop.model.importer.graph import Graph
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.sharing import TunedTask, tune_tasks
from stormdrop.model.slices import race_seconds
from stormdrop.model.verify import Reference, Verification
from stormdrop.records import SqlStore, State, open_store
from stormdrop.search.dpansor import DPAnsor
from stormdrop.trial import Candidate, Measurement, Request, Status
from stormdrop.tuning import race as finals
from stormdrop.tuning.tune import begin


class Even:
    """Every candidate works and takes a millisecond; `asked` collects the distinct ones by workload."""

    def __init__(self, workload: str = "", asked: set[tuple[str, Candidate]] | None = None) -> None:
        self.asked: set[tuple[str, Candidate]] = set() if asked is None else asked
        self.workload = workload

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
        settings.pop("pool")
        return begin(workload, measurer=Even(workload.key, measurer.asked), **settings)

    monkeypatch.setattr(slices, "begin", replaced)
    monkeypatch.setattr(slices, "WorkerPool", Pool)
    return measurer


def tuned(
    graph: Graph,
    target: Target,
    store: SqlStore,
    search: str = "random",
    options: Mapping[str, Any] | None = None,
    **budget: Any,
) -> list[TunedTask]:
    granted = Budget(budget.get("trials"), budget.get("seconds"), budget.get("begin", perf_counter()))
    found = tune_tasks(
        graph,
        granted,
        target=target,
        search=search,
        options=options or {},
        seed=0,
        store=store,
        resume=False,
        fresh=False,
        max_error=None,
        sketches=None,
        on_progress=None,
    )
    assert not found.interrupted
    return list(found.tasks)


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


def test_more_trials_than_the_records_had_are_measured(residual: Graph, target: Target, even: Even) -> None:
    with open_store("sqlite://") as store:
        first = tuned(residual, target, store, trials=30)
        even.asked.clear()
        more = tuned(residual, target, store, trials=300)
        assert even.asked
        assert sum(e.result.trials for e in more if e.result) > sum(e.result.trials for e in first if e.result)


class Interrupting(Even):
    """Ctrl-C after so many candidates, or in the first race."""

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for each in super().measure(requests):
            yield each
            if len(self.asked) == 12:
                raise KeyboardInterrupt


class Racing(Even):
    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        raise KeyboardInterrupt


class Dying(Even):
    """The workers of the second task die after some candidates."""

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for each in super().measure(requests):
            yield each
            if len(self.asked) == 12:
                raise MeasureError("the workers cannot be started")


def replaced(monkeypatch: pytest.MonkeyPatch, kind: type[Even]) -> set[tuple[str, Candidate]]:
    asked: set[tuple[str, Candidate]] = set()

    def made(workload: Any, **settings: Any) -> Any:
        settings.pop("pool")
        return begin(workload, measurer=kind(workload.key, asked), **settings)

    monkeypatch.setattr(slices, "begin", made)
    monkeypatch.setattr(slices, "WorkerPool", Pool)
    monkeypatch.setattr(slices, "peak", lambda _: SimpleNamespace(flops=math.inf, bandwidth=math.inf))
    return asked


@pytest.mark.parametrize("kind", [Interrupting, Racing])
def test_ctrl_c_keeps_what_was_found(
    residual: Graph, target: Target, kind: type[Even], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replaced(monkeypatch, kind)
    how: dict[str, Any] = {"search": "random", "options": {}, "seed": 0, "resume": False, "fresh": False}
    how |= {"max_error": None, "sketches": None, "on_progress": None}
    with open_store("sqlite://") as store:
        found = tune_tasks(residual, Budget(60, None, perf_counter()), target=target, store=store, **how)
        assert found.interrupted
        assert sum(each.result.trials for each in found.tasks if each.result) == len(asked)
        with_best = [each for each in found.tasks if each.result is not None and each.result.best is not None]
        assert len(with_best) == len({key for key, _ in asked})
        late = [each for each in found.tasks if each.workload is not None and each.result is None]
        assert all(each.reason and "interrupted" in each.reason for each in late)
        assert {summary.state for summary in store.sessions()} <= {State.INTERRUPTED, State.FINISHED}


def test_what_was_found_before_the_workers_died_stays(
    residual: Graph, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, Dying)
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, trials=60)
    (ended,) = [each for each in tasks if each.reason and "ended early: the workers cannot be started" in each.reason]
    assert ended.result is not None and ended.result.best is not None and ended.workload is not None
    assert sum(each.result.trials for each in tasks if each.result) <= 60


def test_without_time_no_task_is_measured(
    residual: Graph, target: Target, even: Even, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(slices, "WorkerPool", refuse)
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, seconds=5.0, begin=perf_counter() - 10)
    assert even.asked == set()
    assert all(each.result is None and each.reason for each in tasks)


class Slow(Even):
    """A candidate takes a while; races are remembered, in their order."""

    raced: ClassVar[list[str]] = []

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for each in super().measure(requests):
            sleep(2e-3)
            yield each

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        self.raced.append(self.workload)
        return super().race(candidates, rounds)


def test_time_goes_to_all_and_ends_in_time(residual: Graph, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replaced(monkeypatch, Slow)
    monkeypatch.setattr(slices, "_LEAST_SLICE", 0.05)
    monkeypatch.setattr(Slow, "raced", [])
    # Time for two races that are worth it.
    monkeypatch.setattr(slices, "_RACE_START", 0.05)
    monkeypatch.setattr(slices, "_FAIR_RACE", 0.1)
    monkeypatch.setattr(slices, "_SHORTEST_RACE", 0.05)
    begin, seconds = perf_counter(), 3.0
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, seconds=seconds, begin=begin)
    assert perf_counter() - begin < seconds
    tunable = [each for each in tasks if each.workload is not None]
    assert {key for key, _ in asked} == {each.workload.key for each in tunable if each.workload}
    # Each takes a millisecond: the more often it occurs, the heavier it is.
    heaviest = sorted(tunable, key=lambda each: -each.task.weight)
    weights = {each.workload.key: each.task.weight for each in tunable if each.workload}
    raced = [weights[key] for key in Slow.raced]
    assert raced == [each.task.weight for each in heaviest][: len(raced)]
    assert len(raced) > 0


def test_a_large_task_leaves_the_others_their_parts(
    residual: Graph, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    workloads, _ = sharing._workloads(residual, target, None)
    heaviest = max(workloads, key=lambda index: sharing._effort(residual.tasks[index], workloads[index]))
    order: list[str] = []
    seconds = 4.0

    class Patient(Even):
        def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
            order.append(self.workload)
            if self.workload == workloads[heaviest].key:
                sleep(seconds)  # all of the budget
            yield from super().measure(requests)

    asked = replaced(monkeypatch, Patient)
    monkeypatch.setattr(slices.Slices, "_is_large", lambda _, index: index == heaviest)
    with open_store("sqlite://") as store:
        tuned(residual, target, store, seconds=seconds)
    assert order[-1] == workloads[heaviest].key
    assert {key for key, _ in asked} == {each.key for each in workloads.values()}


@pytest.mark.parametrize(
    ("left", "tasks", "seconds"),
    [
        (100.0, 5, finals.RACE_SECONDS),
        (10.0, 5, finals.RACE_SECONDS),
        (6.0, 5, 0.5),
        (10.0, 20, 0.3),  # ten of them
        (0.9, 20, 0.2),
        (0.75, 1, 0.0),
        (-1.0, 3, 0.0),
    ],
)
def test_the_first_races_are_long_enough(left: float, tasks: int, seconds: float) -> None:
    assert race_seconds(left, tasks) == pytest.approx(seconds)


def test_what_an_earlier_run_has_finished_counts_when_it_goes_on(residual: Graph, target: Target, even: Even) -> None:
    how: dict[str, Any] = {"search": "random", "options": {}, "seed": 0, "fresh": False, "target": target}
    how |= {"max_error": None, "sketches": None, "on_progress": None}
    with open_store("sqlite://") as store:
        tune_tasks(residual, Budget(40, None, perf_counter()), store=store, resume=False, **how)
        before = len(even.asked)
        # All that it finished is recalled: of 44 trials 4 are left for kernels that had fewer than their part of 44.
        tune_tasks(residual, Budget(44, None, perf_counter()), store=store, resume=True, **how)
        assert before <= 40 and len(even.asked) <= 44


def test_sure_parts_are_never_more_than_what_is_granted() -> None:
    parts = shares([100.0, 1.0, 1.0, 0.0])
    assert sum(parts) == pytest.approx(1.0)
    budget = Budget(11, 1000.0, perf_counter())
    sure = [budget.sure(position, parts) for position in range(len(parts))]
    assert [trials for trials, _ in sure] == [2, 2, 2, 2]
    assert sum(seconds or 0.0 for _, seconds in sure) <= budget.left
    assert [Budget(2, None, 0.0).sure(position, parts)[0] for position in range(4)] == [1, 1, 1, 1]
    assert Budget(1000, None, 0.0).sure(0, parts)[0] == 250


@pytest.mark.parametrize("explored", [1, 20])
def test_dpansor_explores_together_and_exploits_each(
    residual: Graph, target: Target, even: Even, explored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[int] = []
    exploit = DPAnsor.exploit

    def counted(search: DPAnsor) -> None:
        before.append(len(even.asked))
        exploit(search)

    monkeypatch.setattr(DPAnsor, "exploit", counted)
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, "dpansor", {"N": explored, "exploitation": 5})
    tunable = [each for each in tasks if each.workload is not None]
    assert all(each.result is not None and each.result.trials > 1 for each in tunable)
    assert before[0] == max(explored, len(tunable))
    assert len(even.asked) <= before[0] + 5 * len(tunable)


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
    inner = Even.measure
    failed: list[str] = []

    def fails_once(measurer: Even, requests: Sequence[Request]) -> Iterator[Measurement]:
        if not failed:
            failed.append(measurer.workload)
            raise MeasureError("the expected output cannot be computed: no")
        return inner(measurer, requests)

    monkeypatch.setattr(Even, "measure", fails_once)
    with open_store("sqlite://") as store:
        result = tune_model(
            seed_weights(residual_model(), seed=1), target=target, trials=6, store=store, out=tmp_path / "m.sd"
        )
    document = json.loads(json.dumps(result.to_json()))
    (entry,) = [each for each in document["tasks"] if each["reason"] and "expected output" in each["reason"]]
    assert "cannot be measured: the expected output cannot be computed" in entry["reason"]
    assert entry["name"] in document["fallbacks"]
    assert document["verified"]["max_error"] < 1e-4
    assert (tmp_path / "m.sd").exists()
    assert not document["converged"]


@pytest.mark.parametrize("error", [2e-3, float("inf"), float("nan")])
def test_a_wrong_model_is_not_saved(
    target: Target, even: Even, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: float
) -> None:
    monkeypatch.setattr(Reference, "check", lambda *_: Verification(error, "onnxruntime 1.0"))
    with open_store("sqlite://") as store, pytest.raises(ModelError, match=r"against onnxruntime 1\.0 is") as caught:
        tune_model(
            seed_weights(residual_model(), seed=1), target=target, trials=1, store=store, out=tmp_path / "wrong.sd"
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "wrong.sd").exists()
