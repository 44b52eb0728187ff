"""What a report says about each size of a model: its latency, its error, its kernels, and its part of the tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...statistics import Interval
from ..building.tuned_task import TunedTask
from ..graph.graph import Graph


@dataclass(frozen=True)
class SizeResult:
    """One size of a tuned model.

    Attributes:
        shapes: The shapes of the inputs, by name.
        latency: Seconds of one execution; None if it was not timed, as by `stormdrop compile`.
        untuned: Seconds with the default schedule of every task; None as in `ModelResult.untuned`.
        max_error: How far its outputs are from the reference.
        own: How many distinct kernels no other size has.
        shared: How many distinct kernels other sizes have, too.
        tuning_seconds: Seconds of tuning: those of its own kernels, and of each shared one an equal part for each size.
        tuning_share: The same as a share of all sizes together; None if nothing was tuned.
    """

    shapes: Mapping[str, tuple[int, ...]]
    latency: Interval | None
    untuned: Interval | None
    max_error: float
    own: int
    shared: int
    tuning_seconds: float
    tuning_share: float | None

    def to_json(self) -> dict[str, Any]:
        """An entry of `sizes` in the documents of `stormdrop tune` and `stormdrop compile`."""
        return {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "latency": None if self.latency is None else timing(self.latency),
            "untuned": None if self.untuned is None else timing(self.untuned),
            "max_error": self.max_error,
            "kernels": {"own": self.own, "shared": self.shared},
            "tuning_seconds": self.tuning_seconds,
            "tuning_share": self.tuning_share,
        }


def size_results(
    graph: Graph,
    tasks: Sequence[TunedTask],
    errors: Sequence[float],
    latencies: Sequence[Interval] = (),
    untuned: Sequence[Interval] = (),
) -> tuple[SizeResult, ...]:
    """Describes each size of a model.

    Args:
        graph: The model.
        tasks: Its tasks after their tuning.
        errors: The error of each size.
        latencies: Seconds of one execution at each size; nothing if they were not timed.
        untuned: The same with default schedules.
    """
    called = [graph_of_size.called for graph_of_size in graph.sizes]
    users = {task.task.index: sum(task.task.index in each for each in called) for task in tasks}
    spent = {task.task.index: 0.0 if task.result is None else task.result.seconds for task in tasks}
    total = sum(spent.values())
    results = []
    for position, (size, indices) in enumerate(zip(graph.sizes, called, strict=True)):
        seconds = sum(spent[index] / users[index] for index in indices)
        shared = sum(users[index] > 1 for index in indices)
        results.append(
            SizeResult(
                shapes={info.name: info.shape for info in size.inputs},
                latency=latencies[position] if latencies else None,
                untuned=untuned[position] if untuned else None,
                max_error=errors[position],
                own=len(indices) - shared,
                shared=shared,
                tuning_seconds=seconds,
                tuning_share=seconds / total if total else None,
            )
        )
    return tuple(results)


def timing(interval: Interval) -> dict[str, Any]:
    """An interval of times in the documents."""
    return {"seconds": interval.estimate, "interval": [interval.low, interval.high]}
