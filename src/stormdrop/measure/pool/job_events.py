"""Tells which worker does which job, and how far it is with it, to whoever listens to `events`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import events
from .jobs import Answer, Build, Failed, Job, Race

if TYPE_CHECKING:
    from .pool import Worker


class JobEvents:
    """The events of one workload's jobs. A job is a span of its worker, and each phase of it is a span within.

    Args:
        session: The number of the workload's use of the workers. With it, the number of a kernel is unique.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._open: dict[Worker, list[tuple[int, str]]] = {}  # the span of the job, and that of its phase

    def begin(self, worker: Worker, job: Job) -> None:
        """Tells that a job is sent to a worker."""
        details: dict[str, Any] = {"pid": worker.pid, "session": self._session}
        if isinstance(job, Race):
            details["kernels"] = list(job.keys)
        else:
            details["kernel"] = job.key
        if isinstance(job, Build):
            details |= {"sketch": job.sketch, "config": dict(job.config)}
        what = type(job).__name__.lower()
        self._open[worker] = [(events.started(what, worker.name, **details), what)]

    def step(self, worker: Worker, phase: str) -> None:
        """Tells that a worker begins a phase of its job."""
        spans = self._open.get(worker)
        if spans:
            self._end(worker, keep=1)
            spans.append((events.started(phase, worker.name), phase))

    def end(self, worker: Worker, answer: Answer | None) -> None:
        """Tells that a worker's job has ended. It does nothing if that was told before.

        Args:
            worker: The worker.
            answer: Its answer; None if it ended, or was ended, before it answered.
        """
        if worker not in self._open:
            return
        self._end(worker, keep=1)
        details = {"status": "lost" if answer is None else "ok"}
        if isinstance(answer, Failed):
            details = {"status": answer.status.value, "error": answer.error}
        self._end(worker, keep=0, **details)
        del self._open[worker]

    def _end(self, worker: Worker, keep: int, **details: Any) -> None:
        spans = self._open[worker]
        while len(spans) > keep:
            number, what = spans.pop()
            events.finished(number, what, worker.name, **details)
