"""Recognising 3x3 convolutions of stride 1 among contractions, in whatever layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..errors import UnsupportedFunction
from .expressions import coefficients, variables
from .roles import Contraction, contiguous, take_apart
from .stages import Axis, Stage, intermediate, shape_of, variable
from .workload import Workload


@dataclass(frozen=True, eq=False)
class Convolution:
    """sum(data[batch, y + ry, x + rx, channel] * weight[column, ry, rx, channel]) over 3x3 and the channels.

    `data` is the load of the images, channels last; the stages `before` make its buffer (padded, laid out). `weight`
    is the load of a constant, input `constant`, in any layout. `image` holds (y, ry) and (x, rx).
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

    def grid(self, m: int) -> list[int]:
        """The number of tiles of m x m outputs: the batch axes, then along y and along x."""
        return [*(axis.extent for axis in self.batch), *(-(-axis.extent // m) for axis, _ in self.image)]

    def tiles(self, m: int) -> int:
        """The number of tiles of m x m outputs in all images."""
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
    if len(image) != 2 or len(channels) != 1 or channels[0] not in plain or parts.column in plain or own != wanted:
        raise UnsupportedFunction("not a convolution by 3x3 weights")
    batch = tuple(axis for axis in stage.spatial if axis not in windowed and axis is not parts.column)
    before, data = _channels_last(parts, data, channels[0])
    return Convolution(parts, before, data, weight, parts.constant, batch, (image[0], image[1]), channels[0])


def _windows(stage: Stage, load: Any) -> tuple[list[tuple[Axis, Axis]], list[Axis]]:
    """The dimensions that a load walks as `spatial + reduction` over a window of 3, and the axes that it walks alone.

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
        elif len(moving) == 2 and [axis.reduce for axis in moving] == [False, True] and moving[1].extent == 3:
            image.append((moving[0], moving[1]))
        elif moving:
            raise UnsupportedFunction("not a window of 3")
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
