"""What a compiled model says about itself: inputs, outputs, machine, versions, kernels, and how it was made."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import msgspec

from ..._version import __version__
from ...errors import InputError, shown
from ...machine import cpu_flags
from ...machine.detect import has_llvm, host_features
from ...runtime.sizes import Size, TensorInfo, check_sizes, lacking_size, shapes_in_words
from .layers import KernelCall, Layer

_FORMAT = 2
_NO_DIGEST = "0" * 64
"""Stands for the digest while it is computed."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class FallbackReport:
    """A task that no sketch scheduled.

    Attributes:
        task: The name of the task.
        weight: How often the model calls it.
        reached: What its plain schedule reached: "parallel, vectorised", "parallel", "vectorised" or "plain".
    """

    task: str
    weight: _Count
    reached: str


@dataclass(frozen=True)
class OnnxruntimePart:
    """A part of a model that onnxruntime runs, because no kernel can be made for its operators.

    Attributes:
        file: The name of the file that holds it as an ONNX model.
        operators: How many nodes it has of each operator.
        reason: Why it is foreign, in one line.
        threads: The most threads that it runs with; None for as many as a call may use. A small part is faster with
            one, because its threads would have to be woken in every call.
        whole: Whether it is all of the model, at one of its sizes.
    """

    file: str
    operators: Mapping[str, _Count]
    reason: str
    threads: _Count | None = None
    whole: bool = False

    @property
    def nodes(self) -> int:
        """The number of its nodes."""
        return sum(self.operators.values())


@dataclass(frozen=True)
class Work:
    """What one call of a kernel does.

    Attributes:
        flops: Floating-point operations.
        bytes: Bytes of its arrays, each moved once.
    """

    flops: _Amount
    bytes: _Amount


@dataclass(frozen=True)
class Metadata:
    """The metadata that is stored with a model.

    Attributes:
        name: The name of the model.
        inputs: The inputs, in the order in which a call takes them.
        outputs: The outputs, in the order in which a call returns them.
        target: The fields of the `Cpu` or `Gpu` that the model was compiled for.
        cpu: The name of the CPU that it was compiled for.
        features: The instruction set extensions that its kernels may use, by LLVM's names.
        fallbacks: The tasks that no sketch scheduled.
        provenance: How the model was made: search, seed, source file, versions; anything that JSON holds.
        kernels: The work of each kernel that a sketch scheduled, by the kernel's name.
        anywhere: The inputs whose memory may begin at any element. That of all others begins at a multiple of 64
            bytes.
        ignored: The names of the inputs that the user's model has and does not use: a call may give them.
        foreign: The parts that onnxruntime runs.
        sizes: The sizes, if there are several. `inputs` and `outputs` are those of the first.
        batched: The inputs along whose first axis a call may have fewer rows than a size: the model was checked to
            compute each row of its outputs from the same row of these inputs. Empty if it was not, or did not pass.
        units: The extensions of arithmetic units that some kernel cannot do without, by LLVM's names.
        layers: The computing nodes of the model that it was imported from. Empty if an earlier version made the model.
        device: What executes the kernels if the CPU does not: "cuda" or "opencl". `cpu` is then the GPU's name.
        calls: For each size the calls of kernels in the order of an execution, with the layers that they compute.
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
    ignored: tuple[str, ...] = ()
    foreign: tuple[OnnxruntimePart, ...] = ()
    sizes: tuple[Size, ...] = ()
    batched: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    calls: tuple[tuple[KernelCall, ...], ...] = ()
    device: str = ""
    stormdrop: str = __version__
    tvm: str = field(default_factory=lambda: _tvm().__version__)

    @property
    def all_sizes(self) -> tuple[Size, ...]:
        """The sizes, also if there is only one."""
        return self.sizes or (Size(self.inputs, self.outputs),)

    def at(self, shapes: Mapping[str, Sequence[int]]) -> Metadata:
        """The metadata of a size: `inputs` and `outputs` have its shapes.

        Args:
            shapes: Shapes of inputs, by name. The first size that has them is taken.

        Raises:
            InputError: No size has them.
        """
        known = {info.name for info in self.inputs}
        for name in shapes:
            if name not in known and name not in self.ignored:
                raise InputError(f"{self.name} has no input {shown(name)!r}; its inputs are {', '.join(sorted(known))}")
        for size in self.all_sizes:
            if all(info.shape == tuple(shapes.get(info.name, info.shape)) for info in size.inputs):
                return replace(self, inputs=size.inputs, outputs=size.outputs)
        raise InputError(f"{self.name} {self.lacks(shapes_in_words(shapes), fewer_rows=False)}")

    def lacks(self, wanted: str, fewer_rows: bool = True) -> str:
        """The end of a message about a size that a model does not have.

        Args:
            wanted: The size.
            fewer_rows: Whether the model is called, and a size may therefore have fewer rows than one of its own.
        """
        return lacking_size(self.all_sizes, self.batched if fewer_rows else (), wanted)

    def to_json(self, checksums: Mapping[str, str]) -> str:
        """Writes the text of `metadata.json`. Its digest is in it, and covers the other files by their checksums.

        Args:
            checksums: The SHA-256 of each other file, by file name.

        Raises:
            TypeError: `provenance` holds something that JSON cannot.
            ValueError: `provenance` holds a number that is not finite.
        """
        fields = asdict(self)
        for name in (
            "sizes",
            "batched",
            "units",
            "layers",
            "calls",
            "device",
        ):  # without them the file is as earlier versions wrote it
            if not fields[name]:
                del fields[name]
        document = {"format": _FORMAT, "digest": _NO_DIGEST, **fields, "checksums": dict(checksums)}
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        return text.replace(_NO_DIGEST, hashlib.sha256(text.encode()).hexdigest(), 1)

    @classmethod
    def from_json(cls, data: bytes) -> tuple[Metadata, dict[str, str], str]:
        """Reads the content of `metadata.json`.

        Returns:
            The metadata, the checksums by file name, and the digest.

        Raises:
            ValueError: The content is something else, or was changed by accident; the message is one line.
        """
        try:
            document = json.loads(data, parse_float=_finite, parse_constant=_finite)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        form = document.get("format") if isinstance(document, dict) else None
        if form != _FORMAT:
            if form == 1:
                raise ValueError("an earlier version of stormdrop made the model: tune or compile it again")
            raise ValueError(f"it is of format {form!r}, not {_FORMAT}")
        try:
            file = msgspec.convert(document, _File)
            metadata = msgspec.convert(document, cls)
        except msgspec.ValidationError as error:  # which is no ValueError in every version of msgspec
            raise ValueError(str(error)) from error
        digest = hashlib.sha256(data.replace(file.digest.encode(), _NO_DIGEST.encode(), 1)).hexdigest()
        if file.digest not in (_NO_DIGEST, digest):
            raise ValueError("its digest differs")
        if metadata.sizes and metadata.sizes[0] != Size(metadata.inputs, metadata.outputs):
            raise ValueError("its first size is another one")
        check_sizes(metadata.all_sizes, metadata.batched)
        layers = {layer for calls in metadata.calls for call in calls for layer in call.layers}
        if not layers <= set(range(len(metadata.layers))):
            raise ValueError("a kernel computes a layer that is none of the model's")
        return metadata, file.checksums, digest


class _File(msgspec.Struct):
    """What `metadata.json` must hold and `Metadata` does not, or has a default for."""

    checksums: dict[str, str]
    stormdrop: str
    tvm: str
    digest: _Digest = _NO_DIGEST  # models that version 0.1 saved have none


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it holds {text}, which is no finite number")
    return value


def _tvm() -> Any:
    import tvm  # takes a second, and a native model runs without it

    return tvm


def lacking_features(features: Collection[str]) -> list[str]:
    """The instruction set extensions among `features` (LLVM's names) that this machine's CPU does not have, sorted."""
    return sorted(set(features) - host_features()) if has_llvm() else cpu_flags.missing_features(features)


def needed_features(target: Any) -> tuple[str, ...]:
    """The instruction set extensions of this machine that code for a TVM target may use, sorted.

    LLVM's model of a CPU also names tuning hints, and extensions that a virtual machine may hide. A model that was
    compiled and verified on this machine needs neither.
    """
    features = _tvm().target.codegen.llvm_get_cpu_features(target)
    return tuple(sorted({str(name) for name in features} & host_features()))
