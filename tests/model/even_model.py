"""Tuning a model whose candidates all take a millisecond: nothing is compiled to measure them, and no worker starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest

from stormdrop.machine.cpu import Cpu
from stormdrop.measure.contract import KernelSetup, Measurer, Site
from stormdrop.model.building.tuned_task import TunedTask, TunedTasks
from stormdrop.model.graph.graph import Graph
from stormdrop.model.tuning import scheduler
from stormdrop.model.tuning.budget import Budget
from stormdrop.model.tuning.scheduler import tune_tasks
from stormdrop.records import Store
from stormdrop.trial import Candidate, Measurement, Request, Status
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions


class Even(Measurer):
    """Every candidate works and takes a millisecond; `measured` collects the distinct ones by workload."""

    def __init__(self, workload: str = "", measured: set[tuple[str, Candidate]] | None = None) -> None:
        self.measured: set[tuple[str, Candidate]] = set() if measured is None else measured
        self.workload = workload

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            self.measured.add((self.workload, request.candidate))
            yield Measurement(Status.OK, (1e-3,) * request.repeats)

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return [Measurement(Status.OK, (1e-3,) * rounds)] * len(candidates)

    def close(self) -> None: ...


class Nowhere(Site):
    """A site without processes: something else measures."""

    def measurer(self, setup: KernelSetup) -> AbstractContextManager[Measurer]:
        raise AssertionError("this site measures nothing")


def measure_with(monkeypatch: pytest.MonkeyPatch, kind: type[Even]) -> set[tuple[str, Candidate]]:
    """Lets measurers of this kind measure all kernels of a model; what they measure comes into the set."""
    measured: set[tuple[str, Candidate]] = set()

    def measurer(kernel: KernelTask, fastest: float | None) -> Even:
        return kind(kernel.workload.key, measured)

    monkeypatch.setattr(KernelTask, "measurer", measurer)
    monkeypatch.setattr(scheduler, "site_of_model", lambda _: Nowhere())
    monkeypatch.setattr(scheduler, "known_peak", lambda _: SimpleNamespace(flops=float("inf"), bandwidth=float("inf")))
    return measured


def tune_graph(graph: Graph, target: Cpu, store: Store, budget: Budget, **options: Any) -> TunedTasks:
    return tune_tasks(graph, target, TuneOptions(**{"search": "random", **options}), budget, store)


def tuned(graph: Graph, target: Cpu, store: Store, budget: Budget, **options: Any) -> list[TunedTask]:
    result = tune_graph(graph, target, store, budget, **options)
    assert not result.interrupted
    return list(result.tasks)
