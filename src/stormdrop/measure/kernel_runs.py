"""Runs kernels that are built, one at a time: time limits, checks of their outputs, repeats if disturbed.

A kernel's outputs are compared for small integers before and after its samples. A kernel that may win is also executed
on real numbers of very different magnitudes (`Verify`): if it is nearly the fastest, and before it races. So a kernel
that loses precision, or is wrong for large values, never becomes the fastest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from ..machine.sharing.foreign_load import Counters, LoadWatch
from ..trial import Measurement, Phases, Status
from .account import Account
from .pool.dispatch import FIRST_SHARE, Dispatcher, WorkerLost
from .pool.jobs import Answer, Failed, Job, Key, Race, Raced, Ran, Run, Verified, Verify
from .pool.pool import Worker
from .timing import TimingPlan

_FIRST_LIMIT_SECONDS = 10.0  # of a run, before the time of any kernel of the workload is known
_LOWEST_LIMIT_SECONDS = 2.0
_LIMIT_FACTOR = 10.0  # times the duration of the run at the best kernel's speed
_ELEMENTS_PER_SECOND = 1e7  # at which inputs are laid out or restored, and outputs compared, at the slowest
_RETRY_SECONDS = 5.0  # a suspect run that took longer is not repeated
_NEARLY = 1.1  # times the best: a kernel that is slower cannot become the fastest by more samples of both


class KernelRuns:
    """Runs the kernels of one workload. The caller holds the lock that gives them the machine.

    Attributes:
        best: The median seconds per execution of the fastest kernel so far; None before any kernel has worked.
        timeout: The seconds that a run may take, without those in which the worker could not work. None: it follows
            from the fastest kernel so far.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        watch: LoadWatch,
        account: Account,
        elements: int,
        timeout: float | None,
        cutoff: float,
        verifiable: Callable[[], bool],
    ) -> None:
        """Begins without any known kernel.

        Args:
            dispatcher: Executes the jobs.
            watch: Judges which runs something else has disturbed.
            account: Counts repeated runs, and keeps the clocks of a GPU.
            elements: The number of elements of all inputs and outputs.
            timeout: The seconds that a run may take. None: it follows from the fastest kernel so far.
            cutoff: A kernel that is slower than this many times the best is hopeless and gets one sample.
            verifiable: Whether there are real numbers to execute kernels on.
        """
        self.best: float | None = None
        self.timeout = timeout
        self._dispatcher = dispatcher
        self._watch = watch
        self._account = account
        self._argument_seconds = elements / _ELEMENTS_PER_SECOND  # that a run may take longer because of its arguments
        self._cutoff = cutoff
        self._verifiable = verifiable
        self._checked: dict[Key, tuple[Worker, int]] = {}
        self._verified: set[Key] = set()
        self._repeated: set[object] = set()  # what has failed once in a way that may have come from outside

    def run(self, worker: Worker, key: Key, repeats: int, spent: Phases) -> Measurement:
        """Runs one kernel, and runs it once more if something else used the machine. Verifies it if it may win.

        Args:
            worker: The worker that holds the kernel.
            key: The kernel.
            repeats: How many samples are wanted.
            spent: The wall seconds that the kernel has cost so far.

        Raises:
            WorkerLost: The worker died before it began; or the kernel failed for the first time in a way that may have
                come from outside. The kernel must be built and run again.
            MeasureError: The workers die again and again.
        """
        cutoff = None if self.best is None else self._cutoff * self.best
        plan = TimingPlan(repeats, cutoff=cutoff)
        limit = self._limit(repeats)
        answer = self._execute(worker, Run(key, plan, not self._is_checked(worker, key)), limit)
        spent += _phases(answer)
        suspect = isinstance(answer, Ran) and self._suspect(answer.load)
        if isinstance(answer, Ran):
            self._checked[key] = (worker, worker.epoch)
        if suspect and _phases(answer).run <= _RETRY_SECONDS:
            self._account.retried += 1
            answer = self._execute(worker, Run(key, plan, check=False), limit)
            spent += _phases(answer)
            suspect = isinstance(answer, Ran) and self._suspect(answer.load)
        if isinstance(answer, Ran):
            median = statistics.median(answer.samples)
            if self.best is not None and median > _NEARLY * self.best:
                return Measurement(Status.OK, answer.samples, "", spent, suspect)
            failed, phases = self._verify(worker, key)
            spent += phases
            if failed is None:
                self.best = median if self.best is None else min(self.best, median)
                return Measurement(Status.OK, answer.samples, "", spent, suspect)
            answer = failed
        return failed_measurement(_as_failed(answer), spent)

    def race(
        self, worker: Worker, keys: list[Key], rounds: int, failed: dict[Key, Measurement], spent: dict[Key, Phases]
    ) -> list[Measurement] | None:
        """Races kernels that are built in one worker, and races them once more if something else used the machine.

        Args:
            worker: The worker that holds the kernels.
            keys: The kernels; the same one may occur several times.
            rounds: How many samples are taken of each.
            failed: Receives the measurement of a kernel that fails.
            spent: The wall seconds that each kernel has cost so far. It is brought up to date.

        Returns:
            One measurement per kernel; None if the worker does not hold all of them, or one failed. The caller then
            builds again what is missing, and races without those that failed.

        Raises:
            WorkerLost: As in `run`.
            MeasureError: The workers die again and again.
        """
        if not keys or any(self._dispatcher.holder(key) is not worker for key in keys):
            return None
        slowest = 0.0
        for key in dict.fromkeys(keys):
            job = Run(key, TimingPlan(repeats=1), check=not self._is_checked(worker, key))
            answer = self._execute(worker, job, self._limit(1))
            spent[key] = spent.get(key, Phases()) + _phases(answer)
            if isinstance(answer, Ran):
                self._checked[key] = (worker, worker.epoch)
                slowest = max(slowest, answer.samples[0])
                wrong, phases = self._verify(worker, key)
                spent[key] += phases
                answer = answer if wrong is None else wrong
            if not isinstance(answer, Ran):
                failed[key] = failed_measurement(_as_failed(answer), spent.pop(key))
                return None
        plan = TimingPlan()
        # Each round has a warm-up and a sample of every kernel, and before the rounds each is estimated three times.
        turns = len(keys) * (rounds + 3)
        running = _LOWEST_LIMIT_SECONDS + _LIMIT_FACTOR * turns * (2 * slowest + plan.sample_seconds)
        limit = running + len(set(keys)) * self._argument_seconds
        race = Race(tuple(keys), rounds, plan.sample_seconds)
        raced = self._execute(worker, race, limit)
        suspect = isinstance(raced, Raced) and self._suspect(raced.load)
        if isinstance(raced, Raced) and suspect and not raced.wrong and raced.seconds <= _RETRY_SECONDS:
            self._account.retried += 1
            raced = self._execute(worker, race, limit)
            suspect = isinstance(raced, Raced) and self._suspect(raced.load)
        if isinstance(raced, Raced) and raced.wrong:
            for key, line in raced.wrong.items():
                failed[key] = Measurement(Status.WRONG_ANSWER, (), line, spent.pop(key, Phases()))
            return None
        measurements = []
        for position, key in enumerate(keys):
            phases = spent.pop(key, Phases())
            if isinstance(raced, Raced):
                phases += Phases(run=raced.seconds / len(keys))
                measurements.append(Measurement(Status.OK, raced.samples[position], "", phases, suspect))
            else:
                measurements.append(failed_measurement(_as_failed(raced), phases))
        return measurements

    def _execute(self, worker: Worker, job: Job, limit: float) -> Answer:
        """Does a job. Raises `WorkerLost` if it fails for the first time, and the cause may lie outside of it."""
        subject = (type(job), job.keys if isinstance(job, Race) else job.key)
        first = subject not in self._repeated
        answer = self._dispatcher.execute(worker, job, FIRST_SHARE * limit if first else limit)
        if first and isinstance(answer, Failed) and answer.transient:
            self._repeated.add(subject)
            raise WorkerLost
        self._repeated.discard(subject)
        return answer

    def _verify(self, worker: Worker, key: Key) -> tuple[Failed | None, Phases]:
        """Executes a kernel on real numbers, unless that was done before. Returns what is wrong, and its cost."""
        if key in self._verified or not self._verifiable():
            return None, Phases()
        answer = self._execute(worker, Verify(key), self._limit(1))
        if isinstance(answer, Verified):
            self._verified.add(key)
            return None, answer.phases
        return _as_failed(answer), _phases(answer)

    def _limit(self, repeats: int) -> float:
        """The seconds that a run of `repeats` samples may take."""
        if self.timeout is not None:
            return self.timeout
        if self.best is None:
            return _FIRST_LIMIT_SECONDS + self._argument_seconds
        running = max(_LOWEST_LIMIT_SECONDS, _LIMIT_FACTOR * (repeats + 2) * self.best)
        return running + self._argument_seconds

    def _is_checked(self, worker: Worker, key: Key) -> bool:
        """Whether this very machine code gave the right answer before."""
        return self._checked.get(key) == (worker, worker.epoch)

    def _suspect(self, load: Counters) -> bool:
        """Whether something else used the machine during a run. Also notes the clock of a GPU."""
        if load.clock:
            self._account.clocks.append(load.clock)
        return self._watch.suspect(load)


def failed_measurement(failed: Failed, phases: Phases) -> Measurement:
    """The measurement of a candidate that failed, with the wall seconds that it cost."""
    return Measurement(failed.status, (), failed.error, phases)


def _phases(answer: Answer) -> Phases:
    return Phases() if isinstance(answer, Raced) else answer.phases


def _as_failed(answer: Answer) -> Failed:
    if isinstance(answer, Failed):
        return answer
    return Failed(Status.UNKNOWN, f"the worker answered {type(answer).__name__}")
