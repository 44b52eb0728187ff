"""The scheduler: how the budget of a model goes to its tasks, and what is kept when something ends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, ClassVar

import pytest
from even_model import Even, measure_with, tune_graph, tuned

from simulated_clock import SimulatedClock, simulated
from stormdrop import events, operators
from stormdrop.errors import MeasureError, UnsupportedFunction
from stormdrop.events import Event, Kind
from stormdrop.machine.cpu import Cpu
from stormdrop.model.graph.graph import Graph
from stormdrop.model.tuning import budget as budgets
from stormdrop.model.tuning import scheduler, task_state
from stormdrop.model.tuning.budget import Budget
from stormdrop.model.tuning.scheduler import recorded_tasks
from stormdrop.model.tuning.task_state import ScheduledTask
from stormdrop.records import Problem, State, Store, StoredSession, open_store
from stormdrop.report.layer_label import layer_label
from stormdrop.search import annealing
from stormdrop.search.common_model import CommonCostModel
from stormdrop.search.dpansor import DPAnsor
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.tiles.sketch import Tiles, TilesOfParts
from stormdrop.trial import Candidate, Measurement, Request, Status
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions

Measured = set[tuple[str, Candidate]]


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> Measured:
    return measure_with(monkeypatch, Even)


def of_trials(trials: int) -> Budget:
    return Budget(trials, None, perf_counter())


def test_kernels_of_bytes_may_be_faster_than_the_peak_of_float32(target: Cpu) -> None:
    floats, small = (
        scheduler._least_seconds(operators.dense(64, 64, 64, dtype=dtype), target, (1e9, 1e9), [RegisterBlocked()])
        for dtype in ("float32", "uint8")
    )
    assert floats == 2 * 64**3 / 1e9
    assert small < floats / 4


@pytest.mark.parametrize(
    ("sketch", "dtype", "times"),
    [(Tiles(), "bfloat16", 15.3), (Tiles(), "uint8", 30.5), (TilesOfParts(), "float32", 15.3 / 3)],
)
def test_no_kernel_by_tiles_is_faster_than_the_least_time(target: Cpu, sketch: Tiles, dtype: str, times: float) -> None:
    """The tuning of a kernel ends at this time. Tiles were measured so many times as fast as float32."""
    least, plain = (
        scheduler._least_seconds(operators.dense(64, 64, 64, dtype=dtype), target, (1e9, 1e9), [*sketches])
        for sketches in ((RegisterBlocked(), sketch), (RegisterBlocked(),))
    )
    assert least < 2 * 64**3 / 1e9 / times
    assert least < plain


def test_events_and_records_name_the_layers_of_a_kernel(residual: Graph, target: Cpu, even: Measured) -> None:
    told: list[Event] = []
    with open_store("sqlite://") as store, events.listening(told.append):
        tasks = tuned(residual, target, store, of_trials(12))
        kept = {summary.workload_name: summary.layers for summary in store.sessions()}
    measured = {task.task.name: task.task.layers for task in tasks if task.result is not None}
    assert kept == measured and measured and all(measured.values())
    for what in ("start", "search", "race", "trial", "best seconds"):
        details = [event.details for event in told if event.what == what and event.kind is not Kind.FINISHED]
        named = {each["workload"]: each["layers"] for each in details}
        assert named == {name: layer_label(layers) for name, layers in measured.items()}, what


@pytest.mark.parametrize("trials", [1, 2, 7, 25])
def test_trials_bound_the_whole_command(residual: Graph, target: Cpu, even: Measured, trials: int) -> None:
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, of_trials(trials))
        assert len(even) <= trials
        assert len(even) == sum(task.result.trials for task in tasks if task.result)
        starved = [task for task in tasks if task.kernel is not None and task.result is None]
        tunable = sum(task.kernel is not None for task in tasks)
        assert len(starved) == max(0, tunable - trials)
        assert all(task.reason and "no trials left" in task.reason for task in starved)
        assert not any(task.converged for task in starved)
        assert all(task.to_json()["trials"] == 0 for task in starved)
        even.clear()
        again = tuned(residual, target, store, of_trials(trials))
        # The same command again: what the first run did is the answer and costs nothing, so others get their turn.
        kept = {task.task.index for task in tasks if task.result is not None}
        assert len(even) <= trials
        for task in again:
            if task.task.index in kept:
                assert task.result is not None and task.result.reused == task.result.trials
                assert task.result.workload.key not in {key for key, _ in even}


def test_kernels_share_one_cost_model_if_its_features_are_comparable(
    residual: Graph, target: Cpu, even: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansor's preset with its 164 features: in the first round each kernel learns from those before it."""
    trained: list[list[int]] = []
    train = CommonCostModel.train

    def spy(self: CommonCostModel) -> None:
        trained.append([len(member.measured) for member in self._members])
        train(self)

    monkeypatch.setattr(CommonCostModel, "train", spy)
    search = {
        "search": "evolutionary",
        "search_options": {"preset": "paper", "population": 8, "generations": 1, "K": 60},
    }
    for features in ("statements", "knobs"):
        with open_store("sqlite://") as store:
            tasks = tuned(residual, target, store, of_trials(60), features=features, fresh=True, **search)
        kernels = sum(task.kernel is not None for task in tasks)
        assert kernels > 1
        if features == "statements":  # all but the first kernel breed their first round
            assert [len(known) for known in trained] == list(range(2, kernels + 1))
            assert all(min(known[:-1]) == 60 // kernels and known[-1] == 0 for known in trained)
        else:  # each kernel has had one round, which is random without trials of its own
            assert not trained
        assert len(even) == 60
        even.clear()
        trained.clear()


def test_autotvm_s_transfer_tunes_one_kernel_after_the_other(
    residual: Graph, target: Cpu, even: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Annealing's preset with features that are comparable: what the kernels before have measured trains a base."""
    known: list[list[int]] = []
    training_set = CommonCostModel.training_set

    def spy(self: CommonCostModel, without: Any = None) -> Any:
        known.append([len(member.measured) for member in self._members if member is not without])
        return training_set(self, without)

    monkeypatch.setattr(CommonCostModel, "training_set", spy)
    monkeypatch.setattr(annealing, "_TEACHERS", 20)
    search = {"search": "annealing", "search_options": {"preset": "paper", "chains": 4, "iterations": 2}}
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, of_trials(60), features="statements", fresh=True, **search)
    kernels = sum(task.kernel is not None for task in tasks)
    assert kernels > 1
    assert known == [[60 // kernels] * before for before in range(kernels)]
    assert len(even) == 60


def test_the_same_command_again_is_answered_from_the_records(residual: Graph, target: Cpu, even: Measured) -> None:
    with open_store("sqlite://") as store:
        first = tuned(residual, target, store, of_trials(30))
        assert even
        even.clear()
        again = tuned(residual, target, store, of_trials(30))
        assert even == set()
        assert [task.result.trials for task in again if task.result] == [
            task.result.trials for task in first if task.result
        ]


@pytest.mark.long
def test_more_trials_than_the_records_had_are_measured(residual: Graph, target: Cpu, even: Measured) -> None:
    with open_store("sqlite://") as store:
        first = tuned(residual, target, store, of_trials(30))
        even.clear()
        more = tuned(residual, target, store, of_trials(300))
        assert even
        count = sum(task.result.trials for task in first if task.result)
        assert sum(task.result.trials for task in more if task.result) > count


class Interrupting(Even):
    """Ctrl-C after so many candidates."""

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for measurement in super().measure(requests):
            yield measurement
            if len(self.measured) == 12:
                raise KeyboardInterrupt


class InterruptingRace(Even):
    """Ctrl-C in the first race."""

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        raise KeyboardInterrupt


class InterruptingClose(Even):
    """Ctrl-C while the first session is closed."""

    def close(self) -> None:
        if not _closed:
            _closed.add(self.workload)
            raise KeyboardInterrupt


_closed: set[str] = set()


class Dying(Even):
    """The workers of the second task die after some candidates."""

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for measurement in super().measure(requests):
            yield measurement
            if len(self.measured) == 12:
                raise MeasureError("the workers cannot be started")


@pytest.mark.parametrize("kind", [Interrupting, InterruptingRace, InterruptingClose])
def test_ctrl_c_keeps_what_was_found(
    residual: Graph, target: Cpu, kind: type[Even], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = measure_with(monkeypatch, kind)
    _closed.clear()
    with open_store("sqlite://") as store:
        result = tune_graph(residual, target, store, of_trials(60))
        assert result.interrupted
        assert sum(task.result.trials for task in result.tasks if task.result) == len(measured)
        with_best = [task for task in result.tasks if task.result is not None and task.result.best is not None]
        assert len(with_best) == len({key for key, _ in measured})
        late = [task for task in result.tasks if task.kernel is not None and task.result is None]
        assert all(task.reason and "interrupted" in task.reason for task in late)
        assert {summary.state for summary in store.sessions()} <= {State.INTERRUPTED, State.FINISHED}


def test_what_was_found_before_the_workers_died_stays(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_with(monkeypatch, Dying)
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, of_trials(60))
    (ended,) = [task for task in tasks if task.reason and "ended early: the workers cannot be started" in task.reason]
    assert ended.result is not None and ended.result.best is not None and ended.kernel is not None
    assert sum(task.result.trials for task in tasks if task.result) <= 60


def test_without_time_no_task_is_measured(
    residual: Graph, target: Cpu, even: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(scheduler, "site_of_model", refuse)
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, Budget(None, 5.0, perf_counter() - 10))
    assert even == set()
    assert all(task.result is None and task.reason for task in tasks)


class Slow(Even):
    """A candidate takes a while; races are remembered, in their order."""

    raced: ClassVar[list[str]] = []
    clock: ClassVar[SimulatedClock]

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for measurement in super().measure(requests):
            self.clock.sleep(20e-3)
            yield measurement

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        self.raced.append(self.workload)
        self.clock.sleep(20e-3)
        return super().race(candidates, rounds)


def test_time_goes_to_all_and_ends_in_time(residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measure_with(monkeypatch, Slow)
    monkeypatch.setattr(scheduler, "_LEAST_SLICE", 0.05)
    monkeypatch.setattr(Slow, "raced", [])
    monkeypatch.setattr(Slow, "clock", clock := simulated(monkeypatch), raising=False)
    # Time for two races that are worth it.
    monkeypatch.setattr(budgets, "_RACE_START", 0.05)
    monkeypatch.setattr(budgets, "_FAIR_RACE", 0.1)
    monkeypatch.setattr(budgets, "_SHORTEST_RACE", 0.05)
    seconds = 3.0
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, Budget(None, seconds, clock.now))
    assert 0.5 * seconds < clock.now < seconds
    weights = {task.kernel.workload.key: task.task.weight for task in tasks if task.kernel is not None}
    assert {key for key, _ in measured} == weights.keys()
    # Each call takes a millisecond: the more often a kernel is called, the heavier it is.
    raced = [weights[key] for key in Slow.raced]
    assert raced == sorted(weights.values(), reverse=True)[: len(raced)]
    assert len(raced) > 0


def test_a_large_task_leaves_the_others_their_parts(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store("sqlite://") as store:
        measure_with(monkeypatch, Even)
        tasks = tuned(residual, target, store, of_trials(1))
    keys = [task.kernel.workload.key for task in tasks if task.kernel is not None]
    (heaviest,) = [task.result.workload.key for task in tasks if task.result is not None]  # the first in turn
    order: list[str] = []
    seconds, clock = 4.0, simulated(monkeypatch)

    class Patient(Even):
        def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
            order.append(self.workload)
            if self.workload == heaviest:
                clock.sleep(seconds)  # all of the budget
            for measurement in super().measure(requests):
                clock.sleep(20e-3)
                yield measurement

    measured = measure_with(monkeypatch, Patient)
    is_large = property(lambda state: state.kernel.workload.key == heaviest)
    monkeypatch.setattr(ScheduledTask, "is_large", is_large)
    with open_store("sqlite://") as store:
        tuned(residual, target, store, Budget(None, seconds, clock.now))
    assert order[-1] == heaviest
    assert {key for key, _ in measured} == set(keys)


def test_what_an_earlier_run_has_finished_counts_when_it_is_resumed(
    residual: Graph, target: Cpu, even: Measured
) -> None:
    with open_store("sqlite://") as store:
        tune_graph(residual, target, store, of_trials(40))
        before = len(even)
        # All that it finished is recalled: of 44 trials 4 are left for kernels that had fewer than their part of 44.
        tune_graph(residual, target, store, of_trials(44), resume=True)
        assert before <= 40 and len(even) <= 44


@pytest.mark.parametrize("explored", [1, 20])
def test_dpansor_explores_together_and_exploits_each(
    residual: Graph, target: Cpu, even: Measured, explored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[int] = []
    exploit = DPAnsor.exploit

    def counted(search: DPAnsor) -> None:
        before.append(len(even))
        exploit(search)

    monkeypatch.setattr(DPAnsor, "exploit", counted)
    options = {"search": "dpansor", "search_options": {"N": explored, "exploitation": 5}}
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, Budget(None, None, perf_counter()), **options)
    tunable = [task for task in tasks if task.kernel is not None]
    assert all(task.result is not None and task.result.trials > 1 for task in tunable)
    assert before[0] == max(explored, len(tunable))
    assert len(even) <= before[0] + 5 * len(tunable)


def test_a_function_that_a_sketch_refuses_becomes_a_fallback(
    residual: Graph, target: Cpu, even: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any, **__: Any) -> KernelTask:
        raise UnsupportedFunction("too strange")

    monkeypatch.setattr(KernelTask, "create", refuses)
    with open_store("sqlite://") as store:
        tasks = tuned(residual, target, store, of_trials(4))
    assert all(task.kernel is None and task.reason == "too strange" for task in tasks)


class Disturbed(Even):
    """Something else uses the machine in every race."""

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return [Measurement(Status.OK, (1e-3,) * rounds, suspect=True)] * len(candidates)


def test_what_a_disturbed_run_found_is_better_than_nothing(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = measure_with(monkeypatch, Disturbed)
    with open_store("sqlite://") as store:
        first = tuned(residual, target, store, of_trials(12))
        assert all(task.result is not None and task.result.disturbed for task in first if task.kernel)
        count = len(measured)
        known = recorded_tasks(residual, target, TuneOptions(search="random"), store)
        assert len(measured) == count
        assert [task.result is not None for task in known.tasks] == [task.kernel is not None for task in known.tasks]
        asked: Counter[str] = Counter()
        finished = store.finished

        def spy(problem: Problem) -> list[StoredSession]:
            asked[problem.workload_key] += 1
            return finished(problem)

        monkeypatch.setattr(store, "finished", spy)
        late = tuned(residual, target, store, Budget(None, 1.0, perf_counter() - 60.0))  # no time is left at all
        assert set(asked.values()) == {1}, "the records are asked once for each kernel"
        assert len(measured) == count
        assert all(task.result is not None and task.reason for task in late if task.kernel)
        again = tuned(residual, target, store, of_trials(12))  # but it is no answer
        assert all(task.result is not None and not task.result.reused for task in again if task.kernel)


class BesideLoad(Even):
    """Something else uses the machine all the time."""

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        return (replace(measurement, suspect=True) for measurement in super().measure(requests))


def test_what_was_measured_beside_load_and_did_not_race_does_not_replace_the_default(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_with(monkeypatch, BesideLoad)
    monkeypatch.setattr(Budget, "race_seconds", lambda *_: 0.0)
    with open_store("sqlite://") as store:
        first = tuned(residual, target, store, of_trials(12))
        assert all(task.result is not None and task.result.suspect for task in first if task.kernel)
        known = recorded_tasks(residual, target, TuneOptions(search="random"), store).tasks
    assert all(task.result is None and "did not race" in (task.reason or "") for task in known if task.kernel)


def test_costly_kernels_come_first_and_those_that_were_measured_later(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_with(monkeypatch, Disturbed)
    begun: list[ScheduledTask] = []
    monkeypatch.setattr(scheduler._Scheduler, "_search", lambda self, task, *_: begun.append(task))

    def order(store: Store) -> list[ScheduledTask]:
        begun.clear()
        tasks = scheduler.tasks_of(residual, target, TuneOptions(search="random"))
        for cost, task in enumerate(tasks, start=1):
            task.untuned = cost * 1e-3
        options = TuneOptions(search="random")
        scheduler.tune_tasks(residual, target, options, Budget(None, 3600.0, perf_counter()), store, tasks=tasks)
        return list(begun)

    with open_store("sqlite://") as store:
        new = order(store)
        assert [task.untuned for task in new] == sorted((task.untuned or 0.0 for task in new), reverse=True)
        costliest = new[0].kernel
        assert costliest is not None and len(new) > 2
        monkeypatch.setattr(
            KernelTask,
            "recorded",
            lambda kernel, _: [object()] if kernel.workload.key == costliest.workload.key else [],
        )
        monkeypatch.setattr(KernelTask, "answered", lambda *_, **__: None)
        cheaper = [
            task.task.name for task in new if (task.untuned or 0.0) < task_state._MEASURED * (new[0].untuned or 0.0)
        ]
        again = [task.task.name for task in order(store)]
        assert again != [task.task.name for task in new] and again[-len(cheaper) :] == cheaper
        assert again[-len(cheaper) - 1] == new[0].task.name  # it has less to gain
