"""Keeps each step of a model's executions: when it began, how long it took, which threads worked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..runtime.program import Step
from .profile import CallTimer

if TYPE_CHECKING:
    from .artifact.artifact import CompiledModel
    from .artifact.metadata import Metadata

_MOST_CALLS = 100_000  # what is kept of them takes some 50 MB
_TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        name: The function.
        kernel: Whether it is a kernel, or a part that onnxruntime runs; otherwise a tensor is copied.
        begin: When it began, a reading of `time.perf_counter`.
        seconds: The wall seconds that it took.
        threads: The seconds that each thread was on a core meanwhile.
    """

    name: str
    kernel: bool
    begin: float
    seconds: float
    threads: tuple[float, ...]


class CallRecorder(CallTimer):
    """A `CallTimer` that also keeps the calls of the executions it keeps, as long as they are not too many.

    Attributes:
        executions: The calls of each execution, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.executions: list[list[Call]] = []
        self._calls_now: list[Call] = []
        self._kept = 0
        self._threads: list[int] = []
        self._at_begin: list[float] = []
        self._since: dict[int, float] = _thread_seconds()

    def timed(self, model: CompiledModel) -> Callable[[Mapping[str, NDArray[Any]]], object]:
        """See `CallTimer`. The steps of a native model are called one by one, too, to see which threads work."""
        return model.observed(self).run

    def __call__(self, step: Step, before: bool, arguments: Any) -> None:
        # What takes time here lies outside of the step: before its beginning is read, and after its end.
        if before:
            self._at_begin = [_seconds_of(thread) for thread in self._threads]
            super().__call__(step, before, arguments)
            return
        super().__call__(step, before, arguments)
        spent = [_seconds_of(thread) - begun for thread, begun in zip(self._threads, self._at_begin, strict=True)]
        self._calls_now.append(Call(step.symbol, step.kind != "copy", self.begin, self.seconds, tuple(spent)))

    def end_execution(self, keep: bool) -> None:
        """See `CallTimer`. The first execution shows which threads take part."""
        super().end_execution(keep)
        if keep and self._calls_now and self._kept + len(self._calls_now) <= _MOST_CALLS:
            self.executions.append(self._calls_now)
            self._kept += len(self._calls_now)
        if not keep:
            self._threads = [
                thread for thread, seconds in _thread_seconds().items() if seconds > self._since.get(thread, 0.0)
            ]
        self._calls_now = []

    def to_json(self, metadata: Metadata | None = None) -> dict[str, Any]:
        """The calls as values that JSON holds, for `report.traces.profile_trace`.

        Args:
            metadata: What the model says about itself. With it each call of a kernel has the names of its `layers`.
        """
        names = ["thread that calls" if thread == os.getpid() else f"thread {thread}" for thread in self._threads]
        return {
            "threads": names,
            "executions": [self._described(calls, metadata) for calls in self.executions],
        }

    def _described(self, calls: Sequence[Call], metadata: Metadata | None) -> list[dict[str, Any]]:
        """The calls of an execution, with the layers of those of kernels."""
        layers = iter([] if metadata is None else [names for _, names in self.kernel_calls(metadata)])
        return [{**asdict(call), "layers": list(next(layers, ())) if call.kernel else []} for call in calls]


def _thread_seconds() -> dict[int, float]:
    """Seconds on a core of each thread of this process, by its id; empty where the system does not show it."""
    try:
        threads = sorted(int(entry.name) for entry in _TASKS.iterdir())
    except OSError:
        return {}
    return {thread: _seconds_of(thread) for thread in threads}


def _seconds_of(thread: int) -> float:
    """Seconds on a core of a thread of this process; 0 if it has ended."""
    try:
        return time.clock_gettime((~thread << 3) | 6)  # the clock of a thread's CPU time, see Linux's posix-timers.h
    except OSError:
        return 0.0
