"""The one tuning loop: brings spaces, a search, a measurer and a store together, whatever is tuned.

    search asks -> measurer measures -> store keeps -> search is told -> ...
    -> finalists and the default raced side by side -> result

A search proposes and learns, a measurer observes, a store remembers; only this file knows all three. `tune` runs it
on the schedules of a kernel, `minimize` on any callable; a model's tuning goes on with one kernel for a while, then
with another (`Tuning`).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time as clock
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import Self

from ..errors import MeasureError
from ..measure.contract import Measurer
from ..records import Outcome, Record, Session, Setting, Store
from ..space import Space
from ..statistics import median_interval
from ..trial import Candidate, Measurement, Phases, Request, Trial, within
from . import race as finals
from . import reuse as answers
from .request import BATCH, Plan
from .result import Best, Progress, SearchResult
from .trace import Tally

M = TypeVar("M", bound=Measurer)

_COUNTABLE = 1_000_000  # combinations up to which the points of a space are counted


class Subject(Protocol[M]):
    """What is tuned, where the loop must know of what kind it is."""

    def measurer(self, fastest: float | None) -> AbstractContextManager[M]:
        """A measurer for the run; `fastest` is the lowest median so far in seconds, where a session goes on."""

    def wall(self, measurer: M, spent: Phases) -> Mapping[str, float]:
        """Wall seconds by phase, given the sum over all measurements: what ran at the same time counts once."""

    def conditions(self, measurer: M) -> Mapping[str, Any]:
        """What the times were taken under, for the record."""

    def race(
        self, measurer: M, entrants: Sequence[Candidate], estimates: Sequence[float], seconds: float
    ) -> Sequence[Measurement]:
        """The race of these, by `measurer.race`, in as many rounds as fit; `estimates` are their times in seconds."""


def run(plan: Plan, subject: Subject[M], store: Store, *, resume: bool, fresh: bool, answered: bool) -> SearchResult:
    """Searches, races the fastest few with the default, and keeps everything in the store.

    See `start`. Ctrl-C ends the search and returns the best so far. Raises `MeasureError` where nothing can be
    measured.
    """
    going = start(plan, subject, store, resume=resume, fresh=fresh, answered=answered)
    if isinstance(going, SearchResult):
        return going
    with going:
        interrupted = False
        try:
            going.search()
        except KeyboardInterrupt:
            interrupted = True
        return going.finish(interrupted=interrupted)


def start(
    plan: Plan, subject: Subject[M], store: Store, *, resume: bool, fresh: bool, answered: bool
) -> Tuning[M] | SearchResult:
    """A tuning, ready to search; or its result, where the records have it or no time is left.

    `resume` continues the latest unfinished session of the same problem and setting, if there is one. Where nothing
    is resumed and `answered` holds, a finished record that suffices is the answer; without one the search begins
    where those of similar problems have ended. What an insufficient one found takes part in the last race, unless
    `fresh`.
    """
    session = answers.to_resume(store, plan.problem, plan.setting, plan.spaces) if resume else None
    if session is None and answered:
        known = recorded(plan, store)
        if known is not None:
            return known
    starts = answers.similar(store, plan.problem, plan.spaces) if answered else []
    going = unanswered(plan, subject, store, session, starts, fresh=fresh)
    return going.result([], False, {"start": going.elapsed}) if going.out_of_time else going


def unanswered(
    plan: Plan,
    subject: Subject[M],
    store: Store,
    session: Session | None,
    starts: Sequence[Candidate],
    *,
    fresh: bool,
) -> Tuning[M]:
    """A tuning, ready to search: of a session to resume, or of a new one that begins at `starts`."""
    rival = None if fresh else answers.best_known(store, plan.problem, plan.spaces)
    begun = starts if session is None else answers.starts_of(session, plan.spaces)
    return Tuning(plan.starting(begun) if begun else plan, subject, store, session, rival)


def recorded(plan: Plan, store: Store, shared: bool = False) -> SearchResult | None:
    """The result of the finished session that answers the plan, nothing measured; None where none does.

    `shared`: the trials are a kernel's part of a model's, of which it need not use all.
    """
    session = answers.answering(store, plan.problem, plan.setting, plan.spaces, plan.trials, plan.seconds, shared)
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
    others = [_measured_as(plan.spaces, each, tally.samples(each)) for each in tally.working[: finals.FINALISTS]]
    return _result(
        session.setting,
        tally,
        plan.default,
        reused=len(tally),
        seconds=plan.elapsed,
        phases={},
        best=best,
        finalists=[best, *(each for each in others if each.config != best.config or each.sketch != best.sketch)],
        baseline=outcome.baseline_seconds,
        converged=outcome.converged,
        interrupted=False,
    )


class Tuning(Generic[M]):
    """One session under way; `session` is the one that goes on, `rival` what earlier ones found, with its seconds.

    Its clock begins at the plan's beginning and stands still between `pause` and the next `search` or `finish`. Use as
    a context: the measurer ends with it. A session that is not finished then can be resumed.
    """

    def __init__(
        self,
        plan: Plan,
        subject: Subject[M],
        store: Store,
        session: Session | None,
        rival: tuple[Candidate, float] | None,
    ) -> None:
        self.plan, self.subject, self.store, self.rival = plan, subject, store, rival
        self.spaces, self.tally = plan.spaces, Tally()
        self._searcher, self._resumed = plan.searcher, session
        self._since: float | None = plan.begin
        self._passed = 0.0
        self._here: list[Measurement] = []  # those of this run
        self._queue: list[Request] = []
        self._batch, self._before = 0, 0.0  # where the stored numbers and times go on
        self._searching = self._measuring = self._ready = 0.0
        self._end = math.inf if plan.seconds is None else plan.seconds  # when a batch under way is broken off
        self._open = ExitStack()
        self._measurer: M | None = None
        self._session: Session | None = None
        known = []
        for stored, trial in answers.known_trials([] if session is None else store.records(session), self.spaces):
            self._batch, self._before = max(self._batch, stored.batch + 1), max(self._before, stored.elapsed)
            self.tally.add(trial, stored.elapsed)
            known.append(trial)
        self._reused = len(self.tally)
        self._searcher.tell(known)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._open.close()
        if isinstance(error, MeasureError) and self._session is not None:
            self.store.interrupt(self._session)

    @property
    def elapsed(self) -> float:
        """Seconds of this run, pauses aside."""
        return self._passed + (0.0 if self._since is None else clock.perf_counter() - self._since)

    @property
    def out_of_time(self) -> bool:
        """Whether nothing is left of the plan's time for the search."""
        left = self._left()
        return left is not None and left <= 0

    @property
    def effort(self) -> float:
        """Seconds of tuning, those of an earlier run that goes on here included."""
        return self._before + self.elapsed

    @property
    def ended(self) -> bool:
        """Whether the search has nothing more to ask, or the plan grants it nothing more."""
        return self._spent() or self._searcher.finished

    def pause(self) -> None:
        """Stops the clock."""
        self._passed, self._since = self.elapsed, None

    def search(self, seconds: float = math.inf, trials: float = math.inf, limit: float = math.inf) -> None:
        """Goes on with the search: for so many seconds and distinct candidates more at most, and to its end at most.

        After `limit` seconds the batch under way is broken off, too.
        """
        measurer, session = self._begun()
        until, count = self.elapsed + seconds, len(self.tally) + trials
        self._end = min(math.inf if self.plan.seconds is None else self.plan.seconds, self.elapsed + limit)
        while not self._spent() and self.elapsed < min(until, self._end) and len(self.tally) < count:
            self._queue = self._queue or self._ask()
            if not self._queue:
                return
            found = self._measured(session, measurer, self._queue[: self._affordable(until, count)])
            begin = clock.perf_counter()
            self._searcher.tell(found)
            self._searching += clock.perf_counter() - begin
            self._queue = self._queue[len(found) :]
            self._batch += not self._queue

    def finish(
        self, *, interrupted: bool = False, race_seconds: float = finals.RACE_SECONDS, granted: int = 0
    ) -> SearchResult:
        """Races the finalists, unless `interrupted` or no seconds are left for that, and ends the session.

        `granted` candidates could have been measured: a later request for no more is answered by this session.
        """
        self._goes_on()
        timed_out = self.out_of_time
        spent = {} if self._measurer is None else self.subject.wall(self._measurer, self._phases)
        begin = clock.perf_counter()
        raced: list[tuple[Candidate, Measurement]] = []
        if not interrupted and race_seconds > 0:
            try:
                raced = self._race(self._begun()[0], race_seconds)
            except KeyboardInterrupt:
                interrupted = True
        phases = {"start": self._ready, "search": self._searching, **spent, "race": clock.perf_counter() - begin}
        phases["other"] = max(0.0, self.elapsed - sum(phases.values()))
        result = self.result(raced, interrupted, phases)
        # What a later request is measured by: the time that was granted, where the search used it up.
        budget = self._before + max(result.seconds, self.plan.seconds or 0.0 if timed_out else 0.0)
        extra: dict[str, Any] = {
            "seconds": result.seconds,
            "phases": phases,
            "budget": budget,
            "granted": granted,
            "exhausted": self._exhausted,
            "disturbed": any(found.suspect for _, found in raced),
        }
        if self._measurer is not None:
            extra |= self.subject.conditions(self._measurer)
        outcome = Outcome(baseline_seconds=result.baseline, converged=result.converged, extra=extra)
        if result.best is not None:
            best = result.best
            extra["speedup"] = None if best.speedup is None else list(best.speedup)
            found: dict[str, Any] = {"sketch": best.sketch, "config": dict(best.config), "seconds": best.seconds}
            outcome = dataclasses.replace(outcome, **found, interval=best.interval)
        if not interrupted or self._session is not None:
            (self.store.interrupt if interrupted else self.store.finish)(self._opened(), outcome)
        return result

    def abandon(self) -> SearchResult:
        """What is known, where nothing can be measured any more; the session can be resumed."""
        if self._session is not None:
            self.store.interrupt(self._session)
        return self.result([], True, {})

    def _goes_on(self) -> None:
        if self._since is None:
            self._since = clock.perf_counter()

    def _opened(self) -> Session:
        """The session, opened when it is first needed."""
        if self._session is None:
            setting = answers.with_starts(self.plan.setting, self._searcher.knowledge.starts, self.spaces)
            resumed = self._resumed
            self._session = (
                self.store.open(self.plan.problem, setting) if resumed is None else self.store.resume(resumed)
            )
        return self._session

    def _begun(self) -> tuple[M, Session]:
        """The measurer and the session, opened when they are first needed; the clock runs."""
        self._goes_on()
        session = self._opened()
        if self._measurer is None:
            self._measurer = self._open.enter_context(self.subject.measurer(self.tally.fastest))
            self._ready = self.elapsed
        return self._measurer, session

    @property
    def _phases(self) -> Phases:
        return sum((each.phases for each in self._here), Phases())

    @property
    def _exhausted(self) -> bool:
        """Whether every point was measured: a search may also end at a limit of its own."""
        spaces = self.spaces.values()
        countable = all(space.bound <= _COUNTABLE for space in spaces)
        return self._searcher.finished and countable and len(self.tally) >= sum(space.size for space in spaces)

    def _ask(self) -> list[Request]:
        start = clock.perf_counter()
        requests = self._searcher.ask(BATCH)
        self._searching += clock.perf_counter() - start
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
            elapsed = self._before + self.elapsed
            config = self.spaces[request.candidate.sketch].config(request.candidate.point)
            record = Record(request.candidate.sketch, config, measurement, elapsed)
            self.store.append(session, self._batch, [record])
            self.tally.add(trial, elapsed)
            self._here.append(measurement)
            trials.append(trial)
            if self.elapsed >= self._end and len(trials) < len(requests):
                if isinstance(answered, Generator):
                    answered.close()  # ends the workers that are at work: only where the race's time is gone, too
                break
        self._measuring += clock.perf_counter() - start
        self._report()
        return trials

    def _left(self) -> float | None:
        """Seconds left for the search; the last race has its own."""
        budget = self.plan.seconds
        return None if budget is None else budget - min(finals.RACE_SECONDS, budget / 4) - self.elapsed

    def _spent(self) -> bool:
        return self.out_of_time or (self.plan.trials is not None and len(self.tally) >= self.plan.trials)

    def _affordable(self, until: float, count: float) -> int:
        """Requests that can be measured before `until` and up to so many candidates, as far as one can tell."""
        left = self._left()
        seconds = min(until - self.elapsed, math.inf if left is None else left)
        most = min(count - len(self.tally), float(BATCH))
        if self._here:
            most = min(most, seconds / max(self._measuring / len(self._here), 1e-9))
        return max(1, int(most))

    def _race(self, measurer: M, seconds: float) -> list[tuple[Candidate, Measurement]]:
        """The default and the fastest few, interleaved."""
        ranked = self.tally.working
        default, incumbent = self.plan.default, self._searcher.best
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
        raced = self.subject.race(measurer, entrants, estimates, seconds)
        if not any(each.ok for each in raced):  # all have worked before: it was the machine, or one took all with it
            raced = self.subject.race(measurer, entrants, estimates, seconds)
        return list(zip(entrants, raced, strict=True))

    def result(
        self, raced: Sequence[tuple[Candidate, Measurement]], interrupted: bool, phases: Mapping[str, float]
    ) -> SearchResult:
        """What is known now, given how the last race went."""
        best, baseline = self._best(raced)
        working: dict[Candidate, Sequence[float]] = {each: found.seconds for each, found in raced if found.ok}
        working = working or {each: self.tally.samples(each) for each in self.tally.working[: finals.FINALISTS]}
        ranked = sorted(working, key=lambda each: statistics.median(working[each]))
        return _result(
            self.plan.setting,
            self.tally,
            self.plan.default,
            reused=self._reused,
            seconds=self.elapsed,
            phases=phases,
            best=best,
            finalists=[_measured_as(self.spaces, each, working[each]) for each in ranked],
            baseline=baseline,
            converged=self._searcher.converged,
            interrupted=interrupted,
        )

    def _best(self, raced: Sequence[tuple[Candidate, Measurement]]) -> tuple[Best | None, float | None]:
        final = finals.decide(self.plan.default, {each: found.seconds for each, found in raced if found.ok})
        if final is not None:
            speedup = None if final.speedup is None else (final.speedup.estimate, final.speedup.low, final.speedup.high)
            baseline = None if final.default is None else statistics.median(final.default)
            return _measured_as(self.spaces, final.winner, final.seconds, speedup), baseline
        # No race, or nobody worked in it: the best of many, as it was measured on the way.
        working = self.tally.working
        if not working:
            return None, None
        return _measured_as(self.spaces, working[0], self.tally.samples(working[0])), None

    def _report(self) -> None:
        if self.plan.on_progress is None:
            return
        tally, elapsed = self.tally, self.elapsed
        self.plan.on_progress(Progress(len(tally), tally.failed, tally.fastest, elapsed, self.plan.seconds))


def _measured_as(
    spaces: Mapping[str, Space],
    candidate: Candidate,
    samples: Sequence[float],
    speedup: tuple[float, float, float] | None = None,
) -> Best:
    seconds = low = high = samples[0]
    if len(samples) > 1:
        seconds, low, high = median_interval(samples)
    return Best(candidate.sketch, spaces[candidate.sketch].config(candidate.point), seconds, (low, high), speedup)


def _result(setting: Setting, tally: Tally, default: Candidate, **rest: Any) -> SearchResult:
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
        default_failed=any(not each.ok for each in tally.measurements.get(default, ())),
        **rest,
    )
