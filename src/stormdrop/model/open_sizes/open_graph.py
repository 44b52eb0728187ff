"""Whether a model is the same at each size of a range: what its import says, before anything is tuned.

imported at 512, 1, 2, 3, 4, 5, 18, 70, 278 tokens     what each function is at n tokens
imported at 11, 43, 173, 395 tokens, too               it is that there
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from tvm.ir import GenericConst
from tvm.tirx import PrimFunc
from tvm_ffi import structural_equal, structural_walk

from ...errors import ModelError, UnsupportedFunction
from ...runtime.open_size import Sizes
from ...runtime.sizes import OPEN
from ..graph.expressions import VIEWS, bindings_of, calls_kernel, operator_name
from ..graph.graph import Graph
from ..graph.tasks import kernel_calls
from ..importer.any_model import Model, import_model
from ..inputs.combinations import GivenShapes
from ..inputs.inputs import Values
from ..inputs.open_range import between, has_range
from ..tensors import array_of
from .constants import is_constant_at, open_constant
from .generalised import outline
from .kernels import in_own_variables
from .parameters import HALVES, Parameters
from .probes import Probes
from .rows import with_merged_rows


def import_for_sizes(
    model: Model, shapes: GivenShapes | None, example_inputs: Any = None, values: Values | None = None
) -> Graph:
    """Imports a model as `import_model`. With a range of sizes it is checked that the model is the same at each.

    Args:
        model: The model.
        shapes: The shapes of its inputs, perhaps with ranges.
        example_inputs: As in `import_model`.
        values: As in `import_model`.

    Raises:
        ModelError: It cannot be imported, or is another one at other sizes.
    """
    graph = import_model(model, shapes, example_inputs, values)
    if not shapes or not has_range(shapes):
        return graph
    graph = with_merged_rows(graph)
    further = (import_model(model, each, example_inputs, values) for each in between(shapes))
    check_graphs(graph, [with_merged_rows(each) for each in further])
    return graph


def check_graphs(graph: Graph, further: Sequence[Graph]) -> None:
    """Checks that a model is what its compiled sizes say at further sizes, too.

    Args:
        graph: The model at the sizes that are to be compiled.
        further: The model at other sizes, one in each graph.

    Raises:
        ModelError: It is another one at some size; the message says what differs.
    """
    name = graph.name
    if graph.foreign.reports:
        operators = sorted({operator for report in graph.foreign.reports for operator in report.operators})
        raise ModelError(f"{name}: has no open sizes: onnxruntime runs a part of it ({', '.join(operators)})")
    parameters = Parameters([each.inputs for each in graph.sizes], name)
    for each in graph.sizes:
        _check_calls(each)
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for position, each in enumerate(graph.sizes):
        alike[_likeness(each)].append(position)
    for other in further:
        at = parameters.at(other.inputs)
        where = " and ".join(f"{key} = {value}" for key, value in at.items())
        members = alike.get(_likeness(other))
        if members is None:
            raise ModelError(f"{name}: has no open sizes: at {where} it has other kernels than at any compiled size")
        try:
            _check_at([graph.sizes[each] for each in members], [parameters.sizes[each] for each in members], other, at)
        except UnsupportedFunction as error:
            raise ModelError(f"{name}: has no open sizes: {error} (at {where})") from error


def _check_at(members: Sequence[Graph], sizes: Sequence[Sizes], other: Graph, at: Sizes) -> None:
    """Raises `UnsupportedFunction` unless a graph is what others say of its size."""
    differing = [name for name in at if len({each[name] for each in sizes}) > 1]
    if any(at[name] != sizes[0][name] for name in at if name not in differing):
        raise UnsupportedFunction("it has the kernels of one size that was compiled")
    try:
        probes = Probes([{name: each[name] for name in differing} for each in sizes], HALVES)
    except ValueError as error:
        raise UnsupportedFunction(f"it has the same kernels at {len(sizes)} of its sizes only: {error}") from error
    for one, *of_sizes in zip(_constants_of(other), *map(_constants_of, members), strict=True):
        arrays = [array_of(each) for each in of_sizes]
        constant = open_constant(arrays, probes.terms)
        if not is_constant_at(array_of(one), constant, arrays[constant.whole], lambda terms: terms.at(at)):
            raise UnsupportedFunction(f"a constant has other values than they tell ({one.ty})")
    for infos in zip(other.outputs, *(each.outputs for each in members), strict=True):
        shape, *others = [info.shape for info in infos]
        for extent, *extents in zip(shape, *others, strict=True):
            if OPEN in extents or probes.terms(extents).at(at) != extent:
                raise UnsupportedFunction(f"the shape of {infos[0].name!r} does not follow from its inputs")
    seen: set[tuple[str, ...]] = set()
    for names in zip(_callees(other), *map(_callees, members), strict=True):
        if names in seen:
            continue
        seen.add(names)
        function, *functions = [_functions(each)[name] for each, name in zip((other, *members), names, strict=True)]
        own = in_own_variables(functions)
        expected = functions[0]
        if own.function is not None:
            values = [probes.terms(vector).at(at) for vector in own.vectors]
            expected = own.function.at(dict(zip(own.function.parameters, values, strict=True)))
        if not structural_equal(expected, function):
            raise UnsupportedFunction(f"kernel {names[0]} computes something else")


def _check_calls(graph: Graph) -> None:
    """Raises `ModelError` if a graph calls something that is neither a kernel nor a view."""
    for binding in bindings_of(graph.mod["main"]):
        called = operator_name(binding.value)
        if not calls_kernel(binding.value) and called.startswith("relax.") and called not in VIEWS:
            function = str(getattr(binding.value.args[0], "global_symbol", called))
            raise ModelError(f"{graph.name}: has no open sizes: {function} is no kernel of ours")


def _likeness(graph: Graph) -> Hashable:
    """What graphs that are alike have in common: their calls, without the numbers of their functions."""
    values = [binding.value for binding in bindings_of(graph.mod["main"])]
    outlines = {name: outline(function) for name, function in _functions(graph).items()}
    kernels = tuple(outlines[each] for each in _callees(graph))
    return tuple(map(operator_name, values)), kernels


def _callees(graph: Graph) -> list[str]:
    return [str(call.args[0].name_hint) for call in kernel_calls(graph.mod)]


def _functions(graph: Graph) -> Mapping[str, PrimFunc]:
    """The functions of the tasks, by the names under which the graph calls them."""
    return {callee: task.function for task in graph.tasks for callee in task.callees}


def _constants_of(graph: Graph) -> list[GenericConst]:
    """The constants of a graph, in their order."""
    found: list[GenericConst] = []
    structural_walk(graph.mod["main"], (GenericConst, found.append))
    return found
