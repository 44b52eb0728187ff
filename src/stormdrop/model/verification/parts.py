"""Compares a model with the exact one where a part that onnxruntime runs turns rounding into another answer.

NonMaxSuppression, TopK and others jump: two boxes that overlap by 0.5 and 0.5000001 have another fate. If such a part
is inside a model, the results after it differ without any fault. The exact model then goes on from the results that the
parts had in the running model, and everything before, in and after the parts is compared by itself:

    what a part read         with the exact tensors
    what it made of that     with onnxruntime, called once more on what it read
    the outputs              with the exact outputs, computed from what the parts made

What rounding explains of the first and the last is computed from what the parts made, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...machine.threads import thread_count
from ...runtime.program import Step
from ..artifact.artifact import CompiledModel
from ..graph.graph import Graph
from ..graph.onnx_origin import OnnxOrigin, origin_of
from ..inputs.samples import Feeds
from ..tensors import Array
from .exact import ExactModel, output_name
from .rounding import LEVEL_WITHOUT_EXACT, Rounded, float32_runs


class Compared(NamedTuple):
    """A tensor of a running model, and what it should be.

    Attributes:
        name: What it is called in messages.
        ours: The tensor.
        right: What it should be.
        allowed: Computes the error that it may have, for its name, its error and its mean error.
    """

    name: str
    ours: Array
    right: Array
    allowed: Callable[[str, float, float], float]


def names_of_results(graph: Graph) -> dict[int, list[str]]:
    """The names in the ONNX model of what each part makes, by the index of the part; empty if one is not there."""
    origin = origin_of(graph.source)
    if not isinstance(origin, OnnxOrigin) or not graph.foreign.reports:
        return {}
    sessions = graph.foreign.sessions(graph.name, thread_count())
    names = {part: session.outputs for part, session in enumerate(sessions)}
    known = {name for node in origin.model.graph.node for name in node.output}
    return names if all(known.issuperset(made) for made in names.values()) else {}


class _PartCall(NamedTuple):
    inputs: Sequence[Array]
    results: Sequence[Array]


def compared_by_parts(exact: ExactModel, model: CompiledModel, feeds: Feeds) -> Iterator[Compared]:
    """Runs a model that has onnxruntime parts, and pair its tensors with what they should be.

    Args:
        exact: The model as it was imported.
        model: The compiled model.
        feeds: Its inputs by name.

    Yields:
        What the parts read, what they made, and the outputs.
    """
    calls = _observed(model, feeds)
    results = {part: call.results for part, call in calls.items()}
    operators = {part: ", ".join(model.foreign.reports[part].operators) for part in calls}
    parts = {
        part: f"onnxruntime's part{f' {part}' if len(calls) > 1 else ''} ({of_part})"
        for part, of_part in operators.items()
    }
    inputs = {
        f"input {position} of {parts[part]}": (variable, value)
        for part, call in calls.items()
        for position, (variable, value) in enumerate(zip(exact.part_arguments[part], call.inputs, strict=True))
    }
    read = {name: variable for name, (variable, _) in inputs.items()}
    right = exact.tensors(feeds, read, results=results)
    runs = ((factor, {**arguments, "results": results}) for factor, arguments in float32_runs(exact.jumps))
    rounded = Rounded(exact, read, feeds, right, runs, exact.jumps)

    def allowed(name: str, error: float, mean: float) -> float:
        is_far = not error <= LEVEL_WITHOUT_EXACT and name in right
        return max(LEVEL_WITHOUT_EXACT, rounded(name, error, mean) if is_far else 0.0)

    for name, (_, value) in inputs.items():
        if name in right:
            yield Compared(name, value, right[name], allowed)
    sessions = model.foreign.sessions_of(model.metadata, thread_count())
    for part, call in calls.items():
        again = sessions[part].run(call.inputs)
        for position, (ours, theirs) in enumerate(zip(call.results, again, strict=True)):
            yield Compared(f"result {position} of {parts[part]}", ours, theirs, allowed)
    for name, value in model.run(feeds).items():  # as its callers run it
        yield Compared(output_name(name), value, right[output_name(name)], allowed)


def _observed(model: CompiledModel, feeds: Feeds) -> dict[int, _PartCall]:
    """What the parts of a model read and made."""
    sessions = model.foreign.sessions_of(model.metadata, thread_count())
    calls: dict[int, _PartCall] = {}

    def observe(step: Step, before: bool, arguments: Callable[[], list[Array]]) -> None:
        if not before and step.kind == "part":
            values = [value.copy() for value in arguments()]
            count = len(sessions[int(step.name)].inputs)
            calls[int(step.name)] = _PartCall(values[:count], values[count:])

    model.observed(observe).run(feeds)
    return calls
