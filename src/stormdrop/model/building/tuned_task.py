"""The tasks of a model after their tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...tuning.kernel import KernelTask
from ...tuning.result import TuneResult
from ..graph.tasks import Task

Choice = tuple[str, Mapping[str, Any]]
"""The schedule of a task: a sketch by name, and a configuration of it."""


@dataclass(frozen=True)
class Borrowed:
    """A schedule that a tuning on another GPU has found.

    Attributes:
        choice: The schedule.
        machine: The GPU, as the records name it.
    """

    choice: Choice
    machine: str


@dataclass(frozen=True)
class TunedTask:
    """A task and what its tuning brought.

    Attributes:
        task: The task.
        kernel: The task with its workload and sketches. None if no sketch takes its function, if it cannot be
            measured, or if none of its candidates worked: it gets a plain schedule.
        result: The result. None if nothing was left for it, or if Ctrl-C came before its turn: it gets the default
            schedule.
        reason: Says which of these it was, in one line; or that the result is that of an earlier run, because nothing
            was left for more.
        untuned: Seconds that its calls took in the model with default schedules, before the tuning; None if that was
            not measured.
        default_inside: Whether its default schedule has taken the place of the fastest one inside the model.
        borrowed: The schedule that it has in place of the default, if it has no result.
    """

    task: Task
    kernel: KernelTask | None
    result: TuneResult | None
    reason: str | None = None
    untuned: float | None = None
    default_inside: bool = False
    borrowed: Borrowed | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that its calls compute."""
        return self.task.layers

    @property
    def converged(self) -> bool:
        """Whether more time would not help."""
        return self.kernel is None if self.result is None else self.result.converged

    def to_json(self) -> dict[str, Any]:
        """An entry of `tasks` in the document of `stormdrop tune --json`."""
        entry: dict[str, Any] = {
            "name": self.task.name,
            "layers": list(self.layers),
            "weight": self.task.weight,
            "reason": self.reason,
            "untuned": self.untuned,
            "default_inside": self.default_inside,
        }
        keys = ("sketch", "seconds", "gflops", "percent_of_peak", "gigabytes_per_second", "config")
        if self.result is None:
            counts = {"trials": 0, "failed": 0, "reused": 0, "converged": False, "baseline": None}
            return {**entry, **dict.fromkeys(keys), **counts, "tuning_seconds": 0.0, "transfer": None}
        document = self.result.to_json()
        best = document["best"] or {}
        return {
            **entry,
            **{key: best.get(key) for key in keys},
            **{key: document[key] for key in ("trials", "failed", "reused", "converged", "baseline")},
            "tuning_seconds": self.result.seconds,
            "transfer": document["transfer"],
        }


@dataclass(frozen=True)
class TunedTasks:
    """The tasks of a model after their tuning.

    Attributes:
        tasks: All tasks of the graph, in its order.
        interrupted: Whether Ctrl-C ended the tuning.
        curve: (seconds of tuning, summed seconds of the kernels that were measured) from the end of the first round on.
        records_seconds: Wall seconds until it was known what the records say of all tasks.
    """

    tasks: Sequence[TunedTask]
    interrupted: bool
    curve: Sequence[tuple[float, float]]
    records_seconds: float = 0.0
