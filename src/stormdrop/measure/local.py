"""Measures candidates on this machine.

A batch goes through two phases:

    build   the candidates are spread over the workers and compiled side by side; the machine-wide lock is shared
    run     one kernel at a time has the whole machine, in the worker that built it; the lock is exclusive

A candidate that crashes or hangs costs itself and a worker process. The other kernels of that worker are built again.
No lock is held while a measurement is in the hands of the caller, who may take long to write it down.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from ..errors import MeasureError, SpaceError
from ..machine.contract import CPU, CUDA, OPENCL, Machine
from ..machine.sharing.foreign_load import LoadThresholds, LoadWatch
from ..machine.sharing.lock import MachineLock
from ..trial import Candidate, Measurement, Phases, Request, Status
from .account import Account
from .contract import KernelSetup, Measurer
from .expected_outputs import ExpectedOutputs
from .kernel_runs import KernelRuns, failed_measurement
from .pool.dispatch import Dispatcher, WorkerLost
from .pool.jobs import KERNELS, Build, Built, Data, Failed, Key
from .pool.pool import Worker, WorkerPool

_BUILD_SECONDS = {
    CPU: 10.0,
    OPENCL: 30.0,  # PoCL takes minutes for long unrolled loops, and a tuning's time is not looked at meanwhile
    CUDA: 180.0,  # the first kernel for tensor cores parses all of TVM's intrinsics: half a minute on slow cores
}


@dataclass(frozen=True)
class Limits:
    """What a candidate may take.

    Attributes:
        build_seconds: The seconds that it may take to be scheduled and compiled. The default is far more than LLVM
            ever takes, and for a GPU more than `nvcc` or a driver takes for a schedule that is any good. Seconds in
            which its worker could not work do not count. A candidate that has used half of them is begun again, once.
            So a hang costs one and a half times as much.
        run_seconds: The seconds that a run may take, counted alike. The default follows from the fastest kernel so
            far.
        cutoff: A candidate that is slower than this many times the best is hopeless and gets one sample.
        load: How much foreign load is tolerated.
    """

    build_seconds: float | None = None
    run_seconds: float | None = None
    cutoff: float = 3.0
    load: LoadThresholds | None = None


def pool_for(target: Machine, workers: int | None = None, gpu: int | None = None) -> WorkerPool:
    """Workers that measure kernels of a target.

    Args:
        target: The machine that the kernels are made for.
        workers: Their number; as many as usable cores by default, and one for a runner.
        gpu: The number of the only GPU that they see.

    Raises:
        MeasureError: No worker can be started.
    """
    if target.runner:
        workers = 1  # TVM's server has one connection at a time
    unbounded = target.device == OPENCL  # drivers of GPUs reserve address space beyond any bound
    return WorkerPool(target.cores, workers, 0 if unbounded else None, gpu)


class LocalMeasurer(Measurer):
    """Measures candidates of one workload on this machine. It is for one thread at a time.

    While a caller has a measurement of `measure`, no lock is held, and no worker is at work. If the iterator is closed,
    or at Ctrl-C, the workers that are at work are killed at once; the measurer can be used afterwards.

    Attributes:
        workload: The function that is measured.
        build_timeout: The seconds that scheduling and compiling a candidate may take.
        runs: Runs the kernels; it holds the time limit of a run.
    """

    def __init__(
        self,
        setup: KernelSetup,
        *,
        pool: WorkerPool | None = None,
        workers: int | None = None,
        gpu: int | None = None,
        elsewhere: bool = False,
        limits: Limits = Limits(),
        lock_path: Path | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Starts the workers, without waiting for them.

        Args:
            setup: What is measured.
            pool: The workers to use. They stay open when this measurer is closed, so that tasks can be measured one
                after the other. By default the measurer starts workers of its own.
            workers: The number of these workers; as many as usable cores by default.
            gpu: The number of the GPU to measure on. Its kernels run under a lock of their own; they are built under
                the machine-wide one.
            elsewhere: Whether kernels run on a board that nobody else uses meanwhile, so that they need no lock here.
            limits: What a candidate may take, and how much foreign load is tolerated.
            lock_path: The file of the machine-wide lock; by default the one that all users of the machine share.
            stop: Another thread may set it. The next wait for a worker then ends with a `MeasureError`. Whoever sets
                it clears it.

        Raises:
            MeasureError: No worker can be started, or the pool's workers use another number of threads than the
                target.
        """
        workload, target = setup.workload, setup.target
        if pool is not None and pool.threads != target.cores:
            raise MeasureError(f"the pool's workers use {pool.threads} threads, the target has {target.cores} cores")
        self.workload = workload
        given = limits.build_seconds
        self.build_timeout = _BUILD_SECONDS[target.device] if given is None else given
        self._spaces = {sketch.name: space for sketch, space in setup.sketches}
        self._keys: dict[Candidate, Key] = {}
        self._account = Account()
        self._machine_lock = MachineLock(lock_path)
        self._run_lock = self._machine_lock
        if gpu is not None:
            self._run_lock = MachineLock(self._machine_lock.path.with_suffix(f".gpu{gpu}.lock"))
        self._elsewhere = elsewhere
        sketches = {sketch.name: sketch for sketch, _ in setup.sketches}
        payload = cloudpickle.dumps((workload, target, sketches, setup.passing))
        self._pool = pool_for(target, workers, gpu) if pool is None else pool
        self._owned_pool = self._pool if pool is None else None
        self._restarts_before = self._pool.restarts
        inputs = workload.random_inputs(setup.seed)  # meanwhile the workers load TVM
        self._expected = ExpectedOutputs(workload, inputs, setup.seed)
        data, expected = Data(inputs=tuple(inputs)), self._expected
        self._dispatcher = Dispatcher(self._pool, payload, data, expected.data, expected.reals, stop)
        elements = sum(math.prod(spec.shape) for spec in (*workload.inputs, *workload.outputs))
        watch = LoadWatch(target.cores, limits.load)
        self.runs = KernelRuns(
            self._dispatcher,
            watch,
            self._account,
            elements,
            limits.run_seconds,
            limits.cutoff,
            verifiable=lambda: expected.reals() is not None,
        )
        self.best = setup.best

    @property
    def best(self) -> float | None:
        """The median seconds per execution of the fastest kernel so far, from which time limits follow.

        Assign it if records already give it.
        """
        return self.runs.best

    @best.setter
    def best(self, seconds: float | None) -> None:
        self.runs.best = seconds

    @property
    def account(self) -> Account:
        """Where the wall time has gone so far."""
        self._account.lock = sum(lock.waited for lock in {self._machine_lock, self._run_lock})
        self._account.restarts = self._pool.restarts - self._restarts_before
        self._account.reference = self._expected.waited
        return self._account

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`."""
        self._expected.start()
        try:
            yield from self._measure(list(requests))
        except BaseException:  # Ctrl-C, a closed iterator, or an error of ours: no worker may keep running
            self._dispatcher.abandon()
            raise

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """See `Measurer.race`. The candidates run in one worker.

        Raises:
            MeasureError: Nothing can be measured.
            ValueError: There are more than `KERNELS` candidates, which no worker holds at once.
        """
        if len(set(candidates)) > KERNELS:
            raise ValueError(f"a race of {len(set(candidates))} kernels: a worker holds {KERNELS} at once")
        self._expected.start()
        try:
            return self._race(list(candidates), rounds)
        except BaseException:  # as in `measure`
            self._dispatcher.abandon()
            raise

    def wall_seconds(self, spent: Phases) -> dict[str, float]:
        """See `Measurer.wall_seconds`. There are two phases more: waiting for the lock, and for the reference."""
        return self.account.wall_seconds(spent)

    def conditions(self) -> dict[str, Any]:
        """The lowest, the median and the highest clock of the GPU after its runs, in MHz."""
        clocks = sorted(self.account.clocks)
        return {"clocks": [[clocks[0], clocks[len(clocks) // 2], clocks[-1]]]} if clocks else {}

    def close(self) -> None:
        """Ends the worker processes, unless the pool was given, and waits for the thread of the reference."""
        if self._owned_pool is not None:
            self._owned_pool.close()
        self._machine_lock.close()
        self._run_lock.close()
        self._expected.close()

    def _measure(self, requests: list[Request]) -> Iterator[Measurement]:
        done: dict[int, Measurement] = {}  # by the position of the request
        spent: dict[Key, Phases] = {}
        keys = [self._key(request.candidate) for request in requests]
        position = 0  # of the next measurement to hand out
        while position < len(requests):
            with ExitStack() as held:
                held.enter_context(self._compiling())
                missing = [index for index in range(position, len(requests)) if index not in done]
                wanted = {keys[index]: requests[index].candidate for index in missing}
                for key, result in self._build(wanted, self._pool.workers):
                    spent[key] = spent.get(key, Phases()) + result.phases
                    if isinstance(result, Failed):
                        # A candidate that is requested twice fails twice, but its time was spent once.
                        for index in range(position, len(requests)):
                            if keys[index] == key:
                                done[index] = failed_measurement(result, spent.pop(key, Phases()))
                    if position in done:
                        held.close()
                        with self._dispatcher.paused():
                            while position in done:
                                yield done.pop(position)
                                position += 1
                        held.enter_context(self._compiling())
            if position == len(requests):
                return
            self._expected.wait()
            try:
                while position < len(requests):
                    if position not in done:
                        key = keys[position]
                        worker = self._dispatcher.holder(key)
                        if worker is None:
                            break  # it was lost with its worker: it is built again
                        try:
                            with self._whole_machine():
                                done[position] = self.runs.run(
                                    worker, key, requests[position].repeats, spent.get(key, Phases())
                                )
                        except WorkerLost:
                            break
                        spent.pop(key, None)
                    yield done.pop(position)
                    position += 1
            finally:
                self._pool.release()

    def _race(self, candidates: list[Candidate], rounds: int) -> list[Measurement]:
        keys = [self._key(candidate) for candidate in candidates]
        failed: dict[Key, Measurement] = {}
        spent: dict[Key, Phases] = {}
        while True:
            racing = {key: candidate for key, candidate in zip(keys, candidates, strict=True) if key not in failed}
            if not racing:
                return [failed[key] for key in keys]
            holders = [holder for holder in map(self._dispatcher.holder, racing) if holder is not None]
            worker = max(holders, key=holders.count, default=self._pool.workers[0])
            with self._compiling():
                for key, built in self._build(racing, [worker]):
                    spent[key] = spent.get(key, Phases()) + built.phases
                    if isinstance(built, Failed):
                        failed[key] = failed_measurement(built, spent.pop(key))
            self._expected.wait()
            try:
                with self._whole_machine():
                    raced = self.runs.race(worker, [key for key in keys if key not in failed], rounds, failed, spent)
            except WorkerLost:
                raced = None
            finally:
                self._pool.release()
            if raced is not None:
                measurements = iter(raced)
                return [failed[key] if key in failed else next(measurements) for key in keys]

    def _build(
        self, candidates: dict[Key, Candidate], workers: Sequence[Worker]
    ) -> Iterator[tuple[Key, Built | Failed]]:
        """Builds the candidates that none of these workers holds. Yields each result as soon as it is known."""
        jobs = []
        for key, candidate in candidates.items():
            if self._dispatcher.holder(key) in workers:
                continue
            if candidate.sketch not in self._spaces:
                raise MeasureError(f"no sketch is called {candidate.sketch!r}: {', '.join(self._spaces)}")
            try:
                config = self._spaces[candidate.sketch].config(candidate.point)
            except SpaceError as error:
                yield key, Failed(Status.INSTANTIATION, str(error))
                continue
            jobs.append(Build(key, candidate.sketch, config))
        for key, result in self._dispatcher.build(jobs, self.build_timeout, workers):
            self._account.built += isinstance(result, Built)
            yield key, result

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Holds the shared lock."""
        with self._machine_lock.shared(self.deadline), self._account.timed("build"):
            yield

    @contextmanager
    def _whole_machine(self) -> Iterator[None]:
        """Holds the exclusive lock, for one worker. The others are paused until the pool is released."""
        lock = nullcontext() if self._elsewhere else self._run_lock.exclusive(self.deadline)
        with lock, self._account.timed("run"):
            yield

    def _key(self, candidate: Candidate) -> Key:
        return self._keys.setdefault(candidate, len(self._keys))
