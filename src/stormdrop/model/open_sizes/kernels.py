"""The kernels of a function for all values of its variables, such as any number of rows.

A kernel is what a sketch makes of the function at several values with one configuration. Where the sketch makes
something else, as where a tile has no tail, the kernel of the other values computes that, too; it is executed there
before it is taken.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, Protocol

from tvm.tirx import PrimFunc
from tvm_ffi import structural_equal

from ...errors import UnsupportedFunction
from ...runtime.open_size import Case, Terms
from ...sketches.contract import Variant
from .boxes import Box, Point
from .checked import Sized
from .generalised import OpenFunction, numbers_of
from .parameters import as_sizes
from .probes import Probes

_MOST_CASES = 16  # of a kernel in a part of a range
_ALONE = 12  # if points are no more, and what is made of them differs, each has a kernel of its own
_LOOKED_AT = 96  # points of a piece at which what the sketch makes is compared, at most
_LARGEST_TILE = 1024  # the largest number of a function by which others may be divided


class Scheduled(NamedTuple):
    """A scheduled function.

    Attributes:
        variant: The schedule.
        max_error: That of its sketch.
    """

    variant: Variant
    max_error: float = 0.0


Schedule = Callable[[int, PrimFunc], Scheduled]
"""Schedules a function, which is a task at another size, as the task (by its index) is scheduled."""


class Tries(Protocol):
    """What executes a kernel at a size, as `Trials.wrong`."""

    def wrong(self, kernel: PrimFunc, sized: Sized) -> str:
        """What is wrong with a kernel at a size; empty if nothing is."""


class OwnVariables(NamedTuple):
    """A function in variables of its own: the extents of its arguments that its other numbers follow from.

    The rows of a matrix are one variable, whether they are the words of a text, or those of several texts.

    Attributes:
        function: The function; None if it is the same at all sizes.
        vectors: The values of each variable at the sizes of the model.
    """

    function: OpenFunction | None
    vectors: tuple[tuple[int, ...], ...]


def in_own_variables(functions: Sequence[PrimFunc]) -> OwnVariables:
    """A function in variables of its own.

    Args:
        functions: The function at each size of the model.

    Raises:
        UnsupportedFunction: It has other statements at another size, or its numbers do not follow from its extents.
    """
    if all(structural_equal(functions[0], other) for other in functions[1:]):
        return OwnVariables(None, ())
    arguments = zip(*(function.params for function in functions), strict=True)
    shapes = [[[int(extent) for extent in each.ty.shape] for each in of_sizes] for of_sizes in arguments]
    vectors = {extents for of_sizes in shapes for extents in zip(*of_sizes, strict=True) if len(set(extents)) > 1}
    ordered = sorted(vectors, key=lambda extents: (sum(extents), extents))
    reason = "none of its arguments has an extent that differs"
    for count in range(1, len(ordered) + 1):
        for chosen in combinations(ordered, count):
            try:
                return OwnVariables(OpenFunction(functions, Probes(as_sizes(chosen, "v"))), chosen)
            except (UnsupportedFunction, ValueError) as error:
                reason = str(error)
    raise UnsupportedFunction(reason)


class Family:
    """All kernels of a function.

    Args:
        function: The function, which depends on variables.
        schedule: Makes its schedule.
        packed: How the model has its constants.
        tries: Executes kernels.
        finished: Gives a scheduled function the attributes of a kernel of the model.
        symbol: Takes a kernel into the model, and gives its name.
    """

    def __init__(
        self,
        function: OpenFunction,
        schedule: Callable[[PrimFunc], Scheduled],
        packed: Mapping[int, PrimFunc],
        tries: Tries,
        finished: Callable[[PrimFunc], PrimFunc],
        symbol: Callable[[PrimFunc], str],
    ) -> None:
        self._function, self._packed, self._schedule = function, packed, schedule
        self._tries, self._finished, self._symbol = tries, finished, symbol
        self._scheduled = functools.cache(self._scheduled_at)

    def cases(self, box: Box) -> tuple[Case, ...]:
        """Its kernels for all points of a box.

        Args:
            box: The values of the variables.

        Raises:
            UnsupportedFunction: What the schedule makes changes from size to size, or is wrong.
        """
        left, pieces = [box], list[_Piece]()
        while left and len(pieces) < _MOST_CASES:
            piece = self._piece(left.pop())
            pieces.append(piece)
            left += piece.rest
        if not left:  # a kernel becomes a part of the model only if there is one for each point
            return tuple(Case(self._symbol(each.kernel), each.box.least, each.box.most) for each in pieces)
        raise UnsupportedFunction(f"its schedule changes from size to size, as at {left[-1].least}")

    def _piece(self, box: Box) -> _Piece:
        """A kernel for a part of a box that has its least corner, and is as large as possible.

        Raises:
            UnsupportedFunction: What the schedule makes is wrong at the least corner.
        """
        best: _Piece | None = None
        for generous in (False, True):
            function, part = self._generalised_from(box, generous)
            if function is None:
                break
            kernel = self._finished(function.with_variables())
            right, _ = self._right(kernel, function, part)
            if right is not None and (best is None or right.count > best.box.count):
                best = _Piece(kernel, right, tuple(box.without(right)))
            if right == part:
                break
        if best is not None:
            return best
        kernel, point = self._finished(self._made(box.least)), Box(box.least, box.least)
        right, wrong = self._right(kernel, None, point)
        if right is None:
            raise UnsupportedFunction(f"what its schedule makes is wrong at {box.least}: {wrong}")
        return _Piece(kernel, right, tuple(box.without(right)))

    def _generalised_from(self, box: Box, generous: bool) -> tuple[OpenFunction | None, Box]:
        """What the schedule makes, and where; None if that is one point."""
        part = box
        while True:
            try:
                function = self._generalised(part, generous)
                function.with_variables()
                break
            except UnsupportedFunction:
                if part.count <= _ALONE:
                    return None, part
            axis = part.longest
            part = part.to(axis, (part.least[axis] + part.most[axis]) // 2)

        def holds(point: Point) -> bool:
            points = (point, box.neighbour(point))
            return any(structural_equal(self._at(function, each), self._made(each)) for each in points)

        for axis in range(len(box.least)):
            wider = Box(part.least, (*part.most[:axis], box.most[axis], *part.most[axis + 1 :]))
            part = wider.to(axis, wider.end(axis, holds, part.most[axis]))
        return function, part

    def _generalised(self, box: Box, generous: bool) -> OpenFunction:
        """What the schedule makes at most points of a box, the least one or a neighbour of it among them.

        Raises:
            UnsupportedFunction: It makes another function at nearly each of them.
        """
        points = box.spread()
        found: dict[int, list[Point]] = defaultdict(list)
        for point in points:
            found[len(numbers_of(self._made(point)))].append(point)
        alike = max(found.values(), key=len)
        if not any(all(value <= low + 1 for value, low in zip(point, box.least, strict=True)) for point in alike):
            raise UnsupportedFunction(f"its schedule is another one at {box.least}")
        divisors = {number for number in numbers_of(self._made(alike[0])) if 1 < number <= _LARGEST_TILE}
        varying = [axis for axis in range(len(box.least)) if box.least[axis] < box.most[axis]]
        names = self._function.parameters
        try:
            probes = Probes([{names[axis]: point[axis] for axis in varying} for point in alike], divisors, generous)
        except ValueError as error:
            raise UnsupportedFunction(str(error)) from error
        return OpenFunction([self._made(point) for point in alike], probes)

    def _right(self, kernel: PrimFunc, function: OpenFunction | None, part: Box) -> tuple[Box | None, str]:
        """The part in which a kernel is right, or what is wrong at its least point.

        It is executed at the corners, and wherever the schedule makes another function.
        """
        tried: dict[Point, str] = {}

        def wrong(point: Point) -> str:
            if point not in tried:
                scheduled = self._scheduled(point)
                sized = Sized(self._function.at(self._sizes(point)), scheduled.variant.transforms, scheduled.max_error)
                tried[point] = self._tries.wrong(kernel, sized)
            return tried[point]

        while True:
            for point in part.points(_LOOKED_AT) if function is not None else part.corners:
                differs = function is not None and not structural_equal(self._at(function, point), self._made(point))
                if (differs or point in part.corners) and wrong(point):
                    break
            else:
                return part, ""
            if point == part.least:
                return None, tried[point]
            axes = [axis for axis, low in enumerate(part.least) if point[axis] > low]
            part = max((part.to(axis, point[axis] - 1) for axis in axes), key=lambda smaller: smaller.count)

    def _made(self, point: Point) -> PrimFunc:
        return self._scheduled(point).variant.main

    def _scheduled_at(self, point: Point) -> Scheduled:
        scheduled = self._schedule(self._function.at(self._sizes(point)))
        if not are_equal(scheduled.variant.transforms, self._packed):
            raise UnsupportedFunction("another schedule would need its constants in another form")
        return scheduled

    def _sizes(self, point: Point) -> dict[str, int]:
        return dict(zip(self._function.parameters, point, strict=True))

    def _at(self, function: OpenFunction, point: Point) -> PrimFunc:
        return function.at(self._sizes(point))


class _Piece(NamedTuple):
    """A kernel.

    Attributes:
        kernel: The scheduled function.
        box: Where it is right.
        rest: What is left of the box that it was made for.
    """

    kernel: PrimFunc
    box: Box
    rest: tuple[Box, ...]


def are_equal(transforms: Mapping[int, PrimFunc], others: Mapping[int, PrimFunc]) -> bool:
    """Whether constants are packed in the same way."""
    return transforms.keys() == others.keys() and all(
        structural_equal(transform, others[position]) for position, transform in transforms.items()
    )


def box_of(variables: Sequence[Terms], corners: Sequence[Mapping[str, int]]) -> Box:
    """The values of variables in a part of a range.

    Args:
        variables: The variables, which grow with each parameter.
        corners: The parameters at the corners of the part.
    """
    values = [[terms.at(sizes) for sizes in corners] for terms in variables]
    return Box(tuple(map(min, values)), tuple(map(max, values)))
