"""What a compiled model says about itself: inputs, outputs, machine, versions, kernels, and how it was made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm.target import codegen

from .._version import __version__
from ..machine import cpu_flags

_FORMAT = 1


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a model.

    Attributes:
        name: Its name in the user's model.
        shape: Its static shape.
        dtype: The name of its NumPy type, such as "float32".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class FallbackReport:
    """A task that no sketch scheduled.

    Attributes:
        task: The name of the task.
        weight: How often the model calls it.
        reached: What its plain schedule reached: "parallel, vectorised", "parallel", "vectorised" or "plain".
    """

    task: str
    weight: int
    reached: str


@dataclass(frozen=True)
class Work:
    """What one call of a kernel does.

    Attributes:
        flops: Floating-point operations.
        bytes: Bytes of its arrays, each moved once.
    """

    flops: float
    bytes: float


@dataclass(frozen=True)
class Metadata:
    """The metadata that is stored with a model.

    Attributes:
        name: The name of the model.
        inputs: The inputs, in the order in which a call takes them.
        outputs: The outputs, in the order in which a call returns them.
        target: The fields of the `Target` that the model was compiled for.
        cpu: The name of the CPU that it was compiled for.
        features: The instruction set extensions that its kernels may use, by LLVM's names.
        fallbacks: The tasks that no sketch scheduled.
        provenance: How the model was made: search, seed, source file, versions; anything that JSON holds.
        kernels: The work of each kernel that a sketch scheduled, by the kernel's name.
        anywhere: The inputs whose memory may begin at any element. That of all others begins at a multiple of 64
            bytes.
        stormdrop: The version of stormdrop that made the model.
        tvm: The version of TVM that made the model.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    target: Mapping[str, Any]
    cpu: str
    features: tuple[str, ...]
    fallbacks: tuple[FallbackReport, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    kernels: Mapping[str, Work] = field(default_factory=dict)
    anywhere: tuple[str, ...] = ()
    stormdrop: str = __version__
    tvm: str = tvm.__version__

    def to_json(self, checksums: Mapping[str, str]) -> str:
        """Write the text of `metadata.json`.

        Args:
            checksums: The checksum of each other file, by file name.

        Raises:
            TypeError: `provenance` holds something that JSON cannot.
        """
        return json.dumps({"format": _FORMAT, **asdict(self), "checksums": dict(checksums)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> tuple[Metadata, dict[str, str]]:
        """Read the text of `metadata.json`.

        Returns:
            The metadata, and the checksums by file name.

        Raises:
            ValueError: The text is something else; the message is one line.
        """
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise ValueError(f"it is no stormdrop model of format {_FORMAT}")
        document.pop("format")
        try:
            checksums = document.pop("checksums")
            document["inputs"] = tuple(_tensor_info(entry) for entry in document["inputs"])
            document["outputs"] = tuple(_tensor_info(entry) for entry in document["outputs"])
            document["fallbacks"] = tuple(FallbackReport(**entry) for entry in document["fallbacks"])
            document["features"] = tuple(document["features"])
            document["anywhere"] = tuple(document.get("anywhere", ()))
            document["kernels"] = {name: Work(**entry) for name, entry in document.get("kernels", {}).items()}
            return cls(**document), checksums
        except (KeyError, TypeError) as error:
            raise ValueError(f"its metadata is incomplete: {error}") from error


def lacking_features(features: Iterable[str]) -> list[str]:
    """The instruction set extensions among `features` (LLVM's names) that this machine's CPU does not have, sorted."""
    host = _host_features()
    return cpu_flags.missing_features(features) if host is None else sorted(set(features) - host)


def needed_features(target: Any) -> tuple[str, ...]:
    """The instruction set extensions of this machine that code for a TVM target may use, sorted.

    LLVM's model of a CPU also names tuning hints, and extensions that a virtual machine may hide. A model that was
    compiled and verified on this machine needs neither.
    """
    host = _host_features() or frozenset()
    return tuple(sorted({str(name) for name in codegen.llvm_get_cpu_features(target)} & host))


def _host_features() -> frozenset[str] | None:
    """The instruction set extensions of this machine's CPU; None if only TVM's runtime is loaded."""
    function = tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    if function is None:
        return None
    return frozenset(str(name) for name, present in function().items() if bool(present))


def _tensor_info(entry: Mapping[str, Any]) -> TensorInfo:
    return TensorInfo(entry["name"], tuple(entry["shape"]), entry["dtype"])
