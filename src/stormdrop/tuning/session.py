"""The one tuning loop: a session brings a request, a search, a measurer and a store together, whatever is tuned.

    search asks -> measurer measures -> store keeps -> search is told -> ...
    -> finalists and the default race side by side -> result

A search proposes and learns, a measurer observes, a store remembers. Only this file knows all three. `tune` runs it on
the schedules of a kernel and `minimize` on any callable. A model's tuning goes on with the session of one kernel for a
while, and then with that of another.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time as clock
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import chain, islice
from typing import Any

from typing_extensions import Self

from .. import events
from ..errors import LockTimeout, MeasureError, SearchError, SpaceError, one_line
from ..measure.contract import Measurer
from ..records import Config, Record, Store, StoredSession, buffered
from ..report.layer_label import with_layers
from ..report.search_end import BUDGET, CONVERGED, EXHAUSTED, FINISHED
from ..search import Search
from ..space import NoneFound
from ..statistics import Interval
from ..trial import Candidate, Measurement, Phases, Request, Trial, within
from . import race
from .request import TuningRequest
from .result import Best, Progress, SearchResult
from .reuse import TRANSFER, Answered, Fresh, Resume, answered_result, known_trials, resolve, with_starts
from .trace import Trace

MakeMeasurer = Callable[[float | None], AbstractContextManager[Measurer]]
"""Makes the measurer of a session. Its argument is the lowest median so far in seconds, if a session is resumed."""

_logger = logging.getLogger(__name__)

_WHERE = "tuning"  # where the events of a session happen

_COUNTABLE = 1_000_000  # combinations up to which the points of a space are counted


def run(request: TuningRequest, make_measurer: MakeMeasurer, store: Store) -> SearchResult:
    """Answers a request from the records; or searches, races the fastest few with the default, and records the result.

    Ctrl-C ends the search; the result is then the best so far. If the database fails after the search has begun, the
    search goes on, and its records are written later.

    Raises:
        MeasureError: Nothing can be measured.
        StoreError: The database fails before anything was measured.
    """
    with buffered(store) as records:
        decision = resolve(request, records)
        if isinstance(decision, Answered):
            return answered_result(request, records, decision)
        return _searched(request, make_measurer, records, decision)


def _searched(
    request: TuningRequest, make_measurer: MakeMeasurer, store: Store, decision: Resume | Fresh
) -> SearchResult:
    with Session(request, make_measurer, store, decision) as session:
        if session.out_of_time:
            return session.result([], interrupted=False, phases={"start": session.elapsed})
        interrupted, ended_by = False, ""
        try:
            session.search()
        except KeyboardInterrupt:
            interrupted = True
        except SpaceError as error:  # for instance by a constraint; what was measured is kept
            if not session.trials:
                raise
            ended_by = one_line(error)
        result = session.finish(interrupted=interrupted or bool(ended_by))
        return dataclasses.replace(result, interrupted=False, ended_by=ended_by) if ended_by else result


class Session:
    """One tuning under way. Use it as a context: its measurer ends with it.

    Its clock begins at the request's beginning. The clock stops at `pause` and at the end of each `search`. It runs
    again at the next `search` or `finish`. A session that is not finished can be resumed later.
    """

    def __init__(
        self, request: TuningRequest, make_measurer: MakeMeasurer, store: Store, decision: Resume | Fresh
    ) -> None:
        """A session of a request, ready to search.

        Args:
            request: What is tuned.
            make_measurer: Makes the measurer when it is first needed.
            store: Keeps every trial.
            decision: How the records are used, as `resolve` decides.
        """
        self.request = request.starting_at(decision.starts) if decision.starts else request
        self.store, self.rival = store, decision.rival
        self.spaces, self.trace = request.spaces, Trace()
        self._make_measurer = make_measurer
        self._to_resume = decision.session if isinstance(decision, Resume) else None
        self._transfer = decision.transfer if isinstance(decision, Fresh) else None
        self._running_since: float | None = request.begin
        self._passed = 0.0
        self._measurements: list[Measurement] = []  # those of this run
        self._queue: list[Request] = []
        self._following: list[Request] = []  # the batch after the queue, if the search asks ahead
        self._before = 0.0  # seconds of earlier runs of this session
        self._search_seconds = self._measure_seconds = self._start_seconds = 0.0
        self._end = math.inf if request.seconds is None else request.seconds  # when a running batch is broken off
        self._shut_out = False  # whether the time was over before another process gave the machine back
        self._open = ExitStack()
        self._measurer: Measurer | None = None
        self._stored: StoredSession | None = None
        self._retell()
        self._reused = len(self.trace)

    def _retell(self) -> None:
        """Tells the search the recorded trials of the session that is resumed."""
        trials = []
        records = [] if self._to_resume is None else self.store.records(self._to_resume)
        for record, trial in known_trials(records, self.spaces):
            self._before = max(self._before, record.elapsed)
            self.trace.seconds[0], self.trace.batch = record.elapsed, record.batch
            self.trace.record(trial)
            trials.append(trial)
        if trials:
            self.trace.batch += 1
        self.searcher.tell(trials)

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Ends the measurer. Closing twice is harmless."""
        self._open.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.close()
        if isinstance(error, MeasureError | SearchError) and self._stored is not None:
            self.store.interrupt(self._stored)

    # What is known of it

    @property
    def searcher(self) -> Search:
        """The search itself."""
        return self.request.searcher

    @property
    def elapsed(self) -> float:
        """Wall seconds of this run without pauses."""
        running = 0.0 if self._running_since is None else clock.perf_counter() - self._running_since
        return self._passed + running

    @property
    def effort(self) -> float:
        """Wall seconds of tuning, including earlier runs of this session."""
        return self._before + self.elapsed

    @property
    def trials(self) -> int:
        """Distinct candidates so far, including those of earlier runs of this session."""
        return len(self.trace)

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return self.trace.failed

    @property
    def seconds(self) -> float | None:
        """Seconds per execution of the fastest candidate so far; None if none works."""
        return self.trace.fastest

    @property
    def default_seconds(self) -> float | None:
        """Seconds per execution of the default; None if it was not measured, or does not work."""
        return self.trace.medians.get(self.request.default)

    @property
    def fastest(self) -> tuple[str, Config] | None:
        """The sketch and the configuration of the fastest candidate so far; None if none works."""
        winner = self.trace.winner
        return None if winner is None else (winner.sketch, self.spaces[winner.sketch].config(winner.point))

    @property
    def out_of_time(self) -> bool:
        """Whether nothing is left of the request's time for the search."""
        left = self._seconds_left()
        return left is not None and left <= 0

    @property
    def ended(self) -> bool:
        """Whether the search has nothing more to ask, or the request grants it nothing more."""
        return self._spent() or self.searcher.finished

    # Its steps

    def pause(self) -> None:
        """Stops the clock."""
        self._passed, self._running_since = self.elapsed, None

    def search(self, seconds: float = math.inf, trials: float = math.inf, limit: float = math.inf) -> None:
        """Goes on with the search, until it ends or a bound is reached.

        Args:
            seconds: The most wall seconds more.
            trials: The most distinct candidates more.
            limit: Wall seconds after which the running batch is broken off as well, and the machine is not waited for.

        Raises:
            MeasureError: Nothing can be measured.
            LockTimeout: The machine was not free before the time was over, and nothing is known yet.
        """
        try:
            with events.span("search", _WHERE, **self.request.named):
                self._search(seconds, trials, limit)
        finally:
            self.pause()

    def finish(
        self,
        *,
        interrupted: bool = False,
        race_seconds: float = race.RACE_SECONDS,
        granted: int = 0,
        races: int = 1,
        limit: float = math.inf,
    ) -> SearchResult:
        """Ends the session with the last race.

        Args:
            interrupted: The session was interrupted: there is no race, and it can be resumed.
            race_seconds: Wall seconds of the race; 0 for none.
            granted: How many candidates could have been measured. A later request for at most as many is
                answered from the records.
            races: How many kernels of a model are decided by a race each; see `race.decide`.
            limit: Wall seconds after which the machine is not waited for. There is then no race.
        """
        self._start_clock()
        timed_out = self.out_of_time
        spent = {} if self._measurer is None else self._measurer.wall_seconds(self._phases)
        begin = clock.perf_counter()
        raced: list[tuple[Candidate, Measurement]] = []
        if not interrupted and race_seconds > 0:
            try:
                measurer, _ = self._begun()
                self._bound(limit)
                measurer.deadline = self._deadline
                self._shut_out = False  # what counts is whether the race can be run
                with events.span("race", _WHERE, **self.request.named):
                    raced = self._race(measurer, race_seconds)
            except KeyboardInterrupt:
                interrupted = True
            except LockTimeout:
                self._give_up_waiting()
        phases = {"start": self._start_seconds, "search": self._search_seconds, **spent}
        phases["race"] = clock.perf_counter() - begin
        phases["other"] = max(0.0, self.elapsed - sum(phases.values()))
        result = self.result(raced, interrupted=interrupted, phases=phases, races=races)
        _logger.info("%s: %s", with_layers(self.request.problem.workload_name, self.request.layers), result)
        # A later request is compared with the time that was granted, if the search used it up.
        budget = self._before + max(result.seconds, self.request.seconds or 0.0 if timed_out else 0.0)
        outcome = result.outcome(
            phases=phases,
            budget=budget,
            granted=granted,
            exhausted=result.end == EXHAUSTED,
            end=result.end,
            disturbed=result.disturbed,
            **({} if self._measurer is None else self._measurer.conditions()),
        )
        if not interrupted:
            self.store.finish(self._opened(), outcome)
        elif self._stored is not None:
            self.store.interrupt(self._stored, outcome)
        return result

    def abandon(self) -> SearchResult:
        """Ends the session without a race if nothing can be measured any more. It can be resumed.

        Returns:
            What is known so far.
        """
        if self._stored is not None:
            self.store.interrupt(self._stored)
        return self.result([], interrupted=True, phases={})

    def result(
        self,
        raced: Sequence[tuple[Candidate, Measurement]],
        *,
        interrupted: bool,
        phases: Mapping[str, float],
        races: int = 1,
    ) -> SearchResult:
        """What is known now, given the measurements of the last race, which is one of `races` races."""
        working: dict[Candidate, Sequence[float]] = {
            candidate: measurement.seconds for candidate, measurement in raced if measurement.ok
        }
        disturbed = self._shut_out or any(measurement.suspect for _, measurement in raced)
        decided = race.decide(self.request.default, working, disturbed=disturbed, races=races)
        best: Best | None = None
        baseline: float | None = None
        compared: Interval | None = None
        if decided is not None:
            best = Best.measured(self.spaces, decided.winner, decided.seconds, decided.speedup)
            baseline, compared = decided.default_median, decided.compared
        elif self.trace.winner is not None:  # there was no race, or no candidate worked in it
            best = Best.measured(self.spaces, self.trace.winner, self.trace.samples(self.trace.winner))
        finalists = working or {
            candidate: self.trace.samples(candidate) for candidate in self.trace.working[: race.FINALISTS]
        }
        ranked = [Best.measured(self.spaces, candidate, samples) for candidate, samples in finalists.items()]
        return SearchResult.of_trace(
            self.trace,
            self.request.setting,
            self.request.default,
            self.spaces,
            reused=self._reused,
            seconds=self.elapsed,
            phases=phases,
            best=best,
            finalists=sorted(ranked, key=lambda finalist: finalist.seconds),
            baseline=baseline,
            compared=None if compared is None else (compared.estimate, compared.low, compared.high),
            converged=self.searcher.converged,
            end=self._end_in_words,
            interrupted=interrupted,
            disturbed=disturbed,
            transfer=self._from_elsewhere,
        )

    # Helpers

    @property
    def _from_elsewhere(self) -> Mapping[str, Any] | None:
        """What records of elsewhere have given, as the documents describe it."""
        if self._to_resume is not None:
            return self._to_resume.setting.method.get(TRANSFER)
        return None if self._transfer is None else self._transfer.to_json()

    def _start_clock(self) -> None:
        if self._running_since is None:
            self._running_since = clock.perf_counter()

    def _bound(self, limit: float) -> None:
        """Nothing is measured or waited for after `limit` more wall seconds, nor after the request's time."""
        self._end = min(math.inf if self.request.seconds is None else self.request.seconds, self.elapsed + limit)

    @property
    def _deadline(self) -> float:
        """The end as a reading of `time.perf_counter`."""
        return clock.perf_counter() + self._end - self.elapsed

    def _give_up_waiting(self) -> None:
        """Goes on with what is known. Raises the `LockTimeout` that is handled if nothing is known."""
        if not len(self.trace):
            raise
        self._shut_out = True

    def _opened(self) -> StoredSession:
        """The session in the store, opened when it is first needed."""
        if self._stored is None:
            setting = with_starts(self.request.setting, self.searcher.knowledge.starts, self.spaces, self._transfer)
            self._stored = (
                self.store.open(self.request.problem, setting)
                if self._to_resume is None
                else self.store.resume(self._to_resume)
            )
        return self._stored

    def _begun(self) -> tuple[Measurer, StoredSession]:
        """The measurer and the stored session, opened when they are first needed. The clock runs."""
        self._start_clock()
        stored = self._opened()
        if self._measurer is None:
            with events.span("start", _WHERE, **self.request.named, session=stored.id):
                self._measurer = self._open.enter_context(self._make_measurer(self.trace.fastest))
            self._start_seconds = self.elapsed
        return self._measurer, stored

    @property
    def _phases(self) -> Phases:
        return sum((measurement.phases for measurement in self._measurements), Phases())

    @property
    def _end_in_words(self) -> str:
        """Why the search has ended, if it has; see `SearchResult.end`."""
        if self.searcher.converged:
            return CONVERGED
        if self._exhausted:
            return EXHAUSTED
        return FINISHED if self.searcher.finished else BUDGET

    @property
    def _exhausted(self) -> bool:
        """Whether every point was measured. A search may also end at a limit of its own."""
        spaces, trials = self.spaces.values(), self.request.trials
        spent = trials is not None and len(self.trace) >= trials
        if not (self.searcher.finished or spent) or any(space.bound > _COUNTABLE for space in spaces):
            return False
        every = chain.from_iterable(space.points() for space in spaces)
        try:
            return next(islice(every, len(self.trace), None), None) is None
        except NoneFound:
            return False

    def _search(self, seconds: float, trials: float, limit: float) -> None:
        measurer, stored = self._begun()
        until, count = self.elapsed + seconds, len(self.trace) + trials
        self._bound(limit)
        while not self._spent() and self.elapsed < min(until, self._end) and len(self.trace) < count:
            self._queue = self._queue or self._next_batch()
            if not self._queue:
                break
            if self.request.ahead:
                self._following = self._following or self._ask()
                coming = [*self._queue, *self._following]
                measurer.announce(coming[: self._affordable(until, count, len(coming))])
            affordable = self._affordable(until, count, self.request.batch)
            measured = self._measure(stored, measurer, self._queue[:affordable])
            begin = clock.perf_counter()
            with events.span("tell", _WHERE, trials=len(measured)):
                self.searcher.tell(measured)
            self._search_seconds += clock.perf_counter() - begin
            self._queue = self._queue[len(measured) :]
            self.trace.batch += not self._queue
            if reason := self.trace.hopeless(Candidate(space.name, space.origin) for space in self.spaces.values()):
                raise MeasureError(reason)
        if self.request.ahead:
            measurer.announce([])

    def _next_batch(self) -> list[Request]:
        following, self._following = self._following, []
        return following or self._ask()

    def _ask(self) -> list[Request]:
        start = clock.perf_counter()
        with events.span("ask", _WHERE):
            requests = self.searcher.ask(self.request.batch)
        self._search_seconds += clock.perf_counter() - start
        if self.request.trials is None:
            return requests
        known: Collection[Candidate] = self.trace.measurements
        if self._queue:  # only a search that asks ahead is asked before its last batch is measured
            known = self.trace.measurements.keys() | {request.candidate for request in self._queue}
        return within(requests, known, self.request.trials)

    def _measure(self, stored: StoredSession, measurer: Measurer, requests: Sequence[Request]) -> list[Trial]:
        """Measures requests until the time is clearly over. Each trial is stored before the next one begins."""
        trials: list[Trial] = []
        start = clock.perf_counter()
        measurer.deadline = self._deadline
        measurements = measurer.measure(requests)
        number = events.started("measure", _WHERE, candidates=len(requests))
        try:
            for request, measurement in zip(requests, measurements, strict=True):
                trial = Trial(request.candidate, measurement)
                self._keep(stored, trial)
                trials.append(trial)
                if self.elapsed >= self._end and len(trials) < len(requests):
                    if isinstance(measurements, Generator):
                        measurements.close()  # ends the workers that are at work: even the time of the race is over
                    break
        except LockTimeout:
            self._give_up_waiting()
        finally:
            events.finished(number, "measure", _WHERE, measured=len(trials))
        self._measure_seconds += clock.perf_counter() - start
        self._report()
        return trials

    def _keep(self, stored: StoredSession, trial: Trial) -> None:
        """Stores a trial, and then counts on it."""
        candidate = trial.candidate
        config = self.spaces[candidate.sketch].config(candidate.point)
        self.trace.seconds[0] = self.effort
        record = Record(candidate.sketch, config, trial.measurement, self.trace.seconds[0])
        self.store.append(stored, self.trace.batch, [record])
        before = self.trace.fastest
        self.trace.record(trial)
        self._measurements.append(trial.measurement)
        self._tell_of(trial, config, before)

    def _tell_of(self, trial: Trial, config: Config, before: float | None) -> None:
        """Tells whoever listens of a trial, and of the fastest candidate if another one was the fastest before."""
        named, status = self.request.named, trial.measurement.status.value
        result = {"seconds": trial.median} if trial.ok else {"error": trial.measurement.error}
        known = {"sketch": trial.candidate.sketch, "config": dict(config), "status": status}
        events.happened("trial", _WHERE, **named, **known, **result)
        if self.trace.fastest is not None and self.trace.fastest != before:
            events.level("best seconds", named["workload"], self.trace.fastest, **named)

    def _seconds_left(self) -> float | None:
        """Seconds left for the search; the last race has its own."""
        budget = self.request.seconds
        return None if budget is None else budget - min(race.RACE_SECONDS, budget / 4) - self.elapsed

    def _spent(self) -> bool:
        trials = self.request.trials
        return self.out_of_time or (trials is not None and len(self.trace) >= trials)

    def _affordable(self, until: float, count: float, most: float) -> int:
        """How many requests can be measured within the time and the trials that are left, by the time others took.

        Args:
            until: Seconds of `elapsed` at which the search is to end.
            count: Distinct candidates at which it is to end.
            most: No more than these.
        """
        left = self._seconds_left()
        seconds = min(until - self.elapsed, math.inf if left is None else left)
        most = min(count - len(self.trace), most)
        if self._measurements:
            most = min(most, seconds / max(self._measure_seconds / len(self._measurements), 1e-9))
        return max(1, int(most))

    def _race(self, measurer: Measurer, seconds: float) -> list[tuple[Candidate, Measurement]]:
        """The default, the rival and the fastest few, interleaved."""
        ranked = self.trace.working
        default, incumbent = self.request.default, self.searcher.best
        working = {*ranked, *({default} - self.trace.measurements.keys())}
        candidates = race.entrants(
            default if default in working else None,
            ranked,
            incumbent if incumbent in working else None,
            None if self.rival is None else self.rival[0],
        )
        if not candidates:
            return []
        times = (dict([self.rival]) if self.rival else {}) | self.trace.medians
        slowest = max((times[candidate] for candidate in candidates if candidate in times), default=0.0)
        estimates = [times.get(candidate, slowest) for candidate in candidates]
        raced = measurer.race_for(candidates, estimates, seconds)
        if not any(measurement.ok for measurement in raced):
            # All have worked before, so the machine was at fault, or one candidate made all others fail.
            raced = measurer.race_for(candidates, estimates, seconds)
        return list(zip(candidates, raced, strict=True))

    def _report(self) -> None:
        if self.request.on_progress is not None:
            trace, budget = self.trace, self.request.seconds
            self.request.on_progress(Progress(len(trace), trace.failed, trace.fastest, self.elapsed, budget))
