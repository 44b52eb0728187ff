"""What a native model says about itself, as far as running it needs it: `metadata.json`, read with Python alone."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import shown

_FORMAT = 2
_NO_DIGEST = "0" * 64
"""Stands for the digest while it is computed."""

OPEN = -1
"""The size of a dimension that depends on the values of the inputs."""

_MOST_ELEMENTS = 2**40
_TYPES = frozenset(
    [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
    + ["float16", "float32", "float64", "bool", "bfloat16"]
)

T = TypeVar("T")


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a model.

    Attributes:
        name: Its name in the user's model.
        shape: Its shape. Only a dimension of an output may depend on the values of the inputs: its size is -1.
        dtype: The name of its NumPy type, such as "float32".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """For example "data float32[1, 3, 224, 224]"."""
        return f"{shown(self.name)} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Size:
    """A size that a model was compiled for.

    Attributes:
        inputs: The inputs with their shapes at this size.
        outputs: The outputs with theirs.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs."""
        return tuple(info.shape for info in self.inputs)


@dataclass(frozen=True)
class Part:
    """A part of a model that onnxruntime runs.

    Attributes:
        file: The name of the file that holds it as an ONNX model.
        operators: The operators in it.
        threads: The most threads that it runs with; None for as many as a call may use.
    """

    file: str
    operators: tuple[str, ...]
    threads: int | None


@dataclass(frozen=True)
class Metadata:
    """What a model says about itself.

    Attributes:
        name: The name of the model.
        inputs: The inputs, in the order in which a call takes them.
        outputs: The outputs, in the order in which a call returns them.
        cpu: The name of the CPU that it was compiled for.
        ignored: The names of the inputs that the user's model has and does not use: a call may give them.
        sizes: The sizes that it was compiled for; the first has `inputs` and `outputs`.
        batched: The inputs along whose first axis a call may have fewer rows than a size.
        parts: The parts that onnxruntime runs.
        keep_denormals: Whether its kernels compute with denormals.
        stormdrop: The version of stormdrop that made it.
        checksums: The SHA-256 of each other file, by file name.
        digest: The digest of all files of the model.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    cpu: str
    ignored: tuple[str, ...]
    sizes: tuple[Size, ...]
    batched: tuple[str, ...]
    parts: tuple[Part, ...]
    keep_denormals: bool
    stormdrop: str
    checksums: dict[str, str]
    digest: str

    def lacks(self, wanted: str) -> str:
        """The end of a message about a size that the model does not have."""
        if len(self.sizes) == 1:
            return f"has no size {wanted}; it has one: {described(self.inputs)}"
        fewer = f", and fewer rows of {', '.join(map(shown, self.batched))}" if self.batched else ""
        return f"has no size {wanted}; its sizes are {'; '.join(sizes_in_words(self.sizes))}{fewer}"


def read_metadata(data: bytes) -> Metadata:
    """Reads the content of `metadata.json`.

    Args:
        data: The content.

    Raises:
        ValueError: It is something else, or was changed by accident; the message is one line.
    """
    try:
        document = json.loads(data, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    form = document.get("format") if isinstance(document, dict) else None
    if form != _FORMAT:
        if form == 1:
            raise ValueError("an earlier version of stormdrop made the model: tune or compile it again")
        raise ValueError(f"it is of format {form!r}, not {_FORMAT}")
    stated = _text(document.get("digest", _NO_DIGEST), "digest")
    digest = hashlib.sha256(data.replace(stated.encode(), _NO_DIGEST.encode(), 1)).hexdigest()
    if stated not in (_NO_DIGEST, digest):
        raise ValueError("its digest differs")
    first = _size(document, "the model")
    sizes = _list(document.get("sizes", []), "sizes", _size) or (first,)
    target = document.get("target")
    metadata = Metadata(
        name=_text(document.get("name"), "name"),
        inputs=first.inputs,
        outputs=first.outputs,
        cpu=_text(document.get("cpu"), "cpu"),
        ignored=_list(document.get("ignored", []), "ignored", _text),
        sizes=sizes,
        batched=_list(document.get("batched", []), "batched", _text),
        parts=_list(document.get("foreign", []), "foreign", _part),
        keep_denormals=isinstance(target, dict) and bool(target.get("keep_denormals", False)),
        stormdrop=_text(document.get("stormdrop"), "stormdrop"),
        checksums=_checksums(document.get("checksums")),
        digest=digest,
    )
    _check_sizes(metadata)
    return metadata


def described(tensors: Sequence[TensorInfo], most: int = 4) -> str:
    """The first few tensors in one line, and how many more there are."""
    line = ", ".join(map(str, tensors[:most]))
    return f"{line} and {len(tensors) - most} more" if len(tensors) > most else line


def shapes_in_words(shapes: Sequence[tuple[str, Sequence[int]]]) -> str:
    """Shapes of inputs, such as "ids=1x32,mask=1x32"."""
    return ",".join(f"{shown(name)}={'x'.join(map(str, shape))}" for name, shape in shapes)


def sizes_in_words(sizes: Sequence[Size], most: int = 8) -> list[str]:
    """Each size by the shapes in which it differs from others, such as "x=4x3x224x224".

    Args:
        sizes: All sizes of a model.
        most: The most sizes that are written out; another entry says how many more there are.
    """
    shapes = zip(*(size.shapes for size in sizes), strict=True)
    differing = [position for position, of_input in enumerate(shapes) if len(set(of_input)) > 1]
    texts = []
    for size in sizes[:most]:
        infos = [size.inputs[position] for position in differing]
        texts.append(shapes_in_words([(info.name, info.shape) for info in infos]))
    return [*texts, f"{len(sizes) - most} more"] if len(sizes) > most else texts


def _check_sizes(metadata: Metadata) -> None:
    """Raises ValueError for sizes that are not of one model."""
    for size in metadata.sizes:
        for infos, first in ((size.inputs, metadata.inputs), (size.outputs, metadata.outputs)):
            if [(info.name, info.dtype) for info in infos] != [(info.name, info.dtype) for info in first]:
                raise ValueError("its sizes have different inputs or outputs")
    if metadata.sizes[0] != Size(metadata.inputs, metadata.outputs):
        raise ValueError("its first size is another one")
    if len({size.shapes for size in metadata.sizes}) < len(metadata.sizes):
        raise ValueError("a size is there twice")
    if not {info.name for info in metadata.inputs}.issuperset(metadata.batched):
        raise ValueError("an input that is no input has rows")


def _size(value: Any, what: str) -> Size:
    fields = _object(value, what)
    inputs = _list(fields.get("inputs"), "inputs", _tensor)
    outputs = _list(fields.get("outputs"), "outputs", _tensor)
    for infos in (inputs, outputs):
        names = [info.name for info in infos]
        if len(set(names)) < len(names):
            raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    for info in inputs:
        if OPEN in info.shape:
            raise ValueError(f"input {info.name!r} has an open dimension: {info.shape}")
    return Size(inputs, outputs)


def _tensor(value: Any, what: str) -> TensorInfo:
    fields = _object(value, what)
    name, dtype = _text(fields.get("name"), "name"), _text(fields.get("dtype"), "dtype")
    shape = _list(fields.get("shape"), "shape", _extent)
    if dtype not in _TYPES:
        raise ValueError(f"{name!r} has an unknown type: {dtype!r}")
    if math.prod(abs(extent) for extent in shape) > _MOST_ELEMENTS:
        raise ValueError(f"{name!r} has an impossible shape: {shape}")
    return TensorInfo(name, shape, dtype)


def _part(value: Any, what: str) -> Part:
    fields = _object(value, what)
    threads = fields.get("threads")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ValueError(f"a part has {threads!r} threads")
    return Part(_text(fields.get("file"), "file"), tuple(_object(fields.get("operators"), "operators")), threads)


def _checksums(value: Any) -> dict[str, str]:
    return {name: _text(checksum, name) for name, checksum in _object(value, "checksums").items()}


def _extent(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not OPEN <= value < 2**31:
        raise ValueError(f"{what} holds {value!r}, which is no size")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is {value!r:.40}, which is no text")
    return value


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {value!r:.40}, which is no object")
    return value


def _list(value: Any, what: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is {value!r:.40}, which is no list")
    return tuple(read(each, what) for each in value)


def _no_number(text: str) -> Any:
    raise ValueError(f"it holds {text}, which is no finite number")
