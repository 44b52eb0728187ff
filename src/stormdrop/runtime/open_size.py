"""The program of a model at any size of a range: plain data, of which a call makes the program at its own size.

    view float32[1, n, 384] of storage 2        at n = 100:    view float32[1, 100, 384] of storage 2
    storage 2: the largest of its views                        storage 2: 153,600 bytes

Its kernels take their extents from the shapes of their arguments.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .program import Kind, Memory, SizeProgram, Step, View, bytes_of
from .sizes import TensorInfo

Sizes = Mapping[str, int]
"""The value of each parameter, by its name."""

Factors = tuple[tuple[tuple[str, ...], int], ...]
"""Products of parameters, each as their names, with its factor."""


@dataclass(frozen=True)
class Terms:
    """A whole number that may depend on parameters: a sum of products of them, divided, rounded down, and multiplied.

    Attributes:
        factors: The products, each as the names of its parameters, with its factor. The empty product is the constant.
        divisor: By what the sum is divided.
        times: By what the quotient is multiplied.
    """

    factors: Factors
    divisor: int = 1
    times: int = 1

    @property
    def open(self) -> bool:
        """Whether it depends on a parameter."""
        return any(names for names, _ in self.factors)

    def at(self, sizes: Sizes) -> int:
        """The number at these sizes.

        Example:
            >>> Terms(((("n",), 1), ((), 15)), 16).at({"n": 33})
            3
        """
        total = sum(factor * math.prod(sizes[name] for name in names) for names, factor in self.factors)
        return total // self.divisor * self.times


Shape = tuple[Terms, ...]


@dataclass(frozen=True)
class OpenTensor:
    """An input or output of a model.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: The name of its type.
    """

    name: str
    shape: Shape
    dtype: str

    def at(self, sizes: Sizes) -> TensorInfo:
        """The tensor at these sizes."""
        return TensorInfo(self.name, _at(self.shape, sizes), self.dtype)


@dataclass(frozen=True)
class OpenView:
    """A tensor in memory, as `View`.

    Attributes:
        memory: The kind of memory it lies in.
        index: Which input, output, block of storage, or constant that is.
        offset: Where it begins there, in bytes.
        shape: Its shape. That of a constant is the first part of the constant along each axis.
        dtype: The name of its type.
        tensor: A number that all views of one tensor share.
        steps: If it is a constant of numbers in even steps: the first one, and the steps along each axis.
    """

    memory: Memory
    index: int
    offset: Terms
    shape: Shape
    dtype: str
    tensor: int
    steps: Shape = ()


@dataclass(frozen=True)
class Case:
    """What a step is for some values of its variables.

    Attributes:
        name: The name of the kernel, as that of a `Step`.
        least: The least value of each variable.
        most: The largest one.
    """

    name: str
    least: tuple[int, ...] = ()
    most: tuple[int, ...] = ()

    def takes(self, values: Sequence[int]) -> bool:
        """Whether it is for these values."""
        return all(map(operator.le, self.least, values)) and all(map(operator.le, values, self.most))


@dataclass(frozen=True)
class OpenStep:
    """One step of an execution, as `Step`.

    Attributes:
        kind: As that of a step.
        cases: What it is. The first case that takes the values of the variables counts.
        reads: The views that are read.
        writes: The views that are written.
        variables: What the cases depend on, such as the number of rows of a matrix.
    """

    kind: Kind
    cases: tuple[Case, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    variables: tuple[Terms, ...] = ()

    def at(self, sizes: Sizes) -> Step:
        """The step at these sizes.

        Raises:
            ValueError: It has no case for them.
        """
        values = _at(self.variables, sizes)
        for case in self.cases:
            if case.takes(values):
                return Step(self.kind, case.name, self.reads, self.writes)
        raise ValueError(f"a step has no kernel for {dict(sizes)}")


@dataclass(frozen=True)
class Cut:
    """A constant of which a size needs the first part along each axis, or one like it of numbers in even steps.

    Attributes:
        constant: The position of the constant.
        shape: The shape of that part.
        steps: If its numbers are in even steps: the first one, and the steps along each axis.
    """

    constant: int
    shape: tuple[int, ...]
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpenSize:
    """The program of a model at any size of a range.

    Attributes:
        first: The least value of each parameter. What has one value only is no parameter.
        last: The largest one.
        steps_of: From one value of each parameter to the next.
        inputs: What it takes.
        outputs: What it gives.
        blocks: How many blocks of storage it has.
        views: The tensors that steps read and write.
        steps: The steps, in the order of an execution.
    """

    first: Mapping[str, int]
    last: Mapping[str, int]
    steps_of: Mapping[str, int]
    inputs: tuple[OpenTensor, ...]
    outputs: tuple[OpenTensor, ...]
    blocks: int
    views: tuple[OpenView, ...]
    steps: tuple[OpenStep, ...]

    def parameters(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int] | None:
        """The parameters of a call; None if it is none of this range.

        Args:
            shapes: The shapes of the inputs.
        """
        found: dict[str, int] = {}
        for tensor, shape in zip(self.inputs, shapes, strict=True):
            if len(tensor.shape) != len(shape):
                return None
            for terms, extent in zip(tensor.shape, shape, strict=True):
                (names, factor), *others = terms.factors
                if len(names) == 1 and factor == 1 and not others:
                    found.setdefault(names[0], extent)
        for name, first in self.first.items():
            if found.get(name, 0) not in range(first, self.last[name] + 1, self.steps_of[name]):
                return None
        return (
            found
            if all(each.at(found).shape == shape for each, shape in zip(self.inputs, shapes, strict=True))
            else None
        )

    def at(self, sizes: Sizes, constants: int) -> tuple[SizeProgram, list[Cut]]:
        """The program at a size.

        Args:
            sizes: The parameters.
            constants: How many constants the model has.

        Returns:
            The program, and the constants that it needs besides those of the model: their positions follow these.
        """
        cuts: list[Cut] = []
        storage = [0] * self.blocks
        views = []
        for view in self.views:
            shape, index = _at(view.shape, sizes), view.index
            if view.memory == "constant" and any(terms.open for terms in (*view.shape, *view.steps)):
                cut = Cut(view.index, shape, _at(view.steps, sizes))
                if cut not in cuts:
                    cuts.append(cut)
                index = constants + cuts.index(cut)
            offset = view.offset.at(sizes)
            if view.memory == "storage":
                storage[index] = max(storage[index], offset + bytes_of(shape, view.dtype))
            views.append(View(view.memory, index, offset, shape, view.dtype, view.tensor))
        inputs = tuple(each.at(sizes) for each in self.inputs)
        outputs = tuple(each.at(sizes) for each in self.outputs)
        steps = tuple(step.at(sizes) for step in self.steps)
        return SizeProgram(inputs, outputs, tuple(storage), tuple(views), steps), cuts


def in_even_steps(shape: Sequence[int], steps: Sequence[int], dtype: str) -> NDArray[Any]:
    """Whole numbers in even steps.

    Args:
        shape: The shape.
        steps: The first number, and the step along each axis.
        dtype: The type.

    Example:
        >>> in_even_steps((2, 3), (5, 10, 1), "int32")
        array([[ 5,  6,  7],
               [15, 16, 17]], dtype=int32)
    """
    numbers = np.full(tuple(shape), steps[0], "int64")
    for axis, (extent, step) in enumerate(zip(shape, steps[1:], strict=True)):
        numbers += step * np.arange(extent).reshape([-1 if each == axis else 1 for each in range(len(shape))])
    return numbers.astype(dtype)


def _at(shape: Shape, sizes: Sizes) -> tuple[int, ...]:
    return tuple(terms.at(sizes) for terms in shape)
