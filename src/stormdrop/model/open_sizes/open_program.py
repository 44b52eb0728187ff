"""The program of a model at any size of a range, found from its programs at a few sizes.

    programs at 16, 64 and 512 tokens         shapes and offsets of views at n tokens
    a function at 16, 64 and 512 tokens       the function at n tokens, as imported
      scheduled at 64, 65, 96, 97, ...        the kernel for n tokens, by the schedule that was chosen for 64

So sketches need to know nothing of sizes that are open: a kernel is what they make of the function at several sizes
with one configuration. Where they make something else, as where a tile has no tail, that size is left out; the schedule
of the other sizes computes it, too, and is executed once to see that it does.

The sizes that were compiled divide the range: from each one to the next, its schedules are used.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tvm.ir import GenericConst
from tvm.tirx import PrimFunc
from tvm_ffi import structural_equal

from ...errors import ModelError, UnsupportedFunction
from ...ir.attributes import UNALIGNED
from ...runtime.open_size import OpenSize, OpenStep, OpenTensor, OpenView, Terms
from ...runtime.program import SizeProgram, Step, View
from ...runtime.sizes import TensorInfo
from ...sketches.contract import Variant
from ..graph.graph import Graph
from ..graph.tasks import kernel_calls
from ..program.compiled import CompiledProgram
from ..tensors import array_of
from .checked import is_right
from .generalised import OpenFunction, numbers_of
from .probes import Probes

Schedule = Callable[[int, PrimFunc], Variant]
"""Schedules a function, which is a task at another size, as the task (by its index) is scheduled."""

_NAME = "n"  # of the parameter
_CLOSE = 11  # sizes behind the first one of a piece that are all looked at
_DISTANT = 24  # more of them, up to its end
_MOST_PIECES = 12  # of a kernel in a part
_LARGEST_TILE = 1024  # the largest number of a function by which others may be divided


class Library(Protocol):
    """What compiles kernels and keeps them; see `model.building.kernel_library`."""

    def symbol(self, function: PrimFunc, name: str) -> str:
        """The symbol of a scheduled function."""

    def modules(self, functions: Mapping[str, PrimFunc]) -> list[Any]:
        """Modules that hold the code of functions, by their symbols."""

    def empty(self) -> Library:
        """A library for the same target that holds nothing, each of whose kernels has a module of its own."""


class Compiled(NamedTuple):
    """A model that was compiled for a few sizes of a range.

    Attributes:
        graph: The model.
        program: Its program.
        symbols: The index of the task of each kernel.
        kernels: The scheduled function of each kernel.
    """

    graph: Graph
    program: CompiledProgram
    symbols: Mapping[str, int]
    kernels: Mapping[str, PrimFunc]


def open_program(
    compiled: Compiled, schedules: Sequence[Schedule], library: Library
) -> tuple[tuple[OpenSize, ...], list[Any]]:
    """The programs of a range.

    Args:
        compiled: The model at a few sizes of the range.
        schedules: Schedule functions. If what the first one makes is not the same at all sizes, the next one does.
        library: Compiles the kernels.

    Returns:
        The program of each part of the range, and the modules of their kernels.

    Raises:
        ModelError: The model is not the same at its sizes; the message says where.
    """
    if _no_gaps(compiled.program.program.sizes, compiled.graph.name):
        return (), []
    sizes = _Sizes(compiled)
    kernels: dict[str, PrimFunc] = {}
    parts = []
    *firsts, last = sorted(sizes.extents)
    for first, end in pairwise([*firsts, last + 1]):
        if end - first > 1:
            parts.append(_Part(sizes, schedules, library, kernels, first, end - 1).size())
    return tuple(parts), library.modules(kernels)


class _Sizes:
    """What the sizes of a model have in common.

    Args:
        compiled: The model.

    Attributes:
        extents: The position of each size among those of the model, by its extent.
    """

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self.name = name = compiled.graph.name
        programs = self._programs = [_in_order(size) for size in compiled.program.program.sizes]
        extents = _extents(programs, name)
        largest = extents[max(extents)]
        alike = _likeness(programs[largest])
        self.extents = {extent: at for extent, at in extents.items() if _likeness(programs[at]) == alike}
        self._order = sorted(self.extents, reverse=True)
        try:
            self.probes = Probes([{_NAME: extent} for extent in self._order])
        except ValueError as error:
            different = [extent for extent in extents if extent not in self.extents]
            raise ModelError(
                f"{name}: a range of sizes needs more sizes at which it has the same kernels: {error}; "
                f"others are {different}"
            ) from error
        self._functions: dict[int, OpenFunction] = {}
        self._check_constants()

    def _check_constants(self) -> None:
        """Raises `ModelError` unless each constant is, at each size, the first part of that of the largest size.

        What the programs have are constants in the form of a schedule, which differs between sizes.
        """
        graphs = [self.compiled.graph.sizes[self.extents[extent]] for extent in self._order]
        largest, *others = [_constants_of(graph) for graph in graphs]
        for extent, constants in zip(self._order[1:], others, strict=True):
            if len(constants) != len(largest):
                raise ModelError(f"{self.name}: has no open sizes: it has other constants at {extent}")
            for one, whole in zip(constants, largest, strict=True):
                if one.value.data_ptr() == whole.value.data_ptr() and one.value.shape == whole.value.shape:
                    continue  # equal constants of several sizes are one
                array, of_largest = array_of(one), array_of(whole)
                if array.ndim != of_largest.ndim or not np.array_equal(_first_part(of_largest, array.shape), array):
                    where = f"at {extent} is no part of that at {self._order[0]}"
                    raise ModelError(f"{self.name}: has no open sizes: a constant {where}")

    @property
    def programs(self) -> list[SizeProgram]:
        """The programs that are alike, that of the largest size first."""
        return [self.at(extent) for extent in self._order]

    def at(self, extent: int) -> SizeProgram:
        """The program of a size that was compiled."""
        return self._programs[self.extents[extent]]

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[Terms, ...]:
        """A shape at any size.

        Args:
            shapes: The shape in each of `programs`.
        """
        return tuple(self.probes.terms(extents) for extents in zip(*shapes, strict=True))

    def task(self, step: int, size: SizeProgram) -> int:
        """The index of the task of a step."""
        name = size.steps[step].name
        if name not in self.compiled.symbols:
            raise UnsupportedFunction("it is no kernel of the model")
        return self.compiled.symbols[name]

    def function(self, step: int) -> OpenFunction:
        """What a step computes, at any size."""
        if step not in self._functions:
            tasks = [self.task(step, program) for program in self.programs]
            functions = [self.compiled.graph.tasks[task].function for task in tasks]
            self._functions[step] = OpenFunction(functions, self.probes)
        return self._functions[step]


class _Part:
    """A part of a range, in which all kernels have the schedules of its first size."""

    def __init__(
        self,
        sizes: _Sizes,
        schedules: Sequence[Schedule],
        library: Library,
        kernels: dict[str, PrimFunc],
        first: int,
        last: int,
    ) -> None:
        self._sizes, self._schedules, self._library, self._kernels = sizes, schedules, library, kernels
        self._first, self._last = first, last
        self._tried = library.empty()  # what is tried, and does not become a part of the model
        self._program = sizes.at(first)
        self._known: dict[tuple[int, ...], tuple[tuple[int, str], ...]] = {}

    def size(self) -> OpenSize:
        """The program of the part."""
        try:
            return self._size()
        except UnsupportedFunction as error:
            raise ModelError(f"{self._sizes.name}: has no open sizes: {error}") from error

    def _size(self) -> OpenSize:
        programs = self._sizes.programs
        views = [self._view(position) for position in range(len(self._program.views))]
        steps = [self._step(position, step, views) for position, step in enumerate(self._program.steps)]
        return OpenSize(
            {_NAME: self._first},
            {_NAME: self._last},
            self._tensors([program.inputs for program in programs]),
            self._tensors([program.outputs for program in programs]),
            len(self._program.storage),
            tuple(views),
            tuple(steps),
        )

    def _tensors(self, infos: Sequence[Sequence[TensorInfo]]) -> tuple[OpenTensor, ...]:
        return tuple(
            OpenTensor(each[0].name, self._sizes.shape([info.shape for info in each]), each[0].dtype)
            for each in zip(*infos, strict=True)
        )

    def _view(self, position: int) -> OpenView:
        """A view at any size. A constant stays what the first size has, unless it grows with the size."""
        own = self._program.views[position]
        views = [program.views[position] for program in self._sizes.programs]
        if own.memory == "constant":
            index, shape = self._constant(own, views)
            return OpenView("constant", index, Terms(()), shape, own.dtype, own.tensor)
        offset = self._sizes.probes.terms([view.offset for view in views])
        shape = self._sizes.shape([view.shape for view in views])
        return OpenView(own.memory, own.index, offset, shape, own.dtype, own.tensor)

    def _constant(self, own: View, views: Sequence[View]) -> tuple[int, tuple[Terms, ...]]:
        """The constant of a view, and its shape."""
        fixed = tuple(Terms((((), extent),)) for extent in own.shape)
        if len({len(view.shape) for view in views}) > 1:
            return own.index, fixed  # packed in another way
        try:
            shape = self._sizes.shape([view.shape for view in views])
        except UnsupportedFunction:
            return own.index, fixed
        if not any(terms.open for terms in shape):
            return own.index, fixed
        return views[0].index, shape

    def _step(self, position: int, step: Step, views: Sequence[OpenView]) -> OpenStep:
        if step.kind == "part":
            raise ModelError(f"{self._sizes.name}: onnxruntime runs a part of it, which has no open sizes")
        names: tuple[tuple[int, str], ...] = ((self._last, step.name),)
        if step.kind == "kernel" and self._sizes.function(position).open:
            try:
                names = self._kernels_of(position, step)
            except UnsupportedFunction as error:
                raise UnsupportedFunction(f"kernel {step.name}: {error}") from error
        return OpenStep(step.kind, names, step.reads, step.writes)

    def _kernels_of(self, position: int, step: Step) -> tuple[tuple[int, str], ...]:
        """The kernels of a step, each with the largest size that it is for."""
        key = tuple(self._sizes.task(position, program) for program in self._sizes.programs)
        if key not in self._known:
            function, task = self._sizes.function(position), self._sizes.task(position, self._program)
            self._check_arguments(step, function)
            packed = self._schedules[0](task, function.at({_NAME: self._first})).transforms
            reasons = []
            for schedule in self._schedules:
                try:
                    self._known[key] = tuple(self._pieces(step.name, function, partial(schedule, task), packed))
                    break
                except UnsupportedFunction as error:
                    reasons.append(str(error))
            else:
                raise UnsupportedFunction("; ".join(reasons))
        return self._known[key]

    def _check_arguments(self, step: Step, function: OpenFunction) -> None:
        """Raises `UnsupportedFunction` if a kernel has tensors of other shapes than its function."""
        for view, parameter in zip(step.arguments, function.at({_NAME: self._first}).params, strict=True):
            there = self._program.views[view]
            elements = math.prod(int(extent) for extent in parameter.ty.shape)
            if there.memory != "constant" and math.prod(there.shape) != elements:
                raise UnsupportedFunction("it writes a part of a larger tensor")

    def _pieces(
        self,
        name: str,
        function: OpenFunction,
        schedule: Callable[[PrimFunc], Variant],
        packed: Mapping[int, PrimFunc],
    ) -> Iterator[tuple[int, str]]:
        """The kernels that a schedule makes of a function, each with the largest size that it is for.

        Where it makes another function at each of a few sizes, these have kernels of their own.

        Args:
            name: The name of the kernel at the first size.
            function: The function.
            schedule: The schedule.
            packed: How the program has the constants.
        """

        @functools.cache
        def variant(extent: int) -> Variant:
            scheduled = schedule(function.at({_NAME: extent}))
            if not _are_equal(scheduled.transforms, packed):
                raise UnsupportedFunction("another schedule would need its constants in another form")
            return scheduled

        def made(extent: int) -> PrimFunc:
            return variant(extent).main

        first = self._first
        for _ in range(_MOST_PIECES):
            try:
                piece = _longest(made, first, self._last)
                assert piece.function is not None
                kernel = self._finished(name, piece.function.with_variables())
            except UnsupportedFunction:
                piece = _Piece(None, first)
                kernel = self._finished(name, made(first))
            run = self._compiled(kernel, name)
            last = piece.last
            for extent in range(first, piece.last + 1):
                alike = piece.function is None or structural_equal(piece.function.at({_NAME: extent}), made(extent))
                if alike and first < extent < piece.last:
                    continue
                if not is_right(run, function.at({_NAME: extent}), variant(extent)):
                    last = extent - 1
                    break
            if last < first:
                raise UnsupportedFunction(f"what its schedule makes at other sizes is wrong at {first}")
            symbol = self._library.symbol(kernel, f"{name}_open")
            self._kernels[symbol] = kernel
            yield last, symbol
            if last == self._last:
                return
            first = last + 1
        raise UnsupportedFunction(f"its schedule changes from size to size, as at {first}")

    def _compiled(self, kernel: PrimFunc, name: str) -> Any:
        """The machine code of a kernel that is only tried."""
        symbol = self._tried.symbol(kernel, name)
        (module,) = self._tried.modules({symbol: kernel})
        return module[symbol]

    def _finished(self, name: str, function: PrimFunc) -> PrimFunc:
        """A kernel with the attributes of that of the first size."""
        kernel = function.without_attr("global_symbol").with_attr("tirx.noalias", True)
        scheduled = self._sizes.compiled.kernels[name]
        if scheduled.attrs and UNALIGNED in scheduled.attrs:
            kernel = kernel.with_attr(UNALIGNED, list(scheduled.attrs[UNALIGNED]))
        return kernel


class _Piece(NamedTuple):
    """What a schedule makes at the sizes of a piece of a range.

    Attributes:
        function: The function at any of them; None if the piece is one size.
        last: The last size.
    """

    function: OpenFunction | None
    last: int


def _longest(made: Callable[[int], PrimFunc], first: int, last: int) -> _Piece:
    """What a schedule makes at any size from one on, up to one that is as large as possible.

    A tile that leaves no tail at a size makes a simpler function there. If the functions of its neighbours are alike,
    theirs is taken for this size, too.

    Args:
        made: What the schedule makes at a size.
        first: The first size.
        last: The largest one.

    Raises:
        UnsupportedFunction: It makes another function at nearly each size.
    """
    end = last
    while True:
        close = range(first, min(end, first + _CLOSE) + 1)
        distant = np.linspace(first, end, _DISTANT).astype(int).tolist()
        try:
            function = _generalised(made, sorted({*close, *distant}))
            break
        except UnsupportedFunction:
            if end - first <= _CLOSE:
                raise
        end = (first + end) // 2

    def holds(extent: int) -> bool:
        near = (extent, extent + 1) if extent < last else (extent, extent - 1)
        return any(structural_equal(function.at({_NAME: each}), made(each)) for each in near)

    return _Piece(function, _end(holds, first, last))


def _generalised(made: Callable[[int], PrimFunc], extents: Sequence[int]) -> OpenFunction:
    """What a schedule makes at most of some sizes, the first one or its neighbour among them.

    Raises:
        UnsupportedFunction: It makes another function at nearly each size.
    """
    found: dict[int, list[int]] = defaultdict(list)
    for extent in extents:
        found[len(numbers_of(made(extent)))].append(extent)
    alike = max(found.values(), key=len)
    if alike[0] > extents[0] + 1:
        raise UnsupportedFunction(f"its schedule is another one below {alike[0]}")
    try:
        divisors = {number for number in numbers_of(made(alike[0])) if 1 < number <= _LARGEST_TILE}
        probes = Probes([{_NAME: extent} for extent in alike], divisors)
    except ValueError as error:
        raise UnsupportedFunction(str(error)) from error
    return OpenFunction([made(extent) for extent in alike], probes)


def _end(holds: Callable[[int], bool], first: int, last: int) -> int:
    """The last of some numbers of which a statement holds that holds of the first one."""
    if holds(last):
        return last
    good, bad = first, last
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _are_equal(transforms: Mapping[int, PrimFunc], others: Mapping[int, PrimFunc]) -> bool:
    return transforms.keys() == others.keys() and all(
        structural_equal(transform, others[position]) for position, transform in transforms.items()
    )


def _extents(programs: Sequence[SizeProgram], name: str) -> dict[int, int]:
    """The position of each program, by the extent of the axis that differs.

    Raises:
        ModelError: Several axes differ, and not together.
    """
    of_axes = {
        extents
        for inputs in zip(*(program.inputs for program in programs), strict=True)
        for extents in zip(*(info.shape for info in inputs), strict=True)
        if len(set(extents)) > 1
    }
    if len(of_axes) != 1:
        raise ModelError(f"{name}: a range for one size is possible, not for {len(of_axes)}")
    (extents,) = of_axes
    return {extent: position for position, extent in enumerate(extents)}


def _no_gaps(programs: Sequence[SizeProgram], name: str) -> bool:
    """Whether a model was compiled for each size of its range."""
    extents = sorted(_extents(programs, name))
    return extents == list(range(extents[0], extents[-1] + 1))


def _in_order(program: SizeProgram) -> SizeProgram:
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


def _likeness(program: SizeProgram) -> Any:
    """What programs that are alike have in common."""
    views = [
        (view.memory, len(view.shape) * (view.memory != "constant"), view.dtype, view.tensor) for view in program.views
    ]
    return views, [(step.kind, step.reads, step.writes) for step in program.steps]


def _constants_of(graph: Graph) -> list[GenericConst]:
    """The constants of the kernel calls of a graph, in their order."""
    arguments = (argument for call in kernel_calls(graph.mod) for argument in call.args[1].fields)
    return [argument for argument in arguments if isinstance(argument, GenericConst)]


def _first_part(array: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    return array[tuple(slice(extent) for extent in shape)]
