"""Finds concatenations whose inputs can be written to their final place, instead of being copied there.

a = conv(x)                          a = conv'(x)            writes channels 0 to 63 of 128
b = conv(y)               ->         b = conv''(y, a)        writes channels 64 to 127, in place
c = concatenate(a, b)                c = b
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from ...errors import UnsupportedFunction
from ...ir.dtypes import is_float, limits
from ...ir.reference import evaluate
from ...ir.stages import shape_of
from ..graph.expressions import bindings_of, calls_kernel, variables_of
from ..graph.place import Place
from ..graph.tasks import Task


@dataclass(frozen=True, eq=False)
class Concatenation:
    """One concatenation of a graph.

    Attributes:
        output: The variable of its output.
        parts: The variables of its inputs with their places, in the order in which they are computed.
    """

    output: Any
    parts: tuple[tuple[Any, Place], ...]


def find_concatenations(
    mod: tvm.IRModule, tasks: Mapping[str, Task], can_place: Callable[[Task], bool]
) -> list[Concatenation]:
    """Lists the concatenations along the last axis whose inputs are all outputs of kernels that nothing else reads.

    Args:
        mod: A graph's module.
        tasks: The tasks, by the name of the function that is called.
        can_place: Says whether a task can write its output into a slice.
    """
    bindings = bindings_of(mod["main"])
    order = {binding.var: position for position, binding in enumerate(bindings)}
    values = {binding.var: binding.value for binding in bindings}
    uses = Counter(variable for value in values.values() for variable in variables_of(value))
    is_concatenation: dict[str, bool] = {}
    concatenations = []
    for variable, value in values.items():
        if not isinstance(variable, relax.DataflowVar) or not calls_kernel(value):
            continue
        callee = value.args[0].name_hint
        parts = list(value.args[1].fields)
        if len(parts) < 2:
            continue
        if callee not in is_concatenation:
            is_concatenation[callee] = _concatenates(mod[callee], len(parts))
        if not is_concatenation[callee]:
            continue
        placeable = all(
            uses[part] == 1
            and isinstance(part, relax.DataflowVar)
            and calls_kernel(values[part])
            and can_place(tasks[values[part].args[0].name_hint])
            for part in parts
        )
        if not placeable:
            continue
        lengths = [shape_of(parameter)[-1] for parameter in mod[callee].params[:-1]]
        offsets = np.cumsum([0, *lengths])
        places = [Place(int(offset), int(offsets[-1])) for offset in offsets[:-1]]
        placed = sorted(zip(parts, places, strict=True), key=lambda entry: order[entry[0]])
        concatenations.append(Concatenation(variable, tuple(placed)))
    return concatenations


def _concatenates(function: tirx.PrimFunc, parts: int) -> bool:
    """Whether a function concatenates its inputs along the last axis and does nothing else.

    The function is evaluated to find out, on values of both signs up to half of the type's largest one: any activation
    or bound changes some of these.
    """
    if len(function.params) != parts + 1:
        return False
    try:
        shapes = [shape_of(parameter) for parameter in function.params]
    except UnsupportedFunction:
        return False
    if not all(shapes):  # a parameter without axes
        return False
    if sum(shape[-1] for shape in shapes[:-1]) != shapes[-1][-1] or len({shape[:-1] for shape in shapes}) != 1:
        return False
    dtype, *others = {str(parameter.dtype) for parameter in function.params}
    if others or (not is_float(dtype) and not dtype.startswith("int")):
        return False
    largest = float(limits(dtype).max)
    sizes = [int(np.prod(shape)) for shape in shapes[:-1]]
    values = np.split(largest * np.linspace(-0.5, 0.5, sum(sizes)), np.cumsum(sizes)[:-1])
    inputs = [part.astype(dtype).reshape(shape) for part, shape in zip(values, shapes, strict=False)]
    try:
        (output,) = evaluate(function, inputs)
    except UnsupportedFunction:
        return False
    return np.array_equal(output, np.concatenate(inputs, axis=-1))
