"""What an imported model computes, by NumPy in float64: independent of schedules, compilers and rounding.

Parts that onnxruntime runs are run by it here, too, on the exact tensors rounded to their types.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tvm import relax
from tvm.ir import GenericConst, TensorLoad

from ...errors import UnsupportedFunction
from ...ir import reference
from ...ir.dtypes import is_float
from ...ir.expressions import intrinsic
from ...ir.stages import Stage, StageGraph
from ...machine.threads import thread_count
from ..graph.expressions import (
    VIEWS,
    bindings_of,
    calls_kernel,
    operator_name,
    part_arguments,
    part_index,
    variables_of,
)
from ..graph.graph import Graph
from ..inputs.samples import Feeds
from ..tensors import Array, array_of

_After = Callable[[Stage, Array], Array]

NOISE = 2.0**-18
"""What a float32 sum of some thousand terms may be off, relative to itself. Serial sums of 3,000 to 12,000 positive
terms showed 2e-6."""


class Site(NamedTuple):
    """An argument of a kernel's call in a model.

    Attributes:
        task: The index of the kernel's task.
        call: The number of the call among all calls of the task, from 0.
        calls: How many calls of the task the graph has.
        argument: The position of the argument.
    """

    task: int
    call: int
    calls: int
    argument: int


def output_name(name: str) -> str:
    """What an output is called in messages."""
    return f"output {name!r}"


class ExactModel:
    """An imported model that NumPy computes.

    Attributes:
        before: By the name of each output, the variables that the kernel which computes it reads, with their sites.
        direct: The sites of these where the kernel begins with what it reads as it stands: a softmax with the largest
            element, a sigmoid with itself. Elsewhere it begins with something else, such as a product, that is fused.
    """

    def __init__(self, graph: Graph) -> None:
        """Reads all functions of a graph.

        Raises:
            UnsupportedFunction: The graph holds something that the NumPy reference does not know.
        """
        self._graph = graph
        self._main = graph.mod["main"]
        self._bindings = bindings_of(self._main)
        self._stages: dict[str, StageGraph] = {}
        last: dict[Any, int] = {}  # the position of the last binding that reads a variable
        for position, binding in enumerate(self._bindings):
            self._check(binding)
            last.update(dict.fromkeys(variables_of(binding.value), position))
        for variable in variables_of(self._main.body.body):
            last.pop(variable, None)
        # The kernel that computes an output, and what moves its result: the variables and their expressions, in order.
        self._last: dict[str, list[tuple[Any, Any]]] = {}
        self._ended: defaultdict[int, list[Any]] = defaultdict(list)
        for variable, position in last.items():
            self._ended[position].append(variable)
        self.direct: set[Site] = set()
        self.before = self._read_before_outputs()

    def run(
        self,
        feeds: Feeds,
        keep: Collection[Any] = (),
        *,
        rounded: bool = False,
        nudge: float = 0.0,
        noise: np.random.Generator | None = None,
        results: Mapping[int, Sequence[Array]] | None = None,
    ) -> tuple[dict[str, Array], dict[Any, Array]]:
        """Computes the outputs.

        Args:
            feeds: The inputs by name.
            keep: Variables whose values are wanted, too.
            rounded: Whether each tensor is rounded to its own type with its noise in it, as in the compiled model; also
                those between the stages of a kernel.
            nudge: What is added to each number before it is rounded to an integer, as in a quantisation.
            noise: Draws by how much each sum of floats is changed, up to `NOISE` of itself.
            results: What the parts that onnxruntime runs make, by index; without them onnxruntime runs the parts.

        Returns:
            The outputs by name, and the values of the variables in `keep`.
        """
        stages = self._stages
        if nudge:
            stages = {
                name: graph.mapped(lambda stage: reference.nudged(stage, nudge)) for name, graph in stages.items()
            }
        after = partial(_inexact, rounded, noise) if rounded or noise is not None else None
        inputs = zip(self._graph.inputs, self._main.params, strict=True)
        values: dict[Any, Any] = {parameter: feeds[info.name] for info, parameter in inputs}
        kept = {variable: values[variable] for variable in keep if variable in values}

        def value(expr: Any) -> Any:
            if isinstance(expr, GenericConst):
                return array_of(expr)
            if isinstance(expr, relax.Tuple):
                return tuple(value(field) for field in expr.fields)
            return values[expr]

        with np.errstate(all="ignore"):
            for position, binding in enumerate(self._bindings):
                part = part_index(binding.value) if results is not None else None
                if results is not None and part is not None:
                    values[binding.var] = results[part][0] if len(results[part]) == 1 else tuple(results[part])
                else:
                    values[binding.var] = self._evaluated(binding.value, stages, value, rounded, after)
                if binding.var in keep:
                    kept[binding.var] = values[binding.var]
                for variable in self._ended[position]:
                    del values[variable]
        results = value(self._main.body.body)
        outputs = results if isinstance(results, tuple) else (results,)
        return {info.name: output for info, output in zip(self._graph.outputs, outputs, strict=True)}, kept

    def tensors(self, feeds: Feeds, variables: Mapping[str, Any], **arguments: Any) -> dict[str, Array]:
        """The outputs, and the values of some variables, by what they are called in messages.

        Args:
            feeds: The inputs by name.
            variables: The variables, by what they are called.
            **arguments: As those of `run`.
        """
        outputs, kept = self.run(feeds, list(variables.values()), **arguments)
        found = {name: kept[variable] for name, variable in variables.items() if variable in kept}
        return {**{output_name(name): value for name, value in outputs.items()}, **found}

    @property
    def part_arguments(self) -> dict[int, list[Any]]:
        """What each part that onnxruntime runs reads, by the index of the part."""
        calls = [(part_index(binding.value), binding.value) for binding in self._bindings]
        return {part: part_arguments(call) for part, call in calls if part is not None}

    @property
    def jumps(self) -> bool:
        """Whether the model rounds numbers to integers: then a difference in the last bit may become a whole step."""
        return any(map(reference.rounds, self._stages.values()))

    def _evaluated(
        self, expr: Any, stages: Mapping[str, StageGraph], value: Any, rounded: bool, after: _After | None
    ) -> Any:
        part = part_index(expr)
        if part is not None:
            return self._by_onnxruntime(part, part_arguments(expr), value)
        if not isinstance(expr, relax.Call):
            return value(expr.tuple_value)[expr.index] if isinstance(expr, relax.TupleGetItem) else value(expr)
        if calls_kernel(expr):
            arguments = [value(argument) for argument in expr.args[1].fields]
            results = reference.evaluate_graph(stages[expr.args[0].name_hint], arguments, rounded, after)
            return results[0] if len(results) == 1 else tuple(results)
        return value(expr.args[0]).reshape([int(extent) for extent in expr.ty.shape.values])

    def _by_onnxruntime(self, part: int, arguments: list[Any], value: Any) -> Any:
        session = self._graph.foreign.sessions(self._graph.name, thread_count())[part]
        inputs = [np.asarray(value(field), str(field.ty.dtype)) for field in arguments]
        if self._graph.foreign.examples is not None:
            self._graph.foreign.examples.setdefault(part, inputs)
        results = session.run(inputs)
        return results[0] if len(results) == 1 else tuple(results)

    def _check(self, binding: Any) -> None:
        """Reads the function that a binding calls. Raises `UnsupportedFunction` for anything that is not known here."""
        expr = binding.value
        if isinstance(expr, relax.Call):
            if calls_kernel(expr):
                name = expr.args[0].name_hint
                if name not in self._stages:
                    self._stages[name] = StageGraph.parse(self._graph.mod[name], gathers=True)
                    reference.check_supported(self._stages[name])
                return
            if operator_name(expr) in VIEWS or part_index(expr) is not None:
                return
        elif isinstance(binding, relax.VarBinding) and isinstance(
            expr, relax.TupleGetItem | relax.Tuple | relax.Var | GenericConst
        ):
            return
        raise UnsupportedFunction(f"the NumPy reference does not know {getattr(expr, 'op', type(expr).__name__)}")

    def last(self, output: str, read: Mapping[Any, Array]) -> Array:
        """What the kernel that computes an output makes of other values than the exact ones.

        Args:
            output: The name of an output in `before`.
            read: The values of the variables that the kernel reads.
        """
        values = dict(read)

        def value(expr: Any) -> Any:
            return array_of(expr) if isinstance(expr, GenericConst) else values[expr]

        with np.errstate(all="ignore"):
            for variable, expr in self._last[output]:
                values[variable] = self._evaluated(expr, self._stages, value, False, None)
        result: Array = values[self._last[output][-1][0]]
        return result

    def _read_before_outputs(self) -> dict[str, list[tuple[Any, Site]]]:
        values = {binding.var: binding.value for binding in self._bindings}
        tasks = {callee: task.index for task in self._graph.tasks for callee in task.callees}
        calls: Counter[int] = Counter()
        sites: dict[Any, tuple[int, int]] = {}
        for variable, expr in values.items():
            if calls_kernel(expr):
                task = tasks[expr.args[0].name_hint]
                sites[variable] = task, calls[task]
                calls[task] += 1
        body = self._main.body.body
        body = values[body] if isinstance(values.get(body), relax.Tuple) else body
        results = body.fields if isinstance(body, relax.Tuple) else [body]
        before: dict[str, list[tuple[Any, Site]]] = {}
        for info, result in zip(self._graph.outputs, results, strict=True):
            steps = [result]
            while isinstance(values.get(result), relax.Call) and (moved := self._moved(values[result])) is not None:
                result = moved
                steps.insert(0, result)
            if result in sites:
                self._last[info.name] = [(step, values[step]) for step in steps]
                arguments = values[result].args[1].fields
                before[info.name] = [
                    (argument, Site(*sites[result], calls[sites[result][0]], position))
                    for position, argument in enumerate(arguments)
                    if isinstance(argument, relax.Var)
                ]
                stages = self._stages[values[result].args[0].name_hint]
                self.direct |= {site for _, site in before[info.name] if _is_direct(stages, site.argument)}
        return before

    def _moved(self, call: Any) -> Any | None:
        """What a call moves to another place or another shape; None if it computes."""
        if part_index(call) is not None:
            return None
        if not calls_kernel(call):
            return call.args[0]
        stages, arguments = self._stages[call.args[0].name_hint].stages, call.args[1].fields
        moves = all(stage.combine is None and isinstance(stage.value, TensorLoad) for stage in stages)
        return arguments[0] if moves and len(arguments) == 1 else None


def _is_direct(graph: StageGraph, argument: int) -> bool:
    """Whether the last saturating function of a kernel takes an argument as it stands.

    A softmax begins with a maximum, a sigmoid with itself. What stands before it, such as a softplus, does not count.
    """
    starts = (_saturated(stage) for stage in reversed(graph.stages))
    start = next((start for start in starts if start is not None), None)
    return isinstance(start, TensorLoad) and start.source == graph.parameters[argument]


def _saturated(stage: Stage) -> Any | None:
    """What a stage takes with which a softmax or a sigmoid begins; None of another stage."""
    if stage.combine == "max":
        return stage.value
    return stage.value.args[0] if intrinsic(stage.value) == "sigmoid" else None


def _inexact(rounded: bool, noise: np.random.Generator | None, stage: Stage, value: Array) -> Array:
    """The elements of a stage as a kernel may compute them: rounded to their type, sums of floats with noise.

    Noise changes each element by a small part of itself. So zeros stay zeros and signs stay, and the large negative
    numbers of a mask change nothing else.
    """
    dtype = str(stage.buffer.dtype)
    if not is_float(dtype):
        return value
    if noise is not None and stage.combine == "sum":
        value = value * (1 + NOISE * noise.uniform(-1, 1, value.shape))
    return value.astype(dtype).astype(value.dtype) if rounded else value
