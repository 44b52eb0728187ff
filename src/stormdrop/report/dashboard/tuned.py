"""What was tuned, as rows: one for each model with its kernels, one for each operator with its sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ...records.contract import State, machine_alone
from ...records.reading.reader import ModelKernel
from ...records.reading.session_lines import SessionLine, TunedLine
from .. import formatting
from .shared import Shared

_MOST = 20  # rows of what was tuned last


@dataclass(frozen=True)
class Model:
    """A model with its kernels, as one machine has tuned them.

    Attributes:
        name: Its name.
        machine: The machine.
        kernels: Its kernels, the one that takes most of the time first.
        seconds: The sum of the kernels that have a time; None as long as others are still to be measured.
        baseline: The same sum with default schedules; None unless it is known of every kernel.
        known: Kernels that have a time.
        expected: Kernels that will have one in the end.
        running: Kernels that are tuned now.
    """

    name: str
    machine: str
    kernels: Sequence[ModelKernel]
    seconds: float | None
    baseline: float | None
    known: int
    expected: int
    running: int

    @property
    def times(self) -> str:
        """How many kernels have a time, in words."""
        of = "" if self.known == self.expected else f"{self.known} of "
        return f"{of}{formatting.count(self.expected, 'kernel')}"


@dataclass(frozen=True)
class TunedRow:
    """A row of what was tuned last.

    Attributes:
        line: What was tuned.
        best: Seconds of the best; None if that is not known.
        default: The same with default schedules.
        address: The page that shows it.
        note: What else the row says below the name.
    """

    line: TunedLine
    best: float | None
    default: float | None
    address: str
    note: str

    @property
    def faster(self) -> str:
        """How many times as fast the best is."""
        return formatting.ratio(self.default, self.best)


def tuned_models(shared: Shared) -> list[Model]:
    """The models whose kernels the records hold, those that are tuned now first."""
    found = []
    for name, by_machine in shared.reader.models().items():
        for machine, kernels in by_machine.items():
            seconds = [each.calls * each.line.best_seconds for each in kernels if each.line.best_seconds is not None]
            defaults = [each.line.baseline_seconds for each in kernels]
            baseline = None
            if all(default is not None for default in defaults):
                baseline = sum(each.calls * (each.line.baseline_seconds or 0.0) for each in kernels)
            running = sum(each.line.state is State.RUNNING for each in kernels)
            ordered = sorted(kernels, key=lambda each: -each.calls * (each.line.best_seconds or 0.0))
            newest = max(kernels, key=lambda each: each.line.number)
            expected = max(len(kernels), newest.together)
            total = None if running and len(seconds) < expected else sum(seconds)
            found.append(Model(name, machine, ordered, total, baseline, len(seconds), expected, running))
    return sorted(found, key=lambda model: (-model.running, model.name, model.machine))


def tuned_last(shared: Shared, models: Sequence[Model]) -> list[TunedRow]:
    """What was tuned last, a row for each model and each operator."""
    by_name = {(model.name, model.machine): model for model in models}
    rows = []
    for line in shared.reader.tuned(_MOST):
        model = by_name.get((line.name, line.machine)) if line.is_model else None
        if model is None:
            note = f"the newest of {line.sessions} sessions" if line.sessions > 1 else ""
            newest = line.newest
            rows.append(TunedRow(line, newest.best_seconds, newest.baseline_seconds, f"/sessions/{newest.id}", note))
        else:
            address = f"/model{query_of({'name': model.name, 'machine': model.machine})}"
            rows.append(TunedRow(line, model.seconds, model.baseline, address, f"model, sum of {model.times}"))
    return rows


def one_of_each_model(shared: Shared, running: Sequence[SessionLine]) -> list[SessionLine]:
    """Of the sessions of each model the one that was written last, and all others."""
    names = shared.reader.models_of([line.number for line in running])
    kept: dict[Any, SessionLine] = {}
    for line in sorted(running, key=lambda line: line.written or "", reverse=True):
        kept.setdefault(
            (names[line.number], machine_alone(line.machine)) if line.number in names else line.number, line
        )
    return list(kept.values())


def query_of(values: Mapping[str, Any]) -> str:
    """The end of an address, with its question mark."""
    kept = {name: str(value) for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(kept)}" if kept else ""
