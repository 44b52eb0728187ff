"""Where the time of a compiled model goes: each kernel is timed inside the model, with the caches as they are there."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from ..machine.sharing.lock import MachineLock
from ..measure.timing import FEWEST_ROUNDS, MOST_ROUNDS
from ..runtime.device.parts import TO_DEVICE, TO_HOST
from ..runtime.program import COPY, FUNCTION, Step

if TYPE_CHECKING:
    from .artifact.artifact import CompiledModel
    from .artifact.metadata import Metadata, OnnxruntimePart, Work

T = TypeVar("T", bound=Hashable)

_ROUNDS = MOST_ROUNDS


class _Timed:
    """What was timed in several executions."""

    rounds: Sequence[float]

    @property
    def seconds(self) -> float:
        """The median of `rounds`."""
        return statistics.median(self.rounds)


@dataclass(frozen=True)
class KernelTime(_Timed):
    """The time of one kernel in an execution of the model.

    Attributes:
        name: The kernel's name in the model.
        calls: How often an execution calls it.
        rounds: Seconds of all its calls together, one value per timed execution.
        work: The work of one call; None if no sketch takes the kernel.
        layers: The names of the layers of the model that its calls compute.
        copied: The bytes of a copy for a part that the CPU runs for a GPU; None for a kernel.
    """

    name: str
    calls: int
    rounds: Sequence[float]
    work: Work | None = None
    layers: tuple[str, ...] = ()
    copied: int | None = None

    @property
    def moves(self) -> bool:
        """Whether it moves data and computes nothing."""
        return self.copied is not None or (self.work is not None and not self.work.flops)


@dataclass(frozen=True)
class LayerTime(_Timed):
    """The time of layers that are computed together.

    Attributes:
        layers: Their names, in the order of the model.
        kernels: The kernels that compute them. Other calls of these may compute other layers.
        rounds: Seconds of these calls, one value per timed execution.
    """

    layers: tuple[str, ...]
    kernels: tuple[str, ...]
    rounds: Sequence[float]


@dataclass(frozen=True)
class Profile:
    """The time of an execution of a model.

    Attributes:
        seconds: Median seconds of an execution without instrumentation.
        kernels: The time of each kernel in the instrumented executions, the slowest kernel first.
        layers: The same time as in `kernels`, by layers. Each call of a kernel counts for the layers that it computes,
            so the sums are equal. The slowest layers come first. Empty for a model that an earlier version made.
    """

    seconds: float
    kernels: Sequence[KernelTime]
    layers: Sequence[LayerTime] = ()

    @property
    def outside(self) -> float:
        """Seconds that are spent in no kernel: calls, copies, inputs and outputs."""
        return max(0.0, self.seconds - sum(kernel.seconds for kernel in self.kernels))

    @property
    def moving(self) -> float:
        """Seconds of what computes nothing: changes of layout, slices, copies."""
        return sum(kernel.seconds for kernel in self.kernels if kernel.moves)

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop run --profile`."""
        kernels = [
            {
                "name": kernel.name,
                "calls": kernel.calls,
                "seconds": kernel.seconds,
                "flops": kernel.work and kernel.work.flops,
                "bytes": kernel.work.bytes if kernel.work else kernel.copied,
                "layers": list(kernel.layers),
            }
            for kernel in self.kernels
        ]
        layers = [
            {"layers": list(each.layers), "kernels": list(each.kernels), "seconds": each.seconds}
            for each in self.layers
        ]
        return {
            "seconds": self.seconds,
            "outside": self.outside,
            "moving": self.moving,
            "kernels": kernels,
            "layers": layers,
        }


def profile(
    model: CompiledModel,
    feeds: Mapping[str, NDArray[Any]],
    rounds: int = _ROUNDS,
    deadline: float = math.inf,
    timer: CallTimer | None = None,
) -> Profile:
    """Times a model and each of its kernels, under the machine-wide lock.

    Args:
        model: The model.
        feeds: Its inputs by name.
        rounds: How many executions are timed with instrumentation, and how many without.
        deadline: A reading of `time.perf_counter` after which the lock is not waited for any more.
        timer: Times the calls; a `CallRecorder` also keeps each of them.

    Raises:
        LockTimeout: The machine was not free before the deadline.
    """
    (result,) = profiles([model], feeds, rounds, deadline, None if timer is None else [timer])
    return result


def profiles(
    models: Sequence[CompiledModel],
    feeds: Mapping[str, NDArray[Any]],
    rounds: int,
    deadline: float = math.inf,
    timers: Sequence[CallTimer] | None = None,
) -> list[Profile]:
    """Times several forms of a model, which take turns in every round; otherwise as `profile`.

    Returns:
        The profile of each model, in the order of `models`.
    """
    timers = [CallTimer() for _ in models] if timers is None else timers
    instrumented = [timer.timed(model) for model, timer in zip(models, timers, strict=True)]
    executions: list[list[float]] = [[] for _ in models]
    with closing(MachineLock()) as lock, lock.exclusive(deadline):
        for position in range(rounds + 1):
            for model, inside, timer, seconds in zip(models, instrumented, timers, executions, strict=True):
                inside(feeds)
                seconds.append(model.seconds(feeds))
                timer.end_execution(keep=position > 0)  # the first round loads code and memory
    return [
        Profile(statistics.median(seconds[1:]), timer.kernels(model.metadata), timer.layers(model.metadata))
        for model, seconds, timer in zip(models, executions, timers, strict=True)
    ]


def seconds_by_task(model: CompiledModel, measured: Profile) -> dict[int, list[float]]:
    """Seconds of all kernels of each task together, in each round of a profile, by the index of the task.

    Args:
        model: The model.
        measured: Its profile.
    """
    seconds: dict[int, list[float]] = {}
    for kernel in measured.kernels:
        index = model.symbols.get(kernel.name)
        if index is not None:
            so_far = seconds.get(index, [0.0] * len(kernel.rounds))
            seconds[index] = [a + b for a, b in zip(so_far, kernel.rounds, strict=True)]
    return seconds


@dataclass(frozen=True)
class PartPiece:
    """What a part that the CPU runs for a GPU takes time with.

    Attributes:
        name: "copy to the host", "onnxruntime" or "copy to the GPU".
        seconds: Median seconds.
        bytes: What is copied; 0 for onnxruntime.
    """

    name: str
    seconds: float
    bytes: int


@dataclass(frozen=True)
class PartTime:
    """The time of a part of a model that onnxruntime runs.

    Attributes:
        part: The part.
        seconds: Median seconds of an execution of the model that are spent in the part, with the copies for it.
        share: The same as a share of the execution.
        pieces: What these seconds are spent with, if the CPU runs the part for a GPU; else nothing.
    """

    part: OnnxruntimePart
    seconds: float
    share: float
    pieces: tuple[PartPiece, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """An entry of `foreign` in the document of `stormdrop tune --json`."""
        return {
            "operators": dict(self.part.operators),
            "nodes": self.part.nodes,
            "reason": self.part.reason,
            "threads": self.part.threads,
            "seconds": self.seconds,
            "share": self.share,
            **({"pieces": [asdict(piece) for piece in self.pieces]} if self.pieces else {}),
        }


def part_times(model: CompiledModel, feeds: Mapping[str, NDArray[Any]]) -> list[PartTime]:
    """Times the parts of a model that onnxruntime runs.

    Args:
        model: The model.
        feeds: Its inputs by name.

    Returns:
        The time of each part of this size, in the order of `Metadata.foreign`.
    """
    if not model.foreign.reports:
        return []
    timer, executions = CallTimer(), list[float]()
    instrumented = timer.timed(model)
    for position in range(FEWEST_ROUNDS + 1):
        start = time.perf_counter()
        instrumented(feeds)
        executions.append(time.perf_counter() - start)
        timer.end_execution(keep=position > 0)  # the first round loads code and memory
    kernels = {kernel.name: kernel for kernel in timer.kernels(model.metadata)}
    names = [(part, f"{FUNCTION}{index}") for index, part in enumerate(model.foreign.reports)]
    whole = statistics.median(executions[1:])
    return [_part_time(part, name, kernels, whole) for part, name in names if name in kernels]


def _part_time(part: OnnxruntimePart, name: str, kernels: Mapping[str, KernelTime], whole: float) -> PartTime:
    """The time of a part, with that of the copies for it."""
    pieces = tuple(
        PartPiece(piece, kernels[each].seconds, kernels[each].copied or 0)
        for piece, each in ((TO_HOST, f"{name}: {TO_HOST}"), ("onnxruntime", name), (TO_DEVICE, f"{name}: {TO_DEVICE}"))
        if each in kernels
    )
    seconds = sum(piece.seconds for piece in pieces)
    return PartTime(part, seconds, seconds / whole, pieces if len(pieces) > 1 else ())


class CallTimer:
    """Times the steps of a program, which tells this object before and after each of them.

    Attributes:
        begin: When the last step began, a reading of `time.perf_counter`.
        seconds: The wall seconds that it took.
    """

    def __init__(self) -> None:
        self._executions: list[list[tuple[str, float]]] = []  # functions and seconds, for each execution that was kept
        self._current: list[tuple[str, float]] = []
        self._copied: dict[str, int] = {}  # bytes of copies for parts, by their names
        self.begin = self.seconds = 0.0

    def timed(self, model: CompiledModel) -> Callable[[Mapping[str, NDArray[Any]]], object]:
        """What runs a model on inputs by name, while its steps are timed.

        Args:
            model: The model. A native one times its steps itself, and so does one on a GPU.
        """
        if not model.times_itself:
            return model.observed(self).run

        def timed(feeds: Mapping[str, NDArray[Any]]) -> None:
            self._current.extend(model.profile(feeds))
            self._copied |= model.copied_bytes(feeds)

        return timed

    def __call__(self, step: Step, before: bool, arguments: Any) -> None:
        now = time.perf_counter()
        if before:
            self.begin = time.perf_counter()
        else:
            self.seconds = now - self.begin
            self._current.append((step.symbol, self.seconds))

    def end_execution(self, keep: bool) -> None:
        """Ends an execution of the model. Its times are dropped unless `keep` is true."""
        if keep:
            self._executions.append(self._current)
        self._current = []

    def kernels(self, metadata: Metadata) -> list[KernelTime]:
        """The times of each kernel, the slowest kernel first.

        Args:
            metadata: What the model says about itself.
        """
        calls = self.kernel_calls(metadata)
        rounds, names = self._rounds([name for name, _ in calls]), Counter(name for name, _ in calls)
        layers = {name: dict.fromkeys(each for callee, of in calls if callee == name for each in of) for name in names}
        times = [
            KernelTime(
                name, names[name], seconds, metadata.kernels.get(name), tuple(layers[name]), self._copied.get(name)
            )
            for name, seconds in rounds.items()
        ]
        return sorted(times, key=lambda kernel: -kernel.seconds)

    def layers(self, metadata: Metadata) -> list[LayerTime]:
        """The times of the layers that are computed together, the slowest first.

        Args:
            metadata: What the model says about itself. It knows no layers if an earlier version made the model.
        """
        calls = self.kernel_calls(metadata)
        if not any(layers for _, layers in calls):
            return []
        times = [
            LayerTime(layers, tuple(dict.fromkeys(name for name, computed in calls if computed == layers)), seconds)
            for layers, seconds in self._rounds([layers for _, layers in calls]).items()
        ]
        return sorted(times, key=lambda each: -each.seconds)

    def kernel_calls(self, metadata: Metadata) -> list[tuple[str, tuple[str, ...]]]:
        """The calls of kernels in an execution, each with the names of the layers that it computes."""
        names = [name for name, _ in self._executions[0] if name != COPY]
        for calls in metadata.calls:
            known = {call.kernel for call in calls}
            if [name for name in names if name in known] == [call.kernel for call in calls]:
                layers = iter(tuple(metadata.layers[each].name for each in call.layers) for call in calls)
                return [(name, next(layers) if name in known else ()) for name in names]
        return [(name, ()) for name in names]

    def _rounds(self, keys: Sequence[T]) -> dict[T, list[float]]:
        """The seconds of each kept execution by a key, of which every call of a kernel has one."""
        rounds: dict[T, list[float]] = {key: [] for key in keys}
        for execution in self._executions:
            together = dict.fromkeys(keys, 0.0)
            kernels = (seconds for name, seconds in execution if name != COPY)
            for key, seconds in zip(keys, kernels, strict=True):
                together[key] += seconds
            for key, spent in together.items():
                rounds[key].append(spent)
        return rounds
