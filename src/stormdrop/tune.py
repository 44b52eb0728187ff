"""The one tuning loop for one kernel: brings a space, a search, a measurer and a store together.

    spaces of the sketches that apply -> search asks -> measurer measures -> store keeps -> search is told -> ...
    -> finalists and the default schedule raced side by side -> result

A search proposes and learns, a measurer observes, a store remembers; only this file knows all three.
"""

from __future__ import annotations

import dataclasses
import time as clock
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import answers, finals, threads
from .duration import seconds_of
from .errors import InputError, MeasureError
from .plan import BATCH, DEFAULT_SECONDS, Plan, make_plan
from .records import Outcome, Record, Session, Store, StoredTrial, open_store
from .result import Best, Progress, TuneResult, recorded_result
from .statistics import median_interval
from .trial import Candidate, Measurement, Request, Trial

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from .kernel.sketch import Sketch
    from .kernel.target import Target
    from .kernel.workload import Workload
    from .measure.contract import Measurer
    from .measure.local import Account
    from .measure.pool import WorkerPool

__all__ = ["BATCH", "DEFAULT_SECONDS", "Best", "Progress", "TuneResult", "recall", "tune"]


def tune(
    workload: Workload | PrimFunc,
    *,
    target: Target | None = None,
    search: str = "droplet",
    options: Mapping[str, Any] | None = None,
    trials: int | None = None,
    time: float | str | None = None,
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

    `trials` bounds the distinct candidates, `time` (seconds, or "3m") the wall time with everything in it (`started`,
    a reading of `time.perf_counter`, is where it began); without either the search runs until it converges,
    `DEFAULT_SECONDS` at most. A finished record of the same problem is the answer where it converged, or had at least
    this budget; what an insufficient one found takes part in the last race. `fresh` ignores all records; `resume`
    continues the latest unfinished session of the same problem and setting, if there is one. Ctrl-C ends the search
    and returns the best so far with `interrupted` set; everything measured is kept.

    `sketches`, `measurer` and `pool` replace the built-in sketches, the measurer on this machine, and its workers.
    Raises `InputError` for a bad setting, `UnsupportedFunction` for a function that no sketch takes, `MeasureError`
    where nothing can be measured.
    """
    begin = clock.perf_counter() if started is None else started
    threads.configure()
    if trials is not None and trials < 1:
        raise InputError(f"trials={trials} must be 1 or more")
    granted = seconds_of(time)
    if resume and fresh:
        raise InputError("resume and fresh exclude each other: continue a session, or tune as if nothing were known")
    plan = make_plan(workload, target, search, options, trials, granted, seed, sketches, begin, on_progress)
    opened = store if store is not None else open_store(None)
    try:
        session = answers.to_resume(opened, plan.problem, plan.setting) if resume else None
        if session is None and not fresh:
            known = answers.answering(opened, plan.problem, plan.setting, trials, plan.seconds)
            if known is not None:
                return _recorded(plan, opened, known)
        rival = None if fresh else answers.best_known(opened, plan.problem, plan.spaces)
        run = _Run(plan, opened, [] if session is None else opened.records(session), rival)
        if run.out_of_time:
            return run.result([], False, {"start": plan.elapsed})
        session = opened.open(plan.problem, plan.setting) if session is None else opened.resume(session)
        try:
            if measurer is not None:
                return run.to_the_end(session, measurer)
            from .measure.local import LocalMeasurer

            chosen, spaces = [sketch for sketch, _ in plan.sketches], list(plan.spaces.values())
            with LocalMeasurer(plan.workload, plan.target, chosen, spaces, seed=seed, pool=pool) as local:
                local.best = run.fastest
                return run.to_the_end(session, local)
        except MeasureError:
            opened.interrupt(session)
            raise
    finally:
        if store is None:
            opened.close()


def recall(
    workload: Workload,
    *,
    target: Target,
    search: str,
    options: Mapping[str, Any],
    trials: int | None,
    time: float | None,
    seed: int,
    store: Store,
    resume: bool,
) -> TuneResult | None:
    """The result that `tune` would take from the records, nothing measured; None where it would measure.

    With trials=0 any finished record of the same spaces will do.
    """
    plan = make_plan(workload, target, search, options, trials, time, seed, None, clock.perf_counter(), None)
    if resume and answers.to_resume(store, plan.problem, plan.setting) is not None:
        return None
    known = answers.answering(store, plan.problem, plan.setting, trials, plan.seconds)
    return None if known is None else _recorded(plan, store, known)


class _Run:
    """One session under way; `earlier` are its trials where it was interrupted and goes on."""

    def __init__(
        self, plan: Plan, store: Store, earlier: Iterable[StoredTrial], rival: tuple[Candidate, float] | None
    ) -> None:
        self.plan, self.store, self.rival = plan, store, rival
        self.search, self.spaces = plan.searcher, plan.spaces
        self.measurements: dict[Candidate, list[Measurement]] = {}
        self.here: list[Measurement] = []  # those of this run
        self.curve: list[tuple[float, float]] = []
        self.batch, self.before = 0, 0.0  # where the stored numbers and times go on
        self.searching = self.measuring = 0.0
        known = []
        for stored, trial in answers.known_trials(earlier, self.spaces):
            self.batch, self.before = max(self.batch, stored.batch + 1), max(self.before, stored.elapsed)
            self._take(trial, stored.elapsed)
            known.append(trial)
        self.reused = len(self.measurements)
        self.search.tell(known)

    @property
    def fastest(self) -> float | None:
        """Median seconds of the fastest candidate so far."""
        return self.curve[-1][1] if self.curve else None

    @property
    def out_of_time(self) -> bool:
        left = self._left()
        return left is not None and left <= 0

    def to_the_end(self, session: Session, measurer: Measurer) -> TuneResult:
        """Runs the search, races the finalists, and finishes the session."""
        from .measure.local import LocalMeasurer

        interrupted = False
        ready = self.plan.elapsed
        try:
            self._search(session, measurer)
        except KeyboardInterrupt:
            interrupted = True
        timed_out = self.out_of_time
        account = dataclasses.replace(measurer.account) if isinstance(measurer, LocalMeasurer) else None
        start = clock.perf_counter()
        raced: list[tuple[Candidate, Measurement]] = []
        if not interrupted:
            try:
                raced = self._race(measurer)
            except KeyboardInterrupt:
                interrupted = True
        phases = self._phases(account, ready, clock.perf_counter() - start)
        result = self.result(raced, interrupted, phases)
        # What a later request is measured by: the time that was granted, where the search used it up.
        budget = self.before + max(result.seconds, self.plan.seconds or 0.0 if timed_out else 0.0)
        extra: dict[str, Any] = {
            "seconds": result.seconds,
            "phases": dict(phases),
            "budget": budget,
            "exhausted": self.search.finished,
            "disturbed": any(found.suspect for _, found in raced),
        }
        outcome = Outcome(baseline_seconds=result.baseline, converged=result.converged, extra=extra)
        if result.best is not None:
            best = result.best
            extra["speedup"] = None if best.speedup is None else list(best.speedup)
            found: dict[str, Any] = {"sketch": best.sketch, "config": dict(best.config), "seconds": best.seconds}
            outcome = dataclasses.replace(outcome, **found, interval=best.interval)
        (self.store.interrupt if interrupted else self.store.finish)(session, outcome)
        return result

    def _search(self, session: Session, measurer: Measurer) -> None:
        queue: list[Request] = []
        while not self._spent():
            queue = queue or self._ask()
            if not queue:
                return
            trials = self._measured(session, measurer, queue[: self._affordable()])
            start = clock.perf_counter()
            self.search.tell(trials)
            self.searching += clock.perf_counter() - start
            queue = queue[len(trials) :]
            self.batch += not queue

    def _ask(self) -> list[Request]:
        start = clock.perf_counter()
        requests = self.search.ask(BATCH)
        self.searching += clock.perf_counter() - start
        if self.plan.trials is None:
            return requests
        room = self.plan.trials - len(self.measurements)
        allowed: list[Request] = []
        new: set[Candidate] = set()
        for request in requests:
            if request.candidate not in self.measurements:
                new.add(request.candidate)
            if len(new) > room:
                break
            allowed.append(request)
        return allowed

    def _measured(self, session: Session, measurer: Measurer, requests: Sequence[Request]) -> list[Trial]:
        """Measures requests, until the time is clearly over; each trial is in the store before the next one begins."""
        trials: list[Trial] = []
        start = clock.perf_counter()
        answered = measurer.measure(requests)
        for request, measurement in zip(requests, answered, strict=True):
            trial = Trial(request.candidate, measurement)
            elapsed = self.before + self.plan.elapsed
            config = self.spaces[request.candidate.sketch].config(request.candidate.point)
            record = Record(request.candidate.sketch, config, measurement, elapsed)
            self.store.append(session, self.batch, [record])
            self._take(trial, elapsed)
            self.here.append(measurement)
            trials.append(trial)
            if self.plan.seconds is not None and self.plan.elapsed >= self.plan.seconds and len(trials) < len(requests):
                if isinstance(answered, Generator):
                    answered.close()  # ends the workers that are at work: only where the race's time is gone, too
                break
        self.measuring += clock.perf_counter() - start
        self._report()
        return trials

    def _take(self, trial: Trial, elapsed: float) -> None:
        self.measurements.setdefault(trial.candidate, []).append(trial.measurement)
        if trial.ok and (not self.curve or trial.median < self.curve[-1][1]):
            self.curve.append((elapsed, trial.median))

    def _left(self) -> float | None:
        """Seconds left for the search; the last race has its own."""
        budget = self.plan.seconds
        return None if budget is None else budget - min(finals.RACE_SECONDS, budget / 4) - self.plan.elapsed

    def _spent(self) -> bool:
        return self.out_of_time or (self.plan.trials is not None and len(self.measurements) >= self.plan.trials)

    def _affordable(self) -> int:
        """Requests that can be measured in the time that is left, as far as one can tell."""
        left = self._left()
        if left is None or not self.here:
            return BATCH
        return max(1, int(left / max(self.measuring / len(self.here), 1e-9)))

    def _race(self, measurer: Measurer) -> list[tuple[Candidate, Measurement]]:
        """The default schedule and the fastest few, interleaved."""
        ranked = sorted(self._working(), key=self._estimate)
        default: Candidate | None = self.plan.default
        incumbent = self.search.best
        working = {*ranked, *({self.plan.default} - self.measurements.keys())}
        entrants = finals.enter(
            default if default in working else None,
            ranked,
            incumbent if incumbent in working else None,
            None if self.rival is None else self.rival[0],
        )
        if not entrants:
            return []
        times = {each: self._estimate(each) for each in ranked} | (dict([self.rival]) if self.rival else {})
        slowest = max((times[each] for each in entrants if each in times), default=0.0)
        rounds = finals.rounds([times.get(each, slowest) for each in entrants])
        raced = measurer.race(entrants, rounds)
        if not any(each.ok for each in raced):  # all have worked before: it was the machine, or one took all with it
            raced = measurer.race(entrants, rounds)
        return list(zip(entrants, raced, strict=True))

    def _working(self) -> list[Candidate]:
        return [candidate for candidate, all_of in self.measurements.items() if all(each.ok for each in all_of)]

    def _samples(self, candidate: Candidate) -> list[float]:
        return [sample for each in self.measurements[candidate] for sample in each.seconds]

    def _estimate(self, candidate: Candidate) -> float:
        return float(np.median(self._samples(candidate)))

    def result(
        self, raced: Sequence[tuple[Candidate, Measurement]], interrupted: bool, phases: Mapping[str, float]
    ) -> TuneResult:
        """What is known now, given how the last race went."""
        plan = self.plan
        best, baseline = self._best(raced)
        everything = [each for all_of in self.measurements.values() for each in all_of]
        statuses: dict[str, int] = {}
        for each in everything:
            statuses[each.status.value] = statuses.get(each.status.value, 0) + 1
        return TuneResult(
            workload=plan.workload,
            target=plan.target,
            search=plan.setting.search,
            seed=plan.setting.seed,
            trials=len(self.measurements),
            failed=len(self.measurements) - len(self._working()),
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

    def _best(self, raced: Sequence[tuple[Candidate, Measurement]]) -> tuple[Best | None, float | None]:
        final = finals.decide(self.plan.default, {each: found.seconds for each, found in raced if found.ok})
        if final is not None:
            speedup = None if final.speedup is None else (final.speedup.estimate, final.speedup.low, final.speedup.high)
            baseline = None if final.default is None else float(np.median(final.default))
            return self._as_best(final.winner, final.seconds, speedup), baseline
        # No race, or nobody worked in it: the best of many, as it was measured on the way.
        working = self._working()
        if not working:
            return None, None
        candidate = min(working, key=self._estimate)
        return self._as_best(candidate, self._samples(candidate), None), None

    def _as_best(
        self, candidate: Candidate, samples: Sequence[float], speedup: tuple[float, float, float] | None
    ) -> Best:
        seconds = low = high = samples[0]
        if len(samples) > 1:
            seconds, low, high = median_interval(samples)
        config = self.spaces[candidate.sketch].config(candidate.point)
        return Best(
            sketch=candidate.sketch,
            config=config,
            seconds=seconds,
            interval=(low, high),
            speedup=speedup,
            workload=self.plan.workload,
            target=self.plan.target,
            apply=next(sketch.apply for sketch, space in self.plan.sketches if space.name == candidate.sketch),
        )

    def _phases(self, account: Account | None, ready: float, racing: float) -> dict[str, float]:
        """Wall seconds of this run by what they went into; what ran on several workers at once counts once."""
        spent = [each.phases for each in self.here]
        schedule, build = sum(each.schedule for each in spent), sum(each.build for each in spent)
        check, run = sum(each.check for each in spent), sum(each.run for each in spent)
        phases = {"start": ready, "search": self.searching, "check": check, "race": racing}
        if account is None:
            phases.update(schedule=schedule, build=build, run=run)
        else:
            share = account.build / (schedule + build) if schedule + build else 0.0
            phases.update(schedule=schedule * share, build=build * share, run=max(0.0, account.run - check))
            phases.update(lock=account.lock, reference=account.reference)
        phases["other"] = max(0.0, self.plan.elapsed - sum(phases.values()))
        return phases

    def _report(self) -> None:
        if self.plan.on_progress is None:
            return
        tried, elapsed = len(self.measurements), self.plan.elapsed
        failed = tried - len(self._working())
        self.plan.on_progress(Progress(tried, failed, self.fastest, elapsed, self.plan.seconds))


def _recorded(plan: Plan, store: Store, session: Session) -> TuneResult:
    sketches = {space.name: sketch for sketch, space in plan.sketches}
    return recorded_result(plan.workload, plan.target, sketches, session, store.records(session), plan.elapsed)
