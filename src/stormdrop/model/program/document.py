"""A program as the text of `program.json`, and of `opens.json` for ranges of sizes, and back."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...runtime.open_size import OpenSize
from ...runtime.program import Program
from .check import check_opens, check_program


def to_json(program: Program) -> bytes:
    """The program as JSON.

    Args:
        program: The program.

    Example:
        >>> to_json(Program((), ()))
        b'{"constants":[],"sizes":[],"in_place":null}'
    """
    return msgspec.json.encode(program)


def from_json(data: bytes, parts: int | None = None) -> Program:
    """The program of a JSON text, checked.

    Args:
        data: What `to_json` has made.
        parts: How many parts onnxruntime runs, if that is known.

    Raises:
        ValueError: It is something else, or a program that cannot be executed; the message is one line.
    """
    try:
        program = msgspec.json.decode(data, type=Program)
    except (msgspec.DecodeError, RecursionError) as error:  # which is no ValueError in every version of msgspec
        raise ValueError(str(error)) from error
    check_program(program, parts)
    return program


def opens_to_json(opens: Sequence[OpenSize]) -> bytes:
    """The programs of ranges as the JSON of `opens.json`."""
    return msgspec.json.encode(opens)


def opens_from_json(data: bytes, program: Program) -> tuple[OpenSize, ...]:
    """The programs of ranges of a JSON text, checked.

    Args:
        data: What `opens_to_json` has made.
        program: The program of the model at its other sizes.

    Raises:
        ValueError: It is something else, or a program that cannot be executed; the message is one line.
    """
    try:
        opens = msgspec.json.decode(data, type=tuple[OpenSize, ...])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    check_opens(opens, program)
    return opens
