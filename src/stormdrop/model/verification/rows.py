"""Whether a model computes each row of its outputs from the same row of its inputs: then a batch may be padded.

`row_flow` proves it from the code. Then the compiled model is tried:

    8 rows, and 8 rows whose rows from 5 on are others     the first 5 rows of the outputs are the same, bit by bit
    8 rows, and their first 4 rows at the size of 4        the first 4 rows of the outputs are equal up to rounding

The first check does not rely on the proof. The second one finds a model that computes with the number of its rows, such
as one that divides by it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.relative_error import relative_error
from ...runtime.sizes import Size
from ..artifact.artifact import CompiledModel
from ..graph.graph import Graph
from ..inputs.samples import Feeds, sample_feeds
from .row_flow import NotProven, prove_rows

_logger = logging.getLogger(__name__)

_LEVEL, _LEVEL_OF_BFLOAT16 = 1e-3, 5e-2
"""The largest error between the same rows at two sizes, whose kernels round differently, by the precision."""

_LARGE = 64.0  # times the other rows: a largest value of all rows, as that of a quantisation, is then one of them

_MOST_CHECKED = 8  # numbers of rows that are checked for each size; they are spread evenly if there are more


def inputs_with_rows(model: CompiledModel, graph: Graph, seed: int = 0) -> tuple[str, ...]:
    """Finds the inputs along whose first axis a call may have fewer rows than a size of the model.

    Args:
        model: A model that is right at each of its sizes. It is run a few times.
        graph: What it was compiled from.
        seed: Seeds the inputs.

    Returns:
        The names of the inputs whose first axis differs between sizes, if all outputs have that axis, too, and each of
        their rows depends on no other row of the inputs. Otherwise nothing.
    """
    firsts = [{size.inputs[position].shape[:1] for size in model.sizes} for position in range(len(model.inputs))]
    names = tuple(info.name for info, shapes in zip(model.inputs, firsts, strict=True) if len(shapes) > 1)
    groups = _groups(model.sizes, names)
    if not groups or not all(_have_rows(size, names) for size in model.sizes):
        return ()
    try:
        for size in (size for group in groups for size in group if _rows(size, names) > 1):
            prove_rows(_graph_of(graph, size), names, _rows(size, names))
    except NotProven as reason:
        _logger.info("%s: no batch is padded: %s", model.metadata.name, reason)
        return ()
    return names if all(_rows_are_independent(model, group, names, seed) for group in groups) else ()


def _graph_of(graph: Graph, size: Size) -> Graph:
    shapes = tuple(info.shape for info in size.inputs)
    return next(each for each in graph.sizes if tuple(info.shape for info in each.inputs) == shapes)


def _groups(sizes: Sequence[Size], names: Sequence[str]) -> list[list[Size]]:
    """The sizes that differ in the number of rows only, in groups of two and more, the fewest rows first."""
    groups: dict[tuple[tuple[int, ...], ...], list[Size]] = {}
    for size in sizes if names else ():
        rest = tuple(info.shape[1:] if info.name in names else info.shape for info in size.inputs)
        groups.setdefault(rest, []).append(size)
    return [sorted(group, key=lambda size: _rows(size, names)) for group in groups.values() if len(group) > 1]


def _rows(size: Size, names: Sequence[str]) -> int:
    return next(info.shape[0] for info in size.inputs if info.name in names)


def _have_rows(size: Size, names: Sequence[str]) -> bool:
    """Whether all outputs, and all inputs of these names, have the same first axis."""
    infos = [*(info for info in size.inputs if info.name in names), *size.outputs]
    return {info.shape[:1] for info in infos} == {(_rows(size, names),)}


def _rows_are_independent(model: CompiledModel, group: Sequence[Size], names: Sequence[str], seed: int) -> bool:
    smaller = 0
    for size in group:
        rows = _rows(size, names)
        metadata = replace(model.metadata, inputs=size.inputs)
        feeds, others = sample_feeds(metadata, seed), sample_feeds(metadata, seed + 1)
        outputs = model.run(feeds)
        for count in _checked_counts(smaller, rows):
            for factor in (1.0, _LARGE):
                mixed = {
                    name: np.concatenate([value[:count], _times(others[name][count:], factor)])
                    if name in names
                    else value
                    for name, value in feeds.items()
                }
                again = model.run(mixed)
                if not all(_same(again[name][:count], value[:count]) for name, value in outputs.items()):
                    return False
        if smaller and not _agrees(model, feeds, outputs, smaller, names):
            return False
        smaller = rows
    return True


def _times(value: NDArray[Any], factor: float) -> NDArray[Any]:
    """Larger values of floats; other types, such as indices, stay in their range."""
    return (value * factor).astype(value.dtype) if value.dtype.kind == "f" else value


def _checked_counts(smaller: int, rows: int) -> Iterator[int]:
    """The numbers of rows for which a size would be padded, or some of them: more than the next smaller size has."""
    counts = range(max(1, smaller), rows)
    chosen = np.linspace(0, len(counts) - 1, min(_MOST_CHECKED, len(counts))).round().astype(int)
    return (counts[index] for index in chosen)


def _agrees(model: CompiledModel, feeds: Feeds, outputs: Feeds, count: int, names: Sequence[str]) -> bool:
    """Whether a smaller size computes the same for the first rows."""
    fewer = model.run({name: value[:count] if name in names else value for name, value in feeds.items()})
    level = _LEVEL_OF_BFLOAT16 if "precision" in model.metadata.provenance else _LEVEL
    return all(relative_error(fewer[name], value[:count]) <= level for name, value in outputs.items())


def _same(value: NDArray[Any], right: NDArray[Any]) -> bool:
    return np.array_equal(value, right, equal_nan=value.dtype.kind == "f")
