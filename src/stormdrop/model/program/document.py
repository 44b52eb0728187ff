"""A program as the text of `program.json`, and back."""

from __future__ import annotations

import msgspec

from ...runtime.program import Program
from .check import check_program


def to_json(program: Program) -> bytes:
    """The program as JSON.

    Args:
        program: The program.

    Example:
        >>> to_json(Program((), ()))
        b'{"constants":[],"sizes":[]}'
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
