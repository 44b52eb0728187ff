"""A model of float32 that computes in bfloat16 where it may.

    x (float32) -> conv (weights in float32) -> bfloat16 -> conv (weights in bfloat16) -> float32 -> dense -> y

The factors of contractions are stored in bfloat16: weights, and what other kernels make. Every kernel computes in
float32 and rounds its result once, if that is such a factor. Whatever nothing multiplies stays in float32: the sums
that a normalisation reads, the scores before a softmax, inputs and outputs of the model. So do the factors of *layers*
that are kept, and of those whose data others read or make as well: the caller of the model, parts that onnxruntime
runs, and functions that we do not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from ..errors import UnsupportedFunction
from ..ir.dtypes import BFLOAT16
from ..ir.lowered import factor_positions, in_bfloat16, keeps_elements
from ..ir.roles import is_contraction
from ..ir.stages import StageGraph
from ..ir.workload import canonical
from .expressions import calls_kernel, variables_of
from .importer.graph import Graph
from .importer.tasks import extract_tasks
from .passes.rewriting import constant, rewrite_main

_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze")


def lowered(graph: Graph, kept: Collection[int]) -> tuple[Graph, frozenset[int]]:
    """A graph whose layers compute in bfloat16.

    Args:
        graph: The model in float32, at all of its sizes.
        kept: The indices of the tasks with contractions that stay in float32.

    Returns:
        The graph, and the indices of the tasks of `graph` whose contractions are in bfloat16 now.
    """
    values = [_Values(each, kept) for each in graph.sizes]
    constants: dict[int, GenericConst] = {}  # shared by all sizes
    mods = [each.rewritten(constants) for each in values]
    tasks = extract_tasks(*mods)
    sizes = [replace(each, mod=mod, tasks=tasks, others=()) for each, mod in zip(graph.sizes, mods, strict=True)]
    return replace(sizes[0], others=tuple(sizes[1:])), frozenset().union(*(each.low for each in values))


def layers(graph: Graph) -> list[int]:
    """The indices of the tasks with contractions, in the order of the model."""
    return [task.index for task in graph.tasks if _contracts(_stages(task.function))]


def last_layers(graph: Graph) -> frozenset[int]:
    """The indices of the tasks with the last contractions before the outputs of a model."""
    found: set[int] = set()
    for each in graph.sizes:
        found |= _Values(each, ()).last_layers()
    return frozenset(found)


def _stages(function: Any) -> StageGraph | None:
    try:
        return canonical(StageGraph.parse(function))
    except UnsupportedFunction:
        return None


def _contracts(stages: StageGraph | None) -> bool:
    return stages is not None and any(map(is_contraction, stages.stages))


class _Values:
    """The values between the kernels of a graph at one size, and which of them are stored in bfloat16.

    Attributes:
        low: The indices of the tasks whose contractions multiply bfloat16; known after `rewritten`.
    """

    def __init__(self, graph: Graph, kept: Collection[int]) -> None:
        self._mod = graph.mod
        self._main = graph.mod["main"]
        bindings = [binding for block in self._main.body.blocks for binding in block.bindings]
        self._made = {binding.var: binding.value for binding in bindings}
        self._tasks = {callee: task.index for task in graph.tasks for callee in task.callees}
        self._functions = {
            variable.name_hint: _stages(function)
            for variable, function in graph.mod.functions.items()
            if variable.name_hint in self._tasks
        }
        self._factors = {
            name: [] if stages is None or self._tasks[name] in kept else factor_positions(stages)
            for name, stages in self._functions.items()
        }
        self._kept = {name for name, index in self._tasks.items() if index in kept}
        self.low: set[int] = set()

    def last_layers(self) -> set[int]:
        """The indices of the tasks that make an output, with no other contraction after their own."""
        found: set[int] = set()
        waiting, seen = variables_of(self._main.body.body), set[Any]()
        while waiting:
            variable = waiting.pop()
            if variable in seen or variable not in self._made:
                continue
            seen.add(variable)
            value = self._made[variable]
            if calls_kernel(value) and _contracts(self._functions[value.args[0].name_hint]):
                found.add(self._tasks[value.args[0].name_hint])
            else:
                waiting += variables_of(value)
        return found

    def rewritten(self, constants: dict[int, GenericConst]) -> tvm.IRModule:
        """The module with these values in bfloat16.

        Args:
            constants: Those that are converted already, by the address of their data; new ones are added.
        """
        mutator = _Lowered(self._mod, self._signatures(), self._functions, constants)
        return relax.transform.DeadCodeElimination()(rewrite_main(self._mod, mutator))

    def _signatures(self) -> dict[Any, tuple[int, ...]]:
        """By the call of each kernel, the positions of its arguments and its result that are in bfloat16."""
        stored = self._stored()
        signatures = {}
        for variable, call in self._made.items():
            if not calls_kernel(call):
                continue
            arguments = list(call.args[1].fields)
            positions = {position for position, argument in enumerate(arguments) if argument in stored}
            name = call.args[0].name_hint
            for pair in self._factors[name]:
                if all(isinstance(arguments[one], GenericConst) or one in positions for one in pair):
                    positions.update(pair)
                    self.low.add(self._tasks[name])
            if variable in stored:
                positions.add(len(arguments))
            signatures[call] = tuple(sorted(positions))
        return signatures

    def _stored(self) -> set[Any]:
        """The variables that are stored in bfloat16."""
        stored = {variable for variable in self._wanted() if self._may_make(self._made.get(variable))}
        stored -= self._returned()
        for value in self._made.values():
            stored -= set(self._needed_in_float32(value))
        groups = list(self._groups())
        while True:  # a view is what it views, and both factors of a contraction are alike
            apart = {variable for group in groups if not stored.issuperset(group) for variable in group} & stored
            if not apart:
                return stored
            stored -= apart

    def _returned(self) -> set[Any]:
        """The variables whose elements are those of outputs, perhaps after a kernel has moved them."""
        returned: set[Any] = set()
        waiting = variables_of(self._main.body.body)
        while waiting:
            variable = waiting.pop()
            value = self._made.get(variable)
            if variable in returned or value is None:
                continue
            returned.add(variable)
            if not calls_kernel(value) or self._keeps_elements(value):
                waiting += variables_of(value)
        return returned

    def _keeps_elements(self, call: Any) -> bool:
        stages = self._functions[call.args[0].name_hint]
        return stages is not None and keeps_elements(stages)

    def _wanted(self) -> set[Any]:
        """The variables that contractions multiply, perhaps after a kernel has moved their elements."""
        wanted: set[Any] = set()
        for variable, value in reversed(self._made.items()):
            if _is_view(value) and variable in wanted:
                wanted.add(value.args[0])
            if not calls_kernel(value):
                continue
            name, arguments = value.args[0].name_hint, list(value.args[1].fields)
            if variable in wanted and self._keeps_elements(value):
                wanted.update(argument for argument in arguments if not isinstance(argument, GenericConst))
            for pair in self._factors[name]:
                wanted.update(arguments[one] for one in pair if not isinstance(arguments[one], GenericConst))
        return wanted

    def _may_make(self, value: Any) -> bool:
        """Whether a value may be stored in bfloat16, as far as what makes it is concerned; None is an input."""
        if value is None or not isinstance(value.ty, relax.TensorType) or str(value.ty.dtype) != "float32":
            return False
        if calls_kernel(value):
            return self._functions[value.args[0].name_hint] is not None
        return _is_view(value)

    def _needed_in_float32(self, value: Any) -> Iterable[Any]:
        """The variables that a value must read in float32."""
        if _is_view(value):
            return ()
        name = value.args[0].name_hint if calls_kernel(value) else None
        if name is None or self._functions[name] is None:
            return variables_of(value)
        if name not in self._kept:
            return ()
        arguments = list(value.args[1].fields)
        stages = self._functions[name]
        assert stages is not None
        return [arguments[one] for pair in factor_positions(stages) for one in pair if arguments[one] in self._made]

    def _groups(self) -> Iterable[list[Any]]:
        """Variables that are stored alike."""
        for variable, value in self._made.items():
            if _is_view(value):
                yield [variable, value.args[0]]
            elif calls_kernel(value):
                arguments = list(value.args[1].fields)
                for pair in self._factors[value.args[0].name_hint]:
                    yield [arguments[one] for one in pair if not isinstance(arguments[one], GenericConst)]


def _is_view(value: Any) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") in _VIEWS


@relax.expr_functor.mutator
class _Lowered(relax.PyExprMutator):
    """Replaces each called function by one whose parameters are in bfloat16 as its signature says."""

    def __init__(
        self,
        mod: tvm.IRModule,
        signatures: dict[Any, tuple[int, ...]],
        functions: dict[str, StageGraph | None],
        constants: dict[int, GenericConst],
    ) -> None:
        super().__init__(mod)
        self._signatures, self._functions, self._constants = signatures, functions, constants
        self._made: defaultdict[str, dict[tuple[int, ...], Any]] = defaultdict(dict)

    def visit_call_(self, call: relax.Call) -> Any:
        positions = self._signatures.get(call, ())
        call = self.visit_expr_post_order(call)
        if not positions:
            return call
        name, arguments = call.args[0].name_hint, list(call.args[1].fields)
        for position in positions:
            if position < len(arguments) and isinstance(arguments[position], GenericConst):
                arguments[position] = self._constant(arguments[position])
        (result,) = call.ty_args
        if len(arguments) in positions:
            result = relax.TensorType(list(result.shape.values), BFLOAT16)
        return relax.call_tir(self._function(name, positions), relax.Tuple(arguments), [result])

    def _function(self, name: str, positions: tuple[int, ...]) -> Any:
        made = self._made[name]
        if positions not in made:
            stages = self._functions[name]
            assert stages is not None  # otherwise it would have no position
            function = in_bfloat16(stages, positions).function().without_attr("global_symbol")
            made[positions] = self.builder_.add_func(function, f"{name}_bf16")
        return made[positions]

    def _constant(self, value: GenericConst) -> GenericConst:
        address = int(value.value.data_ptr())
        if address not in self._constants:
            self._constants[address] = constant(value.value.numpy().astype(np.dtype(BFLOAT16)))
        return self._constants[address]
