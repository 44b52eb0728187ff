"""Measuring candidates on this machine.

A batch goes through two phases. Build: its candidates are spread over the workers and compiled side by side, under
the shared side of the machine-wide lock. Run: under the exclusive side, one kernel at a time has the whole machine,
in the worker that built it. What crashes or hangs costs that candidate and a worker; the other kernels of that
worker are built again.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
from numpy.typing import NDArray

from ..errors import MeasureError, SpaceError
from ..machine.contract import CPU
from ..machine.foreign_load import Counters, LoadThresholds, LoadWatch
from ..machine.lock import MachineLock
from ..trial import Candidate, Measurement, Phases, Request, Status
from .contract import Measurer
from .dispatch import Dispatcher, Lost
from .expected_outputs import Expectation
from .jobs import KERNELS, Answer, Build, Built, Data, Failed, Key, Race, Raced, Ran, Run
from .pool import Worker, WorkerPool
from .timing import TimingPlan

if TYPE_CHECKING:
    from ..ir.workload import Workload
    from ..machine.contract import Machine
    from ..sketches.contract import AnySketch
    from ..space import Space

Array = NDArray[Any]

_UNKNOWN_RUN_SECONDS = 10.0  # for a run, before any kernel of the workload is known
_LEAST_RUN_SECONDS = 2.0
_PATIENCE = 10.0  # times the duration of a run at the best kernel's speed
_BYTES_PER_SECOND = 2e8  # at which inputs are restored and outputs compared, at the slowest
_EVICTING = 1.5  # times all caches: so many other bytes leave nothing behind
_BUILD_SECONDS = 10.0
_NVCC_SECONDS = 180.0  # the first for tensor cores parses all of TVM's tensor intrinsics: half a minute on slow cores
_RETRY_SECONDS = 5.0  # a suspect run that took longer is not repeated


@dataclass
class Account:
    """Where a measurer's wall time went, in seconds, and how often things happened."""

    build: float = 0.0  # phases in which workers compiled
    run: float = 0.0  # phases in which kernels ran, consumers included
    lock: float = 0.0  # waiting for the machine
    reference: float = 0.0  # waiting for NumPy
    restarts: int = 0  # worker processes that were replaced
    built: int = 0
    retried: int = 0  # runs repeated because something else used the machine
    clocks: list[int] = field(default_factory=list)  # of the GPU after each run, in MHz


class LocalMeasurer(Measurer):
    """Measures candidates of one workload on this machine. Not for several threads at a time.

    A measurement that is being iterated over holds the machine-wide lock between its results, except after the
    last: do not think long between two of them. Closing the iterator, or Ctrl-C, kills the workers that are at
    work at once; the measurer can be used afterwards.

    `best` is the median time of the fastest kernel so far, in seconds per execution: hopeless candidates are those
    slower than `cutoff` times it. Set it where it is known from records.
    """

    def __init__(
        self,
        workload: Workload,
        target: Machine,
        sketches: Sequence[AnySketch],
        spaces: Sequence[Space],
        workers: int | None = None,
        build_timeout: float | None = None,
        run_timeout: float | None = None,
        seed: int = 0,
        lock_path: Path | None = None,
        pool: WorkerPool | None = None,
        cutoff: float = 3.0,
        thresholds: LoadThresholds | None = None,
        cold: bool = False,
        gpu: int | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """`sketches` and `spaces` belong together pairwise; timeouts in seconds.

        `cold`: constants come from memory in every execution, as in a model whose weights no cache holds. `gpu` is the
        number of the GPU to measure on; what runs there has a lock of its own, what is built for it uses the machine.
        `stop`: another thread may set it, then what workers are waited for ends with a MeasureError; who has set it
        clears it.
        `build_timeout` None is what LLVM never takes, or for a GPU `nvcc`; `run_timeout` None follows the fastest
        kernel known. A `pool` that is given stays open when this measurer is closed, so that tasks can be measured one
        after the other. Raises MeasureError where no worker starts.
        """
        if pool is not None and pool.threads != target.cores:
            raise MeasureError(f"the pool's workers use {pool.threads} threads, the target has {target.cores} cores")
        self.workload = workload
        usual = _BUILD_SECONDS if target.device == CPU else _NVCC_SECONDS
        self.build_timeout = usual if build_timeout is None else build_timeout
        self.run_timeout = run_timeout
        self.cutoff = cutoff
        self.best: float | None = None
        self._account = Account()
        self._spaces = {sketch.name: space for sketch, space in zip(sketches, spaces, strict=True)}
        self._keys: dict[Candidate, Key] = {}
        self._checked: dict[Key, tuple[Worker, int]] = {}
        self._watch = LoadWatch(target.cores, thresholds)
        self._machine = MachineLock(lock_path)
        self._lock = self._machine
        if gpu is not None:
            self._lock = MachineLock(self._machine.path.with_suffix(f".gpu{gpu}.lock"))
        passing = int(_EVICTING * target.caches) if cold else 0
        payload = cloudpickle.dumps((workload, target, {sketch.name: sketch for sketch in sketches}, passing))
        if target.runner:
            workers = 1  # TVM's server has one connection at a time
        self._pool = WorkerPool(target.cores, workers, gpu=gpu) if pool is None else pool
        self._owned = self._pool if pool is None else None
        self._restarts = self._pool.restarts
        self._inputs = workload.random_inputs(seed)  # meanwhile the workers load TVM
        self._reference = Expectation(workload, self._inputs)
        self._dispatch = Dispatcher(self._pool, payload, Data(inputs=tuple(self._inputs)), self._reference.data, stop)
        self._bytes = sum(spec.bytes for spec in (*workload.inputs, *workload.outputs))

    @property
    def account(self) -> Account:
        """Where the time went so far."""
        self._account.lock = sum(lock.waited for lock in {self._machine, self._lock})
        self._account.restarts = self._pool.restarts - self._restarts
        self._account.reference = self._reference.waited
        return self._account

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """One measurement per request, in order, each as soon as it is known. Raises MeasureError."""
        self._reference.start()
        try:
            yield from self._measure(list(requests))
        except BaseException:  # Ctrl-C, a closed iterator, or an error of ours: nothing may keep running
            self._dispatch.abandon()
            raise

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """Samples of a few candidates taken in turns in one worker: entry r of each belongs to round r.

        Raises MeasureError, and ValueError for more than `KERNELS` candidates, which no worker holds at once.
        """
        if len(set(candidates)) > KERNELS:
            raise ValueError(f"a race of {len(set(candidates))} kernels: a worker holds {KERNELS} at once")
        self._reference.start()
        try:
            return self._race(list(candidates), rounds)
        except BaseException:  # as above
            self._dispatch.abandon()
            raise

    def wall_seconds(self, spent: Phases) -> dict[str, float]:
        """See `Measurer.wall_seconds`. Workers compile side by side; the account knows for how long any of them did."""
        account = self.account
        compiling, check = spent.schedule + spent.build, min(account.run, spent.check)
        share = account.build / compiling if compiling else 0.0
        return {
            "schedule": spent.schedule * share,
            "build": spent.build * share,
            "run": account.run - check,
            "check": check,
            "lock": account.lock,
            "reference": account.reference,
        }

    def conditions(self) -> dict[str, Any]:
        """The lowest, the median and the highest clock of the GPU after its runs, in MHz."""
        clocks = sorted(self.account.clocks)
        return {"clocks": [[clocks[0], clocks[len(clocks) // 2], clocks[-1]]]} if clocks else {}

    def close(self) -> None:
        """Ends the worker processes, unless the pool was given, and waits for the reference's thread."""
        if self._owned is not None:
            self._owned.close()
        self._machine.close()
        self._lock.close()
        self._reference.close()

    def _measure(self, requests: list[Request]) -> Iterator[Measurement]:
        done: dict[int, Measurement] = {}
        spent: dict[Key, Phases] = {}
        keys = [self._key(request.candidate) for request in requests]
        at = 0
        while at < len(requests):
            with self._machine.shared(), self._timed("build"):
                wanted = {keys[i]: requests[i].candidate for i in range(at, len(requests)) if i not in done}
                for key, result in self._build(wanted, self._pool.workers):
                    spent[key] = spent.get(key, Phases()) + result.phases
                    if isinstance(result, Failed):
                        # A candidate asked for twice fails twice, but its time was spent once.
                        for i in range(at, len(requests)):
                            if keys[i] == key:
                                done[i] = _failure(result, spent.pop(key, Phases()))
                    while at in done:
                        yield done.pop(at)
                        at += 1
            if at == len(requests):
                return
            self._reference.wait()
            with self._whole_machine():
                while at < len(requests):
                    if at not in done:
                        worker = self._dispatch.home(keys[at])
                        if worker is None:
                            break
                        try:
                            done[at] = self._run(worker, keys[at], requests[at].repeats, spent.pop(keys[at], Phases()))
                        except Lost:
                            break
                    if at == len(requests) - 1:
                        break  # the last is handed out after the lock: nobody may ask for more
                    yield done.pop(at)
                    at += 1
            if at in done:
                yield done.pop(at)
                at += 1

    def _race(self, candidates: list[Candidate], rounds: int) -> list[Measurement]:
        keys = [self._key(candidate) for candidate in candidates]
        failed: dict[Key, Measurement] = {}
        spent: dict[Key, Phases] = {}
        while True:
            racing = {key: candidate for key, candidate in zip(keys, candidates, strict=True) if key not in failed}
            if not racing:
                return [failed[key] for key in keys]
            homes = [home for home in map(self._dispatch.home, racing) if home is not None]
            worker = max(homes, key=homes.count, default=self._pool.workers[0])
            with self._machine.shared(), self._timed("build"):
                for key, built in self._build(racing, [worker]):
                    spent[key] = spent.get(key, Phases()) + built.phases
                    if isinstance(built, Failed):
                        failed[key] = _failure(built, spent.pop(key))
            self._reference.wait()
            with self._whole_machine():
                try:
                    raced = self._race_built(worker, [key for key in keys if key not in failed], rounds, failed, spent)
                except Lost:
                    raced = None
            if raced is not None:
                samples = iter(raced)
                return [failed[key] if key in failed else next(samples) for key in keys]

    def _race_built(
        self, worker: Worker, keys: list[Key], rounds: int, failed: dict[Key, Measurement], spent: dict[Key, Phases]
    ) -> list[Measurement] | None:
        """The race of kernels that are built in one worker; None where some were not, or failed: then once more."""
        if not keys or any(self._dispatch.home(key) is not worker for key in keys):
            return None
        slowest = 0.0
        for key in dict.fromkeys(keys):
            job = Run(key, TimingPlan(repeats=1), check=not self._is_checked(worker, key))
            answer = self._dispatch.execute(worker, job, self._patience(1))
            spent[key] = spent.get(key, Phases()) + _phases(answer)
            if not isinstance(answer, Ran):
                failed[key] = _failure(_as_failed(answer), spent.pop(key))
                return None
            self._checked[key] = (worker, worker.epoch)
            slowest = max(slowest, answer.samples[0])
        plan = TimingPlan()
        # Per round and kernel a warm-up and a sample; per kernel three executions to estimate it.
        patience = _LEAST_RUN_SECONDS + _PATIENCE * len(keys) * (rounds + 3) * (2 * slowest + plan.sample_seconds)
        job_race = Race(tuple(keys), rounds, plan.sample_seconds)
        raced = self._dispatch.execute(worker, job_race, patience)
        suspect = isinstance(raced, Raced) and self._suspect(raced.load)
        if isinstance(raced, Raced) and suspect and raced.seconds <= _RETRY_SECONDS:
            self._account.retried += 1
            raced = self._dispatch.execute(worker, job_race, patience)
            suspect = isinstance(raced, Raced) and self._suspect(raced.load)
        results = []
        for position, key in enumerate(keys):
            phases = spent.pop(key, Phases())
            if isinstance(raced, Raced):
                phases += Phases(run=raced.seconds / len(keys))
                results.append(Measurement(Status.OK, raced.samples[position], "", phases, suspect))
            else:
                results.append(_failure(_as_failed(raced), phases))
        return results

    def _build(
        self, candidates: dict[Key, Candidate], workers: Sequence[Worker]
    ) -> Iterator[tuple[Key, Built | Failed]]:
        """Builds what none of these workers holds; each result as soon as it is known."""
        jobs = []
        for key, candidate in candidates.items():
            if self._dispatch.home(key) in workers:
                continue
            if candidate.sketch not in self._spaces:
                raise MeasureError(f"no sketch is called {candidate.sketch!r}: {', '.join(self._spaces)}")
            try:
                config = self._spaces[candidate.sketch].config(candidate.point)
            except SpaceError as error:
                yield key, Failed(Status.INSTANTIATION, str(error))
                continue
            jobs.append(Build(key, candidate.sketch, config))
        for key, result in self._dispatch.build(jobs, self.build_timeout, workers):
            self._account.built += isinstance(result, Built)
            yield key, result

    def _run(self, worker: Worker, key: Key, repeats: int, spent: Phases) -> Measurement:
        """Runs one built kernel, and again at once where something else used the machine. Raises Lost."""
        cutoff = None if self.best is None else self.cutoff * self.best
        plan = TimingPlan(repeats, cutoff=cutoff)
        patience = self._patience(repeats)
        answer = self._dispatch.execute(worker, Run(key, plan, not self._is_checked(worker, key)), patience)
        spent += _phases(answer)
        suspect = isinstance(answer, Ran) and self._suspect(answer.load)
        if isinstance(answer, Ran):
            self._checked[key] = (worker, worker.epoch)
        if suspect and _phases(answer).run <= _RETRY_SECONDS:
            self._account.retried += 1
            answer = self._dispatch.execute(worker, Run(key, plan, check=False), patience)
            spent += _phases(answer)
            suspect = isinstance(answer, Ran) and self._suspect(answer.load)
        if not isinstance(answer, Ran):
            return _failure(_as_failed(answer), spent)
        median = statistics.median(answer.samples)
        self.best = median if self.best is None else min(self.best, median)
        return Measurement(Status.OK, answer.samples, "", spent, suspect)

    def _suspect(self, load: Counters) -> bool:
        if load.clock:
            self._account.clocks.append(load.clock)
        return self._watch.suspect(load)

    @contextmanager
    def _whole_machine(self) -> Iterator[None]:
        """The exclusive side of the lock, for one worker after the other while the rest is paused."""
        with self._lock.exclusive(), self._timed("run"):
            try:
                yield
            finally:
                self._pool.release()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self._account, phase, getattr(self._account, phase) + time.perf_counter() - start)

    def _patience(self, repeats: int) -> float:
        """Seconds that a run may take."""
        if self.run_timeout is not None:
            return self.run_timeout
        if self.best is None:
            return _UNKNOWN_RUN_SECONDS + self._bytes / _BYTES_PER_SECOND
        runs = max(_LEAST_RUN_SECONDS, _PATIENCE * (repeats + 2) * self.best)
        return runs + self._bytes / _BYTES_PER_SECOND

    def _key(self, candidate: Candidate) -> Key:
        return self._keys.setdefault(candidate, len(self._keys))

    def _is_checked(self, worker: Worker, key: Key) -> bool:
        """Whether this very machine code gave the right answer before."""
        return self._checked.get(key) == (worker, worker.epoch)


def _phases(answer: Answer) -> Phases:
    return Phases() if isinstance(answer, Raced) else answer.phases


def _as_failed(answer: Answer) -> Failed:
    if isinstance(answer, Failed):
        return answer
    return Failed(Status.UNKNOWN, f"the worker answered {type(answer).__name__}")


def _failure(failed: Failed, phases: Phases) -> Measurement:
    return Measurement(failed.status, (), failed.error, phases)
