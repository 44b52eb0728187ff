"""Getting jobs of one workload done by the pool's workers, with deadlines, whatever the workers do meanwhile."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from ..errors import MeasureError
from ..trial import Status
from .jobs import Answer, Build, Built, Data, Failed, Job, Key, Load, Step
from .pool import START_SECONDS, Worker, WorkerPool

_LOOK_UP = 0.2  # seconds after which who waits looks whether it is to stop
_LOST = 3  # times that a worker may die before it starts on one and the same job

_sessions = itertools.count(1)


class Lost(Exception):
    """A worker died between two jobs: nobody's fault, and its kernels are gone. Never leaves this package."""


@dataclass
class _Pending:
    job: Build
    deadline: float
    phase: str = ""


_STATUS = {"schedule": Status.INSTANTIATION, "build": Status.COMPILE_HOST}
_DOING = {"schedule": "applying the sketch", "build": "compiling", "run": "running", "check": "checking the output"}


class Dispatcher:
    """One workload's use of a pool. Several may share a pool, one after the other or in turns.

    A worker is sent `inputs` before its first job, and what `outputs` gives before its first run.
    """

    def __init__(
        self,
        pool: WorkerPool,
        payload: bytes,
        inputs: Data,
        outputs: Callable[[], Data],
        stop: threading.Event | None = None,
    ) -> None:
        """Another thread may set `stop`: then what is waited for is given up, with a MeasureError."""
        self.pool = pool
        self._asked = stop
        self._session = next(_sessions)
        self._payload = payload
        self._inputs = inputs
        self._outputs = outputs
        self._homes: dict[Key, tuple[Worker, int]] = {}
        self._busy: set[Worker] = set()
        self._losses = 0  # in `execute`, since the last answer

    def home(self, key: Key) -> Worker | None:
        """The worker that holds this kernel, built; None where there is none, or none any more."""
        worker, epoch = self._homes.get(key, (None, 0))
        return worker if worker is not None and worker.alive and worker.epoch == epoch else None

    def build(
        self, jobs: Sequence[Build], seconds: float, workers: Sequence[Worker] | None = None
    ) -> Iterator[tuple[Key, Built | Failed]]:
        """Builds candidates side by side; each result as soon as it is known, in any order.

        `seconds` is the time that each may take. Raises MeasureError where no worker can be had.
        """
        workers = self.pool.workers if workers is None else workers
        queue = deque(jobs)
        pending: dict[Worker, _Pending] = {}
        lost: dict[Key, int] = {}
        # A worker that still starts would disturb the runs that follow: it is waited for.
        while queue or pending or any(worker.alive and not worker.ready for worker in self.pool.workers):
            for worker in workers:
                # Few kernels are built faster by the workers that live than by one that must start first.
                if not worker.alive and len(queue) > sum(other.alive for other in workers):
                    self.pool.revive(worker)
                if worker.ready and worker not in pending and queue:
                    job = queue.popleft()
                    if self._dispatch(worker, job):
                        pending[worker] = _Pending(job, time.perf_counter() + seconds)
                    else:
                        self._forget(worker, job.key, lost)
                        queue.appendleft(job)
            for worker in self._heard(pending):
                message = worker.receive()
                if not worker.ready:
                    self.pool.greet(worker, message)
                    continue
                if isinstance(message, Step):
                    pending[worker].phase = message.phase
                    continue
                at = pending.pop(worker)
                if message is None and not at.phase:
                    self._forget(worker, at.job.key, lost)
                    queue.appendleft(at.job)
                    continue
                self._busy.discard(worker)
                if message is None:
                    message = _died(worker, at.phase)
                if isinstance(message, Built):
                    self._homes[at.job.key] = (worker, worker.epoch)
                    for key in message.dropped:
                        self._homes.pop(key, None)
                yield at.job.key, message
            for worker, at in list(pending.items()):
                if time.perf_counter() > at.deadline and not worker.process.connection.poll():
                    del pending[worker]
                    self._stop(worker)
                    yield at.job.key, Failed(Status.BUILD_TIMEOUT, f"not built within {seconds:g} s")

    def execute(self, worker: Worker, job: Job, seconds: float) -> Answer:
        """Does one job in a worker that is ready, the others paused.

        Raises Lost where the worker died before it began, and MeasureError where that goes on and on: all workers
        may have been killed while they were idle, but not again and again.
        """
        self.pool.focus(worker)
        if not worker.expects:
            data = self._outputs()
            if not worker.send(data):
                raise self._lose(worker)
            worker.expects = True
        if not self._dispatch(worker, job):
            raise self._lose(worker)
        phase = ""
        deadline = time.perf_counter() + seconds
        while True:
            if not self._wait([worker.process.connection], deadline):
                self._stop(worker)
                self._losses = 0
                return Failed(Status.RUN_TIMEOUT, f"not done within {seconds:.3g} s")
            message = worker.receive()
            if isinstance(message, Step):
                phase = message.phase
                continue
            self._busy.discard(worker)
            if message is None and not phase:
                raise self._lose(worker)
            self._losses = 0
            if message is not None:
                answer: Answer = message
                return answer
            return _died(worker, phase)

    def abandon(self) -> None:
        """Kills the workers that are at work."""
        for worker in list(self._busy):
            self._stop(worker)

    def _dispatch(self, worker: Worker, job: Job) -> bool:
        """Sends a job, after what the worker must know first. False where the worker has died."""
        if worker.session != self._session:
            worker.expects = False
            worker.epoch += 1
            if not (worker.send(Load(self._payload)) and worker.send(self._inputs)):
                return False
            worker.session = self._session
        self._busy.add(worker)
        if worker.send(job):
            return True
        self._busy.discard(worker)
        return False

    def _heard(self, pending: dict[Worker, _Pending]) -> list[Worker]:
        """Waits until one of the workers that are starting or at work says something, or the next deadline."""
        deadlines = {worker: at.deadline for worker, at in pending.items()}
        for worker in self.pool.workers:
            if worker.alive and not worker.ready:
                deadlines[worker] = worker.process.started + START_SECONDS
        if not deadlines:
            return []
        heard = self._wait([worker.process.connection for worker in deadlines], min(deadlines.values()))
        for worker, deadline in deadlines.items():
            if not worker.ready and worker.process.connection not in heard and time.perf_counter() > deadline:
                worker.kill()
                raise MeasureError(f"a worker process does not start within {START_SECONDS:g} s: {worker.last_line()}")
        return [worker for worker in deadlines if worker.process.connection in heard]

    def _wait(self, connections: Sequence[Connection], deadline: float) -> list[Any]:
        """Those that have something to say; none at the deadline."""
        while True:
            left = max(0.0, deadline - time.perf_counter())
            heard = wait(connections, left if self._asked is None else min(left, _LOOK_UP))
            if heard or left == 0.0:
                return heard
            if self._asked is not None and self._asked.is_set():
                raise MeasureError("stopped by who asked")

    def _forget(self, worker: Worker, key: Key, lost: dict[Key, int]) -> None:
        """A worker died before it started on a job: the job is tried again, but not for ever."""
        self._busy.discard(worker)
        worker.wait()
        lost[key] = lost.get(key, 0) + 1
        if lost[key] >= _LOST:
            raise MeasureError(f"the workers die before they begin: {worker.last_line()}")

    def _lose(self, worker: Worker) -> Lost | MeasureError:
        """What to raise for a worker that died before it began to run a kernel."""
        self._busy.discard(worker)
        worker.wait()
        self._losses += 1
        if self._losses < _LOST + len(self.pool.workers):
            return Lost()
        self._losses = 0
        return MeasureError(f"the workers die before they run a kernel: {worker.last_line()}")

    def _stop(self, worker: Worker) -> None:
        self._busy.discard(worker)
        if worker.alive:
            worker.kill()


def _died(worker: Worker, phase: str) -> Failed:
    how = worker.wait()
    return Failed(_STATUS.get(phase, Status.RUNTIME), f"the worker ended with {how} while {_DOING[phase]}")
