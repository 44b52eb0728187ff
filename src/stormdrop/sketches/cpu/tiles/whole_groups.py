"""Data whose rows hold whole groups of the elements that a word takes, and as many of these as fill tiles.

    whole[y, x, c] = data[y, x, c] if c < 3 else 0         four channels where the data have three

Tiles load the words of a row as they lie in memory, so that a pixel of an image with three channels has to begin at a
word. A prime number of words beyond 16 would fill tiles of one word only, so that a few words more are better. The
stage that pads the image computes the further elements, too; without one there is a stage of its own. They are
multiplied by zeros (see `packed_words`), and they are zero themselves, because zero times NaN is NaN.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx

from ....ir.contractions.contraction import Contraction
from ....ir.contractions.made_data import with_made_data
from ....ir.expressions import Expr
from ....ir.stages import Axis, Stage, intermediate, shape_of
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


def with_whole_groups(contraction: Contraction, width: int) -> Contraction:
    """The contraction with data whose last axis is so wide.

    Args:
        contraction: A contraction. Its last reduction is the last axis of the data, or has this width.
        width: The elements of whole groups.

    Returns:
        The contraction of a function that computes the same; `contraction` itself if the data are as wide.
    """
    extent = contraction.stage.reductions[-1].extent
    if extent == width:
        return contraction
    source = contraction.other.source
    whole = intermediate("whole", (*shape_of(source)[:-1], width), str(source.dtype))

    def filled(stage: Stage) -> Stage:
        """The stage over the last axis of `whole`, with zeros beyond the data."""
        *leading, last = stage.axes
        value: Expr = tirx.if_then_else(last.var < extent, stage.value, tirx.const(0, str(whole.dtype)))
        return replace(stage, axes=(*leading, Axis(last.var, width)), buffer=whole, value=value)

    return with_made_data(contraction, whole, filled, name="whole", takes=_ends_with_last_axis)


def _ends_with_last_axis(stage: Stage) -> bool:
    return bool(stage.indices[-1].same_as(stage.axes[-1].var))
