"""What a native model says about itself, as far as running it needs it: `metadata.json`, read with Python alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from .sizes import Size, TensorInfo, check_sizes

_FORMAT = 2
_NO_DIGEST = "0" * 64
"""Stands for the digest while it is computed."""

T = TypeVar("T")


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
        device: What executes the kernels if the CPU does not: "cuda" or "opencl".
        device_name: The name of an OpenCL device, or of the target of a GPU.
        declares_states: Whether the user declared which outputs are inputs of the next step.
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
    device: str
    device_name: str
    declares_states: bool
    stormdrop: str
    checksums: dict[str, str]
    digest: str


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
    target, provenance = document.get("target"), document.get("provenance")
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
        device=_text(document.get("device", ""), "device"),
        device_name=_device_name(target),
        declares_states=isinstance(provenance, dict) and bool(provenance.get("state")),
        stormdrop=_text(document.get("stormdrop"), "stormdrop"),
        checksums=_checksums(document.get("checksums")),
        digest=digest,
    )
    if sizes[0] != first:
        raise ValueError("its first size is another one")
    check_sizes(sizes, metadata.batched)
    return metadata


def _device_name(target: Any) -> str:
    """What OpenCL calls a device, or the name of the target of a GPU."""
    if not isinstance(target, dict):
        return ""
    named = target.get("info") if isinstance(target.get("info"), dict) else target
    return _text(named.get("name", ""), "the name of a device")  # type: ignore[union-attr]


def _size(value: Any, what: str) -> Size:
    fields = _object(value, what)
    return Size(_list(fields.get("inputs"), "inputs", _tensor), _list(fields.get("outputs"), "outputs", _tensor))


def _tensor(value: Any, what: str) -> TensorInfo:
    fields = _object(value, what)
    shape = _list(fields.get("shape"), "shape", _extent)
    return TensorInfo(_text(fields.get("name"), "name"), shape, _text(fields.get("dtype"), "dtype"))


def _part(value: Any, what: str) -> Part:
    fields = _object(value, what)
    threads = fields.get("threads")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ValueError(f"a part has {threads!r} threads")
    return Part(_text(fields.get("file"), "file"), tuple(_object(fields.get("operators"), "operators")), threads)


def _checksums(value: Any) -> dict[str, str]:
    return {name: _text(checksum, name) for name, checksum in _object(value, "checksums").items()}


def _extent(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
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
