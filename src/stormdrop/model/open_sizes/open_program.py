"""The program of a model at any size of a range, found from its programs at a few sizes.

    programs at 16, 64 and 512 tokens         shapes and offsets of views at n tokens
    a function at 16, 64 and 512 tokens       the function at n tokens, as imported
      scheduled at 64, 65, 96, 97, ...        the kernel for n tokens, by the schedule that was chosen for 64

So sketches need to know nothing of sizes that are open. The sizes that were compiled divide the range: from each one to
the next, its schedules are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 by it
import numpy as np
from numpy.typing import NDArray
from tvm.tirx import PrimFunc

from ...errors import ModelError, UnsupportedFunction
from ...ir.attributes import UNALIGNED
from ...runtime.open_size import Case, OpenSize, OpenStep, OpenView, Terms
from ...runtime.program import Step, View
from ..graph.graph import Graph
from ..inputs.combinations import GivenShapes
from ..program.compiled import CompiledProgram
from .alike import Alike, Part, classes, in_order, parts
from .constants import open_constant
from .kernels import Family, Schedule, Tries, box_of
from .parameters import Parameters


class Library(Protocol):
    """What compiles kernels and keeps them; see `model.building.kernel_library`."""

    def symbol(self, function: PrimFunc, name: str) -> str:
        """The symbol of a scheduled function."""

    def modules(self, functions: Mapping[str, PrimFunc]) -> list[Any]:
        """Modules that hold the code of functions, by their symbols."""


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
    compiled: Compiled, ranges: GivenShapes, schedules: Sequence[Schedule], library: Library, tries: Tries
) -> tuple[tuple[OpenSize, ...], list[Any]]:
    """The programs of a range.

    Args:
        compiled: The model at a few sizes of the range: all combinations of some values of its parameters.
        ranges: The shapes that the user has given, with ranges.
        schedules: Schedule functions. If what the first one makes is not the same at all sizes, the next one does.
        library: Compiles the kernels.
        tries: Executes kernels.

    Returns:
        The program of each part of the range, and the modules of their kernels.

    Raises:
        ModelError: The model is not the same at its sizes; the message says where.
    """
    model, programs = compiled.graph.name, [in_order(size) for size in compiled.program.program.sizes]
    parameters = Parameters([program.inputs for program in programs], model)
    extents = [tuple(sizes.values()) for sizes in parameters.sizes]
    tasks = {name: compiled.graph.tasks[index].function for name, index in compiled.symbols.items()}
    alike = classes(programs, extents, tasks)
    names = list(parameters.sizes[0])
    kinds: dict[tuple[int, ...], Alike] = {}
    kernels: dict[str, PrimFunc] = {}
    opens = []
    steps = parameters.steps(programs[0].inputs, ranges)
    for part in parts(alike, steps):
        members = alike[part.base]
        try:
            if members not in kinds:
                each = [programs[at] for at in members], [extents[at] for at in members]
                kinds[members] = Alike(*each, names, tasks)
            opening = _Opening(compiled, kinds[members], part, schedules, library, tries, kernels)
            opens.append(opening.size(dict(zip(names, steps, strict=True))))
        except UnsupportedFunction as error:
            where = " and ".join(f"{name} = {value}" for name, value in zip(names, part.base, strict=True))
            raise ModelError(f"{model}: has no open sizes: {error} (at {where})") from error
    return tuple(opens), library.modules(kernels) if kernels else []


class _Opening:
    """Makes the program of a part of a range, in which all kernels have the schedules of its base."""

    def __init__(
        self,
        compiled: Compiled,
        alike: Alike,
        part: Part,
        schedules: Sequence[Schedule],
        library: Library,
        tries: Tries,
        kernels: dict[str, PrimFunc],
    ) -> None:
        self._compiled, self._alike, self._part = compiled, alike, part
        self._schedules, self._library, self._tries, self._kernels = schedules, library, tries, kernels
        self._first, self._last = alike.sizes(part.box.least), alike.sizes(part.box.most)
        self._known: dict[tuple[str, ...], tuple[Case, ...]] = {}  # by the kernels at all sizes
        self._packed: dict[int, Mapping[int, PrimFunc]] = {}  # how each task has its constants
        self._program = alike.program(part.base)

    def size(self, steps: Mapping[str, int]) -> OpenSize:
        """The program of the part.

        Args:
            steps: From one value of each parameter to the next.
        """
        fixed = [axis for axis in range(len(self._part.base)) if axis not in self._alike.axes]
        if any(self._part.box.least[axis] != self._part.box.most[axis] for axis in fixed):
            raise UnsupportedFunction("it has other kernels at larger sizes")
        opened = [self._step(position, step) for position, step in enumerate(self._program.steps)]
        packed = {view for _, views in opened for view in views}
        views = [self._view(position, position in packed) for position in range(len(self._program.views))]
        return OpenSize(
            self._first,
            self._last,
            {name: steps[name] for name in self._first},
            self._alike.inputs,
            self._alike.outputs,
            len(self._program.storage),
            tuple(views),
            tuple(step for step, _ in opened),
        )

    def _view(self, position: int, packed: bool) -> OpenView:
        """A view at any size. A constant stays what the base has, unless it grows with the size."""
        own, views = self._program.views[position], self._alike.views(position)
        if own.memory != "constant":
            offset = self._alike.terms([view.offset for view in views])
            shape = self._alike.shape([view.shape for view in views])
            return OpenView(own.memory, own.index, offset, shape, own.dtype, own.tensor)
        if packed or all(view.index == own.index for view in views):
            same = [self._array(view) for view in views if view.shape == own.shape and view.index != own.index]
            if not all(np.array_equal(self._array(own), array) for array in same):
                raise UnsupportedFunction("a constant that is laid out for a kernel is another one at other sizes")
            fixed = tuple(Terms((((), extent),)) for extent in own.shape)
            return OpenView("constant", own.index, Terms(()), fixed, own.dtype, own.tensor)
        constant = open_constant([self._array(view) for view in views], self._alike.terms)
        shape = self._alike.shape([view.shape for view in views])
        return OpenView(
            "constant", views[constant.whole].index, Terms(()), shape, own.dtype, own.tensor, constant.steps
        )

    def _array(self, view: View) -> NDArray[Any]:
        """A constant."""
        program = self._compiled.program
        constant = program.program.constants[view.index]
        return program.constants[view.index][: constant.bytes].view(constant.dtype).reshape(constant.shape)

    def _step(self, position: int, step: Step) -> tuple[OpenStep, list[int]]:
        """A step at any size, and which views of it are constants that are packed."""
        if step.kind == "part":
            raise UnsupportedFunction("onnxruntime runs a part of it")
        if step.kind == "copy":
            return OpenStep(step.kind, (Case(step.name),), step.reads, step.writes), []
        try:
            own = self._alike.own(position)
            task = self._compiled.symbols[step.name]
            function = self._alike.function_at(position, self._part.base)
            if task not in self._packed:
                self._packed[task] = self._schedules[0](task, function).variant.transforms
            packed = self._packed[task]
            views = [step.arguments[argument] for argument in packed]
            if own.function is None:
                return OpenStep(step.kind, (Case(step.name),), step.reads, step.writes), views
            variables = self._alike.variables(position)
            kernels = self._alike.kernels(position)
            if kernels not in self._known:
                self._check_arguments(step, function)
                self._known[kernels] = self._cases(step.name, task, position, packed)
            return OpenStep(step.kind, self._known[kernels], step.reads, step.writes, variables), views
        except UnsupportedFunction as error:
            raise UnsupportedFunction(f"kernel {step.name}: {error}") from error

    def _cases(self, name: str, task: int, position: int, packed: Mapping[int, PrimFunc]) -> tuple[Case, ...]:
        """The kernels of a step."""
        function = self._alike.own(position).function
        assert function is not None
        box = box_of(self._alike.variables(position), self._alike.corners(self._part.box))
        reasons = []
        for schedule in self._schedules:
            family = Family(
                function, partial(schedule, task), packed, self._tries, partial(self._finished, name),
                partial(self._taken, name),
            )  # fmt: skip
            try:
                return family.cases(box)
            except UnsupportedFunction as error:
                reasons.append(str(error))
        raise UnsupportedFunction("; ".join(dict.fromkeys(reasons)))

    def _check_arguments(self, step: Step, function: PrimFunc) -> None:
        """Raises `UnsupportedFunction` if a kernel has tensors of other shapes than its function."""
        for view, parameter in zip(step.arguments, function.params, strict=True):
            there = self._program.views[view]
            elements = math.prod(int(extent) for extent in parameter.ty.shape)
            if there.memory != "constant" and math.prod(there.shape) != elements:
                raise UnsupportedFunction("it writes a part of a larger tensor")

    def _finished(self, name: str, function: PrimFunc) -> PrimFunc:
        """A kernel with the attributes of that of the base."""
        kernel = function.without_attr("global_symbol").with_attr("tirx.noalias", True)
        scheduled = self._compiled.kernels[name]
        if scheduled.attrs and UNALIGNED in scheduled.attrs:
            kernel = kernel.with_attr(UNALIGNED, list(scheduled.attrs[UNALIGNED]))
        return kernel

    def _taken(self, name: str, kernel: PrimFunc) -> str:
        """The symbol of a kernel that becomes a part of the model."""
        symbol = self._library.symbol(kernel, f"{name}_open")
        self._kernels[symbol] = kernel
        return symbol
