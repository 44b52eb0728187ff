"""Keeps the large tensors of an ONNX model in files: whoever needs their values maps them.

    initializer w, float32 4096x4096   ->   initializer w, float32 4096x4096, in /.../weights.bin at byte 8192

A model of gigabytes is then a message of kilobytes, which is copied, rewritten and sent in no time. Its weights are
read from where they are, page by page, and the system takes such pages back if memory is short. Here the location of a
tensor is an absolute path, which `source` lets no file of a user have: it has checked the path before.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from ...errors import ModelError
from ..program.memory import mapped
from ..tensors import Array

LEAST = 1 << 16
"""The fewest bytes of a tensor that is kept in a file."""

KERNEL_TYPES = {
    element: helper.tensor_dtype_to_np_dtype(element).name
    for element in (
        *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BOOL),
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    )
}
"""The types of elements that kernels compute with, whole bytes all of them: their NumPy names by ONNX's numbers."""


def in_file(tensor: TensorProto) -> bool:
    """Whether the data of a tensor stands in a file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def array_of(tensor: TensorProto) -> Array:
    """The values of a tensor. Those in a file are mapped: what is written to them stays in this process.

    Args:
        tensor: A tensor with its data in it, or one that `place` or `move_out` has put into a file.

    Raises:
        OSError: The file is gone.
        ValueError: It is shorter than it was.
    """
    if not in_file(tensor):
        value: Array = numpy_helper.to_array(tensor)
        return value
    where = ExternalDataInfo(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return mapped(Path(where.location), dtype, where.offset or 0, tuple(tensor.dims))


def place(tensor: TensorProto, file: Path, offset: int, length: int) -> None:
    """Makes a tensor one whose data stands in a file.

    Args:
        tensor: The tensor; it is changed.
        file: An absolute path.
        offset: Where the data begins, in bytes.
        length: How many bytes there are.
    """
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", file), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def bytes_of(tensor: TensorProto) -> int | None:
    """How many bytes a tensor takes in a file; None if it stays in the model: it is small, or has an odd type."""
    if tensor.data_type not in KERNEL_TYPES or any(extent < 0 for extent in tensor.dims):
        return None
    size = math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return size if size >= LEAST else None


def move_out(model: onnx.ModelProto, file: Path, *, relative: bool = False) -> onnx.ModelProto:
    """A model whose large initializers stand in a file.

    Args:
        model: The model. It is not changed.
        file: The file, at an absolute path. The data is appended to it.
        relative: Name the file without its folder, as a model does that is stored beside it.

    Returns:
        A new model; the same one if it holds no large initializer.

    Raises:
        OSError: The file cannot be written.
    """
    if not any(tensor.HasField("raw_data") and bytes_of(tensor) for tensor in model.graph.initializer):
        return model
    result = _without_initializers(model)
    with file.open("ab") as out:
        for tensor in model.graph.initializer:
            size = bytes_of(tensor) if tensor.HasField("raw_data") else None
            data = b"" if size is None else tensor.raw_data
            if size is None or len(data) != size:  # a tensor that lacks data is refused later
                result.graph.initializer.append(tensor)
                continue
            out.write(bytes(-out.tell() % mmap.PAGESIZE))
            new = result.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            place(new, Path(file.name) if relative else file, out.tell(), size)
            out.write(data)
    return result


def moved_in(model: onnx.ModelProto, weights: Mapping[str, Array] | None = None) -> onnx.ModelProto:
    """A model with all of its data in it, for readers that know nothing of files; the same one if it is so already.

    Args:
        model: The model. It is not changed.
        weights: Its `large_tensors`, if they are known.
    """
    if not any(map(in_file, model.graph.initializer)):
        return model
    values = large_tensors(model) if weights is None else weights
    result = _without_initializers(model)
    for tensor in model.graph.initializer:
        known = values.get(tensor.name)
        result.graph.initializer.append(tensor if known is None else numpy_helper.from_array(known, tensor.name))
    return result


def large_tensors(model: onnx.ModelProto) -> Mapping[str, Array]:
    """The initializers of a model that stand in files, by name. They are mapped."""
    return {tensor.name: array_of(tensor) for tensor in model.graph.initializer if in_file(tensor)}


@dataclass(frozen=True)
class FileState:
    """What tells that a file was changed where it is: whoever reads what he has mapped of a shortened one is killed.

    A file that was removed, or that another one has replaced, is still there for who has mapped it.
    """

    file: Path
    state: tuple[int, int, int]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> list[FileState]:
        """The files in which initializers of a model stand."""
        files = {Path(ExternalDataInfo(tensor).location) for tensor in model.graph.initializer if in_file(tensor)}
        return [cls(file, _state(file)) for file in sorted(files)]

    def check(self) -> None:
        """Raises `ModelError` if the file has been changed."""
        with contextlib.suppress(FileNotFoundError):
            if (now := _state(self.file)) != self.state and now[0] == self.state[0]:
                raise ModelError(f"{self.file}: was changed after the model had been imported; start again")


def _state(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _without_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the initializers of the graph, which are not copied for that."""
    result = onnx.ModelProto()
    for source, target, left_out in ((model, result, "graph"), (model.graph, result.graph, "initializer")):
        for field, value in source.ListFields():
            if field.name == left_out:
                continue
            if isinstance(value, str | bytes | int | float):
                setattr(target, field.name, value)
            elif hasattr(value, "CopyFrom"):
                getattr(target, field.name).CopyFrom(value)
            else:
                getattr(target, field.name).extend(value)
    return result
