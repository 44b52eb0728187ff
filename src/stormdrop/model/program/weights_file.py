"""The file `weights.bin`: the constants of a program, which loading maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...runtime.program import Program
from .compiled import CompiledProgram
from .memory import mapped


def write_constants(compiled: CompiledProgram, file: Path) -> None:
    """Writes the constants of a program to a file.

    Args:
        compiled: The program.
        file: The file, which is made. Only its owner may write to it, so that it may be mapped where it is.

    Raises:
        OSError: The file cannot be written.
    """
    with file.open("wb") as stream:
        file.chmod(file.stat().st_mode & ~0o022)
        for place, value in zip(compiled.program.constants, compiled.constants, strict=True):
            stream.write(bytes(place.offset - stream.tell()))
            stream.write(value.data)


def map_constants(program: Program, file: Path) -> NDArray[np.uint8]:
    """The bytes of a file with the constants of a program, mapped; they stay valid if the file is removed.

    Args:
        program: The program.
        file: What `write_constants` has written.

    Raises:
        ValueError: The file has another size.
    """
    size = file.stat().st_size
    if size != program.constant_bytes:
        raise ValueError(f"it holds {size} bytes, and the constants have {program.constant_bytes}")
    return mapped(file, np.uint8, 0, (size,)) if size else np.zeros(0, np.uint8)


def constants_in(program: Program, weights: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """The bytes of each constant of a program.

    Args:
        program: The program.
        weights: The bytes of all of them; see `map_constants`.
    """
    return [weights[place.offset : place.offset + place.bytes] for place in program.constants]
