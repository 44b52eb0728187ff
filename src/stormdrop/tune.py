"""The one tuning loop for one kernel: brings a space, a search, a measurer and a store together.

    spaces of the sketches that apply -> search asks -> measurer measures -> store keeps -> search is told -> ...
    -> finalists and the default schedule raced side by side -> result

A search proposes and learns, a measurer observes, a store remembers; only this file knows all three.
"""

from __future__ import annotations

import dataclasses
import time as clock
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from . import threads
from .errors import InputError, UnsupportedFunction
from .records import Outcome, Problem, Record, Session, Setting, Store, StoredTrial, open_store
from .result import Best, Progress, TuneResult
from .search import create, options_of
from .space import Space
from .statistics import median_interval, ratio_interval
from .trial import Candidate, Measurement, Request, Trial

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from .kernel.sketch import Sketch
    from .kernel.target import Target
    from .kernel.workload import Workload
    from .measure.contract import Measurer
    from .measure.local import Account
    from .measure.pool import WorkerPool

__all__ = ["BATCH", "DEFAULT_SECONDS", "Best", "Progress", "TuneResult", "tune"]

DEFAULT_SECONDS = 60.0
"""Wall time of a tuning that is given neither trials nor time."""

BATCH = 8
"""Requests per ask. The same in every run, so that a resumed search makes the asks of the interrupted one."""

_FINALISTS = 3
_ROUNDS = 15
_RACE_SECONDS = 1.0  # of a time budget, kept for the last race


def tune(
    workload: Workload | PrimFunc,
    *,
    target: Target | None = None,
    search: str = "droplet",
    options: Mapping[str, Any] | None = None,
    trials: int | None = None,
    time: float | None = None,
    seed: int = 0,
    store: Store | None = None,
    resume: bool = False,
    fresh: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    sketches: Sequence[Sketch] | None = None,
    measurer: Measurer | None = None,
    pool: WorkerPool | None = None,
    started: float | None = None,
) -> TuneResult:
    """Searches the schedules of one function and returns the fastest, measured beside the default schedule.

    `trials` bounds the distinct candidates, `time` the wall seconds with everything in them (`started`, a reading of
    `time.perf_counter`, is where they began); without either the search runs until it converges, `DEFAULT_SECONDS`
    at most. A finished record of the same problem is the answer unless `fresh`; `resume` continues the latest
    unfinished session of the same problem and setting, if there is one. Ctrl-C ends the search and returns the best
    so far with `interrupted` set; everything measured is kept.

    `sketches`, `measurer` and `pool` replace the built-in sketches, the measurer on this machine, and its workers.
    Raises `InputError` for a bad setting, `UnsupportedFunction` for a function that no sketch takes.
    """
    begin = clock.perf_counter() if started is None else started
    threads.configure()
    from .kernel.target import Target
    from .kernel.workload import Workload

    if trials is not None and trials < 1:
        raise InputError(f"trials={trials} must be 1 or more")
    if time is not None and time <= 0:
        raise InputError(f"time={time:g} must be more than 0 seconds")
    if resume and fresh:
        raise InputError("resume and fresh exclude each other: continue a session, or tune as if nothing were known")
    if not isinstance(workload, Workload):
        workload = Workload.create("function", workload)
    machine = target or Target.detect()
    found = _sketches(workload, machine, sketches)
    budget = time if time is not None or trials is not None else DEFAULT_SECONDS
    plan = _Plan(workload, machine, found, search, dict(options or {}), seed, trials, budget, begin, on_progress)
    opened = store if store is not None else open_store(None)
    try:
        session = opened.unfinished(plan.problem, plan.setting) if resume else None
        if session is None and not fresh:
            known = opened.finished(plan.problem, plan.setting.sketches)
            if known is not None:
                return _recorded(plan, opened, known)
        earlier = [] if session is None else opened.records(session)
        session = opened.open(plan.problem, plan.setting) if session is None else opened.resume(session)
        run = _Run(plan, opened, session, earlier)
        if measurer is not None:
            return run.to_the_end(measurer)
        from .measure.local import LocalMeasurer

        chosen, spaces = [sketch for sketch, _ in found], [space for _, space in found]
        with LocalMeasurer(workload, machine, chosen, spaces, seed=seed, pool=pool) as local:
            return run.to_the_end(local)
    finally:
        if store is None:
            opened.close()


@dataclass(frozen=True)
class _Plan:
    workload: Workload
    target: Target
    sketches: Sequence[tuple[Sketch, Space]]
    search: str
    options: Mapping[str, Any]
    seed: int
    trials: int | None
    seconds: float | None
    begin: float
    on_progress: Callable[[Progress], None] | None

    @property
    def problem(self) -> Problem:
        workload, target = self.workload, self.target
        return Problem(workload.key, workload.text, workload.name, f"llvm {target.mcpu}", target.machine)

    @property
    def setting(self) -> Setting:
        defaults = dataclasses.asdict(options_of(self.search)(**self.options))
        return Setting(
            search=self.search,
            seed=self.seed,
            sketches={space.name: space.fingerprint for _, space in self.sketches},
            options=defaults,
            method={"batch": BATCH},
            versions=_versions(),
        )

    @property
    def elapsed(self) -> float:
        return clock.perf_counter() - self.begin


class _Run:
    """One session under way."""

    def __init__(self, plan: _Plan, store: Store, session: Session, earlier: Iterable[StoredTrial]) -> None:
        self.plan, self.store, self.session = plan, store, session
        self.spaces = {space.name: space for _, space in plan.sketches}
        rng = np.random.default_rng(plan.seed)
        self.search = create(plan.search, list(self.spaces.values()), rng, **plan.options)
        self.measurements: dict[Candidate, list[Measurement]] = {}
        self.curve: list[tuple[float, float]] = []
        self.batch = 0
        self.searching = 0.0
        known = [trial for stored in earlier if (trial := self._trial(stored)) is not None]
        for trial in known:
            self._take(trial, None)
        self.reused = len(self.measurements)
        self.search.tell(known)

    def to_the_end(self, measurer: Measurer) -> TuneResult:
        """Runs the search, races the finalists, and finishes the session."""
        from .measure.local import LocalMeasurer

        interrupted = False
        ready = self.plan.elapsed
        try:
            self._search(measurer)
        except KeyboardInterrupt:
            interrupted = True
        account = dataclasses.replace(measurer.account) if isinstance(measurer, LocalMeasurer) else None
        raced = clock.perf_counter()
        finalists: list[tuple[Candidate, Measurement]] = []
        if not interrupted:
            try:
                finalists = self._race(measurer)
            except KeyboardInterrupt:
                interrupted = True
        phases = self._phases(account, ready, clock.perf_counter() - raced)
        result = self._result(finalists, interrupted, phases)
        best = result.best
        outcome = Outcome(
            None if best is None else best.sketch,
            None if best is None else dict(best.config),
            None if best is None else best.seconds,
            None if best is None else best.interval,
            result.baseline,
            result.converged,
            {"seconds": result.seconds, "phases": dict(phases)},
        )
        if interrupted:
            self.store.interrupt(self.session, outcome)
        else:
            self.store.finish(self.session, outcome)
        return result

    def _search(self, measurer: Measurer) -> None:
        while not self._spent():
            requests = self._ask()
            if not requests:
                return
            records = self._measured(measurer, requests)
            start = clock.perf_counter()
            self.search.tell(records)
            self.searching += clock.perf_counter() - start
            self.batch += 1

    def _ask(self) -> list[Request]:
        start = clock.perf_counter()
        requests = self.search.ask(BATCH)
        self.searching += clock.perf_counter() - start
        if self.plan.trials is None:
            return requests
        room = self.plan.trials - len(self.measurements)
        allowed: list[Request] = []
        for request in requests:
            if request.candidate not in self.measurements:
                room -= 1
            if room < 0:
                break
            allowed.append(request)
        return allowed

    def _measured(self, measurer: Measurer, requests: Sequence[Request]) -> list[Trial]:
        """Measures a batch; each trial is in the store before the next one begins."""
        trials = []
        for request, measurement in zip(requests, measurer.measure(requests), strict=True):
            trial = Trial(request.candidate, measurement)
            elapsed = self.plan.elapsed
            config = self.spaces[request.candidate.sketch].config(request.candidate.point)
            record = Record(request.candidate.sketch, config, measurement, elapsed)
            self.store.append(self.session, self.batch, [record])
            self._take(trial, elapsed)
            trials.append(trial)
        self._report()
        return trials

    def _take(self, trial: Trial, elapsed: float | None) -> None:
        self.measurements.setdefault(trial.candidate, []).append(trial.measurement)
        if trial.ok and elapsed is not None and (not self.curve or trial.median < self.curve[-1][1]):
            self.curve.append((elapsed, trial.median))

    def _spent(self) -> bool:
        plan = self.plan
        if plan.trials is not None and len(self.measurements) >= plan.trials:
            return True
        return plan.seconds is not None and plan.elapsed >= plan.seconds - min(_RACE_SECONDS, plan.seconds / 4)

    def _race(self, measurer: Measurer) -> list[tuple[Candidate, Measurement]]:
        """The default schedule and the fastest few, interleaved; the default first. Failures are left out."""
        ranked = sorted(self._working(), key=self._estimate)[:_FINALISTS]
        if not ranked:
            return []
        first = self.plan.sketches[0][1]
        baseline = Candidate(first.name, first.origin)
        entrants = list(dict.fromkeys([baseline, *ranked]))
        measured = measurer.race(entrants, _ROUNDS)
        return [(candidate, result) for candidate, result in zip(entrants, measured, strict=True) if result.ok]

    def _working(self) -> list[Candidate]:
        return [candidate for candidate, all_of in self.measurements.items() if all(each.ok for each in all_of)]

    def _estimate(self, candidate: Candidate) -> float:
        return float(np.median([sample for each in self.measurements[candidate] for sample in each.seconds]))

    def _result(
        self, finalists: Sequence[tuple[Candidate, Measurement]], interrupted: bool, phases: Mapping[str, float]
    ) -> TuneResult:
        plan = self.plan
        best, baseline = self._best(finalists)
        failed = sum(1 for all_of in self.measurements.values() if not all(each.ok for each in all_of))
        everything = [each for all_of in self.measurements.values() for each in all_of]
        statuses: dict[str, int] = {}
        for each in everything:
            statuses[each.status.value] = statuses.get(each.status.value, 0) + 1
        return TuneResult(
            workload=plan.workload,
            target=plan.target,
            search=plan.search,
            seed=plan.seed,
            trials=len(self.measurements),
            failed=failed,
            reused=self.reused,
            seconds=plan.elapsed,
            phases=phases,
            best=best,
            baseline=baseline,
            converged=self.search.converged,
            curve=self.curve,
            suspect=sum(1 for each in everything if each.suspect),
            interrupted=interrupted,
            statuses=statuses,
            sketches={space.name: sketch for sketch, space in plan.sketches},
        )

    def _best(self, finalists: Sequence[tuple[Candidate, Measurement]]) -> tuple[Best | None, float | None]:
        if not finalists:
            working = self._working()
            if not working:
                return None, None
            candidate = min(working, key=self._estimate)
            samples = [sample for each in self.measurements[candidate] for sample in each.seconds]
            return self._as_best(candidate, samples, None), None
        first = self.plan.sketches[0][1]
        origin = Candidate(first.name, first.origin)
        default = next((result.seconds for candidate, result in finalists if candidate == origin), None)
        winner, measured = min(finalists, key=lambda entry: float(np.median(entry[1].seconds)))
        speedup = None
        if default is not None and winner != origin:
            interval = ratio_interval(default, measured.seconds)
            speedup = tuple(interval) if interval.low > 1 else None
        found = self._as_best(winner, measured.seconds, speedup)
        return found, None if default is None else float(np.median(default))

    def _as_best(self, candidate: Candidate, samples: Sequence[float], speedup: Any) -> Best:
        if len(samples) > 1:
            seconds, low, high = median_interval(samples)
        else:
            seconds = low = high = samples[0]
        config = self.spaces[candidate.sketch].config(candidate.point)
        return Best(candidate.sketch, config, seconds, (low, high), speedup)

    def _phases(self, account: Account | None, ready: float, racing: float) -> dict[str, float]:
        """Wall seconds by what they went into; what ran on several workers at once counts once."""
        measured = [each.phases for all_of in self.measurements.values() for each in all_of]
        schedule, build = sum(each.schedule for each in measured), sum(each.build for each in measured)
        check, run = sum(each.check for each in measured), sum(each.run for each in measured)
        phases = {"start": ready, "search": self.searching, "check": check, "race": racing}
        if account is None:
            phases.update(schedule=schedule, build=build, run=run)
        else:
            share = account.build / (schedule + build) if schedule + build else 0.0
            phases.update(schedule=schedule * share, build=build * share, run=max(0.0, account.run - check))
            phases.update(lock=account.lock, reference=account.reference)
        phases["other"] = max(0.0, self.plan.elapsed - sum(phases.values()))
        return phases

    def _trial(self, stored: StoredTrial) -> Trial | None:
        space = self.spaces.get(stored.sketch)
        if space is None or space.fingerprint != stored.fingerprint:
            return None
        return Trial(Candidate(stored.sketch, space.point(stored.config)), stored.measurement)

    def _report(self) -> None:
        if self.plan.on_progress is None:
            return
        failed = sum(1 for all_of in self.measurements.values() if not all(each.ok for each in all_of))
        best = self.curve[-1][1] if self.curve else None
        self.plan.on_progress(Progress(len(self.measurements), failed, best, self.plan.elapsed, self.plan.seconds))


def _recorded(plan: _Plan, store: Store, session: Session) -> TuneResult:
    """The result of a finished session: nothing is measured."""
    outcome = session.outcome
    assert outcome is not None
    assert outcome.sketch is not None and outcome.config is not None and outcome.seconds is not None
    stored = store.records(session)
    candidates = {(each.sketch, tuple(sorted(each.config.items()))): each.measurement.ok for each in stored}
    curve: list[tuple[float, float]] = []
    for each in stored:
        if each.measurement.ok and (not curve or np.median(each.measurement.seconds) < curve[-1][1]):
            curve.append((each.elapsed, float(np.median(each.measurement.seconds))))
    interval = outcome.interval or (outcome.seconds, outcome.seconds)
    return TuneResult(
        workload=plan.workload,
        target=plan.target,
        search=session.setting.search,
        seed=session.setting.seed,
        trials=len(candidates),
        failed=sum(1 for ok in candidates.values() if not ok),
        reused=len(candidates),
        seconds=plan.elapsed,
        phases={},
        best=Best(outcome.sketch, outcome.config, outcome.seconds, interval),
        baseline=outcome.baseline_seconds,
        converged=outcome.converged,
        curve=curve,
        sketches={space.name: sketch for sketch, space in plan.sketches},
    )


def _sketches(workload: Workload, target: Target, given: Sequence[Sketch] | None) -> Sequence[tuple[Sketch, Space]]:
    from .kernel.registry import sketches_for

    found = sketches_for(workload, target, given)
    if not found:
        raise UnsupportedFunction(f"{workload.name}: no sketch applies to this function")
    return found


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy")}
