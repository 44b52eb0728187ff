"""Whether a model is the same at each size of a range: what its import says, before anything is tuned.

imported at 512, 1, 2, 3, 4, 5, 18, 70, 278 tokens     what each function is at n tokens
imported at 11, 43, 173, 395 tokens, too               it is that there
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
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
from ..inputs.combinations import GivenShapes, is_list
from ..inputs.inputs import Values
from ..inputs.open_range import has_range
from ..inputs.size_range import Range
from ..tensors import array_of
from .alike import Extents, Part, parts, points_of
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

    Returns:
        The graph. With a range, `between` has the model at some sizes that are not compiled, in each part of the range.

    Raises:
        ModelError: It cannot be imported, or is another one at other sizes.
    """
    graph = import_model(model, shapes, example_inputs, values)
    if not shapes or not has_range(shapes):
        return graph
    graph = with_merged_rows(graph)
    _check_calls(graph)
    sizes = CompiledSizes(graph, shapes)
    between = []
    for part in sizes.parts:
        for extents in sizes.between(part):
            other = with_merged_rows(import_model(model, sizes.shapes(extents), example_inputs, values))
            sizes.check(other, part)
            between.append(other)
    return replace(graph, between=tuple(between))


class CompiledSizes:
    """What the sizes of a model that are compiled say of the others.

    Args:
        graph: The model at these sizes.
        ranges: The shapes that the user has given.

    Attributes:
        parts: The parts of the range.

    Raises:
        ModelError: The sizes are too few, or move together without following from each other.
    """

    def __init__(self, graph: Graph, ranges: GivenShapes) -> None:
        self._graph, self._ranges = graph, ranges
        self._parameters = Parameters([each.inputs for each in graph.sizes], graph.name)
        self._names = list(self._parameters.sizes[0])
        self._extents = [tuple(each.values()) for each in self._parameters.sizes]
        self._steps = self._parameters.steps(graph.inputs, ranges)
        positions: dict[Hashable, list[int]] = defaultdict(list)
        for position, each in enumerate(graph.sizes):
            positions[_likeness(each)].append(position)
        self._alike = {self._extents[at]: tuple(members) for members in positions.values() for at in members}
        self.parts = parts(self._alike, self._steps)

    def between(self, part: Part) -> list[Extents]:
        """Sizes of a part that are not compiled: one inside, and the last one."""
        bounds = list(zip(part.box.least, part.box.most, self._steps, strict=True))
        inside = tuple(low + (high - low) // step * 5 // 8 * step for low, high, step in bounds)
        compiled = [set(column) for column in zip(*self._extents, strict=True)]
        last = tuple(
            max(low, high - step * (high in known)) for (low, high, step), known in zip(bounds, compiled, strict=True)
        )
        found = [each for each in dict.fromkeys((inside, last)) if each not in self._alike]
        return found or [next(each for each in points_of(part.box, self._steps) if each not in self._alike)]

    def shapes(self, extents: Extents) -> dict[str, tuple[int, ...]]:
        """The shapes that a user would give for a size.

        Args:
            extents: The parameters.
        """
        at = dict(zip(self._names, extents, strict=True))
        probes = Probes(self._parameters.sizes, HALVES, exact=True)
        positions = {info.name: position for position, info in enumerate(self._graph.inputs)}
        known: dict[Range, int] = {}
        # Inputs that the model ignores come last: all that is known of them is their range.
        names = sorted(self._ranges, key=lambda name: name not in positions)
        found: dict[str, tuple[int, ...]] = {}
        for name in names:
            shape = []
            for axis, given in enumerate(self._ranges[name]):
                if isinstance(given, Range) and name in positions:
                    numbers = [each.inputs[positions[name]].shape[axis] for each in self._graph.sizes]
                    known[given] = probes.terms(numbers).at(at)
                shape.append(known.get(given, given.first) if isinstance(given, Range) else given)
            found[name] = tuple(int(size) for size in shape if not is_list(size))
        return found

    def check(self, other: Graph, part: Part) -> None:
        """Checks that a model is what the compiled sizes say of a size.

        Args:
            other: The model at this size.
            part: The part of the range that the size is of.

        Raises:
            ModelError: It is another one; the message says what differs.
        """
        at = self._parameters.at(other.inputs)
        where = _in_words(at)
        base = self._graph.sizes[self._extents.index(part.base)]
        model = f"{self._graph.name}: has no open sizes"
        if _likeness(other) != _likeness(base):
            like = _in_words(dict(zip(self._names, part.base, strict=True)))
            raise ModelError(f"{model}: at {where} it has other kernels than at {like}{_first_difference(base, other)}")
        graphs = [self._graph.sizes[each] for each in self._alike[part.base]]
        sizes = [self._parameters.sizes[each] for each in self._alike[part.base]]
        try:
            _check_at(graphs, sizes, other, at)
        except UnsupportedFunction as error:
            raise ModelError(f"{model}: {error} (at {where}): list sizes, or give a range with a step") from error


def _check_at(members: Sequence[Graph], sizes: Sequence[Sizes], other: Graph, at: Sizes) -> None:
    """Raises `UnsupportedFunction` unless a graph is what others say of its size."""
    differing = [name for name in at if len({each[name] for each in sizes}) > 1]
    if any(at[name] != sizes[0][name] for name in at if name not in differing):
        raise UnsupportedFunction(f"it has its kernels at {_in_words(sizes[0])} only")
    try:
        probes = Probes([{name: each[name] for name in differing} for each in sizes], HALVES, exact=True)
    except ValueError as error:
        raise UnsupportedFunction(f"only {len(sizes)} of the compiled sizes have the same kernels: {error}") from error
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
        try:
            own = in_own_variables(functions)
            expected = functions[0]
            if own.function is not None:
                values = [probes.terms(vector).at(at) for vector in own.vectors]
                expected = own.function.at(dict(zip(own.function.parameters, values, strict=True)))
        except UnsupportedFunction as error:
            raise UnsupportedFunction(f"kernel {names[0]}: {error}") from error
        if not structural_equal(expected, function):
            raise UnsupportedFunction(f"kernel {names[0]} computes something else")


def _in_words(sizes: Sizes) -> str:
    return " and ".join(f"{name} = {value}" for name, value in sizes.items())


def _first_difference(graph: Graph, other: Graph) -> str:
    """Which kernel of a graph is the first that differs, for a message."""
    for one, two in zip(_callees(graph), _callees(other), strict=False):
        if outline(_functions(graph)[one]) != outline(_functions(other)[two]):
            return f": {one} and {two} are the first that differ"
    return ""


def _check_calls(graph: Graph) -> None:
    """Raises `ModelError` if a graph calls something that is neither a kernel nor a view."""
    if graph.foreign.reports:
        operators = sorted({operator for report in graph.foreign.reports for operator in report.operators})
        raise ModelError(f"{graph.name}: has no open sizes: onnxruntime runs a part of it ({', '.join(operators)})")
    for binding in (binding for each in graph.sizes for binding in bindings_of(each.mod["main"])):
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
