"""The documents that pages are made of, as types, and a check that a document from a file has its type.

Other keys than these may be there, and are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from typing_extensions import NotRequired, TypedDict

from ..errors import InputError, one_line

T = TypeVar("T")


class Timing(TypedDict):
    """A median in seconds, and its 95% interval; null if it could not be measured."""

    seconds: float | None
    interval: list[float | None]
    disturbed: NotRequired[bool]


class Verified(TypedDict):
    """How far a model's outputs are from a reference."""

    max_error: float | None
    against: str


class NamedKernel(TypedDict):
    """A kernel with the names of the layers that it computes."""

    name: str
    layers: list[str]


class Precision(TypedDict):
    """Which layers of a model are in bfloat16, float16 or TF32, and what that costs."""

    asked: str
    layers: int
    bfloat16: NotRequired[int]
    float16: NotRequired[int]
    tf32: NotRequired[int]
    tasks: list[str]
    in_bfloat16: NotRequired[list[NamedKernel]]
    in_float16: NotRequired[list[NamedKernel]]
    in_tf32: NotRequired[list[NamedKernel]]
    in_float32: NotRequired[list[NamedKernel]]
    error: float
    agreement: float | None


class Schedule(TypedDict):
    """A sketch and the values of its knobs."""

    sketch: str
    config: dict[str, Any]


class Measured(TypedDict):
    """A schedule with its time in seconds; `speedup` is over the default schedule: ratio, low, high."""

    sketch: str
    config: dict[str, Any]
    seconds: float
    interval: list[float]
    speedup: list[float] | None


class Baseline(TypedDict):
    """The time of the default schedule in seconds; `failed` if it does not work."""

    seconds: float | None
    failed: NotRequired[bool]


class Searched(TypedDict):
    """What the search of a kernel tried."""

    best: Measured | None
    baseline: Baseline
    compared: NotRequired[list[float] | None]
    kept_default: NotRequired[bool]
    trials: int
    failed: int
    reused: int
    suspect: int
    seconds: float
    phases: dict[str, float]
    statuses: dict[str, int]
    converged: bool
    end: NotRequired[str]
    interrupted: bool
    disturbed: bool
    curve: list[list[float]]
    error: str
    finalists: list[Measured]
    by_sketch: list[Measured]


class Tensor(TypedDict):
    """An input or output."""

    name: str
    shape: list[int]
    dtype: str


class Work(TypedDict):
    """What one call of a kernel computes and moves."""

    key: str
    flops: float
    bytes: float
    inputs: list[Tensor]
    outputs: list[Tensor]


class Kernel(TypedDict):
    """A distinct kernel of a model: what its search tried, and what the model has."""

    workload: Work | None
    spaces: dict[str, float]
    chosen: Schedule | None
    default: NotRequired[bool]
    won_inside: bool
    tir: str | None
    search: Searched | None


class Task(TypedDict):
    """An entry of `tasks`."""

    name: str
    weight: int
    reason: str | None
    layers: NotRequired[list[str]]
    seconds: NotRequired[float | None]
    untuned: NotRequired[float | None]


class Layer(TypedDict):
    """A computing node of the model, and the kernels that compute it: none if it is folded away."""

    name: str
    operator: str
    node: str
    kernels: list[str]


class LayerTime(TypedDict):
    """Layers that are computed together: seconds of an execution, and the kernels inside the model."""

    layers: list[str]
    kernels: list[str]
    seconds: float


class KernelTime(TypedDict):
    """A kernel inside the model: seconds of all calls of an execution, and the position of its task."""

    name: str
    calls: int
    seconds: float
    flops: float | None
    bytes: float | None
    task: int | None


class Profile(TypedDict):
    """Where the seconds of an execution go."""

    seconds: float
    outside: float
    kernels: list[KernelTime]
    layers: NotRequired[list[LayerTime]]


class Limits(TypedDict):
    """What the machine can do per second."""

    flops: float
    bandwidth: float
    undisturbed: bool


class PartPiece(TypedDict):
    """What a part takes time with that the CPU runs for a GPU."""

    name: str
    seconds: float
    bytes: int


class Foreign(TypedDict):
    """A part of the model that onnxruntime runs."""

    operators: dict[str, int]
    reason: str
    seconds: float | None
    share: float | None
    pieces: NotRequired[list[PartPiece]]


class Replaced(TypedDict):
    """A schedule that had to give way because the model was wrong with it."""

    task: str
    error: float | None
    before: str
    after: str
    layers: NotRequired[list[str]]


class SizeOfModel(TypedDict):
    """One of the sizes of a model."""

    shapes: dict[str, list[int]]
    latency: Timing | None
    untuned: Timing | None
    max_error: float | None


class Tuning(TypedDict):
    """The document of `stormdrop tune --json`, as the model's folder keeps it."""

    created: str
    command: str | None
    model: str
    target: str
    search: str
    seed: int
    trials: int
    failed: int
    reused: int
    suspect: int
    seconds: float
    phases: dict[str, float]
    latency: Timing
    untuned: Timing | None
    speedup: list[float] | None
    not_compared: NotRequired[str | None]
    verified: Verified
    precision: NotRequired[Precision | None]
    tasks: list[Task]
    layers: NotRequired[list[Layer]]
    kernels: list[Kernel]
    inside: list[str]
    replaced: list[Replaced]
    foreign: list[Foreign]
    sizes: list[SizeOfModel]
    interrupted: bool
    converged: bool
    curve: list[list[float]]
    machine: dict[str, Any]
    limits: Limits | None
    profile: Profile | None


class Percentile(TypedDict):
    """A percentile of the latency of a service."""

    seconds: float
    interval: list[float]


class Service(TypedDict):
    """An entry of `services` in the documents of a bench and of a run."""

    at_a_time: int
    calls: int
    per_second: float
    per_second_interval: list[float]
    percentiles: dict[str, Percentile | None]
    ratio: float | None
    ratio_interval: list[float] | None
    form: str
    forms: dict[str, float]


class Load(TypedDict):
    """How the contenders of a bench were called as services."""

    seconds: float
    calls: list[int]
    turns: int
    disturbed: float
    unserved: dict[str, str]


class Contender(TypedDict):
    """An entry of `contenders` in the document of a bench."""

    name: str
    seconds: float
    interval: list[float]
    ratio: float
    ratio_interval: list[float]
    gflops: float | None
    max_error: float | None
    agrees: bool
    versions: dict[str, str]
    settings: dict[str, Any]
    samples: NotRequired[list[float]]
    services: NotRequired[list[Service]]
    device: NotRequired[str]
    call: NotRequired[Timing | None]


class Bench(TypedDict):
    """The document of `stormdrop bench --json`."""

    what: str
    runs: int
    disturbed: int
    contenders: list[Contender]
    skipped: dict[str, str]
    load: NotRequired[Load | None]


def checked(document: Mapping[str, Any], kind: type[T], what: str) -> T:
    """Checks that a document has the keys and types of a kind of documents.

    Args:
        document: The document.
        kind: One of the types of this module.
        what: What to call it in the message.

    Returns:
        The keys that the kind has; others are left out.

    Raises:
        InputError: A key is missing or has another type.

    Example:
        >>> checked({"seconds": 0.5, "interval": [0.4, 0.6], "more": 1}, Timing, "it")
        {'seconds': 0.5, 'interval': [0.4, 0.6]}
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{what}: is no such document as a report needs: {one_line(error)}") from None
