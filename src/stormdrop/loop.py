"""The one tuning loop: brings spaces, a search, a measurer and a store together, whatever is tuned.

    search asks -> measurer measures -> store keeps -> search is told -> ...
    -> finalists and the default raced side by side -> result

A search proposes and learns, a measurer observes, a store remembers; only this file knows all three. `tune` runs it
on the schedules of a kernel, `minimize` on any callable.
"""

from __future__ import annotations

import dataclasses
import statistics
import time as clock
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from . import answers, finals
from .errors import MeasureError
from .measure.contract import Measurer
from .plan import BATCH, Plan
from .records import Outcome, Record, Session, Setting, Store
from .result import Best, Progress, SearchResult
from .statistics import median_interval
from .tally import Tally
from .trial import Candidate, Measurement, Phases, Request, Trial, within

M = TypeVar("M", bound=Measurer)

_COUNTABLE = 1_000_000  # combinations up to which the points of a space are counted


class Subject(Protocol[M]):
    """What is tuned, where the loop must know of what kind it is."""

    def measurer(self, fastest: float | None) -> AbstractContextManager[M]:
        """A measurer for the run; `fastest` is the lowest median so far in seconds, where a session goes on."""

    def wall(self, measurer: M, spent: Phases) -> Mapping[str, float]:
        """Wall seconds by phase, given the sum over all measurements: what ran at the same time counts once."""

    def race(self, measurer: M, entrants: Sequence[Candidate], estimates: Sequence[float]) -> Sequence[Measurement]:
        """The race of these, by `measurer.race`, in as many rounds as fit; `estimates` are their times in seconds."""


def run(plan: Plan, subject: Subject[M], store: Store, *, resume: bool, fresh: bool, answered: bool) -> SearchResult:
    """Searches, races the fastest few with the default, and keeps everything in the store.

    `resume` continues the latest unfinished session of the same problem and setting, if there is one. Where nothing
    is resumed and `answered` holds, a finished record that suffices is the answer; without one the search begins
    where those of similar problems have ended. What an insufficient one found takes part in the last race, unless
    `fresh`. Ctrl-C ends the search and returns the best so far. Raises `MeasureError` where nothing can be
    measured.
    """
    session = answers.to_resume(store, plan.problem, plan.setting) if resume else None
    if session is None and answered:
        known = recorded(plan, store)
        if known is not None:
            return known
    rival = None if fresh else answers.best_known(store, plan.problem, plan.spaces)
    if session is not None:
        plan = plan.starting(answers.starts_of(session, plan.spaces))
    elif answered:
        plan = plan.starting(answers.similar(store, plan.problem, plan.spaces))
    going = _Run(plan, subject, store, session, rival)
    if going.out_of_time:
        return going.result([], False, {"start": plan.elapsed})
    setting = answers.with_starts(plan.setting, plan.searcher.knowledge.starts, plan.spaces)
    session = store.open(plan.problem, setting) if session is None else store.resume(session)
    try:
        with subject.measurer(going.tally.fastest) as measurer:
            return going.to_the_end(session, measurer)
    except MeasureError:
        store.interrupt(session)
        raise


def recorded(plan: Plan, store: Store) -> SearchResult | None:
    """The result of the finished session that answers the plan, nothing measured; None where none does."""
    session = answers.answering(store, plan.problem, plan.setting, plan.trials, plan.seconds)
    if session is None:
        return None
    outcome = session.outcome
    assert outcome is not None
    assert outcome.sketch is not None and outcome.config is not None and outcome.seconds is not None
    tally = Tally()
    for stored, trial in answers.known_trials(store.records(session), plan.spaces):
        tally.add(trial, stored.elapsed)
    interval, speedup = outcome.interval or (outcome.seconds, outcome.seconds), outcome.extra.get("speedup")
    best = Best(outcome.sketch, outcome.config, outcome.seconds, interval, tuple(speedup) if speedup else None)
    return _result(
        session.setting,
        tally,
        reused=len(tally),
        seconds=plan.elapsed,
        phases={},
        best=best,
        baseline=outcome.baseline_seconds,
        converged=outcome.converged,
        interrupted=False,
    )


class _Run(Generic[M]):
    """One session under way; `session` is the one that goes on, `rival` what earlier ones found, with its seconds."""

    def __init__(
        self,
        plan: Plan,
        subject: Subject[M],
        store: Store,
        session: Session | None,
        rival: tuple[Candidate, float] | None,
    ) -> None:
        self.plan, self.subject, self.store, self.rival = plan, subject, store, rival
        self.search, self.spaces, self.tally = plan.searcher, plan.spaces, Tally()
        self.here: list[Measurement] = []  # those of this run
        self.batch, self.before = 0, 0.0  # where the stored numbers and times go on
        self.searching = self.measuring = 0.0
        known = []
        for stored, trial in answers.known_trials([] if session is None else store.records(session), self.spaces):
            self.batch, self.before = max(self.batch, stored.batch + 1), max(self.before, stored.elapsed)
            self.tally.add(trial, stored.elapsed)
            known.append(trial)
        self.reused = len(self.tally)
        self.search.tell(known)

    @property
    def out_of_time(self) -> bool:
        left = self._left()
        return left is not None and left <= 0

    def to_the_end(self, session: Session, measurer: M) -> SearchResult:
        """Runs the search, races the finalists, and finishes the session."""
        interrupted = False
        ready = self.plan.elapsed
        try:
            self._search(session, measurer)
        except KeyboardInterrupt:
            interrupted = True
        timed_out = self.out_of_time
        spent = self.subject.wall(measurer, sum((each.phases for each in self.here), Phases()))
        start = clock.perf_counter()
        raced: list[tuple[Candidate, Measurement]] = []
        if not interrupted:
            try:
                raced = self._race(measurer)
            except KeyboardInterrupt:
                interrupted = True
        phases = {"start": ready, "search": self.searching, **spent, "race": clock.perf_counter() - start}
        phases["other"] = max(0.0, self.plan.elapsed - sum(phases.values()))
        result = self.result(raced, interrupted, phases)
        # What a later request is measured by: the time that was granted, where the search used it up.
        budget = self.before + max(result.seconds, self.plan.seconds or 0.0 if timed_out else 0.0)
        extra: dict[str, Any] = {
            "seconds": result.seconds,
            "phases": phases,
            "budget": budget,
            "exhausted": self._exhausted,
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

    @property
    def _exhausted(self) -> bool:
        """Whether every point was measured: a search may also end at a limit of its own."""
        spaces = self.spaces.values()
        countable = all(space.bound <= _COUNTABLE for space in spaces)
        return self.search.finished and countable and len(self.tally) >= sum(space.size for space in spaces)

    def _search(self, session: Session, measurer: M) -> None:
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
        return within(requests, self.tally.measurements, self.plan.trials)

    def _measured(self, session: Session, measurer: M, requests: Sequence[Request]) -> list[Trial]:
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
            self.tally.add(trial, elapsed)
            self.here.append(measurement)
            trials.append(trial)
            if self.plan.seconds is not None and self.plan.elapsed >= self.plan.seconds and len(trials) < len(requests):
                if isinstance(answered, Generator):
                    answered.close()  # ends the workers that are at work: only where the race's time is gone, too
                break
        self.measuring += clock.perf_counter() - start
        self._report()
        return trials

    def _left(self) -> float | None:
        """Seconds left for the search; the last race has its own."""
        budget = self.plan.seconds
        return None if budget is None else budget - min(finals.RACE_SECONDS, budget / 4) - self.plan.elapsed

    def _spent(self) -> bool:
        return self.out_of_time or (self.plan.trials is not None and len(self.tally) >= self.plan.trials)

    def _affordable(self) -> int:
        """Requests that can be measured in the time that is left, as far as one can tell."""
        left = self._left()
        if left is None or not self.here:
            return BATCH
        return max(1, int(left / max(self.measuring / len(self.here), 1e-9)))

    def _race(self, measurer: M) -> list[tuple[Candidate, Measurement]]:
        """The default and the fastest few, interleaved."""
        ranked = self.tally.working
        default, incumbent = self.plan.default, self.search.best
        working = {*ranked, *({default} - self.tally.measurements.keys())}
        entrants = finals.enter(
            default if default in working else None,
            ranked,
            incumbent if incumbent in working else None,
            None if self.rival is None else self.rival[0],
        )
        if not entrants:
            return []
        times = {each: self.tally.estimate(each) for each in ranked} | (dict([self.rival]) if self.rival else {})
        slowest = max((times[each] for each in entrants if each in times), default=0.0)
        estimates = [times.get(each, slowest) for each in entrants]
        raced = self.subject.race(measurer, entrants, estimates)
        if not any(each.ok for each in raced):  # all have worked before: it was the machine, or one took all with it
            raced = self.subject.race(measurer, entrants, estimates)
        return list(zip(entrants, raced, strict=True))

    def result(
        self, raced: Sequence[tuple[Candidate, Measurement]], interrupted: bool, phases: Mapping[str, float]
    ) -> SearchResult:
        """What is known now, given how the last race went."""
        best, baseline = self._best(raced)
        return _result(
            self.plan.setting,
            self.tally,
            reused=self.reused,
            seconds=self.plan.elapsed,
            phases=phases,
            best=best,
            baseline=baseline,
            converged=self.search.converged,
            interrupted=interrupted,
        )

    def _best(self, raced: Sequence[tuple[Candidate, Measurement]]) -> tuple[Best | None, float | None]:
        final = finals.decide(self.plan.default, {each: found.seconds for each, found in raced if found.ok})
        if final is not None:
            speedup = None if final.speedup is None else (final.speedup.estimate, final.speedup.low, final.speedup.high)
            baseline = None if final.default is None else statistics.median(final.default)
            return self._as_best(final.winner, final.seconds, speedup), baseline
        # No race, or nobody worked in it: the best of many, as it was measured on the way.
        working = self.tally.working
        if not working:
            return None, None
        return self._as_best(working[0], self.tally.samples(working[0]), None), None

    def _as_best(
        self, candidate: Candidate, samples: Sequence[float], speedup: tuple[float, float, float] | None
    ) -> Best:
        seconds = low = high = samples[0]
        if len(samples) > 1:
            seconds, low, high = median_interval(samples)
        config = self.spaces[candidate.sketch].config(candidate.point)
        return Best(candidate.sketch, config, seconds, (low, high), speedup)

    def _report(self) -> None:
        if self.plan.on_progress is None:
            return
        tally, elapsed = self.tally, self.plan.elapsed
        self.plan.on_progress(Progress(len(tally), tally.failed, tally.fastest, elapsed, self.plan.seconds))


def _result(setting: Setting, tally: Tally, **rest: Any) -> SearchResult:
    """A result with what follows from the tally."""
    return SearchResult(
        search=setting.search,
        seed=setting.seed,
        trials=len(tally),
        failed=tally.failed,
        curve=tally.curve,
        suspect=tally.suspect,
        statuses=tally.statuses,
        error=tally.error,
        **rest,
    )
