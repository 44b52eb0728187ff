"""Gets the jobs of one workload done by the workers of a pool, within time limits, even if workers crash or hang.

What became of a job is a verdict on its candidate only if the candidate is at fault. A worker that dies or hangs before
it has begun a job is replaced, and the job is done again. A failure that may have come from outside, which is a timeout
or the end by a signal such as SIGKILL, is `transient`: a build is repeated once here, a run by `KernelRuns`. A crash by
a signal that code raises itself, such as SIGSEGV, is a verdict at once, because a repetition would end alike.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from ...errors import MeasureError
from ...trial import Phases, Status
from .job_clock import JobClock
from .job_events import JobEvents
from .jobs import Answer, Build, Built, Data, Failed, Job, Key, Load, NoDevice, Reals, Step, Verify
from .pool import START_SECONDS, Worker, WorkerPool
from .worker_messages import Unreadable, receive

_STOP_INTERVAL = 0.2  # seconds between two looks at the stop event while a worker is waited for
_MOST_LOSSES = 3  # times that a worker may die before it begins one and the same job

_STATUS = {"schedule": Status.INSTANTIATION, "build": Status.COMPILE_HOST}
_ACTIVITY = {"schedule": "applying the sketch", "build": "compiling", "run": "running", "check": "checking the output"}
_OWN_SIGNALS = {"SIGSEGV", "SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGTRAP", "SIGSYS", "SIGXFSZ"}
"""The signals that code raises by what it does itself. Any other comes from outside, from the memory killer for one."""

_MOST_GRANTED = 10.0  # times its limit: a worker that is held back for longer is replaced

FIRST_SHARE = 0.5
"""The share of its limit that a job has at the first time. At the second time it has all of it."""

_session_numbers = itertools.count(1)


class WorkerLost(Exception):
    """A worker died between two jobs. No candidate is at fault, and the worker's kernels are gone.

    It never leaves this package.
    """


@dataclass
class _Pending:
    """How far a worker is with its job: its current phase, which is empty until the first one begins.

    The limit counts from the first phase on. Until then the worker may take as long as it may take to start.
    """

    limit: float
    clock: JobClock
    phase: str = ""

    def begin(self, worker: Worker, phase: str) -> None:
        """Notes that the worker begins a phase."""
        if not self.phase:
            self.clock = JobClock(worker.pid, self.limit, most_granted=_MOST_GRANTED * self.limit)
        self.phase = phase


class Dispatcher:
    """One workload's use of a pool. Several dispatchers may share a pool, one after the other or in turns.

    Attributes:
        pool: The workers.
    """

    def __init__(
        self,
        pool: WorkerPool,
        payload: bytes,
        inputs: Data,
        outputs: Callable[[], Data],
        reals: Callable[[], Reals | None],
        stop: threading.Event | None = None,
    ) -> None:
        """A dispatcher that has sent nothing yet.

        Args:
            pool: The workers.
            payload: The workload as `Load` describes it.
            inputs: Is sent to a worker before its first job.
            outputs: Makes the expected outputs, which are sent to a worker before its first run.
            reals: Makes the second set of inputs, which are sent to a worker before its first `Verify`; None if there
                is none.
            stop: Another thread may set it. The next wait for a worker then ends with a `MeasureError`.
        """
        self.pool = pool
        self._stop = stop
        self._session = next(_session_numbers)
        self._events = JobEvents(self._session)
        self._payload = payload
        self._inputs = inputs
        self._outputs = outputs
        self._reals = reals
        self._know_reals: dict[Worker, int] = {}  # and their epochs
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
            jobs: The candidates to build.
            seconds: The seconds that each of them may take, without those in which its worker could not work. A
                candidate that fails in a way that may have come from outside is built once more, by another process.
            workers: The workers that build; by default all of the pool.

        Yields:
            The key and the result of each job as soon as it is known, in any order.

        Raises:
            MeasureError: No worker starts, the workers die before they begin or cannot reach their device, or another
                thread has set `stop`.
        """
        workers = self.pool.workers if workers is None else workers
        queue = deque(jobs)
        pending: dict[Worker, _Pending] = {}
        building: dict[Worker, Build] = {}
        losses: dict[Key, int] = {}
        repeated: set[Key] = set()
        # A worker that is still starting would disturb the runs that follow, so it is waited for.
        while queue or pending or any(worker.alive and not worker.ready for worker in self.pool.workers):
            for worker in workers:
                # A few kernels are built faster by the workers that live than by one that must start first.
                if not worker.alive and len(queue) > sum(other.alive for other in workers):
                    self.pool.revive(worker)
                if worker.ready and worker not in pending and queue:
                    job = queue.popleft()
                    if self._send(worker, job):
                        limit = seconds if job.key in repeated else FIRST_SHARE * seconds
                        pending[worker], building[worker] = _pending(worker, limit), job
                    else:
                        self._lose_builder(worker, job.key, losses)
                        queue.appendleft(job)
            readable = self._wait_for_workers(pending)
            for worker in readable:
                if not worker.ready:
                    self.pool.greet(worker, receive(worker.process.connection))
            for worker in [worker for worker in pending if worker in readable or pending[worker].clock.late]:
                answer = self._next(worker, pending[worker], worker in readable)
                if isinstance(answer, Step):
                    continue
                del pending[worker]
                done = building.pop(worker)
                if answer is None:
                    self._lose_builder(worker, done.key, losses)
                    queue.appendleft(done)
                elif isinstance(answer, Failed) and answer.transient and done.key not in repeated:
                    repeated.add(done.key)
                    queue.append(done)
                else:
                    if not isinstance(answer, Built | Failed):
                        answer = Failed(Status.UNKNOWN, f"the worker answered {type(answer).__name__}")
                    if isinstance(answer, Built):
                        self._holders[done.key] = (worker, worker.epoch)
                        for key in answer.dropped:
                            self._holders.pop(key, None)
                    yield done.key, answer

    def execute(self, worker: Worker, job: Job, seconds: float) -> Answer:
        """Does one job in one worker while the others are paused.

        Args:
            worker: A worker that is ready.
            job: The job.
            seconds: The seconds that it may take, without those in which the worker could not work.

        Raises:
            WorkerLost: The worker died, or did nothing for long, before it began.
            MeasureError: Workers died too often before they began, or this one cannot reach its device, or another
                thread has set `stop`. A few losses are tolerated, because idle workers may have been killed from
                outside.
        """
        self.pool.focus(worker)
        if not self._send(worker, job):
            raise self._loss_of_runner(worker)
        pending = _pending(worker, seconds)
        while True:
            readable = self._wait([worker.process.connection], [pending.clock])
            if not readable and not pending.clock.late:
                continue
            answer = self._next(worker, pending, bool(readable))
            if answer is None:
                raise self._loss_of_runner(worker)
            if not isinstance(answer, Step):
                self._losses = 0
                return answer

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses all workers, so that the caller need not hold the machine's lock meanwhile."""
        begin = time.perf_counter()
        for worker in self.pool.workers:
            worker.process.pause()
        try:
            yield
        finally:
            self.pool.release()
            for worker in self.pool.workers:
                worker.process.started += time.perf_counter() - begin  # a pause is no part of its start

    def abandon(self) -> None:
        """Kills the workers that are at work."""
        for worker in list(self._busy):
            self._kill(worker)

    def _send(self, worker: Worker, job: Job) -> bool:
        """Sends a job, and before it what the worker must know first. False if the worker has died."""
        if worker.at_work:  # for somebody who does not wait any more: its next answer would be taken for ours
            self._kill(worker)
            return False
        worker.process.resume()  # somebody else may have stopped it
        if worker.session != self._session:
            worker.knows_outputs = False
            worker.epoch += 1
            if not (worker.send(Load(self._payload)) and worker.send(self._inputs)):
                return False
            worker.session = self._session
        if not isinstance(job, Build) and not worker.knows_outputs:
            if not worker.send(self._outputs()):
                return False
            worker.knows_outputs = True
        if isinstance(job, Verify) and self._know_reals.get(worker) != worker.epoch:
            if not worker.send(self._reals()):
                return False
            self._know_reals[worker] = worker.epoch
        self._busy.add(worker)
        worker.at_work = True
        self._events.begin(worker, job)
        if worker.send(job):
            return True
        self._rest(worker)
        return False

    def _next(self, worker: Worker, pending: _Pending, readable: bool) -> Step | Answer | None:
        """Takes what a worker has sent, or ends it because its time is over.

        Returns:
            The beginning of a phase; the answer, which says so if the worker has died or hung; None if the worker has
            died or hung before it began.

        Raises:
            MeasureError: The worker cannot reach its device, for instance because the runner has ended.
        """
        message = receive(worker.process.connection) if readable else None
        if isinstance(message, NoDevice):
            self._kill(worker)
            raise MeasureError(message.error)
        if isinstance(message, Step):
            pending.begin(worker, message.phase)
            self._events.step(worker, message.phase)
            return message
        if isinstance(message, Answer):
            self._events.end(worker, message)
            self._rest(worker)
            return message
        if not readable or isinstance(message, Unreadable):  # not readable: its time is over, or it has ended
            self._kill(worker)
        if not pending.phase:
            return None
        self._rest(worker)
        activity, status = _ACTIVITY[pending.phase], _STATUS.get(pending.phase, Status.RUNTIME)
        spent = Phases(**{pending.phase: pending.clock.used})
        if isinstance(message, Unreadable):
            error = f"the worker sent bytes that are no message while {activity}: {message.reason}"
            return Failed(status, error, spent)
        if readable:
            end = worker.wait()
            outside = not end.startswith("exit code") and end not in _OWN_SIGNALS
            return Failed(status, f"the worker ended with {end} while {activity}", spent, transient=outside)
        late = Status.BUILD_TIMEOUT if pending.phase in _STATUS else Status.RUN_TIMEOUT
        return Failed(late, f"still {activity} after {pending.limit:.3g} s", spent, transient=True)

    def _wait_for_workers(self, pending: dict[Worker, _Pending]) -> list[Worker]:
        """Waits for a message of a worker that starts or is at work, or until a clock has something to say.

        Returns:
            The workers that have sent something, or have died.
        """
        starting = [worker for worker in self.pool.workers if worker.alive and not worker.ready]
        waiting = [*starting, *pending]
        if not waiting:
            return []
        deadline = min((worker.process.started + START_SECONDS for worker in starting), default=math.inf)
        connections = [worker.process.connection for worker in waiting]
        readable = self._wait(connections, [job.clock for job in pending.values()], deadline - time.perf_counter())
        for worker in starting:
            late = time.perf_counter() > worker.process.started + START_SECONDS
            if late and worker.process.connection not in readable:
                worker.kill()
                raise MeasureError(f"a worker process does not start within {START_SECONDS:g} s: {worker.last_line()}")
        return [worker for worker in waiting if worker.process.connection in readable]

    def _wait(self, connections: Sequence[Connection], clocks: Sequence[JobClock], most: float = math.inf) -> list[Any]:
        """Waits until a connection can be read or a clock has something to say, and counts the wait.

        Returns:
            The connections that can be read.
        """
        asked = max(
            0.0, min(most, *(clock.left for clock in clocks), math.inf if self._stop is None else _STOP_INTERVAL)
        )
        begin = time.perf_counter()
        readable = wait(connections, None if asked == math.inf else asked)
        waited = time.perf_counter() - begin
        for clock in clocks:
            clock.add(asked, waited)
        if not readable and self._stop is not None and self._stop.is_set():
            raise MeasureError("the measurement was stopped by its caller")
        return readable

    def _lose_builder(self, worker: Worker, key: Key, losses: dict[Key, int]) -> None:
        """Notes that a worker died before it began to build. Raises `MeasureError` if this job lost too many."""
        self._rest(worker)
        worker.wait()  # kills it if it hangs
        losses[key] = losses.get(key, 0) + 1
        if losses[key] >= _MOST_LOSSES + len(self.pool.workers):
            raise MeasureError(f"the workers die before they begin: {worker.last_line()}")

    def _loss_of_runner(self, worker: Worker) -> WorkerLost | MeasureError:
        """The error to raise for a worker that died before it began to run a kernel."""
        self._rest(worker)
        worker.wait()
        self._losses += 1
        if self._losses < _MOST_LOSSES + len(self.pool.workers):
            return WorkerLost()
        self._losses = 0
        return MeasureError(f"the workers die before they run a kernel: {worker.last_line()}")

    def _rest(self, worker: Worker) -> None:
        """Notes that a worker has no job any more."""
        self._busy.discard(worker)
        worker.at_work = False
        self._events.end(worker, None)

    def _kill(self, worker: Worker) -> None:
        self._rest(worker)
        if worker.alive:
            worker.kill()


def _pending(worker: Worker, limit: float) -> _Pending:
    return _Pending(limit, JobClock(worker.pid, START_SECONDS, most_granted=0.0))
