"""A program on a page: memory first, then a line for each step."""

from __future__ import annotations

from collections.abc import Iterator

from .program import Program, SizeProgram, View


def text_of(program: Program) -> str:
    """A program as text.

    Args:
        program: The program.

    Example:
        >>> print(text_of(Program((), ())))
        constants: 0 of 0.00 MB
    """
    lines = [f"constants: {len(program.constants)} of {program.constant_bytes / 1e6:.2f} MB"]
    for size in program.sizes:
        lines.extend(_size_lines(size))
    return "\n".join(lines)


def _size_lines(size: SizeProgram) -> Iterator[str]:
    inputs, outputs = (", ".join(map(str, infos)) for infos in (size.inputs, size.outputs))
    megabytes = size.block_offsets[-1] / 1e6
    yield f"({inputs}) -> ({outputs}), storage: {len(size.storage)} blocks, {megabytes:.2f} MB"
    names = [_name(size, view) for view in size.views]
    for position, step in enumerate(size.steps):
        what = {"kernel": step.name, "part": f"onnxruntime's part {step.name}", "copy": "copy"}[step.kind]
        read, written = (", ".join(names[index] for index in indices) for indices in (step.reads, step.writes))
        yield f"{position:4} {what}({read}) -> {written}"


def _name(size: SizeProgram, view: View) -> str:
    """A view by its memory: "c3" is a constant, "s1+4096 float32[1, 64]" lies in a block of storage."""
    if view.memory == "constant":
        return f"c{view.index}"
    if view.memory != "storage":
        return (size.inputs if view.memory == "input" else size.outputs)[view.index].name
    offset = f"+{view.offset}" if view.offset else ""
    return f"s{view.index}{offset} {view.dtype}{list(view.shape)}"
