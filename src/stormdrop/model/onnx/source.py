"""Reads an ONNX model and fills in the sizes and values of its inputs. Nothing of the model is computed here.

A file may be hostile. Its weights may stand in other files ("external data"), so each of these must be a regular file
inside the model's folder. onnx checks that, too, but not in every version and not for every tensor that a model can
hold: not for those of sparse tensors, of training information, and of branches inside functions.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message
from onnx.external_data_helper import ExternalDataInfo

from ...errors import ModelError, one_line, shown
from ..inputs.inputs import Values, drop_unused_inputs, fill_shapes, fix_empty_inputs, fix_values
from .nodes import names_made, names_read
from .rewrites.code_layers import keep_data_in_float32
from .rewrites.halves import compute_in_float32
from .rewrites.sparse import make_dense
from .sizes import check_weights
from .weights import bytes_of, in_file, move_out, place

_OTHER_MODELS = {
    **dict.fromkeys((".pt", ".pth", ".ckpt"), "PyTorch"),
    **dict.fromkeys((".pt2", ".ep"), "torch.export"),
    ".safetensors": "weights without their model",
    **dict.fromkeys((".pb", ".h5", ".keras"), "TensorFlow"),
    ".tflite": "LiteRT",
    ".gguf": "llama.cpp",
}
"""What else models are kept in, by the end of the file's name."""


@dataclass(frozen=True)
class Source:
    """A model as it was read.

    Attributes:
        name: The name of the model: that of its file, or that of its graph.
        model: The model, with the sizes of its inputs filled in, without the inputs that nothing uses, those that have
            no elements and those with fixed values. Its nodes are in order, and what it stored as halves is float32.
        ignored: The names of the inputs that the model is without.
    """

    name: str
    model: onnx.ModelProto
    ignored: tuple[str, ...] = ()


def read_source(
    model: str | Path | onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Values | None = None,
    name: str | None = None,
    weights: Path | None = None,
) -> Source:
    """Reads an ONNX model and fills in the sizes of its inputs. Its large weights stay in their files; see `weights`.

    Args:
        model: The path of an ONNX file, or a model in memory, which is not changed.
        shapes: The shapes of inputs whose shape the model leaves open, by input name.
        values: The values of inputs that become constants, by input name.
        name: The name of the model, if it is not that of its file or its graph.
        weights: A file for the large weights that the model itself holds; without it they stay in the model.

    Raises:
        ModelError: The file cannot be read, its data stands outside of its folder, a shape is open or wrong, a value is
            none of its input, or the weights do not fit this machine.
    """
    if isinstance(model, onnx.ModelProto):
        name = name or shown(model.graph.name) or "model"
        refuse_external_data(model, name)
        read = onnx.ModelProto()
        read.CopyFrom(model)
    else:
        name = name or Path(model).stem
        read = read_model(Path(model))
    make_dense(read, name)
    _check_graph(read.graph, name)
    read = _in_order(read if weights is None else move_out(read, weights))
    compute_in_float32(read)
    keep_data_in_float32(read.graph)
    fix_values(read, values or {}, name)
    read = read if weights is None else move_out(read, weights)
    fill_shapes(read, shapes or {}, name)
    return Source(name, read, drop_unused_inputs(read) + fix_empty_inputs(read))


def _by_its_name(path: Path) -> str:
    """What to do with a file that is none of ONNX, if its name says what it is instead."""
    kind = _OTHER_MODELS.get(path.suffix.lower())
    if kind is None:
        return ""
    return (
        f"; its name is that of another kind ({kind}): export the model to ONNX, or in Python give sd.tune_model a "
        "PyTorch module with example inputs"
    )


def described(node: onnx.NodeProto) -> str:
    """A node for messages: its operator, and its name or else its first output."""
    name = f"node {shown(node.name)!r}" if node.name else f"the node of {shown(''.join(node.output[:1]))!r}"
    return f"{shown(node.op_type)} ({name})"


def read_model(path: Path) -> onnx.ModelProto:
    """Reads an ONNX file. Raises `ModelError`, with one line, if it cannot be read.

    Of the weights that stand in other files the large ones stay there; see `weights`.
    """
    if not path.exists():
        raise ModelError(f"{path}: no such file")
    if not path.is_file():
        raise ModelError(f"{path}: not a file")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except DecodeError as error:
        raise ModelError(f"{path}: not an ONNX model, or a truncated one{_by_its_name(path)}") from error
    except Exception as error:
        # onnx takes the suffixes .json, .textproto and .onnxtxt for text, and each of its parsers raises its own type.
        raise ModelError(f"{path}: cannot be read: {one_line(error)}{_by_its_name(path)}") from error
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path}: not an ONNX model: it has no nodes and no outputs{_by_its_name(path)}")
    for tensor in _external_tensors(model):
        _check_location(tensor, path)
    try:
        placed = [(tensor, where) for tensor in model.graph.initializer if (where := _place(tensor, path)) is not None]
        check_weights(path.stat().st_size + sum(length for _, (_, _, length) in placed), str(path))
        for tensor, _ in placed:  # so that onnx does not read them
            tensor.data_location = onnx.TensorProto.DEFAULT
        onnx.load_external_data_for_model(model, str(path.parent))
    except ModelError:
        raise
    except Exception as error:
        # OSError, ValueError, onnx's ValidationError, or MemoryError.
        raise ModelError(f"{path}: its external data cannot be read: {one_line(error)}") from error
    refuse_external_data(model, str(path))
    for tensor, where in placed:
        place(tensor, *where)
    return model


def _place(tensor: onnx.TensorProto, path: Path) -> tuple[Path, int, int] | None:
    """The file of a large tensor, and the offset and number of its bytes; None if the tensor is to be read."""
    size = bytes_of(tensor) if in_file(tensor) else None
    if size is None:
        return None
    where = ExternalDataInfo(tensor)
    file, offset = (path.parent / where.location).resolve(), where.offset or 0
    if (where.length or size) != size or not 0 <= offset <= file.stat().st_size - size:
        raise ValueError(
            f"tensor {shown(tensor.name)!r} takes {size} bytes, which {shown(where.location)} does not have"
        )
    return file, offset, size


def _in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each node behind those whose results it reads, as ONNX wants it.

    onnxruntime sorts the nodes itself, so nobody notices that its own converter to float16 puts some last.
    """
    made = {name for node in model.graph.node for name in node.output if name}
    before: set[str] = set()
    for node in model.graph.node:
        if made.intersection(names_read(node)) - before - set(names_made(node)):
            break
        before.update(node.output)
    else:
        return model
    import onnx_ir as ir  # imported late: it loads SymPy, which takes 0.3 s, and most models are in order

    try:
        ordered = ir.from_proto(model)
        ordered.graph.sort()
    except (ir.serde.SerdeError, ValueError):  # a damaged model, or a cycle: later checks name them
        return model
    return ir.to_proto(ordered)


def _check_graph(graph: onnx.GraphProto, name: str) -> None:
    """Raises `ModelError` for what other readers of a model pass over, or understand differently."""
    if not graph.output:
        raise ModelError(f"{name}: has no outputs")
    for kind, names in (
        ("inputs", [value.name for value in graph.input]),
        ("outputs", [value.name for value in graph.output]),
        ("results of nodes", [made for node in graph.node for made in node.output if made]),
    ):
        for twice, count in Counter(names).items():
            if count > 1:
                raise ModelError(f"{name}: {count} {kind} have the name {shown(twice)!r}; each needs its own")
    known: set[str] = set()
    for tensor in graph.initializer:
        if tensor.name in known:
            raise ModelError(f"{name}: there are two initializers {shown(tensor.name)!r}")
        if any(extent < 0 for extent in tensor.dims):
            raise ModelError(
                f"{name}: initializer {shown(tensor.name)!r} has the shape {shown(str(list(tensor.dims)))}"
            )
        # Each element has two bits or more. Those in files were counted before.
        if not in_file(tensor) and math.prod(tensor.dims) > 4 * tensor.ByteSize():
            shape = "x".join(map(str, tensor.dims))
            raise ModelError(f"{name}: initializer {shown(tensor.name)!r} lacks data for its shape {shown(shape)}")
        known.add(tensor.name)


def refuse_external_data(model: onnx.ModelProto, name: str) -> None:
    """Raises `ModelError` if a tensor's data is not in the model itself: whoever reads it then chooses the folder."""
    for tensor in _external_tensors(model):
        raise ModelError(
            f"{name}: tensor {shown(tensor.name)!r} has its data in a file, which was not loaded with it; give the "
            f"path of the model, or load it with onnx.load"
        )


def _check_location(tensor: onnx.TensorProto, path: Path) -> None:
    """Raises `ModelError` unless the data of a tensor stands in a regular file inside the folder of the model."""
    locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
    location = locations[0] if len(locations) == 1 else ""  # readers differ in which of several they take
    whose = f"{path}: the data of tensor {shown(tensor.name)!r} is in {', '.join(map(shown, locations))!r}"
    if not location or "\0" in location:
        raise ModelError(f"{whose}, which is no name of a file")
    folder = path.parent.resolve()
    if Path(location).is_absolute() or ".." in Path(location).parts:
        raise ModelError(f"{whose}; it must be a relative path inside the model's folder")
    try:
        file = (folder / location).resolve()
    except (OSError, RuntimeError) as error:  # a name that is too long, a loop of symbolic links
        raise ModelError(f"{whose}: {one_line(error)}") from error
    if not file.is_relative_to(folder):
        raise ModelError(f"{whose}, a symbolic link that leads out of the model's folder")
    if os.path.lexists(file) and not file.is_file():
        raise ModelError(f"{whose}, which is no regular file")


def _external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor anywhere in a model whose data stands in another file."""
    pending: list[Message] = [model]
    while pending:
        message = pending.pop()
        if isinstance(message, onnx.TensorProto):
            # `ListFields` would copy its data.
            if message.data_location == onnx.TensorProto.EXTERNAL:
                yield message
            continue
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                pending.extend([value] if isinstance(value, Message) else value)
