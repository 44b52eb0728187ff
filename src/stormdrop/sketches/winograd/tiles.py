"""Tiles of a Winograd convolution in TensorIR: where they are, what they write, and how constant matrices enter."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.tirx import BufferStore, IfThenElse

from ...ir.expressions import Expr, rewrite_loads, substitute, tile_start, unraveled
from ...ir.stages import Axis, Stage, intermediate, variable
from .convolution import Convolution


class TilePosition:
    """Where a tile is. It is bound to variables once, because TVM's passes are slow on long expressions.

    Args:
        conv: The convolution.
        m: The outputs of a tile along each axis that has a window.
        number: The number of the tile in all images.

    Attributes:
        bindings: The statements that bind the variables.
        corner: The position at which the tile begins, by variable of the batch axes and the axes of the image.
    """

    def __init__(self, conv: Convolution, m: int, number: Expr) -> None:
        self.bindings: list[Any] = []
        self._conv, self._filters, grid = conv, conv.filters(m), conv.grid(m)
        *batch, row, column = [self._bound(index) for index in unraveled(self._bound(number), grid)]
        self._numbers = row, column
        self.corner = {axis.var: index for axis, index in zip(conv.batch, batch, strict=True)}
        for (axis, _), size, index, tiles in zip(conv.image, self._filters, self._numbers, grid[-2:], strict=True):
            self.corner[axis.var] = self._bound(tile_start(index, size.m, axis.extent, tiles))

    def store(self, epilogue: Stage, row: Expr, column: Expr, output_channel: Expr, result: Expr) -> Any:
        """The statement that stores an output.

        Args:
            epilogue: The stage that stores it.
            row: Its row in the tile.
            column: Its column in the tile.
            output_channel: Its channel.
            result: The sum of the convolution there.
        """
        mapping = {**self.corner, self._conv.column.var: output_channel}
        for (axis, _), offset in zip(self._conv.image, (row, column), strict=True):
            mapping[axis.var] = mapping[axis.var] + offset
        # Two steps: a load of the result has to be recognised before its indices change.
        summed = self._conv.contraction.stage.buffer
        value = rewrite_loads(epilogue.value, lambda load: result if load.source.same_as(summed) else None)
        indices = [substitute(index, mapping) for index in epilogue.indices]
        return BufferStore(epilogue.buffer, substitute(value, mapping), indices)

    def unless_done_before(self, row: Expr, column: Expr, statement: Any) -> Any:
        """A statement for one output of a tile, left out if the tile before computes that output too."""
        conditions = [
            number * size.m <= self.corner[axis.var] + offset
            for (axis, _), size, number, offset in zip(
                self._conv.image, self._filters, self._numbers, (row, column), strict=True
            )
            if axis.extent % size.m
        ]
        return IfThenElse(tirx.all(*conditions), statement, None) if conditions else statement

    def _bound(self, value: Expr) -> Expr:
        bound = variable("at")
        self.bindings.append(tirx.Bind(bound, value))
        return bound


def constant_stage(name: str, matrix: NDArray[Any], dtype: str) -> Stage:
    """A stage that writes a matrix. Its numbers are rounded if the type is one of integers."""
    row, column = named_axes(i=matrix.shape[0], j=matrix.shape[1])
    whole = dtype.startswith("int")
    value = tirx.const(0, dtype)
    for (i, j), element in np.ndenumerate(matrix):
        here = tirx.all(row.var == i, column.var == j)
        value = prim.Select(here, tirx.const(round(element) if whole else float(element), dtype), value)
    return Stage(name, (row, column), intermediate(name, matrix.shape, dtype), (row.var, column.var), value)


def named_axes(**extents: int) -> list[Axis]:
    """Axes of these names and extents; an axis with a negative extent reduces."""
    return [Axis(variable(name), abs(extent), extent < 0) for name, extent in extents.items()]
