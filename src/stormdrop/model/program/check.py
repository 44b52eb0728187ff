"""Whether a program reads only what was written, and writes nothing that is read later as something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .program import ALIGNMENT, Program, SizeProgram, View, bytes_of


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


def check_program(program: Program) -> None:
    """Checks a program.

    - Each view lies inside its memory and begins where kernels may read it.
    - What a step reads was written, whole, and nothing else was written over it since.
    - A step writes nothing that it also reads as another tensor, and no two of the tensors that it writes overlap.
    - Inputs and constants are not written. Each output is.

    Args:
        program: The program.

    Raises:
        ValueError: It is none that can be executed; the message says which step or view is wrong.

    Example:
        >>> check_program(Program((), ()))
    """
    end = 0
    for position, constant in enumerate(program.constants):
        if constant.offset < end or constant.offset % ALIGNMENT:
            raise ValueError(f"constant {position} begins at {constant.offset}: inside of another one, or unaligned")
        end = constant.offset + constant.bytes
    for size in program.sizes:
        _check_views(program, size)
        _check_steps(size)


def _check_views(program: Program, size: SizeProgram) -> None:
    for position, view in enumerate(size.views):
        if view.memory == "storage":
            memories = size.storage
        elif view.memory == "constant":
            memories = tuple(constant.bytes for constant in program.constants)
        else:
            infos = size.inputs if view.memory == "input" else size.outputs
            memories = tuple(bytes_of(info.shape, info.dtype) for info in infos)
        if not 0 <= view.index < len(memories):
            raise ValueError(f"view {position} lies in {view.memory} {view.index}, and there are {len(memories)}")
        if not 0 <= view.offset <= view.offset + view.bytes <= memories[view.index]:
            raise ValueError(f"view {position} ends outside of {view.memory} {view.index}")
        if view.offset % ALIGNMENT:
            raise ValueError(f"view {position} begins at {view.offset}, which is no multiple of {ALIGNMENT}")


def _check_steps(size: SizeProgram) -> None:
    written: dict[_Place, list[_Written]] = {}
    for position, step in enumerate(size.steps):
        if any(not 0 <= index < len(size.views) for index in step.arguments):
            raise ValueError(f"step {position} has an argument that is no view")
        read = [size.views[index] for index in step.reads]
        changed = [size.views[index] for index in step.writes]
        for view in read:
            _check_read(position, view, written)
        for view in changed:
            if view.memory not in ("storage", "output"):
                raise ValueError(f"step {position} writes to {view.memory} {view.index}")
            others = [other for other in (*read, *changed) if other.tensor != view.tensor]
            if any(_overlap(view, other) for other in others):
                raise ValueError(f"step {position} writes over another of its arguments")
            _write(view, written.setdefault(_Place(view.memory, view.index), []))
    for index, info in enumerate(size.outputs):
        if not written.get(_Place("output", index)):
            raise ValueError(f"output {info.name!r} is never written")


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
