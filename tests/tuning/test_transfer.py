"""Records of another machine and of other shapes say where a search begins, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from replayed_tuning import RECORDED, SIMILAR_WORKLOAD, TARGET, WORKLOAD, Counting, tune_replayed, tune_similar_kernel

from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.measure.replay import ReplayMeasurer
from stormdrop.records import Outcome, Problem, Record, Setting, Store, export_file, import_file, open_store
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Measurement, Status
from stormdrop.tuning.result import TuneResult
from stormdrop.tuning.transfer import STARTS, speeds, transfer
from stormdrop.tuning.tune import tune

OTHER = dataclasses.replace(TARGET, cpu="another CPU")
SPACES = {space.name: space for _, space in sketches_for(WORKLOAD, TARGET)}
ORDER = sorted(RECORDED, key=lambda candidate: float(np.median(RECORDED[candidate])))


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("sqlite://") as opened:
        yield opened


def tuned_elsewhere(store: Store, trials: int = 64, slower: float = 3.0, target: Cpu = OTHER) -> TuneResult:
    """A random search on another machine, which is slower and has the same landscape."""
    recorded = {candidate: [slower * sample for sample in samples] for candidate, samples in RECORDED.items()}
    measurer = ReplayMeasurer(recorded, np.random.default_rng(3))
    return tune(WORKLOAD, target=target, store=store, measurer=measurer, search="random", trials=trials)


def began_at(store: Store, count: int, **settings: object) -> list[Candidate]:
    measurer = Counting()
    tune_replayed(store, measurer, search="storm", trials=40, **settings)
    return list(dict.fromkeys(measurer.candidates))[:count]


def rank(candidates: list[Candidate]) -> float:
    """The mean rank of candidates among all, from 0 for the fastest to 1."""
    return float(np.mean([ORDER.index(candidate) / len(ORDER) for candidate in candidates]))


def test_records_of_another_machine_say_where_to_begin(store: Store) -> None:
    tuned_elsewhere(store)
    with_records = began_at(store, STARTS)
    with open_store("sqlite://") as empty:
        without = began_at(empty, STARTS)
    assert rank(with_records) < 0.1 < rank(without)
    with open_store("sqlite://") as other:
        tuned_elsewhere(other)
        assert began_at(other, STARTS, transfer=False) == without
        assert began_at(other, STARTS, fresh=True) == without


def test_the_result_says_what_was_taken_over(store: Store) -> None:
    tuned_elsewhere(store)
    result = tune_replayed(store, Counting(), search="storm", trials=40)
    expected = {"starts": STARTS, "trials": 64, "sessions": 1, "sources": [OTHER.machine]}
    assert result.to_json()["transfer"] == expected
    assert result.reused == 0, "no time is taken over"
    again = tune_replayed(store, Counting(), search="storm", trials=40)
    assert (again.reused, again.to_json()["transfer"]) == (result.trials, expected)
    assert tune_replayed(store, Counting(), search="storm", trials=40, fresh=True).to_json()["transfer"] is None


def test_a_small_budget_has_few_starts(store: Store) -> None:
    tuned_elsewhere(store)
    told = tune_replayed(store, Counting(), search="storm", trials=12).transfer
    assert told is not None and told["starts"] == 3


def test_another_shape_of_the_operator_counts(store: Store) -> None:
    tune_similar_kernel(store, trials=64)
    told = tune_replayed(store, Counting(), search="storm", trials=40).transfer
    assert told is not None and told["sources"] == [SIMILAR_WORKLOAD.name]


def test_a_few_records_are_no_model(store: Store) -> None:
    tuned_elsewhere(store, trials=15)
    assert tune_replayed(store, Counting(), search="storm", trials=40).transfer is None


def test_the_same_records_and_seed_give_the_same_search() -> None:
    runs = []
    for _ in range(2):
        with open_store("sqlite://") as store:
            tuned_elsewhere(store)
            measurer = Counting()
            tune_replayed(store, measurer, search="storm", trials=40)
            runs.append(measurer.candidates)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("position", [0, 3, 20])
def test_a_resumed_search_is_the_one_that_was_interrupted(position: int) -> None:
    with open_store("sqlite://") as store:
        tuned_elsewhere(store)
        whole = Counting()
        tune_replayed(store, whole, search="storm", trials=40)
    with open_store("sqlite://") as store:
        tuned_elsewhere(store)
        first = Counting(interrupt_after=position)
        assert tune_replayed(store, first, search="storm", trials=40).interrupted
        tuned_elsewhere(store, trials=200, slower=0.5, target=dataclasses.replace(TARGET, cpu="a third CPU"))
        second = Counting()
        result = tune_replayed(store, second, search="storm", trials=40, resume=True)
    if position:  # before its first trial there is nothing to resume
        assert result.transfer is not None and result.transfer["sources"] == [OTHER.machine]
        begun = list(dict.fromkeys([*first.candidates, *second.candidates]))
        assert begun[:STARTS] == list(dict.fromkeys(whole.candidates))[:STARTS], (
            "records that came later change nothing"
        )


def test_a_file_of_starter_records_is_enough(store: Store, tmp_path: Path) -> None:
    with open_store("sqlite://") as theirs:
        tuned_elsewhere(theirs)
        assert export_file(theirs, tmp_path / "starter.jsonl") == 1
    assert import_file(store, tmp_path / "starter.jsonl").added == 1
    assert rank(began_at(store, STARTS)) < 0.1


def test_failures_and_what_the_spaces_lack(store: Store) -> None:
    tuned_elsewhere(store)
    (summary,) = store.sessions()
    trials = store.records(store.session(summary.id))
    found = speeds(trials, SPACES)
    assert max(found.values()) == 1.0 and len(found) == 64
    failed = dataclasses.replace(trials[0].measurement, seconds=(), status=type(trials[0].measurement.status).RUNTIME)
    broken = dataclasses.replace(trials[0], measurement=failed)
    foreign = dataclasses.replace(trials[1], config={**trials[1].config, next(iter(trials[1].config)): "nothing"})
    changed = speeds([broken, foreign, *trials[2:]], SPACES)
    assert len(changed) == 63
    assert [speed for speed in changed.values() if speed == 0.0] == [0.0]
    problem = store.session(summary.id).problem
    assert transfer(problem, SPACES, store, seed=0) is None, "its own records are no transfer"


def test_records_of_the_most_similar_gpus_are_read_first(store: Store) -> None:
    """Eight sessions are read at most: those of the same architecture, though others are newer."""
    gpu = GPUS["rtx3090"]
    ((_, space), *_), rng = sketches_for(WORKLOAD, gpu), np.random.default_rng(0)
    key, text, name = WORKLOAD.key, WORKLOAD.text, WORKLOAD.name
    near, far = ("cuda sm_86", "NVIDIA RTX A6000"), ("cuda sm_75", "Tesla T4")
    for machine in (near, *[far] * 8):
        session = store.open(Problem(key, text, name, *machine), Setting("random", 0, {space.name: ""}))
        records = [
            Record(space.name, space.config(space.sample(rng)), Measurement(Status.OK, (float(rng.uniform(1, 2)),)))
            for _ in range(16)
        ]
        store.append(session, 0, records)
        best = min(records, key=lambda record: record.measurement.seconds)
        store.finish(session, Outcome(best.sketch, best.config, 1.0, (1.0, 1.0)))
    told = transfer(Problem(key, text, name, gpu.kind, "NVIDIA GeForce RTX 3090"), {space.name: space}, store, 0)
    assert told is not None
    assert list(told.sources) == [near[1], far[1]] and told.sessions == 8
