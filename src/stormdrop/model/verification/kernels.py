"""What the kernels of a compiled model read and write while it runs, and how exact each of them is by itself."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from tvm.ir import GenericConst

from ...errors import ModelError, UnsupportedFunction
from ...ir import reference
from ...ir.dtypes import is_float, limits
from ...ir.relative_error import relative_error
from ...ir.stages import StageGraph, shape_of
from ...ir.workload import step_inside
from ...runtime.program import Step
from ..artifact.artifact import CompiledModel
from ..graph.graph import Graph
from ..graph.place import place_of
from ..graph.tasks import kernel_calls
from ..inputs.given import HINT
from ..inputs.samples import Feeds
from ..tensors import Array, array_of
from .exact import Site

OnCall = Callable[[str, int, int, list[Array]], None]
"""Is called with the name of a kernel, its task, the number of its call among those of the task, and its arguments."""


def observed(model: CompiledModel, feeds: Feeds, sites: Collection[Site]) -> tuple[dict[str, Array], dict[Site, Array]]:
    """Runs a compiled model and copies what some of its kernels read.

    If nothing is to be copied, the model runs as its callers run it, without the program if that is possible.

    Args:
        model: The model, with the tasks of its kernels in `symbols`.
        feeds: Its inputs by name.
        sites: The arguments that are wanted.

    Returns:
        The outputs by name, and the arguments. Those of a task are missing if the compiled model calls it less often
        than the graph, because some of its calls became others' in-place writes.
    """
    if not sites:
        return model.run(feeds), {}
    positions: defaultdict[tuple[int, int], list[Site]] = defaultdict(list)
    for site in sites:
        positions[site.task, site.call].append(site)
    seen: dict[Site, Array] = {}

    def look(_: str, task: int, call: int, arguments: list[Array]) -> None:
        seen.update((site, arguments[site.argument].copy()) for site in positions.get((task, call), ()))

    outputs, calls = _run(model, feeds, look)
    return outputs, {site: value for site, value in seen.items() if calls[site.task] == site.calls}


def kernel_errors(graph: Graph, model: CompiledModel, feeds: Feeds) -> dict[int, float]:
    """The error of each kernel of a compiled model on what it really reads there: no other kernel has a part in it.

    Args:
        graph: The model as it was imported.
        model: The compiled model, with the tasks of its kernels in `symbols`.
        feeds: Its inputs by name.

    Returns:
        By index of the task, the largest `relative_error` of its calls against NumPy in float64, without the tasks that
        the NumPy reference does not know.
    """
    tasks = {callee: task for task in graph.tasks for callee in task.callees}
    calls: defaultdict[int, list[Any]] = defaultdict(list)
    for call in kernel_calls(graph.mod):
        calls[tasks[call.args[0].name_hint].index].append(call)
    known = {task.index: stages for task in graph.tasks if (stages := _stages(task.function)) is not None}
    errors: dict[int, float] = {}

    def judge(symbol: str, task: int, number: int, arguments: list[Array]) -> None:
        if task not in known or number >= len(calls[task]):
            return
        fields = calls[task][number].args[1].fields
        inputs = [
            array_of(field) if isinstance(field, GenericConst) else arguments[position]
            for position, field in enumerate(fields)
        ]
        outputs = arguments[len(fields) :]
        place = place_of(symbol)
        if place is not None:
            width = shape_of(known[task].outputs[0])[-1]
            outputs = [outputs[0][..., place.offset : place.offset + width]]
        with np.errstate(all="ignore"):
            expected = _expected(known[task], inputs)
        lost = step_inside(known[task])
        error = max(_error(ours, *right, lost) for ours, right in zip(outputs, expected, strict=True))
        errors[task] = max(error, errors.get(task, 0.0))

    _run(model, feeds, judge, after=True)
    return errors


def errors_by_name(graph: Graph, model: CompiledModel, feeds: Feeds, every: bool = False) -> dict[str, float]:
    """As `kernel_errors`, by the names of the tasks with their layers, for messages.

    Args:
        graph: The model as it was imported.
        model: The compiled model.
        feeds: Its inputs by name.
        every: Whether all kernels have to be compared, because the outputs tell nothing.

    Raises:
        ModelError: A kernel of the model is not compared: NumPy does not know its function, or the model runs on a
            board, which does not tell what it reads.
    """
    names = {task.index: task.described for task in graph.tasks}
    errors = kernel_errors(graph, model, feeds)
    # A kernel that the program does not have became an in-place write of others.
    missing = (graph.called & set(model.symbols.values())) - errors.keys()
    if every and missing:
        raise ModelError(
            f"{graph.name}: cannot be verified: each output holds one value on all inputs that were tried, so its "
            f"kernels have to be compared by themselves, and these cannot be: "
            f"{', '.join(names[index] for index in sorted(missing))}; {HINT}"
        )
    return {names[index]: error for index, error in errors.items()}


def _run(
    model: CompiledModel, feeds: Feeds, on_call: OnCall, after: bool = False
) -> tuple[dict[str, Array], Counter[int]]:
    """The outputs of a model that tells of every call of a kernel, and how often it calls each task."""
    calls: Counter[int] = Counter()

    def observe(step: Step, before: bool, arguments: Callable[[], list[Array]]) -> None:
        task = model.symbols.get(step.symbol)
        if task is not None and before != after:
            on_call(step.symbol, task, calls[task], arguments())
            calls[task] += 1

    return model.observed(observe).run(feeds), calls


def _expected(stages: StageGraph, inputs: list[Array]) -> Iterator[tuple[Array, Array]]:
    """What the outputs should be, and what they may be instead because a value is near a tie of a rounding."""
    if reference.rounds(stages):
        outputs, ties = reference.evaluate_ties(stages, inputs)
    else:
        outputs, ties = reference.evaluate_graph(stages, inputs, rounded=False), []
    return zip(outputs, ties or outputs, strict=True)


def _error(output: Array, right: Array, tie: Array, lost: float) -> float:
    """The error of an output beyond what is lost inside, and what a type with fewer digits than float32 cannot hold."""
    if tie is not right:
        between = np.clip(output, np.minimum(right, tie), np.maximum(right, tie))
        right = np.where(tie == right, right, between)
    dtype = str(output.dtype)
    lost = max(lost, float(limits(dtype).eps)) if is_float(dtype) and output.itemsize < 4 else lost
    return max(0.0, relative_error(output, right) - lost)


def _stages(function: Any) -> StageGraph | None:
    try:
        stages = StageGraph.parse(function, gathers=True)
        reference.check_supported(stages)
    except UnsupportedFunction:
        return None
    return stages
