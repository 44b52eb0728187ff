"""The sizes of a model that have the same kernels, and what its program is at any size like them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from tvm.tirx import PrimFunc

from ...errors import UnsupportedFunction
from ...runtime.open_size import OpenTensor, Sizes, Terms
from ...runtime.program import SizeProgram, View
from ...runtime.sizes import TensorInfo
from .boxes import Box, replaced
from .generalised import outline
from .kernels import OwnVariables, in_own_variables
from .parameters import HALVES
from .probes import Probes

Extents = tuple[int, ...]
"""The value of each parameter of a model at a size."""


class Alike:
    """Sizes of a model whose programs have the same steps and views.

    What has one value at all of them is no parameter here.

    Args:
        programs: The program of each size.
        extents: The parameters of the model at each size, in the same order.
        names: The names of these parameters.
        tasks: The function of each kernel, by the name of its step.

    Attributes:
        names: The names of the parameters that differ.

    Raises:
        UnsupportedFunction: The sizes are too few to tell what a number is at another one.
    """

    def __init__(
        self,
        programs: Sequence[SizeProgram],
        extents: Sequence[Extents],
        names: Sequence[str],
        tasks: Mapping[str, PrimFunc],
    ) -> None:
        self._programs, self._extents, self._tasks = tuple(programs), list(extents), tasks
        self.axes = [axis for axis, values in enumerate(zip(*extents, strict=True)) if len(set(values)) > 1]
        self.names = [names[axis] for axis in self.axes]
        try:
            self._probes = Probes([self.sizes(each) for each in extents], HALVES, exact=True)
        except ValueError as error:
            raise UnsupportedFunction(f"only {len(extents)} of its sizes have the same kernels: {error}") from error
        self.own = cache(self._own)

    def sizes(self, extents: Extents) -> dict[str, int]:
        """The parameters that differ, at a size."""
        return {name: extents[axis] for name, axis in zip(self.names, self.axes, strict=True)}

    def corners(self, box: Box) -> list[Sizes]:
        """The parameters that differ, at the corners of a box of all parameters."""
        return [self.sizes(corner) for corner in box.corners]

    def terms(self, numbers: Sequence[int]) -> Terms:
        """A number at any size.

        Args:
            numbers: The number at each of the sizes.
        """
        return self._probes.terms(numbers)

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[Terms, ...]:
        """A shape at any size.

        Args:
            shapes: The shape at each of the sizes.
        """
        return tuple(self.terms(extents) for extents in zip(*shapes, strict=True))

    @property
    def inputs(self) -> tuple[OpenTensor, ...]:
        """The inputs at any size."""
        return self._tensors([program.inputs for program in self._programs])

    @property
    def outputs(self) -> tuple[OpenTensor, ...]:
        """The outputs at any size."""
        return self._tensors([program.outputs for program in self._programs])

    def views(self, position: int) -> list[View]:
        """A view at each of the sizes."""
        return [program.views[position] for program in self._programs]

    def program(self, extents: Extents) -> SizeProgram:
        """The program of one of the sizes."""
        return self._programs[self._extents.index(extents)]

    def function_at(self, step: int, extents: Extents) -> PrimFunc:
        """What a step computes at one of the sizes."""
        return self.functions(step)[self._extents.index(extents)]

    def kernels(self, step: int) -> tuple[str, ...]:
        """The kernel of a step at each of the sizes."""
        return tuple(program.steps[step].name for program in self._programs)

    def functions(self, step: int) -> list[PrimFunc]:
        """What a step computes at each of the sizes.

        Raises:
            UnsupportedFunction: It is no kernel of the model.
        """
        kernels = self.kernels(step)
        if any(name not in self._tasks for name in kernels):
            raise UnsupportedFunction("it is no kernel of the model")
        return [self._tasks[name] for name in kernels]

    def variables(self, step: int) -> tuple[Terms, ...]:
        """The variables of the function of a step, which `own` gives."""
        return tuple(map(self.terms, self.own(step).vectors))

    def _own(self, step: int) -> OwnVariables:
        """What a step computes, in variables of its own."""
        return in_own_variables(self.functions(step))

    def _tensors(self, infos: Sequence[Sequence[TensorInfo]]) -> tuple[OpenTensor, ...]:
        return tuple(
            OpenTensor(each[0].name, self.shape([info.shape for info in each]), each[0].dtype)
            for each in zip(*infos, strict=True)
        )


class Part(NamedTuple):
    """A part of a range.

    Attributes:
        box: The parameters of its sizes.
        base: The size whose schedules it has.
    """

    box: Box
    base: Extents


def classes(
    programs: Sequence[SizeProgram], extents: Sequence[Extents], tasks: Mapping[str, PrimFunc]
) -> dict[Extents, tuple[int, ...]]:
    """For each size the positions of those that are like it, itself among them.

    Args:
        programs: The program of each size.
        extents: The parameters of each size.
        tasks: The function of each kernel, by the name of its step.
    """
    outlines = {name: outline(function) for name, function in tasks.items()}
    found: dict[Hashable, list[int]] = defaultdict(list)
    for position, program in enumerate(programs):
        kernels = tuple(outlines.get(step.name) for step in program.steps)
        found[repr(_likeness(program)), kernels].append(position)
    return {extents[position]: tuple(positions) for positions in found.values() for position in positions}


def parts(alike: Mapping[Extents, tuple[int, ...]], steps: Sequence[int]) -> list[Part]:
    """The parts of a range. One whose sizes were all compiled for themselves is none.

    They go from each compiled value of a parameter to the next one, and have the schedules of the first one. Where the
    model has other kernels there than at larger values, as for a batch of one, the values behind it have those of the
    next.

    Args:
        alike: What `classes` has found, for each combination of the compiled values of the parameters.
        steps: From one value of each parameter to the next.
    """
    found = [Part(Box((), ()), ())]
    for axis, column in enumerate(zip(*alike, strict=True)):
        values = sorted(set(column))
        special = {each[axis] for each in alike if _differs(alike, each, axis, values[-1])}
        found = [
            Part(Box((*part.box.least, low), (*part.box.most, high)), (*part.base, base))
            for part in found
            for low, high, base in _intervals(values, special, steps[axis])
        ]
    return [each for each in found if any(point not in alike for point in points_of(each.box, steps))]


def points_of(box: Box, steps: Sequence[int]) -> Iterator[Extents]:
    """The sizes of a part of a range.

    Args:
        box: The part.
        steps: From one value of each parameter to the next.
    """
    bounds = zip(box.least, box.most, steps, strict=True)
    return itertools.product(*(range(low, high + 1, step) for low, high, step in bounds))


def _differs(alike: Mapping[Extents, tuple[int, ...]], extents: Extents, axis: int, last: int) -> bool:
    """Whether a model has kernels at a size that it has nowhere else along an axis, and others at its end."""
    members = alike[extents]
    alone = all(other[axis] == extents[axis] for other, others in alike.items() if others == members)
    return alone and extents[axis] < last and alike[replaced(extents, axis, last)] != members


def _intervals(values: Sequence[int], special: Collection[int], step: int) -> Iterator[tuple[int, int, int]]:
    """The first and the last value of each interval, and the compiled one whose schedules it has."""
    for first, following in pairwise(values):
        last = following if following == values[-1] else following - step
        if first not in special:
            yield first, last, first
            continue
        yield first, first, first
        if first < last:
            yield first + step, last, next((value for value in values if value > first and value not in special), last)


def in_order(program: SizeProgram) -> SizeProgram:
    """A program whose views are in the order of the arguments of its steps, with a view for each use of a constant.

    How many constants there are, and which uses have the same one, depends on how they are packed.
    """
    known: dict[int, int] = {}
    views: list[View] = []
    steps = []
    for step in program.steps:
        arguments = []
        for argument in step.arguments:
            view = program.views[argument]
            if view.memory == "constant" or argument not in known:
                known[argument] = len(views)
                views.append(replace(view, tensor=len(views)) if view.memory == "constant" else view)
            arguments.append(known[argument])
        count = len(step.reads)
        steps.append(replace(step, reads=tuple(arguments[:count]), writes=tuple(arguments[count:])))
    tensors = {view.tensor: at for at, view in reversed(list(enumerate(views))) if view.memory != "constant"}
    views = [view if view.memory == "constant" else replace(view, tensor=tensors[view.tensor]) for view in views]
    return replace(program, views=tuple(views), steps=tuple(steps))


def _likeness(program: SizeProgram) -> tuple[object, ...]:
    """What programs that are alike have in common."""
    views = [
        (view.memory, len(view.shape) * (view.memory != "constant"), view.dtype, view.tensor) for view in program.views
    ]
    return views, [(step.kind, step.reads, step.writes) for step in program.steps]
