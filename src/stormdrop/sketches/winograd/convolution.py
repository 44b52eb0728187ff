"""Which functions are convolutions of stride 1, along one axis or two, in whatever layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import UnsupportedFunction
from ...ir.contractions.contraction import Contraction, contiguous
from ...ir.dtypes import BFLOAT16
from ...ir.expressions import coefficients, variables
from ...ir.kept import kept
from ...ir.stages import Axis, Stage, intermediate, shape_of, variable
from ...ir.workload import Workload
from .transforms import Filter


@dataclass(frozen=True, eq=False)
class Convolution:
    """sum(data[batch, y + ry, x + rx, channel] * weight[column, ry, rx, channel]) over a window and the channels.

    Args:
        contraction: The function as a contraction; its column axis is the output channel.
        before: The stages that run before the convolution and make the buffer of `data` (padded, laid out).
        data: The load of the images, channels last.
        weight: The load of the weights, in any layout.
        constant: The position of the weights among the function's inputs.
        batch: All other spatial axes.
        image: (y, ry) and (x, rx). If the convolution runs along one axis only, y and ry are of extent 1 and nothing
            reads them.
        channel: The input channel.
    """

    contraction: Contraction
    before: tuple[Stage, ...]
    data: Any
    weight: Any
    constant: int
    batch: tuple[Axis, ...]
    image: tuple[tuple[Axis, Axis], tuple[Axis, Axis]]
    channel: Axis

    @property
    def of_bytes(self) -> bool:
        """Whether it adds up products of bytes, and not of numbers in float32 or bfloat16."""
        return self.contraction.data_factor.dtype in ("int8", "uint8")

    @property
    def column(self) -> Axis:
        """The output channel."""
        return self.contraction.column

    def filters(self, m: int) -> tuple[Filter, Filter]:
        """What computes tiles of m outputs along each axis that has a window, along y and along x."""
        down, across = (Filter(m if taps.extent > 1 else 1, taps.extent) for _, taps in self.image)
        return down, across

    def grid(self, m: int) -> list[int]:
        """The number of such tiles along each axis: the batch axes, then y and x."""
        image_axes = (axis for axis, _ in self.image)
        sizes = [-(-axis.extent // tile.m) for axis, tile in zip(image_axes, self.filters(m), strict=True)]
        return [*(axis.extent for axis in self.batch), *sizes]

    def tiles(self, m: int) -> int:
        """The number of such tiles in all images."""
        return math.prod(self.grid(m))


@kept
def find_convolution(workload: Workload) -> Convolution:
    """Finds the convolution of a workload.

    Raises:
        UnsupportedFunction: The workload has no convolution of stride 1 by constant weights that adds up in float32 or
            adds up products of bytes.
    """
    contraction = workload.contraction
    stage, weight = contraction.stage, contraction.packable
    if contraction.constant is None or weight is None:
        raise UnsupportedFunction("the weights must be a constant that only the convolution reads")
    data = contraction.other
    factors = (contraction.data_factor, contraction.column_factor)
    in_float32 = str(stage.buffer.dtype) == "float32" and {factor.dtype for factor in factors} <= {"float32", BFLOAT16}
    if not in_float32 and (str(stage.buffer.dtype) != "int32" or not all(factor.is_byte for factor in factors)):
        raise UnsupportedFunction("a Winograd convolution must add up in float32, or add up products of bytes")
    image, plain = _windows(stage, data)
    windowed = [axis for pair in image for axis in pair]
    channels = [axis for axis in stage.reductions if axis not in windowed]
    if not 1 <= len(image) <= 2 or len(channels) != 1 or channels[0] not in plain or contraction.column in plain:
        raise UnsupportedFunction("this is not a convolution along one axis or two")
    weight_axes = {name for index in weight.indices for name in variables(index)}
    if weight_axes != {contraction.column.var, *(axis.var for axis in stage.reductions)}:
        raise UnsupportedFunction("the weights must depend on the window and on both channels, and on nothing else")
    if all(taps.extent == 1 for _, taps in image):
        raise UnsupportedFunction("the window holds one element only")
    batch = tuple(axis for axis in stage.spatial if axis not in windowed and axis is not contraction.column)
    before, data = _channels_last(contraction, data, channels[0])
    missing = [(Axis(variable("y"), 1), Axis(variable("ry"), 1, True))] if len(image) == 1 else []
    down, across = *missing, *image
    return Convolution(
        contraction=contraction,
        before=before,
        data=data,
        weight=weight,
        constant=contraction.constant,
        batch=batch,
        image=(down, across),
        channel=channels[0],
    )


def _windows(stage: Stage, load: Any) -> tuple[list[tuple[Axis, Axis]], list[Axis]]:
    """The pairs of axes that index one dimension of a load as `spatial + reduction`, and the axes that do so alone.

    Raises `UnsupportedFunction` if an index is anything else, or if an axis is in the indices of two dimensions.
    """
    axes = {axis.var: axis for axis in stage.axes}
    image: list[tuple[Axis, Axis]] = []
    plain: list[Axis] = []
    seen: list[Axis] = []
    for index in load.indices:
        factors = coefficients(index, set(axes))
        if factors is None or any(factor != 1 for factor in factors.values()):
            raise UnsupportedFunction("the window is strided or dilated")
        moving = [axis for axis in stage.axes if axis.var in factors]
        seen += moving
        if len(moving) == 1:
            plain += moving
        elif len(moving) == 2 and [axis.reduce for axis in moving] == [False, True]:
            image.append((moving[0], moving[1]))
        elif moving:
            raise UnsupportedFunction("an index must be a position plus an offset in the window")
    if len(set(seen)) != len(seen):
        raise UnsupportedFunction("one axis moves along two dimensions")
    return image, plain


def _channels_last(contraction: Contraction, load: Any, channel: Axis) -> tuple[tuple[Stage, ...], Any]:
    """The stages before the convolution and its load of the images, laid out so that channels are contiguous."""
    if contiguous(load, channel.var):
        return contraction.before, load
    dimension = next(number for number, index in enumerate(load.indices) if channel.var in variables(index))

    def moved_last(items: Sequence[Any]) -> tuple[Any, ...]:
        return (*items[:dimension], *items[dimension + 1 :], items[dimension])

    copy = contraction.prologue
    if copy is None:
        axes = tuple(Axis(variable(f"arrange{number}"), size) for number, size in enumerate(shape_of(load.source)))
        names = tuple(axis.var for axis in axes)
        copy = Stage("arrange", axes, load.source, names, load.source[names])
    buffer = intermediate("arranged", moved_last(shape_of(load.source)), str(load.source.dtype))
    indices = moved_last(copy.indices)
    order = {index: number for number, index in enumerate(indices)}
    axes = tuple(sorted(copy.axes, key=lambda axis: order.get(axis.var, -1)))
    arranged = replace(copy, axes=axes, buffer=buffer, indices=indices)
    before = tuple(stage for stage in contraction.before if stage is not contraction.prologue)
    return (*before, arranged), buffer[moved_last(load.indices)]
