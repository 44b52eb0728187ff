"""What one run of a search reports: which candidate leads when, and what it has cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import pytest

from simulated_clock import simulated
from stormdrop.compare.search_run import PARTS, run_search
from stormdrop.measure.contract import Measurer
from stormdrop.search import Knowledge
from stormdrop.trial import Candidate, Measurement, Phases, Request, Status, Trial
from stormdrop.tuning.trace import Trace

SPENT = Phases(0.1, 0.2, 0.3, 0.4)
A, B, C, D = (Candidate("s", (i,)) for i in range(4))


class ScriptedSearch:
    """A search that asks for given requests, batch by batch."""

    name: ClassVar[str] = "scripted"
    knowledge = Knowledge()
    converged = True

    def __init__(self, batches: Sequence[Sequence[Candidate]], best: Candidate | None = None) -> None:
        self.batches, self.best = list(batches), best
        self.measured: list[Candidate] = []

    @property
    def finished(self) -> bool:
        return not self.batches

    def ask(self, n: int) -> list[Request]:
        return [Request(candidate, 1) for candidate in self.batches.pop(0)] if self.batches else []

    def tell(self, trials: Sequence[Trial]) -> None:
        self.measured += [trial.candidate for trial in trials]


class ScriptedMeasurer(Measurer):
    """A measurer that gives each candidate its samples one after the other. None stands for a failure."""

    def __init__(self, samples: Mapping[Candidate, Sequence[float | None]], phases: Phases = SPENT):
        self.samples = {candidate: list(script) for candidate, script in samples.items()}
        self.phases = phases

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            seconds = self.samples[request.candidate].pop(0)
            if seconds is None:
                yield Measurement(Status.RUNTIME, error="died", phases=self.phases)
            else:
                yield Measurement(Status.OK, (seconds,), phases=self.phases, suspect=request.candidate == B)

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        raise AssertionError("a run does not race")

    def close(self) -> None: ...


def leads(trace: Trace) -> list[tuple[int, Candidate | None]]:
    return [(lead.evaluations, lead.candidate) for lead in trace.leads]


def test_the_lowest_median_of_all_samples_leads_and_repeats_are_no_evaluations() -> None:
    """B's first sample was too fast, and its median grows past A's. Then C fails when it is measured again."""
    measurer = ScriptedMeasurer({A: [3.0], B: [1.0, 9.0, 9.0], C: [2.0, None], D: [5.0]})
    trace = run_search(ScriptedSearch([[A, B], [B, B, D], [C], [C]]), measurer, trials=10)
    assert leads(trace) == [(1, A), (2, B), (2, A), (4, C), (4, A)]
    assert [lead.batch for lead in trace.leads] == [1, 1, 2, 3, 4]
    assert trace.winner == A
    assert trace.medians == {A: 3.0, B: 9.0, D: 5.0}
    assert list(trace.measurements) == [A, B, D, C]
    assert set(trace.first_statuses.values()) == {Status.OK}  # C's failure came later
    assert trace.suspect == 3
    assert trace.converged


def test_costs_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated(monkeypatch, tick=1e-3)
    trace = run_search(
        ScriptedSearch([[A, B], [A, C]]), ScriptedMeasurer({A: [3.0, 3.0], B: [None], C: [1.0]}), trials=10
    )
    spent = dict(zip(PARTS, trace.seconds, strict=True))
    assert {part: spent[part] for part in PARTS[1:]} == pytest.approx(dict(schedule=0.4, build=0.8, run=1.2, check=1.6))
    assert 0 < spent["search"] < 0.5
    assert trace.status_seconds == pytest.approx({Status.OK: 3.0, Status.RUNTIME: 1.0})
    assert trace.leads[-1].seconds[1:] == pytest.approx(tuple(trace.seconds[1:]))
    assert trace.first_statuses[B] is Status.RUNTIME


def test_the_limit_of_trials_ends_a_run_within_a_batch() -> None:
    search = ScriptedSearch([[A], [A, B, A, C, A], [D]])
    trace = run_search(search, ScriptedMeasurer({A: [3.0] * 4, B: [2.0]}), trials=2)
    assert list(trace.measurements) == [A, B]
    assert search.measured == [A, A, B, A]


def test_the_limit_of_time_ends_a_run_after_the_batch() -> None:
    trace = run_search(
        ScriptedSearch([[A], [B], [C], [D]]), ScriptedMeasurer({A: [1.0], B: [2.0], C: [3.0], D: [4.0]}), 10, time=1.5
    )
    assert list(trace.measurements) == [A, B]


def test_a_finished_search_reports_what_it_holds_for_the_best() -> None:
    samples = {A: [3.0], B: [1.0], C: [2.0]}
    assert run_search(ScriptedSearch([[A, B]], best=A), ScriptedMeasurer(samples), 10).winner == A
    unfinished = ScriptedSearch([[A, B], [C]], best=A)
    assert run_search(unfinished, ScriptedMeasurer(samples), 2).winner == B
    never_measured = D
    assert run_search(ScriptedSearch([[A, B]], best=never_measured), ScriptedMeasurer(samples), 10).winner == B


def test_nothing_works() -> None:
    trace = run_search(ScriptedSearch([[A], [B]]), ScriptedMeasurer({A: [None], B: [None]}), 10)
    assert (trace.winner, trace.leads) == (None, [])
    trace = run_search(ScriptedSearch([[A], [A]]), ScriptedMeasurer({A: [1.0, None]}), 10)
    assert leads(trace) == [(1, A), (1, None)]
    assert trace.winner is None


def test_live_measurements_cost_the_time_that_was_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that build side by side report 0.3 s of building, for which nobody waited. Their run phases count."""
    simulated(monkeypatch, tick=1e-3)
    trace = run_search(
        ScriptedSearch([[A], [B]]), ScriptedMeasurer({A: [1.0], B: [1.0]}, Phases(0.1, 0.2, 0.0, 0.0)), 10, live=True
    )
    assert 0 < trace.seconds[1] == pytest.approx(trace.seconds[2] / 2)
    assert sum(trace.seconds) < 0.2
    trace = run_search(ScriptedSearch([[A]]), ScriptedMeasurer({A: [1.0]}, Phases(0.0, 0.0, 0.01, 0.02)), 10, live=True)
    assert trace.seconds[4] == 0.02
    assert trace.seconds[3] == pytest.approx(0.01)
