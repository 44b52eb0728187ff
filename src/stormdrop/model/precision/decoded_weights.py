"""Decodes the weights of products with codes where a machine multiplies float32 faster: once, when a model is compiled.

    matmul(x, codes, scales, zero points)      ->      matmul(x, weights)

With few rows of data, reading weights is all that takes time, and they stay codes. With more rows they stay codes on
CPUs, which compute with them (see `sketches.cpu.code_sums.dots`), or decode a panel once for all rows at nearly the
speed of float32 (`sketches.cpu.contractions.register_blocked`). The tiles of AMX, and GPUs, multiply numbers faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.tirx import PrimFunc

from ...ir.contractions.factors import Factor, factor_of, factors_of
from ...ir.expressions import Expr, simplified, substitute, unraveled, variables
from ...ir.reference import evaluate
from ...ir.stages import Axis, Stage, StageGraph, intermediate, variable
from ...ir.workload import Workload, canonical_stages
from ...machine.contract import Machine
from ...machine.cpu import Cpu
from ...sketches.cpu.tiles.sketch import TilesOfParts
from ...sketches.registry import BUILTIN, MAX_ERROR
from ...tuning.options import FLOAT32, TuneOptions
from ..graph.expressions import calls_kernel
from ..graph.graph import Graph
from ..graph.tasks import Task
from ..passes.rewriting import constant, rewrite_main

FEW_ROWS = 16
"""The most rows of data for which weights stay codes on every machine."""

_CODES = "uint8"


def with_decoded_weights(graph: Graph, machine: Machine, options: TuneOptions) -> Graph:
    """The graph with the weights of such products in float32.

    Args:
        graph: The model, at all of its sizes.
        machine: What it is for.
        options: How it is tuned. In another precision than float32 all products with many rows are decoded: layers in
            fewer bits have weights in fewer bits.
    """
    decoded = {}
    for task in graph.tasks:
        product = _product(task)
        if product is not None and product.rows > FEW_ROWS and not _multiplies_codes(task, product, machine, options):
            decoded.update(dict.fromkeys(task.callees, product))
    if not decoded:
        return graph
    weights: dict[tuple[int, ...], GenericConst] = {}  # shared by all sizes
    rewritten = (rewrite_main(each.mod, _Rewriter(each.mod, decoded, weights)) for each in graph.sizes)
    return graph.rewritten([relax.transform.DeadCodeElimination()(mod) for mod in rewritten])


@dataclass(frozen=True, eq=False)
class _Product:
    """A function with a product whose weights are codes.

    Attributes:
        function: The function that takes weights in the place of the first of their inputs.
        decoder: The function that makes them, as [k, n].
        positions: The parameters of the function that the decoder takes, in its order.
        rows: The rows of data.
    """

    function: PrimFunc
    decoder: PrimFunc
    positions: tuple[int, ...]
    rows: int


def _product(task: Task) -> _Product | None:
    """The product of a task; None if it has none with constant codes."""
    parameters = task.function.params
    if not any(str(parameters[position].ty.dtype) == _CODES for position in task.constants):
        return None
    graph = canonical_stages(task.function)
    for stage in graph.stages if graph is not None else ():
        coded = [factor for factor in factors_of(stage) or () if factor.decoders]
        if graph is not None and len(coded) == 1 and _are_constant(graph, task, coded[0]):
            return _decoded(graph, stage, coded[0])
    return None


def _are_constant(graph: StageGraph, task: Task, factor: Factor) -> bool:
    """Whether all that makes a factor are constant inputs that nothing else reads."""
    constants = {graph.parameters[position] for position in task.constants}
    loads = (factor.load, *factor.decoders)
    return all(load.source in constants and len(graph.readers(load.source)) == 1 for load in loads)


def _decoded(graph: StageGraph, stage: Stage, factor: Factor) -> _Product | None:
    used = variables(factor.load)
    columns = [axis for axis in stage.spatial if axis.var in used]
    if len(columns) != 1:
        return None
    (column,), reductions = columns, stage.reductions
    extents = [axis.extent for axis in reductions]
    size = 1
    for extent in extents:
        size *= extent
    step = Axis(variable("k"), size, True)
    at = dict(zip((axis.var for axis in reductions), unraveled(step.var, extents), strict=True))
    weights = intermediate("weights", [size, column.extent], "float32")
    left, right = stage.value.a, stage.value.b
    decoding, data = (left, right) if (factor_of(left) or factor).decoders else (right, left)
    indices = (step.var, column.var)
    multiplied = substitute(data, at) * weights[indices]
    product = replace(stage, axes=(*stage.spatial, step), value=simplified(multiplied))
    decode = Stage("decode", (replace(step, reduce=False), column), weights, indices, substitute(decoding, at))
    sources = list(dict.fromkeys(load.source for load in decode.loads()))
    positions = tuple(graph.parameters.index(source) for source in sources)
    parameters = [weights if number == positions[0] else buffer for number, buffer in enumerate(graph.parameters)]
    kept = tuple(buffer for buffer in parameters if buffer not in sources)
    stages = tuple(product if each is stage else each for each in graph.stages)
    rows = 1
    for axis in stage.spatial:
        rows *= 1 if axis is column else axis.extent
    return _Product(
        StageGraph(kept, stages).function().without_attr("global_symbol"),
        StageGraph((*sources, weights), (decode,)).function(),
        positions,
        rows,
    )


def _multiplies_codes(task: Task, product: _Product, machine: Machine, options: TuneOptions) -> bool:
    """Whether a machine multiplies codes as fast as weights in float32."""
    allowed = MAX_ERROR if options.max_error is None else options.max_error
    if not isinstance(machine, Cpu) or options.precision != FLOAT32 or options.sketches not in (None, BUILTIN):
        return False
    of_weights = Workload.create(task.name, product.function, (product.positions[0],))
    return TilesOfParts.max_error > allowed or TilesOfParts().space(of_weights, machine) is None


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    """Calls functions with weights in the place of those with codes."""

    def __init__(
        self, mod: tvm.IRModule, decoded: Mapping[str, _Product], weights: dict[tuple[int, ...], GenericConst]
    ) -> None:
        super().__init__(mod)
        self._decoded, self._weights = decoded, weights
        self._made: dict[str, Any] = {}

    def visit_call_(self, call: relax.Call) -> Expr:
        product = self._decoded.get(call.args[0].name_hint) if calls_kernel(call) else None
        call = self.visit_expr_post_order(call)
        if product is None:
            return call
        name, arguments = call.args[0].name_hint, list(call.args[1].fields)
        constants = [arguments[position] for position in product.positions]
        arguments[product.positions[0]] = self._weights_of(product, constants)
        kept = [each for number, each in enumerate(arguments) if number not in product.positions[1:]]
        if name not in self._made:
            self._made[name] = self.builder_.add_func(product.function, f"{name}_decoded")
        return relax.call_tir(self._made[name], relax.Tuple(kept), list(call.ty_args))

    def _weights_of(self, product: _Product, constants: Sequence[GenericConst]) -> GenericConst:
        address = tuple(int(each.value.data_ptr()) for each in constants)
        if address not in self._weights:
            (weights,) = evaluate(product.decoder, [each.value.numpy() for each in constants])
            self._weights[address] = constant(weights)
        return self._weights[address]
