"""A model in the precision that its user asks for, and which of its layers are in bfloat16.

    float32    every layer as it is
    bf16       every layer in bfloat16 but the last ones
    auto       as many layers as the error allows, the most expensive ones first

The error of a choice of layers is found out before anything is compiled: NumPy computes the model as rounded as it
would be, and in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..ir.roles import is_contraction
from ..ir.stages import StageGraph
from ..report.formatting import precision_in_words
from ..tuning.options import AUTO, FLOAT32, TuneOptions
from .artifact import CompiledModel
from .importer.graph import Graph
from .importer.tasks import Task
from .precision import last_layers, layers, lowered
from .verification.lowered import Accuracy, accuracy_of, expected_error, lowered_reference
from .verify import Reference

MAX_ERROR = 1e-2
"""The error that `auto` allows by default, max|lowered - exact| / max|exact| of an output."""


@dataclass(frozen=True, eq=False)
class Lowering:
    """A model in a precision.

    Attributes:
        graph: The model.
        references: What it should compute, at each size.
        precision: One of `tuning.options.PRECISIONS`.
        original: The model in float32.
        layers: The names of its layers, in order.
        low: Those that are in bfloat16.
    """

    graph: Graph
    references: list[Reference]
    precision: str
    original: Graph
    layers: tuple[str, ...] = ()
    low: tuple[str, ...] = ()

    def of_kernels(self, options: TuneOptions) -> TuneOptions:
        """The options of the kernels' tunings: what `auto` allows the model says nothing about a kernel."""
        return replace(options, max_error=None) if self.precision == AUTO else options

    def report(self, model: CompiledModel, seed: int) -> PrecisionReport | None:
        """What the precision costs; None if the model is in float32.

        Args:
            model: The compiled model.
            seed: Seeds the inputs on which it is compared with float32.
        """
        if self.precision == FLOAT32:
            return None
        return PrecisionReport(self.precision, self.layers, self.low, accuracy_of(model, self.original, seed))


@dataclass(frozen=True)
class PrecisionReport:
    """Which layers of a model are in bfloat16, and what that costs.

    Attributes:
        precision: What was asked for.
        layers: The names of the model's layers.
        low: Those that are in bfloat16.
        accuracy: How far the model is from the one in float32.
    """

    precision: str
    layers: tuple[str, ...]
    low: tuple[str, ...]
    accuracy: Accuracy

    def __str__(self) -> str:
        return precision_in_words(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The entry `precision` of the documents of `stormdrop tune` and `compile`."""
        return {
            "asked": self.precision,
            "layers": len(self.layers),
            "bfloat16": list(self.low),
            "error": self.accuracy.error,
            "agreement": self.accuracy.agreement,
        }


def in_precision(graph: Graph, references: list[Reference], options: TuneOptions) -> Lowering:
    """A model in the precision that the options ask for.

    Args:
        graph: The model in float32.
        references: What it should compute, at each size.
        options: How it is tuned. `max_error` is the error that `auto` allows.

    Raises:
        ModelError: The model cannot be verified in bfloat16.
    """
    if options.precision == FLOAT32:
        return Lowering(graph, references, FLOAT32, graph)
    everything, last = layers(graph), last_layers(graph)
    able = [index for index in everything if index not in last]
    if options.precision == AUTO:
        able = _within(graph, references[0], able, everything, options.max_error or MAX_ERROR)
    low, done = lowered(graph, set(everything) - set(able))
    names = {task.index: task.name for task in graph.tasks}
    return Lowering(
        low if done else graph,
        [lowered_reference(*pair) for pair in zip(low.sizes, references, strict=True)] if done else references,
        options.precision,
        graph,
        tuple(names[index] for index in everything),
        tuple(names[index] for index in everything if index in done),
    )


def _within(
    graph: Graph, reference: Reference, able: Sequence[int], everything: Sequence[int], most: float
) -> list[int]:
    """The most expensive of some layers, as many as the error allows."""
    costs = {task.index: task.weight * _products(task) for task in graph.tasks if task.index in able}
    order = sorted(able, key=costs.__getitem__, reverse=True)
    lowest, count, highest = 0, len(order), len(order)  # as many as are known to be allowed, to be tried, and not more
    while lowest < highest:
        low, done = lowered(graph, set(everything) - set(order[:count]))
        if not done or expected_error(low, reference) <= most:
            lowest = count
        else:
            highest = count - 1
        count = math.ceil((lowest + highest) / 2)
    return order[:lowest]


def _products(task: Task) -> int:
    """The multiplications of a task's contractions."""
    stages = StageGraph.parse(task.function, gathers=True).stages
    return sum(math.prod(axis.extent for axis in stage.axes) for stage in stages if is_contraction(stage))
