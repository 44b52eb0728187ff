"""Finds the kernels that make a compiled model wrong, and puts schedules in their place that only reorder.

    verify -> the error of each kernel on what it reads in the model -> other schedules for those at fault -> verify ...

A schedule that computes in another way, such as Winograd's, is right by itself and may still be too coarse for a
network that amplifies rounding. A schedule may also be plainly wrong where its tuning did not look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ModelError
from ...ir.relative_error import relative_error
from ..artifact.artifact import CompiledModel
from ..graph.graph import Graph
from ..verification.expected import Fault
from ..verification.kernels import kernel_errors
from ..verification.rounding import LEVEL
from .builder import ModelBuilder
from .tuned_task import Choice


@dataclass(frozen=True)
class Replacement:
    """A kernel whose schedule was replaced because the model was wrong with it.

    Attributes:
        task: The name of its task.
        error: The error of the kernel on what it reads in the model; None if NumPy does not know its function.
        before: The sketch of the schedule that was replaced.
        after: The sketch of the schedule in its place; "plain" for a plain schedule.
        layers: The names of the layers that the kernel computes.
    """

    task: str
    error: float | None
    before: str
    after: str
    layers: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """An entry of `replaced` in the document of `stormdrop tune --json`."""
        fields = {"task": self.task, "error": self.error, "before": self.before, "after": self.after}
        return {**fields, "layers": list(self.layers)}


@dataclass(frozen=True)
class Verified:
    """A model that has passed its verification.

    Attributes:
        model: The model.
        combination: The schedule of each task.
        replaced: The schedules that had to be replaced.
    """

    model: CompiledModel
    combination: Mapping[int, Choice]
    replaced: tuple[Replacement, ...]


def verified_or_repaired(
    graph: Graph,
    builder: ModelBuilder,
    model: CompiledModel,
    combination: Mapping[int, Choice],
    verify: Callable[[CompiledModel, Mapping[int, Choice]], Fault | None],
    say: Callable[[str], None],
) -> Verified:
    """Verifies a model, and replaces schedules until it is right.

    Args:
        graph: The model as it was imported.
        builder: Builds the model of another combination.
        model: The model.
        combination: The schedule of each task.
        verify: Verifies a model of a combination (and saves it if it is right).
        say: Tells the user what is done now.

    Raises:
        ModelError: The model is wrong with exact schedules, too, or with each schedule of one of its kernels.
    """
    alternatives: dict[int, Iterator[Choice]] = {}
    replaced: dict[int, Replacement] = {}
    tasks = {task.index: task for task in graph.tasks}
    while True:
        fault = verify(model, combination)
        if fault is None:
            return Verified(model, combination, tuple(replaced.values()))
        say("looking for the kernels at fault")
        here = builder.executable(model, combination)
        errors = kernel_errors(graph.at(fault.sample.feeds), here, fault.sample.feeds)
        changed = dict(combination)
        for index in _at_fault(builder, combination, errors):
            others = alternatives.setdefault(index, iter(builder.exact_alternatives(index, combination[index])))
            other = next(others, None)
            if other is None:
                why = f"no other schedule of {tasks[index].described} is right"
                raise _refusal(graph, fault, errors, why + _about_denormals(builder, model, combination, fault))
            changed[index] = other
            first = replaced.get(index)
            before, error = (combination[index][0], errors.get(index)) if first is None else (first.before, first.error)
            replaced[index] = Replacement(tasks[index].name, error, before, other[0], tasks[index].layers)
        if changed == combination:
            why = "all its schedules are exact"
            raise _refusal(graph, fault, errors, why + _about_denormals(builder, model, combination, fault))
        say(f"replacing {len(replaced)} schedules")
        combination, model = changed, builder.build(changed)


def _at_fault(builder: ModelBuilder, combination: Mapping[int, Choice], errors: Mapping[int, float]) -> list[int]:
    """The tasks whose kernels are wrong by themselves; if there is none, those whose schedules are not exact."""
    wrong = [index for index in combination if not errors.get(index, 0.0) <= LEVEL]
    return wrong or [index for index in combination if not builder.is_exact(index, combination[index])]


def _about_denormals(
    builder: ModelBuilder, model: CompiledModel, combination: Mapping[int, Choice], fault: Fault
) -> str:
    """What to say of `--keep-denormals` if it changes what the model computes on the inputs that show a fault."""
    kept = builder.build_keeping_denormals(combination)
    if kept is None:
        return ""
    before, after = (each.run(fault.sample.feeds) for each in (model, kept))
    change = max(relative_error(before[name], right) for name, right in after.items())
    if change <= LEVEL:
        return ""
    return (
        f"; its outputs change by {change:.1e} if numbers below 1.2e-38 do not count as zero: try --keep-denormals "
        f"(keep_denormals=True in Python)"
    )


def _refusal(graph: Graph, fault: Fault, errors: Mapping[int, float], why: str) -> ModelError:
    worst = max(errors, key=errors.__getitem__, default=None)
    layer = ""
    if worst is not None:
        name = next(task.described for task in graph.tasks if task.index == worst)
        layer = f"; the kernel with the largest error of its own is {name}: {errors[worst]:.1e}"
    return ModelError(f"{graph.name}: the compiled model is wrong and was not saved: {fault}; {why}{layer}")
