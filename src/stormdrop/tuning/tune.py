"""Tuning one kernel: the loop of `loop.py` on the schedules of a function."""

from __future__ import annotations

import dataclasses
import math
import threading
import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from ..errors import InputError, UnsupportedFunction
from ..machine import threads
from ..records import Problem, Store, open_store
from ..search import Knowledge
from . import race as finals
from . import reuse as answers
from . import session as loop
from .request import BATCH, DEFAULT_SEARCH, DEFAULT_SECONDS, Plan, check_request, make_plan
from .result import Best, Progress, SearchResult, TuneResult

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from ..ir.workload import Workload
    from ..machine.cpu import Machine
    from ..measure.contract import Measurer
    from ..measure.local import Account
    from ..measure.pool import WorkerPool
    from ..search import Search
    from ..sketches.contract import Sketch
    from ..space import Space
    from ..trial import Candidate, Measurement, Phases

__all__ = ["BATCH", "DEFAULT_SEARCH", "DEFAULT_SECONDS", "Best", "Progress", "TuneResult", "recall", "tune"]

_SAMPLE_SECONDS = 2e-3  # a sample takes at least this long, however short the kernel


def tune(
    workload: Workload | PrimFunc,
    *,
    target: Machine | None = None,
    search: str = DEFAULT_SEARCH,
    options: Mapping[str, Any] | None = None,
    trials: int | None = None,
    time: float | str | None = None,
    seed: int = 0,
    store: Store | None = None,
    resume: bool = False,
    fresh: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    sketches: Sequence[Sketch] | str | None = None,
    max_error: float | None = None,
    features: str = "knobs",
    measurer: Measurer | None = None,
    pool: WorkerPool | None = None,
    started: float | None = None,
) -> TuneResult:
    """Searches the schedules of one function and returns the fastest, measured beside the default schedule.

    `trials` bounds the distinct candidates, `time` (seconds, or "3m") the wall time with everything in it (`started`,
    a reading of `time.perf_counter`, is where it began); without either the search runs until it converges,
    `DEFAULT_SECONDS` at most. A finished record of the same problem is the answer where it converged, or had at least
    this budget; what an insufficient one found takes part in the last race, and the search begins where those of
    similar kernels on this machine have ended. `fresh` ignores all records; `resume`
    continues the latest unfinished session of the same problem and setting, if there is one. Ctrl-C ends the search
    and returns the best so far with `interrupted` set; everything measured is kept.

    `max_error` is what a schedule may differ from the reference (max|difference| / max|reference|, 1e-4 by default)
    because it computes in another way, as Winograd's convolutions do; with 0 there are none of these.
    `features` are what cost models see of a schedule: the "knobs", "analytic" ones (on a GPU the seven of the AF-DS
    paper: with them `gradient` is Ansor-AF-DS and `evolutionary` Ansor-AF), "both", or Ansor's 164 per "statements".
    `sketches`, `measurer` and `pool` replace the built-in sketches (by a list, or by "rules" for those that rules
    derive, or "meta_schedule" for TVM's), the measurer on this machine, and its workers.
    Raises `InputError` for a bad setting, `UnsupportedFunction` for a function that no sketch takes, `MeasureError`
    where nothing can be measured.
    """
    begin = clock.perf_counter() if started is None else started
    threads.configure()
    seconds = check_request(trials, time, resume, fresh)
    kernel = _kernel(workload, target, sketches, max_error, seed, measurer, pool, features=features)
    plan = kernel.plan(search, options, trials, seconds, begin, on_progress)
    with open_store(None) if store is None else nullcontext(store) as opened:
        return kernel.result(loop.run(plan, kernel, opened, resume=resume, fresh=fresh, answered=not fresh))


def recall(
    workload: Workload,
    *,
    target: Machine,
    search: str,
    options: Mapping[str, Any],
    trials: int | None,
    time: float | None,
    seed: int,
    store: Store,
    resume: bool,
    max_error: float | None = None,
    sketches: Sequence[Sketch] | str | None = None,
    cold: bool = False,
) -> TuneResult | None:
    """What the records know of a model's kernel with such a part of its budget; None where it has to be measured.

    With trials=0 any finished record of the same spaces will do.
    """
    kernel = _kernel(workload, target, sketches, max_error, seed, None, None, cold)
    plan = kernel.plan(search, options, trials, time, clock.perf_counter(), None)
    if resume and answers.to_resume(store, plan.problem, plan.setting, plan.spaces) is not None:
        return None
    known = loop.recorded(plan, store, shared=True)
    return None if known is None else kernel.result(known)


def begin(
    workload: Workload,
    *,
    target: Machine,
    search: str,
    options: Mapping[str, Any],
    seed: int,
    store: Store,
    resume: bool,
    fresh: bool,
    max_error: float | None,
    sketches: Sequence[Sketch] | str | None = None,
    cold: bool = False,
    pool: WorkerPool | None = None,
    measurer: Measurer | None = None,
    ends: Sequence[tuple[str, Mapping[str, Any]]] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> KernelTuning:
    """A tuning without an end of its own: who holds it says when it searches and when it has finished.

    For many kernels that share a budget: `ends` is where others of them are, sketch and configuration. No record
    answers (`recall` does), but the search begins where similar ones have ended, unless `fresh`. `cold`: constants come
    from memory in every execution, as in a model whose weights no cache holds; its records are those of another
    problem. Raises as `tune` does.
    """
    kernel = _kernel(workload, target, sketches, max_error, seed, measurer, pool, cold)
    plan = kernel.plan(search, options, None, math.inf, clock.perf_counter(), on_progress)
    session = answers.to_resume(store, plan.problem, plan.setting, plan.spaces) if resume else None
    starts = answers.fitting(ends, plan.spaces)
    if not starts and not fresh:
        starts = answers.similar(store, plan.problem, plan.spaces)
    going = loop.unanswered(plan, kernel, store, session, starts, fresh=fresh)
    going.pause()
    return KernelTuning(kernel, going)


class KernelTuning:
    """A kernel's tuning that goes on for a while at a time; see `begin`. Use as a context."""

    def __init__(self, kernel: _Kernel, going: loop.Tuning[Any]) -> None:
        self.sketches = kernel.sketches
        self._kernel, self._going = kernel, going

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._going.__exit__(*error)

    @property
    def seconds(self) -> float | None:
        """Seconds per execution of the fastest schedule so far; None before any worked."""
        return self._going.tally.fastest

    @property
    def trials(self) -> int:
        """Distinct candidates so far, those of an earlier run that it resumes included."""
        return len(self._going.tally)

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return self._going.tally.failed

    @property
    def effort(self) -> float:
        """Seconds that it has taken, those of an earlier run that it resumes included."""
        return self._going.effort

    @property
    def ended(self) -> bool:
        """Whether its search has nothing more to ask."""
        return self._going.ended

    @property
    def fastest(self) -> tuple[str, Mapping[str, Any]] | None:
        """The sketch and the configuration of the fastest schedule so far."""
        working = self._going.tally.working
        if not working:
            return None
        return working[0].sketch, self._going.spaces[working[0].sketch].config(working[0].point)

    @property
    def searcher(self) -> Search:
        """The search itself."""
        return self._going.plan.searcher

    def search(self, seconds: float, trials: float = math.inf, limit: float = math.inf) -> None:
        """Goes on for so many seconds, and so many more distinct candidates, at most. Raises `MeasureError`.

        After `limit` seconds a batch under way is broken off.
        """
        try:
            self._going.search(seconds, trials, limit)
        finally:
            self._going.pause()

    def finish(self, *, interrupted: bool = False, race_seconds: float, granted: int = 0) -> TuneResult:
        """The finalists raced, unless `interrupted` or without seconds for it, and the session ended.

        `granted` candidates could have been measured.
        """
        found = self._going.finish(interrupted=interrupted, race_seconds=race_seconds, granted=granted)
        return self._kernel.result(found)

    def abandon(self) -> TuneResult:
        """What is known, where nothing can be measured any more."""
        return self._kernel.result(self._going.abandon())


@dataclass(frozen=True)
class _Kernel:
    """A kernel as the loop's `Subject`: the sketches that apply with their spaces, and who measures."""

    workload: Workload
    target: Machine
    sketches: Sequence[tuple[Sketch, Space]]
    seed: int
    given: Measurer | None
    pool: WorkerPool | None
    cold: bool = False
    features: str = "knobs"

    def plan(
        self,
        search: str,
        options: Mapping[str, Any] | None,
        trials: int | None,
        seconds: float | None,
        begin: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> Plan:
        from ..machine.gpu import Device
        from ..sketches import registry

        workload, target = self.workload, self.target
        machine = f"{target.machine}, constants from memory" if self.cold else target.machine
        problem = Problem(workload.key, workload.text, workload.name, target.kind, machine)
        versions = {name: metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy")}
        if isinstance(target, Device):
            versions |= target.conditions
        spaces = [space for _, space in self.sketches]
        seen = registry.features(self.sketches, workload, target, self.features)
        knowledge = Knowledge(features=seen, prior=registry.prior(self.sketches, workload, target))
        method = {} if seen is None else {"features": self.features}
        return make_plan(
            problem,
            spaces,
            search,
            options,
            versions,
            trials,
            seconds,
            self.seed,
            begin,
            on_progress,
            knowledge,
            method,
        )

    def result(self, found: SearchResult) -> TuneResult:
        return TuneResult.of(found, self.workload, self.target, {space.name: sketch for sketch, space in self.sketches})

    def measurer(self, fastest: float | None) -> AbstractContextManager[Measurer]:
        from ..machine.cpu import Target
        from ..measure.local import LocalMeasurer
        from ..measure.parallel import Several

        if self.given is not None:
            return nullcontext(self.given)
        sketches, spaces = [sketch for sketch, _ in self.sketches], [space for _, space in self.sketches]

        def on(gpu: int | None, workers: int | None = None, stop: threading.Event | None = None) -> LocalMeasurer:
            local = LocalMeasurer(
                self.workload,
                self.target,
                sketches,
                spaces,
                workers,
                seed=self.seed,
                pool=self.pool,
                cold=self.cold,
                gpu=gpu,
                stop=stop,
            )
            local.best = fastest
            return local

        if self.target.runner or isinstance(self.target, Target):
            return on(None)
        gpus = self.target.numbers
        if len(gpus) == 1:
            return on(gpus[0])
        # Workers compile on this machine's cores: each GPU has its share of them.
        share, stop = max(1, self.target.cores // len(gpus)), threading.Event()
        return Several([on(gpu, share, stop) for gpu in gpus], stop)

    def wall(self, measurer: Measurer, spent: Phases) -> dict[str, float]:
        """Workers compile side by side, several devices run so: measurers on this machine know for how long any did."""
        phases, accounts = dataclasses.asdict(spent), _accounts(measurer)
        if not accounts:
            return phases
        # Of several devices the one that was at work for longest.
        account = max(accounts, key=lambda each: each.build + each.run + each.lock + each.reference)
        compiling, check = spent.schedule + spent.build, min(account.run, spent.check / len(accounts))
        share = account.build / compiling if compiling else 0.0
        phases.update(schedule=spent.schedule * share, build=spent.build * share, check=check)
        phases.update(run=account.run - check, lock=account.lock, reference=account.reference)
        return phases

    def conditions(self, measurer: Measurer) -> dict[str, Any]:
        """The least, the median and the highest clock of each GPU after its runs, in MHz."""
        clocks = [sorted(account.clocks) for account in _accounts(measurer) if account.clocks]
        return {"clocks": [[each[0], each[len(each) // 2], each[-1]] for each in clocks]} if clocks else {}

    def race(
        self, measurer: Measurer, entrants: Sequence[Candidate], estimates: Sequence[float], seconds: float
    ) -> list[Measurement]:
        """A turn is an execution to warm up, and a sample."""
        turns = [each + max(each, _SAMPLE_SECONDS) for each in estimates]
        return measurer.race(entrants, finals.rounds(turns, seconds))


def _accounts(measurer: Measurer) -> list[Account]:
    """Of the measurers on this machine that it is, or has; none for another one."""
    from ..measure.local import LocalMeasurer
    from ..measure.parallel import Several

    devices = measurer.measurers if isinstance(measurer, Several) else [measurer]
    return [each.account for each in devices if isinstance(each, LocalMeasurer)]


def _kernel(
    workload: Workload | PrimFunc,
    target: Machine | None,
    sketches: Sequence[Sketch] | str | None,
    max_error: float | None,
    seed: int,
    measurer: Measurer | None,
    pool: WorkerPool | None,
    cold: bool = False,
    features: str = "knobs",
) -> _Kernel:
    """Raises `UnsupportedFunction` for a function that no sketch takes."""
    from ..ir.workload import Workload
    from ..machine.cpu import Target
    from ..machine.gpu import Device
    from ..sketches.registry import MAX_ERROR, sketches_for

    if not isinstance(workload, Workload):
        workload = Workload.create("function", workload)
    machine = target or Target.detect()
    if max_error is not None and not 0 <= max_error < 1:
        raise InputError(f"max_error={max_error} must be from 0 to less than 1")
    if pool is not None and isinstance(machine, Device):
        raise InputError(f"target {machine.name} is a GPU: each has workers of its own, pool cannot be given")
    found = sketches_for(workload, machine, sketches, MAX_ERROR if max_error is None else max_error)
    if not found:
        raise UnsupportedFunction(f"{workload.name}: no sketch applies to this function")
    return _Kernel(workload, machine, found, seed, measurer, pool, cold, features)
