"""Recognising convolutions of stride 1 among contractions, along one axis or two, in whatever layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ....errors import UnsupportedFunction
from ....ir.expressions import coefficients, variables
from ....ir.roles import Contraction, contiguous, take_apart
from ....ir.stages import Axis, Stage, intermediate, shape_of, variable
from ....ir.workload import Workload
from .transforms import Filter


@dataclass(frozen=True, eq=False)
class Convolution:
    """sum(data[batch, y + ry, x + rx, channel] * weight[column, ry, rx, channel]) over a window and the channels.

    `data` is the load of the images, channels last; the stages `before` make its buffer (padded, laid out). `weight`
    is the load of a constant, input `constant`, in any layout. `image` holds (y, ry) and (x, rx); along one axis only,
    y and ry are of extent 1 and nobody reads them.
    """

    parts: Contraction
    before: tuple[Stage, ...]
    data: Any
    weight: Any
    constant: int
    batch: tuple[Axis, ...]
    image: tuple[tuple[Axis, Axis], tuple[Axis, Axis]]
    channel: Axis

    @property
    def column(self) -> Axis:
        """The output channel."""
        return self.parts.column

    def filters(self, m: int) -> tuple[Filter, Filter]:
        """What tiles of m outputs along each axis that has a window are computed by, along y and along x."""
        down, across = (Filter(m if taps.extent > 1 else 1, taps.extent) for _, taps in self.image)
        return down, across

    def grid(self, m: int) -> list[int]:
        """The number of such tiles: the batch axes, then along y and along x."""
        sizes = (-(-axis.extent // of.m) for (axis, _), of in zip(self.image, self.filters(m), strict=True))
        return [*(axis.extent for axis in self.batch), *sizes]

    def tiles(self, m: int) -> int:
        """The number of such tiles in all images."""
        return math.prod(self.grid(m))


@lru_cache(maxsize=64)
def find_convolution(workload: Workload) -> Convolution:
    """The convolution of a workload. Raises `UnsupportedFunction` where it has none, or does something else too."""
    parts = take_apart(workload.graph, workload.constants)
    stage, weight = parts.stage, parts.packable
    if parts.constant is None or weight is None:
        raise UnsupportedFunction("the weights are no constant with one reader")
    data = stage.value.b if stage.value.a.same_as(weight) else stage.value.a
    if {str(buffer.dtype) for buffer in (data.source, weight.source, stage.buffer)} != {"float32"}:
        raise UnsupportedFunction("not float32")
    image, plain = _windows(stage, data)
    windowed = [axis for pair in image for axis in pair]
    channels = [axis for axis in stage.reductions if axis not in windowed]
    own = {name for index in weight.indices for name in variables(index)}
    wanted = {parts.column.var, *(axis.var for axis in stage.reductions)}
    if not 1 <= len(image) <= 2 or len(channels) != 1 or channels[0] not in plain or parts.column in plain:
        raise UnsupportedFunction("not a convolution along one axis or two")
    if own != wanted or all(taps.extent == 1 for _, taps in image):
        raise UnsupportedFunction("not by weights of a window")
    batch = tuple(axis for axis in stage.spatial if axis not in windowed and axis is not parts.column)
    before, data = _channels_last(parts, data, channels[0])
    alone = [(Axis(variable("y"), 1), Axis(variable("ry"), 1, True))] if len(image) == 1 else []
    down, across = *alone, *image
    return Convolution(parts, before, data, weight, parts.constant, batch, (down, across), channels[0])


def _windows(stage: Stage, load: Any) -> tuple[list[tuple[Axis, Axis]], list[Axis]]:
    """The dimensions that a load walks as `spatial + reduction` over a window, and the axes that it walks alone.

    Raises `UnsupportedFunction` where it does anything else, or moves by the same axis in two dimensions.
    """
    axes = {axis.var: axis for axis in stage.axes}
    image: list[tuple[Axis, Axis]] = []
    alone: list[Axis] = []
    seen: list[Axis] = []
    for index in load.indices:
        factors = coefficients(index, set(axes))
        if factors is None or any(factor != 1 for factor in factors.values()):
            raise UnsupportedFunction("the window is strided")
        moving = [axis for axis in stage.axes if axis.var in factors]
        seen += moving
        if len(moving) == 1:
            alone += moving
        elif len(moving) == 2 and [axis.reduce for axis in moving] == [False, True]:
            image.append((moving[0], moving[1]))
        elif moving:
            raise UnsupportedFunction("not a window")
    if len(set(seen)) != len(seen):
        raise UnsupportedFunction("one axis moves along two dimensions")
    return image, alone


def _channels_last(parts: Contraction, load: Any, channel: Axis) -> tuple[tuple[Stage, ...], Any]:
    """The stages before the convolution and its load of the images, laid out so that channels are contiguous."""
    if contiguous(load, channel.var):
        return parts.before, load
    at = next(position for position, index in enumerate(load.indices) if channel.var in variables(index))

    def moved(items: Sequence[Any]) -> tuple[Any, ...]:
        return (*items[:at], *items[at + 1 :], items[at])

    made = parts.prologue
    if made is None:
        axes = tuple(Axis(variable(f"arrange{position}"), size) for position, size in enumerate(shape_of(load.source)))
        names = tuple(axis.var for axis in axes)
        made = Stage("arrange", axes, load.source, names, load.source[names])
    buffer = intermediate("arranged", moved(shape_of(load.source)), str(load.source.dtype))
    indices = moved(made.indices)
    order = {index: position for position, index in enumerate(indices)}
    axes = tuple(sorted(made.axes, key=lambda axis: order.get(axis.var, -1)))
    arranged = replace(made, axes=axes, buffer=buffer, indices=indices)
    before = tuple(stage for stage in parts.before if stage is not parts.prologue)
    return (*before, arranged), buffer[moved(load.indices)]
