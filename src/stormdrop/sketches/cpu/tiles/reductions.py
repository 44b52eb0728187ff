"""The reductions of a contraction as tiles walk through them: loops over products of tiles, and blocks of these."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....ir.contractions.contraction import Contraction
from ....ir.kept import kept
from ....ir.stages import Axis
from ..contractions.dot_products import DotProducts
from ..nests import load_stride
from .instructions import TILE


@kept
def reduction_loops(contraction: Contraction, dots: DotProducts) -> tuple[Sequence[Axis], int]:
    """The reductions that need a loop of their own, and the words of the data that lie one behind the other.

    The latter are those of the grouped reduction, and of others whose steps follow at its end: the channels of the
    pixels of a window's row.
    """
    *others, _ = contraction.stage.reductions
    words = dots.extents(contraction)[-1]
    while others and load_stride(contraction.other, others[-1].var) == words * dots.group:
        words *= others.pop().extent
    return tuple(others), words


def depth_of(words: int) -> int:
    """The words in a row of a tile of data: the most that divide those that lie one behind the other."""
    return max(depth for depth in range(1, min(words, TILE) + 1) if words % depth == 0)


def products_of(contraction: Contraction, dots: DotProducts) -> list[int]:
    """The loops over the reductions around the products of tiles, the outermost first."""
    others, words = reduction_loops(contraction, dots)
    return [*(axis.extent for axis in others), words // depth_of(words)]


def split_at(loops: Sequence[int], block: int) -> tuple[list[int], list[int]]:
    """The loops over blocks of a reduction, and the loops over the products of one block.

    The last one of the former and the first one of the latter are two parts of one loop.

    Args:
        loops: The extents of all loops, the outermost first.
        block: The products of a block, one of `block_sizes`.

    Example:
        >>> split_at([3, 3, 8], 24)
        ([3], [1, 3, 8])
        >>> split_at([3, 3, 8], 4)
        ([3, 3, 2], [4])
    """
    for position in range(len(loops)):
        below = math.prod(loops[position + 1 :])
        part, rest = divmod(block, below)
        if part and not rest and loops[position] % part == 0:
            return [*loops[:position], loops[position] // part], [part, *loops[position + 1 :]]
    raise ValueError(f"blocks of {block} do not divide loops of {list(loops)}")


def block_sizes(loops: Sequence[int]) -> list[int]:
    """The products that a block of a reduction may have, the smallest first: `split_at` can make each.

    Example:
        >>> block_sizes([3, 3, 8])
        [1, 2, 4, 8, 24, 72]
    """
    sizes = set()
    for position, extent in enumerate(loops):
        below = math.prod(loops[position + 1 :])
        sizes |= {part * below for part in range(1, extent + 1) if extent % part == 0}
    return sorted(sizes)
