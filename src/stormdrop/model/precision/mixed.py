"""A model of float32 that computes in a type of 16 bits where it may: bfloat16, or float16 on GPUs.

    x (float32) -> bfloat16 -> conv (weights in bfloat16) -> bfloat16 -> conv -> float32 -> dense -> y

The factors of contractions are stored in that type: weights, and what other kernels make. Every kernel computes in
float32 and rounds its result once, if that is such a factor. Whatever nothing multiplies stays in float32: the sums
that a normalisation reads, the scores before a softmax, inputs and outputs of the model.

A *layer* is a call of a kernel with a contraction. The last layers before the outputs stay in float32. So do those
whose data others read or make as well: the caller of the model, and functions that we do not read. If a layer copies an
input of the model before it multiplies it, as convolutions of images do, then a kernel before it rounds the input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.ir import GenericConst

from ...ir.contractions.contraction import is_contraction
from ...ir.dtypes import BFLOAT16, FLOAT16
from ...ir.mixed_precision import copied_positions, factor_positions, in_low_precision, keeps_elements
from ...ir.stages import StageGraph
from ...ir.workload import canonical_stages
from ..graph.expressions import VIEWS, bindings_of, calls_kernel, operator_name, variables_of
from ..graph.graph import Graph
from ..passes.rewriting import constant, rewrite_main

_SUFFIXES = {BFLOAT16: "bf16", FLOAT16: "fp16"}  # of the names of kernels


@dataclass(frozen=True, eq=False)
class MixedPrecision:
    """A graph whose layers compute in a type of 16 bits.

    Attributes:
        graph: The graph.
        layers: The indices of the tasks of all layers of the model in float32, at all of its sizes.
        low: Those of the layers that are in this type.
    """

    graph: Graph
    layers: Sequence[int]
    low: Sequence[int]


def in_mixed_precision(graph: Graph, kept: Collection[int] = (), dtype: str = BFLOAT16) -> MixedPrecision:
    """Lets the layers of a model multiply numbers of 16 bits.

    Args:
        graph: The model in float32, at all of its sizes.
        kept: The indices of tasks whose layers stay in float32. The last layers always do.
        dtype: Their type, "bfloat16" or "float16".
    """
    values = [_Values(each, kept, dtype) for each in graph.sizes]
    constants: dict[int, GenericConst] = {}  # shared by all sizes
    mods = [each.rewritten(constants) for each in values]
    layers = [index for each in values for index in each.layers]
    low = [index for each in values for index in each.low]
    return MixedPrecision(graph.rewritten(mods), layers, low)


class _Values:
    """The values between the kernels of a graph at one size, and which of them are stored in a type of 16 bits.

    Attributes:
        layers: The indices of the tasks of its layers, in order.
        low: Those of the layers that multiply this type; known after `rewritten`.
    """

    def __init__(self, graph: Graph, kept: Collection[int], dtype: str) -> None:
        self._mod, self._dtype = graph.mod, dtype
        self._main = graph.mod["main"]
        self._made = {binding.var: binding.value for binding in bindings_of(self._main)}
        self._tasks = {callee: task.index for task in graph.tasks for callee in task.callees}
        self._functions = {
            variable.name_hint: canonical_stages(function)
            for variable, function in graph.mod.functions.items()
            if variable.name_hint in self._tasks
        }
        layers = {variable: value for variable, value in self._made.items() if self._contracts(value)}
        self.layers = [self._tasks[value.args[0].name_hint] for value in layers.values()]
        self.low: list[int] = []
        last = self._last_layers()
        self._kept = {
            variable
            for variable, value in layers.items()
            if variable in last or self._tasks[value.args[0].name_hint] in kept
        }

    def rewritten(self, constants: dict[int, GenericConst]) -> tvm.IRModule:
        """The module with these values in that type.

        Args:
            constants: Those that are converted already, by the address of their data; new ones are added.
        """
        mutator = _Rewriter(self._mod, self._signatures(), self._functions, constants, self._dtype)
        return relax.transform.DeadCodeElimination()(rewrite_main(self._mod, mutator))

    def _contracts(self, value: Any) -> bool:
        """Whether a value is the call of a kernel with a contraction."""
        stages = self._functions[value.args[0].name_hint] if calls_kernel(value) else None
        return stages is not None and any(map(is_contraction, stages.stages))

    def _last_layers(self) -> set[Any]:
        """The variables of the layers that are followed by no other one on a way to an output."""
        return {variable for variable in self._before_outputs(self._contracts) if self._contracts(self._made[variable])}

    def _before_outputs(self, ends: Callable[[Any], bool]) -> set[Any]:
        """The variables on the ways to the outputs, back to values at which a way ends."""
        found: set[Any] = set()
        waiting = variables_of(self._main.body.body)
        while waiting:
            variable = waiting.pop()
            if variable in found or variable not in self._made:
                continue
            found.add(variable)
            if not ends(self._made[variable]):
                waiting += variables_of(self._made[variable])
        return found

    def _factors(self, call: Any) -> list[tuple[int, int]]:
        """The positions of the arguments of a kernel's call that are multiplied."""
        stages = self._functions[call.args[0].name_hint]
        return [] if stages is None else factor_positions(stages)

    def _multiplied(self, call: Any) -> list[list[Any]]:
        """The pairs of arguments that a kernel's call multiplies, without constants."""
        arguments = call.args[1].fields
        pairs = ([arguments[one] for one in pair] for pair in self._factors(call))
        return [[factor for factor in pair if not _is_constant(factor)] for pair in pairs]

    def _signatures(self) -> dict[Any, tuple[int, ...]]:
        """By the call of each kernel, the positions of its arguments and its result that are in 16 bits."""
        stored = self._stored()
        signatures = {}
        for variable, call in self._made.items():
            if not calls_kernel(call):
                continue
            arguments = list(call.args[1].fields)
            positions = {position for position, argument in enumerate(arguments) if argument in stored}
            pairs = [] if variable in self._kept else self._factors(call)
            fitting = positions | self._copied(call) if pairs else positions
            low = [pair for pair in pairs if all(_is_constant(arguments[one]) or one in fitting for one in pair)]
            positions.update(one for pair in low for one in pair)
            if low:
                self.low.append(self._tasks[call.args[0].name_hint])
            if variable in stored:
                positions.add(len(arguments))
            signatures[call] = tuple(sorted(positions))
        return signatures

    def _copied(self, call: Any) -> set[int]:
        """The positions of the arguments of a kernel's call that are inputs of the model, and that it only copies."""
        stages = self._functions[call.args[0].name_hint]
        copied = set() if stages is None else copied_positions(stages)
        inputs = set(self._main.params)
        return {position for position in copied if call.args[1].fields[position] in inputs}

    def _stored(self) -> set[Any]:
        """The variables that are stored in 16 bits."""
        barred = self._returned()
        for variable, value in self._made.items():
            barred.update(self._needed_in_float32(variable, value))
        groups = list(self._groups())
        while True:
            wanted = self._wanted(barred) - barred
            stored = {each for each in wanted if self._may_make(self._made.get(each))}
            # A view is what it views, and both factors of a contraction are alike.
            for group in groups:
                if not stored.issuperset(group):
                    stored.difference_update(group)
            # What is not stored in 16 bits after all asks for nothing: what it is made of may be in float32, too.
            if wanted == stored:
                return stored
            barred |= wanted - stored

    def _returned(self) -> set[Any]:
        """The variables whose elements are those of outputs, perhaps after a kernel has moved them."""
        return self._before_outputs(lambda value: calls_kernel(value) and not self._keeps_elements(value))

    def _keeps_elements(self, call: Any) -> bool:
        stages = self._functions[call.args[0].name_hint]
        return stages is not None and keeps_elements(stages, self._dtype)

    def _wanted(self, barred: Collection[Any]) -> set[Any]:
        """The variables that contractions multiply, perhaps after a kernel has moved their elements.

        Args:
            barred: Variables that stay in float32.
        """
        wanted: set[Any] = set()
        for variable, value in reversed(self._made.items()):
            moved = variable in wanted and variable not in barred
            if operator_name(value) in VIEWS and moved:
                wanted.add(value.args[0])
            if not calls_kernel(value):
                continue
            if moved and self._keeps_elements(value):
                wanted.update(argument for argument in value.args[1].fields if not _is_constant(argument))
            if variable not in self._kept:
                wanted.update(*self._multiplied(value))
        return wanted

    def _may_make(self, value: Any) -> bool:
        """Whether a value may be stored in 16 bits, as far as what makes it is concerned; None is an input."""
        if value is None or not isinstance(value.ty, relax.TensorType) or str(value.ty.dtype) != "float32":
            return False
        if calls_kernel(value):
            return self._functions[value.args[0].name_hint] is not None
        return operator_name(value) in VIEWS

    def _needed_in_float32(self, variable: Any, value: Any) -> Iterable[Any]:
        """The variables that what makes a variable must read in float32."""
        if operator_name(value) in VIEWS:
            return ()
        if not calls_kernel(value) or self._functions[value.args[0].name_hint] is None:
            return variables_of(value)
        if variable not in self._kept:
            return ()
        return [factor for pair in self._multiplied(value) for factor in pair]

    def _groups(self) -> Iterable[list[Any]]:
        """Variables that are stored alike."""
        for variable, value in reversed(self._made.items()):
            if operator_name(value) in VIEWS:
                yield [variable, value.args[0]]
            elif calls_kernel(value) and variable not in self._kept:
                yield from self._multiplied(value)


def _rounded_elements(tensor: Any, dtype: str) -> Any:
    return te.compute(tensor.shape, lambda *index: tensor(*index).astype(dtype), name="rounded")


def _is_constant(value: Any) -> bool:
    return isinstance(value, GenericConst)


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    """Replaces each called function by one whose parameters are in 16 bits as its signature says."""

    def __init__(
        self,
        mod: tvm.IRModule,
        signatures: dict[Any, tuple[int, ...]],
        functions: dict[str, StageGraph | None],
        constants: dict[int, GenericConst],
        dtype: str,
    ) -> None:
        super().__init__(mod)
        self._signatures, self._functions, self._constants = signatures, functions, constants
        self._dtype = dtype
        self._made: defaultdict[str, dict[tuple[int, ...], Any]] = defaultdict(dict)
        self._inputs: dict[Any, Any] = {}

    def visit_call_(self, call: relax.Call) -> Any:
        positions = self._signatures.get(call, ())
        call = self.visit_expr_post_order(call)
        if not positions:
            return call
        name, arguments = call.args[0].name_hint, list(call.args[1].fields)
        for position in positions:
            if position < len(arguments) and _is_constant(arguments[position]):
                arguments[position] = self._constant(arguments[position])
            elif position < len(arguments) and str(arguments[position].ty.dtype) == "float32":  # an input of the model
                arguments[position] = self._rounded(arguments[position], name)
        (result,) = call.ty_args
        if len(arguments) in positions:
            result = relax.TensorType(list(result.shape.values), self._dtype)
        return relax.call_tir(self._function(name, positions), relax.Tuple(arguments), [result])

    def _function(self, name: str, positions: tuple[int, ...]) -> Any:
        made = self._made[name]
        if positions not in made:
            stages = self._functions[name]
            assert stages is not None  # otherwise it would have no position
            function = in_low_precision(stages, positions, self._dtype).function().without_attr("global_symbol")
            made[positions] = self.builder_.add_func(function, f"{name}_{_SUFFIXES[self._dtype]}")
        return made[positions]

    def _rounded(self, value: Any, reader: str) -> Any:
        """An input of the model in 16 bits. Its kernel is named after the first layer that reads it so."""
        if value not in self._inputs:
            call = self.builder_.call_te(_rounded_elements, value, self._dtype, primfunc_name_hint=f"{reader}_input")
            self._inputs[value] = self.builder_.emit(call)
        return self._inputs[value]

    def _constant(self, value: GenericConst) -> GenericConst:
        address = int(value.value.data_ptr())
        if address not in self._constants:
            with np.errstate(over="ignore"):  # a model beyond the range of its type is refused as a whole
                self._constants[address] = constant(value.value.numpy().astype(np.dtype(self._dtype)))
        return self._constants[address]
