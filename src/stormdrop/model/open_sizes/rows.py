"""Makes one axis of neighbouring ones that kernels treat alike, so that a batch of texts is just so many rows.

    y[b, n, j] = sum_k x[b, n, k] * w[k, j]     ->     y[r, j] = sum_k x[r, k] * w[k, j]

The calls read and write the same memory in another shape. So a kernel for any number of rows has one open extent, and
the same schedule for 8 texts of 16 words as for one of 128. The last axis of an output stays: vectors are along it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.tirx import PrimFunc

from ...ir.dtypes import is_float
from ...ir.expressions import rewrite_loads, variables
from ...ir.stages import Axis, Stage, StageGraph, intermediate, shape_of, variable
from ...ir.workload import canonical, canonical_stages
from ..graph.expressions import calls_kernel
from ..graph.graph import Graph
from ..graph.tasks import kernel_calls
from ..passes.rewriting import constant, rewrite_main
from ..tensors import array_of

_Pairs = dict[Any, int]
"""For each buffer the first of two neighbouring axes that become one."""


def with_merged_rows(graph: Graph) -> Graph:
    """The graph with one axis in the place of neighbouring ones, in each kernel in which that changes nothing else.

    Args:
        graph: The model, at all of its sizes.
    """
    mods = [_merged(each.mod) for each in graph.sizes]
    if all(mod is each.mod for mod, each in zip(mods, graph.sizes, strict=True)):
        return graph
    return graph.rewritten(mods)


def merged(graph: StageGraph) -> StageGraph:
    """A function in which axes that it treats alike are one.

    Args:
        graph: The function.
    """
    while (pairs := _pairs(graph)) is not None:
        graph = _with_one_axis(graph, pairs)
    return graph


def _pairs(graph: StageGraph) -> _Pairs | None:
    """Two axes that can become one; None if there are none."""
    for output in graph.outputs:
        for axis in range(len(shape_of(output)) - 2):
            if (pairs := _all_pairs(graph, {output: axis})) is not None:
                return pairs
    return None


def _all_pairs(graph: StageGraph, pairs: _Pairs) -> _Pairs | None:
    """All axes that become one if some do; None if a stage treats the two differently."""
    while True:
        found = dict(pairs)
        for stage in graph.stages:
            of_stage = _pairs_of(stage, found)
            if of_stage is None or any(found.setdefault(buffer, axis) != axis for buffer, axis in of_stage.items()):
                return None
        if any(buffer in found and found[buffer] + 2 >= len(shape_of(buffer)) for buffer in graph.outputs):
            return None  # vectors are along its last axis
        if found == pairs:
            return pairs
        pairs = found


def _pairs_of(stage: Stage, pairs: _Pairs) -> _Pairs | None:
    """All pairs of axes of the buffers of a stage, if it has some of these; None if it treats them differently."""
    couple = _couple(stage, pairs)
    if couple is None:
        return {}
    outer, inner = couple
    extents = {axis.var: axis.extent for axis in stage.spatial}
    if outer not in extents or inner not in extents or outer is inner:
        return None
    found: _Pairs = {}
    for buffer, indices in _accesses(stage):
        places = [place for place, index in enumerate(indices) if {outer, inner} & variables(index)]
        if not places:
            if buffer in pairs:
                return None
            continue
        first = places[0]
        plain = list(indices[first : first + 2])
        if places != [first, first + 1] or not (plain[0].same_as(outer) and plain[1].same_as(inner)):
            return None
        if shape_of(buffer)[first : first + 2] != (extents[outer], extents[inner]):
            return None
        if found.setdefault(buffer, first) != first:
            return None
    beside = rewrite_loads(stage.value, lambda load: _zero(str(load.ty.dtype)))
    return None if {outer, inner} & variables(beside) else found


def _couple(stage: Stage, pairs: _Pairs) -> tuple[Any, Any] | None:
    """The indices of the first access of a stage to a buffer that has a pair."""
    for buffer, indices in _accesses(stage):
        if buffer in pairs:
            outer, inner = indices[pairs[buffer] : pairs[buffer] + 2]
            return outer, inner
    return None


def _accesses(stage: Stage) -> list[tuple[Any, Sequence[Any]]]:
    loads = [*stage.loads(), *stage.first_loads()]
    return [(stage.buffer, stage.indices), *((load.source, list(load.indices)) for load in loads)]


def _zero(dtype: str) -> Any:
    return FloatImm(dtype, 0.0) if is_float(dtype) else IntImm(dtype, 0)


def _with_one_axis(graph: StageGraph, pairs: _Pairs) -> StageGraph:
    """A function with one axis in the place of each pair."""
    buffers = {
        buffer: intermediate(str(buffer.name), _joined_shape(shape_of(buffer), axis), str(buffer.dtype))
        for buffer, axis in pairs.items()
    }

    def changed(stage: Stage) -> Stage:
        couple = _couple(stage, pairs)
        if couple is None:
            return stage
        outer, inner = couple
        extents = {axis.var: axis.extent for axis in stage.axes}
        joined = Axis(variable(str(outer.name)), extents[outer] * extents[inner])
        axes = [joined if axis.var.same_as(outer) else axis for axis in stage.axes if not axis.var.same_as(inner)]

        def indices(buffer: Any, given: Sequence[Any]) -> tuple[Any, ...]:
            first = pairs.get(buffer)
            return tuple(given) if first is None else (*given[:first], joined.var, *given[first + 2 :])

        def read(load: Any) -> Any:
            return buffers.get(load.source, load.source)[indices(load.source, list(load.indices))]

        return replace(
            stage,
            axes=tuple(axes),
            buffer=buffers.get(stage.buffer, stage.buffer),
            indices=indices(stage.buffer, stage.indices),
            value=rewrite_loads(stage.value, read),
            identity=None if stage.identity is None else rewrite_loads(stage.identity, read),
        )

    return StageGraph(
        tuple(buffers.get(parameter, parameter) for parameter in graph.parameters),
        tuple(changed(stage) for stage in graph.stages),
    )


def _joined_shape(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


class _Merged(NamedTuple):
    """A function with fewer axes.

    Attributes:
        function: The function.
        inputs: The shapes of its inputs.
        outputs: Those of its outputs.
    """

    function: PrimFunc
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]


def _merged(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with calls of functions with fewer axes; the module itself if there are none."""
    names = dict.fromkeys(str(call.args[0].name_hint) for call in kernel_calls(mod))
    functions = {name: merged for name in names if (merged := _function(mod[name])) is not None}
    if not functions:
        return mod
    return relax.transform.DeadCodeElimination()(rewrite_main(mod, _Calls(mod, functions)))


def _function(function: PrimFunc) -> _Merged | None:
    graph = canonical_stages(function)
    if graph is None or any(str(buffer.dtype) in ("int64", "uint64") for buffer in graph.parameters):
        return None
    fewer = merged(graph)
    if fewer is graph:
        return None
    shapes = [[shape_of(buffer) for buffer in buffers] for buffers in (fewer.inputs, fewer.outputs)]
    return _Merged(canonical(fewer).function().without_attr("global_symbol"), *shapes)


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):
    """Calls functions with fewer axes. What they read and write gets another shape, and stays where it is."""

    def __init__(self, mod: tvm.IRModule, functions: Mapping[str, _Merged]) -> None:
        super().__init__(mod)
        self._functions = functions
        self._made: dict[Any, Any] = {}  # the results of these calls, by the variables of former shape

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        found = self._functions.get(str(call.args[0].name_hint)) if calls_kernel(call) else None
        if found is None or isinstance(call.ty_args[0], relax.TupleType):
            super().visit_var_binding_(binding)
            return
        (result,) = call.ty_args
        name = self.builder_.add_func(found.function, f"{call.args[0].name_hint}_rows")
        pairs = zip(call.args[1].fields, found.inputs, strict=True)
        arguments = [self._shaped(argument, shape) for argument, shape in pairs]
        (shape,) = found.outputs
        made = self.builder_.emit(relax.call_tir(name, relax.Tuple(arguments), relax.TensorType(shape, result.dtype)))
        former = made
        if shape != tuple(int(extent) for extent in result.shape.values):
            former = self.builder_.emit(relax.op.reshape(made, result.shape))
            self._made[binding.var] = made
        self.set_var_remap(binding.var, former)

    def _shaped(self, argument: Any, shape: tuple[int, ...]) -> Any:
        """An argument with a shape."""
        if isinstance(argument, GenericConst):
            array = array_of(argument)
            return argument if array.shape == shape else constant(array.reshape(shape))
        made = self._made.get(argument)
        if made is not None and tuple(int(extent) for extent in made.ty.shape) == shape:
            return made
        visited = self.visit_expr(argument)
        if tuple(int(extent) for extent in argument.ty.shape) == shape:
            return visited
        return self.builder_.emit(relax.op.reshape(visited, relax.ShapeExpr(list(shape))))
