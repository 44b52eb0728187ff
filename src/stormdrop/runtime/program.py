"""A model as a program: steps that call kernels on planned memory. It is plain data; everything downstream reads it.

    inputs, outputs       the caller's memory
    storage               blocks of memory between steps, which a call has for itself
    constants             one file, mapped once for all calls and all processes
    views                 tensors in one of these memories
    steps                 which kernel reads and writes which views, in the order of an execution

A model of several sizes has the steps of each, and one set of constants and kernels for all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import shown
from .sizes import TensorInfo

ALIGNMENT = 64
"""Views in storage and constants begin at a multiple of so many bytes."""

FUNCTION = "stormdrop.onnxruntime."
"""What calls of a part are known by begins with this; the index of the part follows."""

COPY = "copy"
"""What a step is known by that copies a tensor."""

Memory = Literal["input", "output", "storage", "constant"]
Kind = Literal["kernel", "part", "copy"]

_BITS = {"bool": 8, "bfloat16": 16}


@dataclass(frozen=True)
class Constant:
    """A constant, which may be a weight in the form that a kernel reads.

    Attributes:
        offset: Where it begins in the file of the constants, in bytes.
        shape: Its shape.
        dtype: The name of its type.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Its size in bytes."""
        return bytes_of(self.shape, self.dtype)


@dataclass(frozen=True)
class View:
    """A tensor in memory.

    Attributes:
        memory: The kind of memory it lies in.
        index: Which input, output, block of storage, or constant that is.
        offset: Where it begins there, in bytes. It is 0 for a constant, whose own offset counts.
        shape: Its shape; -1 for an extent that depends on data, which only an output of a part has.
        dtype: The name of its type.
        tensor: A number that all views of one tensor share. Two tensors may have the same memory, one after the other.
    """

    memory: Memory
    index: int
    offset: int
    shape: tuple[int, ...]
    dtype: str
    tensor: int

    @property
    def bytes(self) -> int:
        """Its size in bytes."""
        return bytes_of(self.shape, self.dtype)


@dataclass(frozen=True)
class Step:
    """One step of an execution.

    Attributes:
        kind: A "kernel" is called, a "part" is run by onnxruntime, or the memory of a view is copied ("copy").
        name: The symbol of the kernel; the index of the part; empty for a copy.
        reads: The views that are read, by their positions, in the order of the arguments.
        writes: The views that are written. They are the last arguments.
    """

    kind: Kind
    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    @property
    def arguments(self) -> tuple[int, ...]:
        """The arguments: first what is read, then what is written."""
        return self.reads + self.writes

    @property
    def symbol(self) -> str:
        """What it is known by: the symbol of its kernel, "stormdrop.onnxruntime.0" for a part, or "copy"."""
        return {"kernel": self.name, "part": f"{FUNCTION}{self.name}", "copy": COPY}[self.kind]


@dataclass(frozen=True)
class SizeProgram:
    """The program of a model at one size.

    Attributes:
        inputs: What it takes.
        outputs: What it gives.
        storage: The bytes of each block of memory between steps.
        views: The tensors that steps read and write.
        steps: The steps, in the order of an execution.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    storage: tuple[int, ...]
    views: tuple[View, ...]
    steps: tuple[Step, ...]

    @property
    def block_offsets(self) -> tuple[int, ...]:
        """Where each block of storage begins if they lie one after the other; in the end, how many bytes that is."""
        return offsets_of(self.storage)


@dataclass(frozen=True)
class State:
    """A tensor that grows by the rows of each step of a decoder: an output that is an input of the next step.

    Attributes:
        input: The position of the input, the rows so far.
        output: The position of the output, these rows and the new ones behind them.
        axis: The axis of the rows.
        order: Which axis of the output each axis of its memory is, where it is written in place; as it is if empty.

    Example:
        >>> keys = State(3, 1, axis=2, order=(0, 1, 3, 2))
        >>> keys.in_memory((1, 12, 65, 64)), keys.place
        ((1, 12, 64, 65), 3)
    """

    input: int
    output: int
    axis: int
    order: tuple[int, ...] = ()

    def in_memory(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the memory of a tensor of some shape."""
        return tuple(shape[axis] for axis in self.order) or shape

    @property
    def place(self) -> int:
        """The axis of the rows in memory."""
        return self.order.index(self.axis) if self.order else self.axis


@dataclass(frozen=True)
class InPlace:
    """How a decoder writes its states in place.

    Attributes:
        states: The states. The caller gives the memory of these outputs, in which the rows so far are there already,
            and of which a step writes the others. The inputs are not read.
        sizes: The program of each size.
    """

    states: tuple[State, ...]
    sizes: tuple[SizeProgram, ...]


@dataclass(frozen=True)
class Program:
    """The program of a model.

    Attributes:
        constants: All constants, in the order of their offsets.
        sizes: The program of each size.
        in_place: What executes a size in place of it if the states stay where they are; None if that is not possible.
    """

    constants: tuple[Constant, ...]
    sizes: tuple[SizeProgram, ...]
    in_place: InPlace | None = None

    @property
    def all_sizes(self) -> tuple[SizeProgram, ...]:
        """The programs of `sizes`, and behind them those that write states in place."""
        return self.sizes if self.in_place is None else self.sizes + self.in_place.sizes

    @property
    def kernels(self) -> tuple[str, ...]:
        """The symbols of all kernels, in the order in which they are called first."""
        steps = itertools.chain.from_iterable(size.steps for size in self.all_sizes)
        return tuple(dict.fromkeys(step.name for step in steps if step.kind == "kernel"))

    def __str__(self) -> str:
        """The program on a page: memory first, then a line for each step.

        Example:
            >>> print(Program((), ()))
            constants: 0 of 0.00 MB
        """
        constants = f"constants: {len(self.constants)} of {self.constant_bytes / 1e6:.2f} MB"
        return "\n".join([constants, *itertools.chain.from_iterable(map(_lines, self.sizes))])

    @property
    def constant_bytes(self) -> int:
        """The bytes of the file of the constants."""
        return max((each.offset + each.bytes for each in self.constants), default=0)


def program_of(document: Mapping[str, Any]) -> Program:
    """The program of the content of `program.json`, of which a checksum has shown that it is as it was written.

    Args:
        document: The content.

    Raises:
        ValueError: It is none; the message is one line.
    """

    def info(fields: Mapping[str, Any]) -> TensorInfo:
        return TensorInfo(fields["name"], tuple(fields["shape"]), fields["dtype"])

    def step(fields: Mapping[str, Any]) -> Step:
        return Step(**{**fields, "reads": tuple(fields["reads"]), "writes": tuple(fields["writes"])})

    def size(fields: Mapping[str, Any]) -> SizeProgram:
        return SizeProgram(
            tuple(map(info, fields["inputs"])),
            tuple(map(info, fields["outputs"])),
            tuple(fields["storage"]),
            tuple(View(**{**view, "shape": tuple(view["shape"])}) for view in fields["views"]),
            tuple(map(step, fields["steps"])),
        )

    try:
        constants = tuple(Constant(**{**each, "shape": tuple(each["shape"])}) for each in document["constants"])
        found = document.get("in_place")
        in_place = found and InPlace(
            tuple(State(**{**state, "order": tuple(state["order"])}) for state in found["states"]),
            tuple(map(size, found["sizes"])),
        )
        return Program(constants, tuple(map(size, document["sizes"])), in_place)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no program: {error}") from error


def main_name(size: int) -> str:
    """The name of the program's function for the size at this position: "main", "main_1" and so on."""
    return f"main_{size}" if size else "main"


def bytes_of(shape: Iterable[int], dtype: str) -> int:
    """The bytes of a tensor. A size that depends on data counts as none.

    Args:
        shape: Its shape.
        dtype: The name of its type.

    Example:
        >>> bytes_of((2, 3), "float32")
        24
    """
    return math.prod(max(extent, 0) for extent in shape) * (bits_of(dtype) // 8)


def bits_of(dtype: str) -> int:
    """The bits of an element of a type, by its name.

    Example:
        >>> bits_of("bfloat16"), bits_of("uint8")
        (16, 8)
    """
    return _BITS.get(dtype) or int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))


def offsets_of(sizes: Iterable[int], alignment: int = ALIGNMENT) -> tuple[int, ...]:
    """Where each of several pieces of memory begins if they lie one after the other; in the end, where the last ends.

    Args:
        sizes: The bytes of each piece.
        alignment: Each piece begins at a multiple of so many bytes.

    Example:
        >>> offsets_of([10, 100])
        (0, 64, 192)
    """
    return tuple(itertools.accumulate((-(-size // alignment) * alignment for size in sizes), initial=0))


def _lines(size: SizeProgram) -> Iterator[str]:
    inputs, outputs = (", ".join(map(str, infos)) for infos in (size.inputs, size.outputs))
    megabytes = size.block_offsets[-1] / 1e6
    yield f"({inputs}) -> ({outputs}), storage: {len(size.storage)} blocks, {megabytes:.2f} MB"
    names = [_name(size, view) for view in size.views]
    for position, step in enumerate(size.steps):
        what = {"kernel": shown(step.name), "part": f"onnxruntime's part {step.name}", "copy": "copy"}[step.kind]
        read, written = (", ".join(names[index] for index in indices) for indices in (step.reads, step.writes))
        yield f"{position:4} {what}({read}) -> {written}"


def _name(size: SizeProgram, view: View) -> str:
    """A view by its memory: "c3" is a constant, "s1+4096 float32[1, 64]" lies in a block of storage."""
    if view.memory == "constant":
        return f"c{view.index}"
    if view.memory != "storage":
        return shown((size.inputs if view.memory == "input" else size.outputs)[view.index].name)
    offset = f"+{view.offset}" if view.offset else ""
    return f"s{view.index}{offset} {view.dtype}{list(view.shape)}"
