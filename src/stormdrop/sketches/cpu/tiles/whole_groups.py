"""Data whose rows hold whole groups of the elements that a word takes, and as many of these as fill tiles.

    whole[y, x, c] = data[y, x, c] if c < 3 else 0         four channels where the data have three

Tiles load the words of a row as they lie in memory, so that a pixel of an image with three channels has to begin at a
word. A prime number of words beyond 16 would fill tiles of one word only, so that a few words more are better. The
stage that pads the image computes the further elements, too; without one there is a stage of its own. They are
multiplied by zeros (see `packed_words`), and they are zero themselves, because zero times NaN is NaN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx

from ....ir.contractions.contraction import Contraction, find_contraction
from ....ir.expressions import Expr, rewrite_loads
from ....ir.stages import Axis, Stage, StageGraph, intermediate, shape_of, variable
from .instructions import TILE
from .reductions import depth_of

_WASTE = 1.5  # times as many products as there would be of full tiles


def groups_that_fill_tiles(words: int) -> int:
    """The number of words, or a slightly larger one, that rows of tiles divide without much waste.

    Args:
        words: The words of a reduction.

    Example:
        >>> groups_that_fill_tiles(36), groups_that_fill_tiles(37)
        (36, 39)
    """
    tiles = -(-words // TILE)
    return words if words // depth_of(words) <= _WASTE * tiles else tiles * -(-words // tiles)


def with_whole_groups(contraction: Contraction, constants: tuple[int, ...], width: int) -> Contraction:
    """The contraction with data whose last axis is so wide.

    Args:
        contraction: A contraction. Its last reduction is the last axis of the data, or has this width.
        constants: The positions of the constant inputs of its function.
        width: The elements of whole groups.

    Returns:
        The contraction of a function that computes the same; `contraction` itself if the data are as wide.
    """
    extent = contraction.stage.reductions[-1].extent
    return contraction if extent == width else find_contraction(_widened(contraction, extent, width), constants)


def _widened(contraction: Contraction, extent: int, width: int) -> StageGraph:
    """The function with data of whole groups. The padding makes them, or else a stage of its own."""
    graph, source = contraction.graph, contraction.other.source
    shape = (*shape_of(source)[:-1], width)
    whole = intermediate("whole", shape, str(source.dtype))
    prologue = contraction.prologue
    stages = []
    for stage in graph.stages:
        if stage is prologue and _ends_with_last_axis(stage):
            stages.append(_filled(stage, whole, extent))
        elif stage.buffer.same_as(contraction.stage.buffer):
            if prologue is None or not _ends_with_last_axis(prologue):
                axes = tuple(Axis(variable(f"whole{number}"), size) for number, size in enumerate(shape))
                indices = tuple(axis.var for axis in axes)
                stages.append(_filled(Stage("whole", axes, whole, indices, source[indices]), whole, extent))
            value = rewrite_loads(
                stage.value, lambda load: whole[tuple(load.indices)] if load.source.same_as(source) else None
            )
            stages.append(replace(stage, value=value))
        else:
            stages.append(stage)
    return StageGraph(graph.parameters, tuple(stages))


def _ends_with_last_axis(stage: Stage) -> bool:
    return bool(stage.indices[-1].same_as(stage.axes[-1].var))


def _filled(stage: Stage, whole: Any, extent: int) -> Stage:
    """The stage over the last axis of `whole`, with zeros beyond `extent`."""
    *leading, last = stage.axes
    value: Expr = tirx.if_then_else(last.var < extent, stage.value, tirx.const(0, str(whole.dtype)))
    axes = (*leading, Axis(last.var, shape_of(whole)[-1]))
    return replace(stage, axes=axes, buffer=whole, value=value)
