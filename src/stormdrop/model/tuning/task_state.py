"""Where each task of a model stands while the scheduler is at work.

Waiting    it is to be tuned, or will have its default schedule for a reason
Running    its session is open
Answered   it has a result: of the records, or of its session
Plain      no sketch takes it, or none of its candidates works: it has a plain schedule
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...records import StoredSession
from ...report.layer_label import layer_label
from ...tuning.kernel import KernelTask
from ...tuning.result import KernelProgress, TuneResult
from ...tuning.session import Session
from ..building.tuned_task import TunedTask
from ..graph.tasks import Task
from .gain import TaskProgress

BYTE = 10
"""One byte that is moved counts as this many operations."""

_MEASURED = 0.25  # the part of a task's cost that counts if an earlier run has tuned it: much of its gain is found
_LARGE = 64 << 20  # bytes: a task that moves more has all of its part at once, and releases its arrays


@dataclass(frozen=True)
class Waiting:
    """A task without a result whose session is not open.

    Attributes:
        kernel: What is to be tuned.
        reason: Why it will not be tuned any more; None if it will.
        progress: How its tuning went, if it had begun.
    """

    kernel: KernelTask
    reason: str | None = None
    progress: TaskProgress | None = None


@dataclass(eq=False)
class Running:
    """A task that is tuned.

    Attributes:
        kernel: What is tuned.
        session: Its session.
        progress: How its tuning has gone so far.
    """

    kernel: KernelTask
    session: Session
    progress: TaskProgress


@dataclass(frozen=True)
class Answered:
    """A task with a result.

    Attributes:
        kernel: What was tuned.
        result: What came out.
        progress: How its tuning went; None if the records have answered it.
        reason: Why its tuning ended early; None if it did not.
    """

    kernel: KernelTask
    result: TuneResult
    progress: TaskProgress | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Plain:
    """A task with a plain schedule.

    Attributes:
        reason: Why.
        result: The result of its tuning, in which no candidate worked.
    """

    reason: str
    result: TuneResult | None = None


State = Waiting | Running | Answered | Plain


@dataclass(eq=False)
class ScheduledTask:
    """A task while the scheduler is at work.

    Attributes:
        task: The task.
        state: Where it stands.
        guaranteed: The trials and the seconds that it can count on.
        untuned: Seconds that its calls take in the model with default schedules; None if that was not measured.
        recorded: The sessions in which earlier runs have tuned it, the newest first.
    """

    task: Task
    state: State
    guaranteed: tuple[int | None, float | None] = (None, None)
    untuned: float | None = None
    recorded: Sequence[StoredSession] = ()

    @property
    def kernel(self) -> KernelTask | None:
        """What is tuned; None if it has a plain schedule."""
        return None if isinstance(self.state, Plain) else self.state.kernel

    @property
    def label(self) -> str:
        """What people call it: its layers, or its name if they are not known."""
        return layer_label(self.task.layers) or self.task.name

    @property
    def work(self) -> float:
        """Operations and bytes of all its calls; 0 if it has a plain schedule."""
        return 0.0 if self.kernel is None else self.task.weight * work_of(self.kernel)

    @property
    def cost(self) -> float:
        """Seconds that its calls take untuned, as far as they are known; a share of them if it was measured before."""
        return (self.untuned or 0.0) * (_MEASURED if self.recorded else 1.0)

    @property
    def is_large(self) -> bool:
        """Whether it moves so much memory that it comes last."""
        return self.kernel is not None and self.kernel.workload.bytes > _LARGE

    @property
    def ended_progress(self) -> TaskProgress | None:
        """How its tuning went, if it was tuned and is not any more."""
        return self.state.progress if isinstance(self.state, Waiting | Answered) else None

    @property
    def latency(self) -> float:
        """Seconds that its calls take now, as far as it is known; infinite if it is not.

        A kernel does not take the same time alone as inside the model. If the default schedule was timed in both, its
        time inside the model is scaled by what the tuning has brought. A winner that is slower will not stand.
        """
        if self.untuned is None:
            return self._tuned
        return self.untuned * min(1.0, self._tuned / (self._default or self.untuned))

    @property
    def _tuned(self) -> float:
        """Seconds that its calls take with what its tuning found; infinite as long as none of its schedules works."""
        match self.state:
            case Answered(result=result) if result.best is not None:
                return self.task.weight * result.best.seconds
            case Plain():
                return math.inf
            case Waiting(progress=progress) | Running(progress=progress) | Answered(progress=progress):
                return math.inf if progress is None else progress.calls * progress.best

    @property
    def _default(self) -> float | None:
        """Seconds that its calls take alone with the default schedule; None if that was not measured."""
        match self.state:
            case Answered(result=result) if result.baseline is not None:
                return self.task.weight * result.baseline
            case Running(session=session) if session.default_seconds is not None:
                return self.task.weight * session.default_seconds
        return None

    @property
    def fastest(self) -> tuple[str, Any] | None:
        """The sketch and the configuration of its fastest schedule so far."""
        match self.state:
            case Running(session=session):
                return session.fastest
            case Answered(result=result) if result.best is not None:
                return result.best.sketch, result.best.config
        return None

    @property
    def is_unknown(self) -> bool:
        """Whether nothing was measured of it yet, and something will be."""
        if self.untuned is not None:
            return False
        match self.state:
            case Running(progress=progress):
                return not progress.seconds
            case Waiting(reason=None):
                return True
        return False

    def wait(self, reason: str) -> None:
        """Says why it will not be tuned, if it waits and nobody has said so before."""
        if isinstance(self.state, Waiting) and self.state.reason is None:
            self.state = replace(self.state, reason=reason)

    def untuned_task(self) -> TunedTask:
        """The task as it is before its tuning."""
        return TunedTask(self.task, self.kernel, None)

    def conclude(self) -> None:
        """Says why it has no tuned schedule, if it has none."""
        self.wait("no time left: default schedule")
        if not isinstance(self.state, Answered) or (result := self.state.result).best is not None:
            return
        if result.trials:
            self.state = Plain("no candidate worked: plain schedule", result)
        else:
            ended = "interrupted before a candidate was measured" if result.interrupted else "no time left"
            self.state = replace(self.state, reason=f"{ended}: default schedule")

    def so_far(self, now: bool) -> KernelProgress:
        """How far it is, for people.

        Args:
            now: Whether it is searched at this moment.
        """
        best = self.latency / self.task.weight if self._tuned < math.inf else None
        untuned = None if self.untuned is None else self.untuned / self.task.weight
        standing, trials = "plain", 0
        match self.state:
            case Waiting(reason=None):
                standing = "waiting"
            case Running(session=session):
                standing, trials = "tuning" if now else "paused", session.trials
            case Answered(result=result, progress=progress):
                standing, trials = "recorded" if progress is None else "done", result.trials
        return KernelProgress(self.task.name, self.task.weight, standing, trials, best, self.task.layers, untuned)

    def tuned(self) -> TunedTask:
        """The task after its tuning."""
        match self.state:
            case Answered(kernel=kernel, result=result, reason=reason):
                return TunedTask(self.task, kernel, result, reason, self.untuned)
            case Plain(reason=reason, result=found):
                return TunedTask(self.task, None, found, reason, self.untuned)
            case Waiting(kernel=kernel, reason=reason):
                return TunedTask(self.task, kernel, None, reason, self.untuned)
        raise RuntimeError(f"{self.task.name} is still tuned")


def work_of(kernel: KernelTask) -> float:
    """Operations and bytes of one call."""
    return kernel.workload.flops + BYTE * kernel.workload.bytes
