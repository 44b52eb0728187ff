"""The rows of a contraction as tiles walk through them.

    one axis        the rows of a matrix, or all pixels of images
    two axes        the rows and the columns of an image; tiles lie along the columns
    one, with gaps  the same image as one axis: a tile runs on through the padding between two rows

A tile of an image of 7 x 7 pixels would have 7 rows of the 16 that a tile may have. In memory the padded image is 9
pixels wide, so that 61 positions cover it: four tiles in the place of seven. What is computed in the gaps is not
stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm

from ....ir.contractions.contraction import Contraction
from ....ir.expressions import Expr
from ....ir.kept import kept
from ....ir.stages import Axis
from ..nest_rewrites import unravel_axes
from ..nests import load_stride
from .instructions import TILE

_GAIN = 0.8  # gaps are worth it from so many times the tiles on


@dataclass(frozen=True)
class Rows:
    """The axes along which the tiles of a contraction have their rows.

    Attributes:
        axes: The row axes of the contraction.
        extents: The positions to cover, along one axis or two.
        pitch: The positions from one row of an image to the next if it is one axis with gaps; else 0.
    """

    axes: tuple[Axis, ...]
    extents: list[int]
    pitch: int

    def positions(self, position: Expr) -> dict[Any, Expr]:
        """The positions on the row axes at a position on the only axis. In a gap, the last one is beyond its axis."""
        if not self.pitch:
            return unravel_axes(self.axes, position)
        first, last = self.axes
        pitch = IntImm("int32", self.pitch)
        return {first.var: prim.FloorDiv(position, pitch), last.var: prim.FloorMod(position, pitch)}

    def present(self, position: Expr) -> Expr | None:
        """Whether a position on the only axis is in no gap; None if there are none."""
        *_, last = self.axes
        return self.positions(position)[last.var] < last.extent if self.pitch else None


@kept
def rows_of(contraction: Contraction) -> Rows:
    """How tiles walk through the rows of a contraction.

    Args:
        contraction: The contraction. Its data have a constant stride along the last row axis.
    """
    extents, axes = contraction.row_extents, contraction.rows
    if len(extents) == 1:
        return Rows(axes, extents, 0)
    first, last = (load_stride(contraction.other, axis.var) for axis in axes)
    height, width = extents
    if first and last and first % last == 0 and first >= width * last:
        pitch = first // last
        positions = (height - 1) * pitch + width
        if _tiles(positions) <= _GAIN * height * _tiles(width):
            return Rows(axes, [positions], pitch)
    return Rows(axes, extents, 0)


def _tiles(extent: int) -> int:
    return -(-extent // TILE)
