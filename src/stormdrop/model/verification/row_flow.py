"""Proves from the code of a model that each row of its outputs depends on no other row of its inputs.

A tensor of a model with `rows` rows carries them along one of its axes, where `inner` elements belong to each row:

    x[4, 3, 8, 8]                       axis 0, inner 1
    reshaped to [4, 192]                axis 0, inner 1
    reshaped to [4 * 16, 12]            axis 0, inner 16
    transposed to [12, 4 * 16]          axis 1, inner 16

So the row of an element is `index[axis] // inner % rows`. A kernel keeps rows apart if, at every point of its loops,
each element that it reads belongs to the row of the element that it writes, or to no row, as those of weights do. TVM's
analyzer proves this for each load. If the element depends on a constant, as in a gather with constant indices, NumPy
looks at all points. What neither of them proves, and what cannot be read, is taken as not proven. That is so of parts
that onnxruntime runs, too, unless they compute each element from the same element of their only argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst, Range
from tvm.sym import Analyzer

from ...errors import UnsupportedFunction
from ...ir.expressions import loads_in
from ...ir.grid import GridEvaluator
from ...ir.stages import Stage, StageGraph, shape_of
from ..graph.expressions import VIEWS, bindings_of, calls_kernel, operator_name, part_arguments, part_index
from ..graph.graph import Graph

_ELEMENTWISE = frozenset(f"com.microsoft.{operator}" for operator in ("FastGelu", "Gelu", "QuickGelu", "ScaledSiLU"))
"""Operators of onnxruntime's own that compute each element from the same one. Those of the standard become kernels."""


class Rows(NamedTuple):
    """Where the rows of a tensor are: the row of an element is `index[axis] // inner % rows`."""

    axis: int
    inner: int


Flow = Rows | None
"""Where the rows of a tensor are; None for one that depends on no row."""


class NotProven(Exception):
    """Rows are not kept apart, or it is not known. The message says where."""


def prove_rows(graph: Graph, names: Sequence[str], rows: int) -> None:
    """Proves that each row of the outputs of a model depends on no other row of the inputs.

    Args:
        graph: The model at one size.
        names: The inputs along whose first axis the rows are.
        rows: How many there are.

    Raises:
        NotProven: It cannot be proven.
    """
    main, functions = graph.mod["main"], _Kernels(graph, rows)
    flows: dict[Any, Any] = dict.fromkeys(main.params)
    for parameter, info in zip(main.params, graph.inputs, strict=False):
        flows[parameter] = Rows(0, 1) if info.name in names else None
    for binding in bindings_of(main):
        flows[binding.var] = _flow_of(binding.value, flows, functions, rows)
    results = _flow_of(main.body.body, flows, functions, rows)
    for info, flow in zip(graph.outputs, results if isinstance(results, list) else [results], strict=True):
        if flow is not None and (flow != Rows(0, 1) or info.shape[0] != rows):
            raise NotProven(f"output {info.name} has its rows elsewhere than along its first axis, or several times")


def _flow_of(value: Any, flows: Mapping[Any, Any], kernels: _Kernels, rows: int) -> Any:
    """Where the rows of a value are; a list for a tuple."""
    if isinstance(value, relax.Var):
        return flows[value]
    if isinstance(value, GenericConst):
        return None
    if isinstance(value, relax.Tuple):
        return [_flow_of(field, flows, kernels, rows) for field in value.fields]
    if isinstance(value, relax.TupleGetItem):
        return _flow_of(value.tuple_value, flows, kernels, rows)[value.index]
    if calls_kernel(value):
        arguments = [_flow_of(argument, flows, kernels, rows) for argument in value.args[1].fields]
        results = kernels.flows(value.args[0].name_hint, tuple(arguments), _integers(value.args[1].fields))
        return results if hasattr(value.ty, "fields") else results[0]
    if operator_name(value) in VIEWS:
        return _viewed(value, _flow_of(value.args[0], flows, kernels, rows), rows)
    part = part_index(value)
    if part is not None:
        operators = kernels.graph.foreign.reports[part].operators
        return _flow_of_part(value, operators, [_flow_of(each, flows, kernels, rows) for each in part_arguments(value)])
    raise NotProven(f"{operator_name(value) or type(value).__name__} is no kernel of ours")


def _flow_of_part(value: Any, operators: Collection[str], arguments: Sequence[Any]) -> Any:
    """Where the rows of the results of a part are, if it keeps them. It has these operators and these arguments."""
    unknown = [operator for operator in operators if operator not in _ELEMENTWISE]
    if unknown:
        raise NotProven(f"onnxruntime runs {', '.join(unknown)}, of which nothing is known")
    if len(arguments) != 1:
        raise NotProven(f"onnxruntime runs {', '.join(operators)} of {len(arguments)} arguments")
    return [arguments[0]] * len(value.ty.fields) if hasattr(value.ty, "fields") else arguments[0]


def _integers(arguments: Sequence[Any]) -> dict[int, Any]:
    """The arguments that are constants of integers, by their position: indices may be among them."""
    return {
        position: argument.value
        for position, argument in enumerate(arguments)
        if isinstance(argument, GenericConst) and "int" in str(argument.value.dtype)
    }


def _viewed(value: Any, flow: Flow, rows: int) -> Flow:
    """Where the rows are in another shape of the same elements: where a row is as many elements away from the next."""
    if flow is None:
        return None
    before, after = ([int(size) for size in tensor.ty.shape] for tensor in (value.args[0], value))
    stride = flow.inner
    for size in before[flow.axis + 1 :]:
        stride *= size
    below = 1
    for axis in reversed(range(len(after))):
        if stride % below == 0 and (after[axis] * below) % (stride * rows) == 0:
            return Rows(axis, stride // below)
        below *= after[axis]
    raise NotProven("a reshape splits rows")


class _Kernels:
    """The kernels of a model. What is proven of one is known for its next call."""

    def __init__(self, graph: Graph, rows: int) -> None:
        self.graph, self._rows = graph, rows
        self._known: dict[Any, list[Flow]] = {}

    def flows(self, name: str, arguments: tuple[Flow, ...], integers: Mapping[int, Any]) -> list[Flow]:
        """Where the rows of the results of a kernel are. Raises `NotProven`."""
        if not any(arguments):
            function = self.graph.mod[name]
            return [None] * (len(function.params) - len(arguments))
        key = name, arguments, tuple((position, value.data_ptr()) for position, value in integers.items())
        if key not in self._known:
            try:
                self._known[key] = _flows_of_kernel(self.graph.mod[name], arguments, integers, self._rows)
            except (NotProven, UnsupportedFunction) as reason:
                raise NotProven(f"{name}: {reason}") from reason
        return self._known[key]


def _flows_of_kernel(
    function: tirx.PrimFunc, arguments: Sequence[Flow], integers: Mapping[int, Any], rows: int
) -> list[Flow]:
    kernel = StageGraph.parse(function, gathers=True)
    known = {kernel.parameters[position]: value.numpy() for position, value in integers.items()}
    flows: dict[Any, Flow] = dict(zip(kernel.parameters, arguments, strict=False))
    for stage in kernel.stages:
        flows[stage.buffer] = _flow_of_stage(stage, flows, known, rows)
    return [flows[buffer] for buffer in kernel.parameters[len(arguments) :]]


def _flow_of_stage(stage: Stage, flows: Mapping[Any, Flow], known: Mapping[Any, Any], rows: int) -> Flow:
    """Where the rows of the buffer are that a stage writes. Raises `NotProven`."""
    read = [(load, flows[load.source]) for load in (*stage.loads(), *stage.first_loads()) if flows[load.source]]
    if not read:
        return None
    if any(loads_in(index) for index in stage.indices):
        raise NotProven(f"stage {stage.name} writes where data says")
    analyzer = Analyzer()
    for axis in stage.axes:
        analyzer.bind(axis.var, Range(0, axis.extent))
    for candidate in _candidates(shape_of(stage.buffer), rows):
        written = _row(stage.indices, candidate, rows)
        if all(_equal(written, _row(load.indices, flow, rows), stage, analyzer, known) for load, flow in read):
            return candidate
    raise NotProven(f"stage {stage.name} reads other rows than it writes")


def _equal(written: Any, read: Any, stage: Stage, analyzer: Analyzer, known: Mapping[Any, Any]) -> bool:
    """Whether two expressions of the axes are equal at every point."""
    indices = loads_in(read)
    if indices and all(load.source in known for load in indices):
        evaluate = GridEvaluator(stage.axes, known, {})
        return bool(np.all(evaluate(written) == evaluate(read)))
    return bool(analyzer.can_prove_equal(written, read))


def _row(indices: Sequence[Any], flow: Flow, rows: int) -> Any:
    """The row of an element, as an expression of the axes."""
    assert flow is not None
    return tirx.floormod(tirx.floordiv(indices[flow.axis], flow.inner), rows)


def _candidates(shape: Sequence[int], rows: int) -> Iterator[Rows]:
    """Where the rows of a tensor may be, the likelier places first."""
    places = [
        (outer, axis, size // rows // outer)
        for axis, size in enumerate(shape)
        for outer in range(1, size // rows + 1)
        if size % (rows * outer) == 0
    ]
    for _, axis, inner in sorted(places):
        yield Rows(axis, inner)
