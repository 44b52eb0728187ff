"""A file of constants: their bytes, large ones from a multiple of a page on, so that whoever reads it maps them.

An import hands the constants of a graph over in such a file, and a saved model keeps its own in one; see
`program.weights_file`.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray

from ...runtime.program import ALIGNMENT
from ..program.memory import mapped
from ..tensors import Array, array_of, tensor_of

_SMALL = 1 << 12  # bytes of a constant that begins a page, at least
_ENDS = 1 << 12  # bytes at the beginning and at the end of a constant
_BLOCK = 1 << 20  # bytes


class ConstantsWriter:
    """Writes constants to a file, of equal ones one.

    Args:
        file: The file, which is made.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.open("w+b")
        self._known: dict[tuple[Any, ...], list[int]] = {}

    def write(self, constants: Iterable[Any]) -> tuple[int, ...]:
        """Writes TVM's tensors. Returns where each one begins in the file.

        Raises:
            OSError: The file cannot be written.
        """
        offsets = tuple(map(self._written, constants))
        self._file.flush()
        return offsets

    def _written(self, constant: Any) -> int:
        value = array_of(constant)
        if not value.size:
            return 0  # the type says all of it
        data = value.reshape(-1).view(np.uint8)
        alike = self._known.setdefault(likeness(value.shape, str(value.dtype), data), [])
        for offset in alike:
            if self._holds(data, offset):
                return offset
        self._file.seek(0, 2)
        self._file.write(bytes(begin_of(self._file.tell(), len(data)) - self._file.tell()))
        alike.append(self._file.tell())
        self._file.write(data.data)
        return alike[-1]

    def _holds(self, data: Array, offset: int) -> bool:
        """Whether the file has these bytes at a place."""
        self._file.seek(offset)
        blocks = (data[begin : begin + _BLOCK].tobytes() for begin in range(0, len(data), _BLOCK))
        return all(self._file.read(len(block)) == block for block in blocks)

    def __enter__(self) -> ConstantsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def likeness(shape: tuple[int, ...], dtype: str, data: NDArray[np.uint8]) -> tuple[Any, ...]:
    """What equal constants have in common: only those that are alike in it are compared as a whole.

    Args:
        shape: The shape of the constant.
        dtype: The name of its type.
        data: Its bytes.
    """
    return shape, dtype, data[:_ENDS].tobytes(), data[-_ENDS:].tobytes()


def begin_of(end: int, size: int) -> int:
    """Where a constant begins in a file.

    Args:
        end: Where the one before it ends.
        size: Its bytes.
    """
    alignment = ALIGNMENT if size < _SMALL else mmap.PAGESIZE
    return -(-end // alignment) * alignment


class ConstantsReader:
    """Reads constants from a file. They are mapped, and stay valid if the file is removed.

    Args:
        file: What a `ConstantsWriter` has written.
    """

    def __init__(self, file: Path) -> None:
        self._bytes = mapped(file, np.uint8, 0, (size,)) if (size := file.stat().st_size) else np.zeros(0, np.uint8)
        self._known: dict[tuple[int, tuple[int, ...], str], Any] = {}

    def read(self, offset: int, shape: Iterable[int], dtype: str) -> Any:
        """The tensor at a place in the file: the same one for each call.

        Raises:
            ValueError: The file ends before it.
        """
        key = offset, tuple(map(int, shape)), dtype
        if key not in self._known:
            self._known[key] = self._read(*key)
        return self._known[key]

    def _read(self, offset: int, shape: tuple[int, ...], dtype: str) -> Any:
        size = math.prod(shape) * tvm.DataType(dtype).itemsize
        if not size:
            return tvm.runtime.empty(shape, dtype)
        if offset + size > len(self._bytes):
            raise ValueError(f"it holds {len(self._bytes)} bytes, and a constant ends at {offset + size}")
        return tensor_of(self._bytes[offset : offset + size])._create_view(shape, dtype)
