"""What a compiled model says about itself: versions, machine, inputs and outputs, where it comes from."""

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
    """A named input or output of a model: static shape, NumPy dtype name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class FallbackReport:
    """A task that no sketch scheduled, and what the plain schedule reached: "parallel, vectorised", ..., "plain"."""

    task: str
    weight: int
    reached: str


@dataclass(frozen=True)
class Work:
    """What a call of a kernel does: floating-point operations, and bytes of its arrays, each moved once."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Metadata:
    """Stored beside a model. `features` are the instruction set extensions that its kernels may use.

    `kernels` says what those do that a sketch has scheduled. The inputs that `anywhere` names may begin at any element;
    the memory of all others begins at a multiple of 64 bytes.
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
        """The text of metadata.json. Raises TypeError where `provenance` holds what JSON cannot."""
        return json.dumps({"format": _FORMAT, **asdict(self), "checksums": dict(checksums)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> tuple[Metadata, dict[str, str]]:
        """The metadata and the checksums by file name. Raises ValueError, one line."""
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise ValueError(f"it is no stormdrop model of format {_FORMAT}")
        document.pop("format")
        try:
            checksums = document.pop("checksums")
            document["inputs"] = tuple(_tensor(entry) for entry in document["inputs"])
            document["outputs"] = tuple(_tensor(entry) for entry in document["outputs"])
            document["fallbacks"] = tuple(FallbackReport(**entry) for entry in document["fallbacks"])
            document["features"] = tuple(document["features"])
            document["anywhere"] = tuple(document.get("anywhere", ()))
            document["kernels"] = {name: Work(**entry) for name, entry in document.get("kernels", {}).items()}
            return cls(**document), checksums
        except (KeyError, TypeError) as error:
            raise ValueError(f"its metadata is incomplete: {error}") from error


def _tensor(entry: Mapping[str, Any]) -> TensorInfo:
    return TensorInfo(entry["name"], tuple(entry["shape"]), entry["dtype"])


def lacking_features(features: Iterable[str]) -> list[str]:
    """Those of some instruction set extensions, by LLVM's names, that this machine's CPU does not have."""
    host = _host_features()
    return cpu_flags.lacking(features) if host is None else sorted(set(features) - host)


def _host_features() -> frozenset[str] | None:
    """The instruction set extensions of this machine's CPU; None where only TVM's runtime is loaded."""
    function = tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    if function is None:
        return None
    return frozenset(str(name) for name, present in function().items() if bool(present))


def needed_features(target: Any) -> tuple[str, ...]:
    """What code for a TVM target may use, of what this machine has.

    LLVM's model of a CPU also names tuning hints, and extensions that a virtual machine may hide; a model that was
    compiled and verified here needs neither.
    """
    host = _host_features() or frozenset()
    return tuple(sorted({str(name) for name in codegen.llvm_get_cpu_features(target)} & host))
