"""Gets the jobs of one workload done by the workers of a pool, within time limits, even if workers crash or hang."""

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

_STOP_INTERVAL = 0.2  # seconds between two looks at the stop event while a worker is waited for
_MOST_LOSSES = 3  # times that a worker may die before it begins one and the same job

_STATUS = {"schedule": Status.INSTANTIATION, "build": Status.COMPILE_HOST}
_ACTIVITY = {"schedule": "applying the sketch", "build": "compiling", "run": "running", "check": "checking the output"}

_session_numbers = itertools.count(1)


class WorkerLost(Exception):
    """A worker died between two jobs. No candidate is at fault, and the worker's kernels are gone.

    It never leaves this package.
    """


@dataclass
class _Pending:
    """A job that a worker is doing, its deadline, and its current phase, which is empty until the first one begins."""

    job: Build
    deadline: float
    phase: str = ""


class Dispatcher:
    """One workload's use of a pool. Several dispatchers may share a pool, one after the other or in turns.

    Attributes:
        pool: the workers.
    """

    def __init__(
        self,
        pool: WorkerPool,
        payload: bytes,
        inputs: Data,
        outputs: Callable[[], Data],
        stop: threading.Event | None = None,
    ) -> None:
        """A dispatcher that has sent nothing yet.

        Args:
            pool: the workers.
            payload: the workload as `Load` describes it.
            inputs: is sent to a worker before its first job.
            outputs: makes the expected outputs, which are sent to a worker before its first run.
            stop: another thread may set it. The next wait for a worker then ends with a `MeasureError`.
        """
        self.pool = pool
        self._stop = stop
        self._session = next(_session_numbers)
        self._payload = payload
        self._inputs = inputs
        self._outputs = outputs
        self._holders: dict[Key, tuple[Worker, int]] = {}
        self._busy: set[Worker] = set()
        self._losses = 0  # workers that `execute` has lost since the last answer

    def holder(self, key: Key) -> Worker | None:
        """The worker that holds this kernel, built; None if there is none, or if it has lost the kernel since."""
        worker, epoch = self._holders.get(key, (None, 0))
        return worker if worker is not None and worker.alive and worker.epoch == epoch else None

    def build(
        self, jobs: Sequence[Build], seconds: float, workers: Sequence[Worker] | None = None
    ) -> Iterator[tuple[Key, Built | Failed]]:
        """Builds candidates side by side.

        Args:
            jobs: the candidates to build.
            seconds: the wall seconds that each of them may take.
            workers: the workers that build; by default all of the pool.

        Yields:
            The key and the result of each job as soon as it is known, in any order.

        Raises:
            MeasureError: no worker starts, the workers die before they begin, or another thread has set `stop`.
        """
        workers = self.pool.workers if workers is None else workers
        queue = deque(jobs)
        pending: dict[Worker, _Pending] = {}
        losses: dict[Key, int] = {}
        # A worker that is still starting would disturb the runs that follow, so it is waited for.
        while queue or pending or any(worker.alive and not worker.ready for worker in self.pool.workers):
            for worker in workers:
                # A few kernels are built faster by the workers that live than by one that must start first.
                if not worker.alive and len(queue) > sum(other.alive for other in workers):
                    self.pool.revive(worker)
                if worker.ready and worker not in pending and queue:
                    job = queue.popleft()
                    if self._send(worker, job):
                        pending[worker] = _Pending(job, time.perf_counter() + seconds)
                    else:
                        self._lose_builder(worker, job.key, losses)
                        queue.appendleft(job)
            for worker in self._wait_for_workers(pending):
                message = worker.receive()
                if not worker.ready:
                    self.pool.greet(worker, message)
                    continue
                if isinstance(message, Step):
                    pending[worker].phase = message.phase
                    continue
                done = pending.pop(worker)
                if message is None and not done.phase:
                    self._lose_builder(worker, done.job.key, losses)
                    queue.appendleft(done.job)
                    continue
                self._busy.discard(worker)
                if message is None:
                    message = _failure_of_dead(worker, done.phase)
                if isinstance(message, Built):
                    self._holders[done.job.key] = (worker, worker.epoch)
                    for key in message.dropped:
                        self._holders.pop(key, None)
                yield done.job.key, message
            for worker, late in list(pending.items()):
                if time.perf_counter() > late.deadline and not worker.process.connection.poll():
                    del pending[worker]
                    self._kill(worker)
                    yield late.job.key, Failed(Status.BUILD_TIMEOUT, f"not built within {seconds:g} s")

    def execute(self, worker: Worker, job: Job, seconds: float) -> Answer:
        """Does one job in one worker while the others are paused.

        Args:
            worker: a worker that is ready.
            job: the job.
            seconds: the wall seconds that it may take.

        Raises:
            WorkerLost: the worker died before it began.
            MeasureError: workers died too often before they began, or another thread has set `stop`. A few losses are
                tolerated, because idle workers may have been killed from outside.
        """
        self.pool.focus(worker)
        if not worker.knows_outputs:
            data = self._outputs()
            if not worker.send(data):
                raise self._loss_of_runner(worker)
            worker.knows_outputs = True
        if not self._send(worker, job):
            raise self._loss_of_runner(worker)
        phase = ""
        deadline = time.perf_counter() + seconds
        while True:
            if not self._wait([worker.process.connection], deadline):
                self._kill(worker)
                self._losses = 0
                return Failed(Status.RUN_TIMEOUT, f"not done within {seconds:.3g} s")
            message = worker.receive()
            if isinstance(message, Step):
                phase = message.phase
                continue
            self._busy.discard(worker)
            if message is None and not phase:
                raise self._loss_of_runner(worker)
            self._losses = 0
            if message is not None:
                answer: Answer = message
                return answer
            return _failure_of_dead(worker, phase)

    def abandon(self) -> None:
        """Kills the workers that are at work."""
        for worker in list(self._busy):
            self._kill(worker)

    def _send(self, worker: Worker, job: Job) -> bool:
        """Sends a job, and before it what the worker must know first. False if the worker has died."""
        if worker.session != self._session:
            worker.knows_outputs = False
            worker.epoch += 1
            if not (worker.send(Load(self._payload)) and worker.send(self._inputs)):
                return False
            worker.session = self._session
        self._busy.add(worker)
        if worker.send(job):
            return True
        self._busy.discard(worker)
        return False

    def _wait_for_workers(self, pending: dict[Worker, _Pending]) -> list[Worker]:
        """Waits for a message of a worker that starts or is at work, or for the next deadline.

        Returns:
            The workers that have sent something, or have died; none at the deadline.
        """
        deadlines = {worker: job.deadline for worker, job in pending.items()}
        for worker in self.pool.workers:
            if worker.alive and not worker.ready:
                deadlines[worker] = worker.process.started + START_SECONDS
        if not deadlines:
            return []
        readable = self._wait([worker.process.connection for worker in deadlines], min(deadlines.values()))
        for worker, deadline in deadlines.items():
            if not worker.ready and worker.process.connection not in readable and time.perf_counter() > deadline:
                worker.kill()
                raise MeasureError(f"a worker process does not start within {START_SECONDS:g} s: {worker.last_line()}")
        return [worker for worker in deadlines if worker.process.connection in readable]

    def _wait(self, connections: Sequence[Connection], deadline: float) -> list[Any]:
        """The connections that can be read; none at the deadline, a reading of `time.perf_counter`."""
        while True:
            left = max(0.0, deadline - time.perf_counter())
            readable = wait(connections, left if self._stop is None else min(left, _STOP_INTERVAL))
            if readable or left == 0.0:
                return readable
            if self._stop is not None and self._stop.is_set():
                raise MeasureError("the measurement was stopped by its caller")

    def _lose_builder(self, worker: Worker, key: Key, losses: dict[Key, int]) -> None:
        """Notes that a worker died before it began to build. Raises `MeasureError` if this job lost too many."""
        self._busy.discard(worker)
        worker.wait()
        losses[key] = losses.get(key, 0) + 1
        if losses[key] >= _MOST_LOSSES:
            raise MeasureError(f"the workers die before they begin: {worker.last_line()}")

    def _loss_of_runner(self, worker: Worker) -> WorkerLost | MeasureError:
        """The error to raise for a worker that died before it began to run a kernel."""
        self._busy.discard(worker)
        worker.wait()
        self._losses += 1
        if self._losses < _MOST_LOSSES + len(self.pool.workers):
            return WorkerLost()
        self._losses = 0
        return MeasureError(f"the workers die before they run a kernel: {worker.last_line()}")

    def _kill(self, worker: Worker) -> None:
        self._busy.discard(worker)
        if worker.alive:
            worker.kill()


def _failure_of_dead(worker: Worker, phase: str) -> Failed:
    """The failure of a candidate in whose phase the worker died."""
    end = worker.wait()
    return Failed(_STATUS.get(phase, Status.RUNTIME), f"the worker ended with {end} while {_ACTIVITY[phase]}")
