"""The sizes that a user asks for: the shapes of the inputs for each size that a model is compiled for.

    shapes={"x": ((1, 4, 8), 3, 224, 224)}   ->   x is 1x3x224x224, or 4x3x224x224, or 8x3x224x224

Dimensions that have one name in the model move together, and so do nameless dimensions with the same list. All other
lists are combined with each other.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

from typing_extensions import TypeIs

from ...errors import ModelError, shown
from .size_range import Range

Shapes = Mapping[str, tuple[int, ...]]
"""One shape for each input, by the name of the input."""

GivenShapes: TypeAlias = Mapping[str, Sequence[int | Collection[int]]]
"""What the user gives: in the place of a size there may be several, as a tuple, a list or a range."""

Names: TypeAlias = Mapping[str, Sequence[Hashable | None]]
"""What the model calls each dimension of its inputs, by the name of the input; None for a nameless dimension."""

MOST_SIZES = 64
"""The most sizes of one model. Each takes the time of an import, a compilation and a verification."""


def all_shapes(given: GivenShapes | None, names: Callable[[], Names], model: str) -> list[Shapes]:
    """Lists the shapes of the inputs for each size.

    Args:
        given: What the user gives.
        names: Finds the names of the model's dimensions. It is called only if several sizes are given.
        model: The name of the model, for messages.

    Returns:
        The shapes by input name, in the order of the lists; of several lists the last one varies fastest.

    Raises:
        ModelError: A list is empty or holds something else than sizes, the same dimension has different lists, or there
            are more than `MOST_SIZES` combinations.
    """
    shapes = given or {}
    for key, shape in shapes.items():
        _check(shape, f"{model}: the shape of input {shown(key)!r}")
    lists = {
        (key, axis): _sizes(size, f"{model}: dimension {axis} of input {shown(key)!r}")
        for key, shape in shapes.items()
        for axis, size in enumerate(shape)
        if is_list(size)
    }
    if not lists:
        return [{key: tuple(size for size in shape if not is_list(size)) for key, shape in shapes.items()}]
    groups = _groups(shapes, lists, names(), model)
    choices = {group: lists[dimensions[0]] for group, dimensions in groups.items()}
    ranges = {
        group: size for group, ((key, axis), *_) in groups.items() if isinstance(size := shapes[key][axis], Range)
    }
    if len(ranges) > 1:
        choices |= {group: each.few for group, each in ranges.items()}
    count = 1
    for sizes in choices.values():
        count *= len(sizes)
    if count > MOST_SIZES:
        raise ModelError(f"{model}: {count} combinations of sizes are too many; {MOST_SIZES} are possible")
    combined = []
    for chosen in itertools.product(*choices.values()):
        size_of = {
            dimension: size
            for dimensions, size in zip(groups.values(), chosen, strict=True)
            for dimension in dimensions
        }
        combined.append(
            {
                key: tuple(size_of.get((key, axis), size) for axis, size in enumerate(shape))
                for key, shape in shapes.items()
            }
        )
    return combined  # type: ignore[return-value]


def _check(shape: object, where: str) -> None:
    """Raises `ModelError` unless a shape consists of whole numbers, and of lists in the place of some."""
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise ModelError(f"{where} is {shown(repr(shape))}; give a tuple of sizes, as in (1, 3, 224, 224)")
    for size in shape:
        if not isinstance(size, Collection) and not hasattr(size, "__index__"):
            raise ModelError(f"{where} has the size {shown(repr(size))}; a size is a whole number")


def is_list(size: int | Collection[int]) -> TypeIs[Collection[int]]:
    """Whether several sizes are given in the place of one."""
    return isinstance(size, Collection)


def _sizes(given: Collection[int], where: str) -> tuple[int, ...]:
    """The different sizes of a list, in its order."""
    if not given:
        raise ModelError(f"{where}: the list of sizes is empty")
    if len(given) > MOST_SIZES:
        raise ModelError(f"{where}: {len(given)} sizes are too many; {MOST_SIZES} are possible")
    sizes = []
    for size in given:
        try:
            sizes.append(operator.index(size))
        except TypeError:
            sizes.append(0)
        if sizes[-1] < 1:
            raise ModelError(f"{where}: {shown(repr(size))} is no size; a size is a whole number from 1 on")
    return tuple(dict.fromkeys(sizes))


def _groups(
    shapes: GivenShapes, lists: Mapping[tuple[str, int], tuple[int, ...]], names: Names, model: str
) -> dict[Hashable, list[tuple[str, int]]]:
    """The dimensions that have lists, grouped by what moves together: (input, axis) by the name or by the list."""
    groups: dict[Hashable, list[tuple[str, int]]] = {}
    given: dict[Hashable, tuple[tuple[str, int], tuple[int, ...]]] = {}
    for key, shape in shapes.items():
        for axis, size in enumerate(shape):
            dimension = (key, axis)
            of_input = names.get(key, ())
            name = of_input[axis] if axis < len(of_input) else None
            sizes = lists[dimension] if is_list(size) else (operator.index(size),)
            if name is not None:
                first, before = given.setdefault(name, (dimension, sizes))
                if before != sizes:
                    raise ModelError(
                        f"{model}: {_described(first)} and {_described(dimension)} are both {shown(str(name))!r}, so "
                        f"they must have the same sizes, not {_listed(before)} and {_listed(sizes)}"
                    )
            if dimension in lists:
                groups.setdefault(("name", name) if name is not None else ("list", sizes), []).append(dimension)
    return groups


def _described(dimension: tuple[str, int]) -> str:
    return f"dimension {dimension[1]} of input {shown(dimension[0])!r}"


def _listed(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))
