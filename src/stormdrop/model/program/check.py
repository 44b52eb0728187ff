"""Whether a program is one that can be executed: what it reads was written, and lies where it should.

It finds what is damaged or does not fit together. It is no protection from whoever makes a program on purpose: what a
kernel does with its arguments is in its machine code.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...runtime.open_size import OpenSize
from ...runtime.program import ALIGNMENT, Constant, InPlace, Program, SizeProgram, Step, View, bytes_of, offsets_of
from ...runtime.sizes import OPEN, TYPES

_MOST = 2**31  # an extent is less


class _Place(NamedTuple):
    """A block of storage, or an output."""

    memory: str
    number: int


@dataclass
class _Written:
    """Bytes of a place that hold a tensor."""

    begin: int
    end: int
    tensor: int


def check_program(program: Program, parts: int | None = None) -> None:
    """Checks a program.

    - Each view lies inside its memory and begins where kernels may read it. Its type is known. So is its shape, unless
      it is an output that a part makes. The views of one tensor have the same bytes.
    - What a step reads was written, whole, and nothing else was written over it since. A slice of a tensor that is
      written piece by piece counts as the whole.
    - A step writes nothing that it also reads as another tensor, and no two of the tensors that it writes overlap.
    - Inputs and constants are not written. Each output is, from its first byte to its last.
    - What writes states in place takes and gives what the program of the size does, and reads no input of a state. Of
      the outputs of states it writes a part.
    - All calls of a kernel have as many arguments, of the same types and numbers of elements.

    Args:
        program: The program.
        parts: How many parts onnxruntime runs; None if that is not known here.

    Raises:
        ValueError: It is none that can be executed; the message says which step or view is wrong.

    Example:
        >>> check_program(Program((), ()))
    """
    end = 0
    for position, constant in enumerate(program.constants):
        if constant.dtype not in TYPES or not _possible(constant.shape, 0):
            raise ValueError(f"constant {position} is {constant.dtype}{list(constant.shape)}, which no constant is")
        if constant.offset < end or constant.offset % ALIGNMENT:
            raise ValueError(f"constant {position} begins at {constant.offset}: inside of another one, or unaligned")
        end = constant.offset + constant.bytes
    signatures: dict[str, list[tuple[int, str]]] = {}
    if program.in_place is not None:
        _check_in_place(program.sizes, program.in_place)
    for size in program.all_sizes:
        _check_views(program, size)
        _check_steps(size, parts)
        for position, step in enumerate(size.steps):
            _check_signature(position, step, size.views, signatures)


def check_opens(opens: Sequence[OpenSize], program: Program) -> None:
    """Checks the programs of ranges of sizes, at the corners of each.

    Args:
        opens: The programs.
        program: That of the model at its other sizes.

    Raises:
        ValueError: One of them is none that can be executed; the message says which step or view is wrong.
    """
    for each in opens:
        if not each.first.keys() == each.last.keys() == each.steps_of.keys() or any(
            each.first[name] > each.last[name] for name in each.first
        ):
            raise ValueError(f"a range is from {dict(each.first)} to {dict(each.last)}")
        if any(step < 1 for step in each.steps_of.values()):
            raise ValueError(f"a range has steps of {dict(each.steps_of)}")
        for extents in itertools.product(*zip(each.first.values(), each.last.values(), strict=True)):
            sizes = dict(zip(each.first, extents, strict=True))
            try:
                size, cuts = each.at(sizes, len(program.constants))
            except KeyError as error:
                raise ValueError(f"a range depends on {error}, which no input has") from error
            constants = list(program.constants)
            for cut in cuts:
                whole = program.constants[cut.constant] if 0 <= cut.constant < len(program.constants) else None
                larger = whole is not None and any(map(operator.gt, cut.shape, whole.shape))
                if whole is None or len(cut.shape) != len(whole.shape) or (larger and not cut.steps):
                    raise ValueError(f"a range needs {list(cut.shape)} elements of constant {cut.constant}")
                end = offsets_of([constants[-1].offset + constants[-1].bytes])[-1]
                constants.append(Constant(end, cut.shape, whole.dtype))
            check_program(Program(tuple(constants), (size,)))


def _check_in_place(sizes: Sequence[SizeProgram], in_place: InPlace) -> None:
    """Checks that the programs with states in place are those of the sizes."""
    if [(each.inputs, each.outputs) for each in in_place.sizes] != [(each.inputs, each.outputs) for each in sizes]:
        raise ValueError("the programs that write states in place are those of other sizes")
    for size in in_place.sizes:
        for state in in_place.states:
            if not (0 <= state.input < len(size.inputs) and 0 <= state.output < len(size.outputs)):
                raise ValueError(f"a state is input {state.input} and output {state.output}, which are not there")
            past, present = size.inputs[state.input], size.outputs[state.output]
            if not (len(past.shape) == len(present.shape) > state.axis >= 0 and past.dtype == present.dtype):
                raise ValueError(
                    f"input {past.name!r} and output {present.name!r} are no state along axis {state.axis}"
                )
            if state.order and sorted(state.order) != list(range(len(past.shape))):
                raise ValueError(f"the axes of output {present.name!r} cannot be in the order {list(state.order)}")
            if any(view.memory == "input" and view.index == state.input for view in _read_views(size)):
                raise ValueError(f"a step reads input {past.name!r}, which is written in place")


def _read_views(size: SizeProgram) -> Iterator[View]:
    return (size.views[index] for step in size.steps for index in step.reads if 0 <= index < len(size.views))


def _possible(shape: Sequence[int], least: int = OPEN) -> bool:
    return all(least <= extent < _MOST for extent in shape)


def _check_views(program: Program, size: SizeProgram) -> None:
    if any(block < 0 for block in size.storage):
        raise ValueError("a block of storage has less than no bytes")
    tensors: dict[int, tuple[str, int, int, int]] = {}
    bytes_in: dict[str, Sequence[int]] = {
        "storage": size.storage,
        "constant": [constant.bytes for constant in program.constants],
        "input": [bytes_of(info.shape, info.dtype) for info in size.inputs],
        "output": [bytes_of(info.shape, info.dtype) for info in size.outputs],
    }
    for position, view in enumerate(size.views):
        if view.dtype not in TYPES:
            raise ValueError(f"view {position} has an unknown type: {view.dtype!r}")
        if not _possible(view.shape):
            raise ValueError(f"view {position} has an impossible shape: {list(view.shape)}")
        if OPEN in view.shape and view.memory != "output":
            raise ValueError(f"view {position} has an open shape, which only outputs have")
        memories = bytes_in[view.memory]
        if not 0 <= view.index < len(memories):
            raise ValueError(f"view {position} lies in {view.memory} {view.index}, and there are {len(memories)}")
        if not 0 <= view.offset <= view.offset + view.bytes <= memories[view.index]:
            raise ValueError(f"view {position} ends outside of {view.memory} {view.index}")
        if view.offset % ALIGNMENT or (view.offset and view.memory != "storage"):
            raise ValueError(f"view {position} begins at {view.offset}, where no tensor of {view.memory} does")
        place = (view.memory, view.index, view.offset, view.bytes)
        if tensors.setdefault(view.tensor, place) != place:
            raise ValueError(f"view {position} is of a tensor that lies somewhere else")


def _check_steps(size: SizeProgram, parts: int | None) -> None:
    written: dict[_Place, list[_Written]] = {}
    for position, step in enumerate(size.steps):
        if any(not 0 <= index < len(size.views) for index in step.arguments):
            raise ValueError(f"step {position} has an argument that is no view")
        read = [size.views[index] for index in step.reads]
        changed = [size.views[index] for index in step.writes]
        _check_kind(position, step, read, changed, parts)
        for view in read:
            _check_read(position, view, written)
        for view in changed:
            if view.memory not in ("storage", "output"):
                raise ValueError(f"step {position} writes to {view.memory} {view.index}")
            others = [other for other in (*read, *changed) if other is not view]
            if any(_overlap(view, other) for other in others):
                raise ValueError(f"step {position} writes over another of its arguments")
            _write(view, written.setdefault(_Place(view.memory, view.index), []))
    for index, info in enumerate(size.outputs):
        wanted = bytes_of(info.shape, info.dtype)
        if not any(each.end == wanted for each in written.get(_Place("output", index), [])):
            raise ValueError(f"output {info.name!r} is never written, or only in part")


def _check_kind(position: int, step: Step, read: list[View], changed: list[View], parts: int | None) -> None:
    if step.kind != "part" and any(OPEN in view.shape for view in (*read, *changed)):
        raise ValueError(f"step {position} has an argument with an open shape, and is no part")
    if step.kind == "part" and not (step.name.isdecimal() and (parts is None or int(step.name) < parts)):
        raise ValueError(f"step {position} runs a part {step.name!r}, which is not there")
    if step.kind == "copy":
        sizes = [(view.bytes, view.dtype) for view in (*read, *changed)]
        if len(read) != 1 or len(changed) != 1 or sizes[0] != sizes[1]:
            raise ValueError(f"step {position} copies something else than one tensor to one of the same size")


def _check_signature(
    position: int, step: Step, views: Sequence[View], signatures: dict[str, list[tuple[int, str]]]
) -> None:
    if step.kind != "kernel":
        return
    arguments = [(views[index].bytes, views[index].dtype) for index in step.arguments]
    if signatures.setdefault(step.name, arguments) != arguments:
        raise ValueError(f"step {position} calls {step.name} with other arguments than a step before")


def _check_read(position: int, view: View, written: dict[_Place, list[_Written]]) -> None:
    if view.memory in ("input", "constant") or not view.bytes:
        return
    end = view.offset + view.bytes
    there = written.get(_Place(view.memory, view.index), [])
    if not any(each.tensor == view.tensor and each.begin <= view.offset and end <= each.end for each in there):
        raise ValueError(
            f"step {position} reads {view.memory} {view.index} where nothing or something else was written"
        )


def _write(view: View, there: list[_Written]) -> None:
    """Puts a tensor into a place. Whatever it overlaps is lost, as a whole."""
    end = view.offset + view.bytes
    there[:] = [each for each in there if each.end <= view.offset or end <= each.begin]
    there.append(_Written(view.offset, end, view.tensor))


def _overlap(one: View, other: View) -> bool:
    same = one.memory == other.memory and one.index == other.index
    return same and one.offset < other.offset + other.bytes and other.offset < one.offset + one.bytes
