"""Makes one kernel of the three of an attention, where their scores are too many for the caches.

    matmul(q, k) -> softmax -> matmul(_, v)      ->      matmul_softmax_matmul(q, k, v)

Three kernels write and read all scores three times. On a CPU one kernel computes them in blocks that stay in a cache
(see `sketches.cpu.attention`). It is taken if the scores need more than four times the second caches of all cores. With
fewer scores three kernels are as fast, and each of them is scheduled for itself. On a GPU one kernel has its scores in
registers (see `sketches.gpu.attention`). There it is always taken, also of layers in 16 bits, if one kernel computes
them on tensor cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst, TensorLoad
from tvm.ir.prim.expr import FloatImm

from ...ir.expressions import rewrite_loads, simplified
from ...ir.stages import Stage, StageGraph, intermediate, shape_of
from ...ir.workload import canonical, canonical_stages
from ...machine.contract import Machine
from ...machine.cpu import Cpu
from ...machine.gpu import Gpu
from ...sketches.knowledge import OneAttention, one_attention
from ...sketches.registry import BUILTIN
from ...tuning.options import FLOAT32, TuneOptions
from ..graph.expressions import calls_kernel, variables_of
from ..graph.graph import Graph
from ..tensors import array_of
from .rewriting import rewrite_main

_DEFAULTS = TuneOptions()
_LEAST_RATIO = 4  # of the scores to the second caches of all cores, from which on one kernel pays on a CPU


def with_attention(
    graph: Graph, target: Machine, options: TuneOptions = _DEFAULTS, lowered: bool = False, alike: bool = False
) -> Graph:
    """The graph with one kernel for each attention for which that pays on a machine.

    Args:
        graph: The model, at all of its sizes.
        target: The machine.
        options: How it is tuned. The graph stays as it is if the sketches are not the built-in ones, which alone
            schedule it.
        lowered: Whether the layers are in the precision of the options already. Before that the graph stays as it is,
            unless it is to be in float32. On a CPU layers in fewer bits stay apart.
        alike: Whether all sizes must have the same kernels: the graph stays as it is if that pays at some of them only.
    """
    if lowered != (options.precision != FLOAT32) or options.sketches not in (None, BUILTIN):
        return graph
    if lowered and not isinstance(target, Gpu):
        return graph
    mods = [_fused(each.mod, target) for each in graph.sizes]
    same = [mod is each.mod for mod, each in zip(mods, graph.sizes, strict=True)]
    return graph if all(same) or (alike and any(same)) else graph.rewritten(mods)


@dataclass(frozen=True, eq=False)
class _Attention:
    """Calls that become one.

    Attributes:
        last: The product with the values, in whose place the one call stands.
        joined: All of them.
    """

    last: relax.Call
    joined: _Joined


def _fused(mod: tvm.IRModule, target: Machine) -> tvm.IRModule:
    """The module with these calls of `main` replaced; the module itself if there are none."""
    calls = _Calls(mod)
    found = [attention for variable in calls.made if (attention := calls.attention(variable, target)) is not None]
    if not found:
        return mod
    return relax.transform.DeadCodeElimination()(rewrite_main(mod, _Merger(mod, found)))


class _Calls:
    """The calls of kernels in `main`.

    Attributes:
        made: The calls, by the variables of their results.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
        self.made = {binding.var: binding.value for binding in bindings if calls_kernel(binding.value)}
        self._uses = Counter(variable for binding in bindings for variable in variables_of(binding.value))
        self._uses.update(variables_of(mod["main"].body.body))

    def attention(self, last: relax.Var, target: Machine) -> _Attention | None:
        """The attention whose result is a variable, if there is one, and if one kernel pays on a machine."""
        for weights in filter(self._has_one_reader, self.made[last].args[1].fields):
            for scores in filter(self._has_one_reader, self.made[weights].args[1].fields):
                if (found := self._with_moves([scores, weights, last], target)) is not None:
                    return found
        return None

    def _has_one_reader(self, value: Any) -> bool:
        """Whether a kernel makes a value, and nothing else but one call reads it."""
        return value in self.made and self._uses[value] == 1

    def _with_moves(self, variables: list[relax.Var], target: Machine) -> _Attention | None:
        """What makes these variables, and what lays out or scales its operands if nothing else reads that, as one call.

        A scaled operand is taken where the sketch takes it.
        """
        joined = self._join(variables)
        found = None if joined is None else one_attention(joined.graph(), target)
        if joined is None or found is None or not _pays(found, target):
            return None
        moves: list[relax.Var] = []
        for argument, buffer in joined.arguments.items():
            if buffer in found.factors and self._has_one_reader(argument):
                with_move = self._join([*moves, argument, *variables])
                if with_move is not None and one_attention(with_move.graph(), target) is not None:
                    moves.append(argument)
        with_moves = self._join([*moves, *variables])
        assert with_moves is not None
        return _Attention(self.made[variables[-1]], with_moves)

    def _join(self, variables: list[relax.Var]) -> _Joined | None:
        """What makes these variables; None if a function is no sequence of loop nests."""
        joined = _Joined({}, [], {})
        for variable in variables:
            graph = self._graph(variable)
            if graph is None or len(graph.outputs) != 1:
                return None
            joined.add(variable, list(self.made[variable].args[1].fields), graph)
        return joined

    def _graph(self, variable: relax.Var) -> StageGraph | None:
        return canonical_stages(self._mod[self.made[variable].args[0]])


@dataclass(eq=False)
class _Joined:
    """The stages of several calls.

    Attributes:
        arguments: The buffers of what the calls read that none of them makes.
        stages: The stages.
        results: The buffers of what the calls make.
    """

    arguments: dict[Any, Any]
    stages: list[Stage]
    results: dict[Any, Any]

    def add(self, variable: relax.Var, arguments: list[Any], graph: StageGraph) -> None:
        """Adds a call of a function, the arguments of which are numbers, were made before or are those of all calls."""
        buffers, numbers = {}, {}
        for argument, buffer in zip(arguments, graph.inputs, strict=True):
            if (number := _number(argument)) is not None:
                numbers[buffer] = number
                continue
            known = self.results if argument in self.results else self.arguments
            buffers[buffer] = known.setdefault(argument, _like(buffer))
        (output,) = graph.outputs
        buffers[output] = self.results[variable] = _like(output)

        def read(load: Any) -> Any:
            return numbers.get(load.source, buffers.get(load.source, load.source)[tuple(load.indices)])

        for stage in graph.stages:
            value = rewrite_loads(stage.value, read)
            self.stages.append(replace(stage, value=value, buffer=buffers.get(stage.buffer, stage.buffer)))

    def graph(self) -> StageGraph:
        """One function, in which nothing only moves elements."""
        *_, output = self.results.values()
        graph = StageGraph((*self.arguments.values(), output), tuple(self.stages))
        graph = graph.inlined(lambda stage: not isinstance(stage.value, TensorLoad))
        return graph.mapped(_with_simple_indices)


def _number(argument: Any) -> FloatImm | None:
    """A constant of one element as a number, such as a scale."""
    if not isinstance(argument, GenericConst) or str(argument.ty.dtype) != "float32":
        return None
    array = array_of(argument)
    return FloatImm("float32", float(array.item())) if array.size == 1 and np.isfinite(array).all() else None


def _like(buffer: Any) -> Any:
    return intermediate(str(buffer.name), shape_of(buffer), str(buffer.dtype))


def _with_simple_indices(stage: Stage) -> Stage:
    # Axes of extent 1 stay variables, so that all stages have the same ones.
    extents = {axis.var: axis.extent for axis in stage.axes if axis.extent > 1}
    return replace(stage, value=simplified(stage.value, extents))


def _pays(found: OneAttention, target: Machine) -> bool:
    """Whether one kernel is expected to be faster than three.

    On a CPU: whether the scores of one head do not fit a first cache, and those of all heads exceed the second ones by
    far.
    """
    if not isinstance(target, Cpu):
        return True
    if not target.l1 or not target.l2:
        return False  # nothing is known of the caches
    of_head = found.score_bytes
    return of_head > target.l1 and found.heads * of_head > _LEAST_RATIO * target.cores * target.l2


@relax.expr_functor.mutator
class _Merger(relax.PyExprMutator):
    """Calls one function in place of the last call of each attention. The calls before it become unused."""

    def __init__(self, mod: tvm.IRModule, found: Sequence[_Attention]) -> None:
        super().__init__(mod)
        self._found = found

    def visit_call_(self, call: relax.Call) -> Any:
        attention = next((each for each in self._found if each.last.same_as(call)), None)
        if attention is None:
            return self.visit_expr_post_order(call)
        # In normal form, because names of stages are used once in it. The builder knows equal functions.
        function = canonical(attention.joined.graph()).function().without_attr("global_symbol")
        name = self.builder_.add_func(function, f"attention_{call.args[0].name_hint}")
        arguments = [self.visit_expr(argument) for argument in attention.joined.arguments]
        return relax.call_tir(name, relax.Tuple(arguments), call.ty_args[0])
