"""Decides how the records are used for a request.

    resolve(request, store)  ->  Answered   a finished session is the answer, nothing is measured
                                 Resume     an unfinished session goes on
                                 Fresh      a new session, perhaps with candidates to start at and a rival

A finished session answers a request if it had nothing more to find, or if it had at least the budget that the request
brings. So a short session does not stay the answer to a long request for ever. A session that was imported never
answers: its times are what somebody says. The search begins at its result and measures it here.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import SpaceError, StoreError, one_line
from ..records import Config, Filter, Outcome, Problem, Setting, State, Store, StoredSession, StoredTrial
from ..report.search_end import end_of
from ..space import Space
from ..trial import Candidate, Trial
from .race import FINALISTS
from .request import CODE_GENERATION, TuningRequest
from .result import Best, SearchResult
from .trace import Trace
from .transfer import STARTS, Transfer, transfer

_STARTS = "starts"  # among a setting's method: where the search began, which depends on the records of that time
MODEL = "model"  # among a setting's method: the model that a kernel was tuned for, for people who read records
TRANSFER = "transfer"  # among a setting's method: what records of elsewhere gave, for people who read records
_SPACES = "spaces"  # among a setting's method: the spaces in words, for people who read records
_BATCH = "batch"  # among a setting's method: as many as the machines of that time measured
_MOST_STARTS = 3
_RECENT = 100  # sessions that are looked through for starts
_COMPILER = "apache-tvm"  # among a setting's versions: another compiler generates other code, with other times


@dataclass(frozen=True)
class Answered:
    """A finished session, with its outcome, is the answer to the request."""

    session: StoredSession
    outcome: Outcome


@dataclass(frozen=True)
class Resume:
    """An unfinished session goes on.

    Attributes:
        session: The session.
        starts: The candidates at which its search began.
        rival: The best earlier result with its seconds; None if there is none.
    """

    session: StoredSession
    starts: Sequence[Candidate]
    rival: tuple[Candidate, float] | None


@dataclass(frozen=True)
class Fresh:
    """A new session begins.

    Attributes:
        starts: The candidates at which its search begins; empty for the search's own.
        rival: The best earlier result with its seconds; None if there is none.
        transfer: What records of elsewhere have given of the starts; None if there are none.
    """

    starts: Sequence[Candidate]
    rival: tuple[Candidate, float] | None
    transfer: Transfer | None = None


def resolve(
    request: TuningRequest, store: Store, answers: Iterable[Answered] | None = None
) -> Answered | Resume | Fresh:
    """Decides how the records are used for a request.

    Args:
        request: What is asked for. Its `reuse` says what of the records may be used.
        store: The records.
        answers: The sessions that answer the request as far as `sufficient` knows; by default the store is asked.

    Raises:
        StoreError: The database fails.
    """
    reuse = request.reuse
    unfinished = _to_resume(request, store) if reuse.resume else None
    if unfinished is None and reuse.answer:
        answer = _answer(request, store, answers)
        if answer is not None:
            return answer
    rival = _best_known(request, store) if reuse.rival else None
    if unfinished is not None:
        return Resume(unfinished, _starts_of(unfinished, request.spaces), rival)
    starts = _fitting(reuse.hints, request.spaces)
    if not starts and reuse.starts:
        starts = _similar(request, store)
    imported = _imported(request, store) if reuse.starts else []
    known = list(dict.fromkeys([*imported, *starts]))
    told = (
        transfer(request.problem, request.spaces, store, request.setting.seed, request.trials)
        if reuse.transfer
        else None
    )
    if told is None:
        return Fresh(known, rival)
    return Fresh(list(dict.fromkeys([*known, *told.starts]))[: max(len(known), STARTS)], rival, told)


def answered_result(request: TuningRequest, store: Store, answer: Answered) -> SearchResult:
    """The result of a finished session that answers a request."""
    stored, outcome = answer.session, answer.outcome
    assert outcome.sketch is not None and outcome.config is not None and outcome.seconds is not None
    trace = Trace()
    for record, trial in known_trials(store.records(stored), request.spaces):
        trace.seconds[0], trace.batch = record.elapsed, record.batch
        trace.record(trial)
    interval, speedup = outcome.interval or (outcome.seconds, outcome.seconds), outcome.extra.get("speedup")
    compared = outcome.extra.get("compared")
    best = Best(outcome.sketch, outcome.config, outcome.seconds, interval, tuple(speedup) if speedup else None)
    fastest = [
        Best.measured(request.spaces, candidate, trace.samples(candidate)) for candidate in trace.working[:FINALISTS]
    ]
    others = [other for other in fastest if (other.sketch, other.config) != (best.sketch, best.config)]
    return SearchResult.of_trace(
        trace,
        stored.setting,
        request.default,
        request.spaces,
        reused=len(trace),
        seconds=request.elapsed,
        phases={},
        best=best,
        finalists=[best, *others],
        baseline=outcome.baseline_seconds,
        compared=tuple(compared) if compared else None,
        converged=outcome.converged,
        end=end_of(outcome.converged, outcome.extra),
        interrupted=False,
        disturbed=bool(outcome.extra.get("disturbed")),
        transfer=stored.setting.method.get(TRANSFER),
    )


def with_starts(
    setting: Setting, starts: Sequence[Candidate], spaces: Mapping[str, Space], told: Transfer | None = None
) -> Setting:
    """The setting of a session that begins at these candidates, some of which records of elsewhere have given."""
    described = [{"sketch": start.sketch, "config": spaces[start.sketch].config(start.point)} for start in starts]
    from_elsewhere = {} if told is None else {TRANSFER: told.to_json()}
    return dataclasses.replace(setting, method={**setting.method, _STARTS: described, **from_elsewhere})


def known_trials(stored: Iterable[StoredTrial], spaces: Mapping[str, Space]) -> Iterator[tuple[StoredTrial, Trial]]:
    """The recorded trials that are points of these spaces, as trials of a search."""
    for record in stored:
        candidate = _candidate(record.sketch, record.fingerprint, record.config, spaces)
        if candidate is not None:
            yield record, Trial(candidate, record.measurement)


def _to_resume(request: TuningRequest, store: Store) -> StoredSession | None:
    """The latest unfinished session of this machine, unless its trials were measured in another way."""
    for session in store.unfinished(request.problem, request.setting):
        if session.imported:  # its trials are somebody else's word
            continue
        if _same_spaces(session, request.spaces) and _same_compiler(session, request.setting):
            return session if _method(session.setting) == _method(request.setting) else None
    return None


def sufficient(
    store: Store,
    finished: Sequence[StoredSession],
    trials: int | None,
    seconds: float | None,
    shared: bool,
    disturbed: bool = False,
) -> Iterator[Answered]:
    """The finished sessions that answer a request, if their spaces and their compiler are those of the request.

    Args:
        store: The records.
        finished: The sessions that `finished_here` gives.
        trials: The trials that are asked for; None is no bound.
        seconds: The wall seconds that are asked for.
        shared: Whether the request is a part of a model's.
        disturbed: Whether a session whose last race was disturbed will do: its times are not reliable.

    Yields:
        Those that converged, then those that had enough, then those that were disturbed, each newest first. The trials
        of the second kind are read only then.
    """
    others, last = [], []
    for session in finished:
        outcome = session.outcome
        assert outcome is not None
        if outcome.extra.get("disturbed"):
            last.append(Answered(session, outcome))  # something else used the machine during the last race
        elif outcome.converged:
            yield Answered(session, outcome)
        else:
            others.append(Answered(session, outcome))
    for other in others:
        if _had_enough(store, other.session, other.outcome, trials, seconds, shared):
            yield other
    if disturbed:
        yield from last


def finished_here(store: Store, problem: Problem) -> list[StoredSession]:
    """The finished sessions of this problem that were not imported, newest first."""
    return [session for session in store.finished(problem) if not session.imported]


def _answer(request: TuningRequest, store: Store, answers: Iterable[Answered] | None) -> Answered | None:
    """The finished session that answers the request: one that converged, else the latest that had enough."""
    reuse = request.reuse
    if answers is None:
        finished = finished_here(store, request.problem)
        answers = sufficient(store, finished, request.trials, request.seconds, reuse.shared, reuse.disturbed)
    return next(
        (
            answer
            for answer in answers
            if _same_spaces(answer.session, request.spaces) and _same_compiler(answer.session, request.setting)
        ),
        None,
    )


def _had_enough(
    store: Store, session: StoredSession, outcome: Outcome, trials: int | None, seconds: float | None, shared: bool
) -> bool:
    """Whether a session exhausted its spaces, or had the requested trials, or else the requested seconds."""
    if outcome.extra.get("exhausted"):
        return True
    if trials == 0:
        return True
    if trials is not None:
        distinct = {(trial.sketch, repr(sorted(trial.config.items()))) for trial in store.records(session)}
        granted = int(outcome.extra.get("granted", 0)) if shared else 0
        return max(len(distinct), granted) >= trials
    budget = outcome.extra.get("budget", outcome.extra.get("seconds"))
    return seconds is not None and budget is not None and float(budget) >= seconds


def _best_known(request: TuningRequest, store: Store) -> tuple[Candidate, float] | None:
    """The fastest result of our own finished sessions that is a point of these spaces, and its seconds.

    Its compiler may be another one, because the race times it again.
    """
    best: tuple[Candidate, float] | None = None
    for session in finished_here(store, request.problem):
        outcome = session.outcome
        assert outcome is not None and outcome.sketch is not None
        assert outcome.config is not None and outcome.seconds is not None
        fingerprint = session.setting.sketches.get(outcome.sketch)
        candidate = _candidate(outcome.sketch, fingerprint, outcome.config, request.spaces)
        if candidate is not None and (best is None or outcome.seconds < best[1]):
            best = candidate, outcome.seconds
    return best


def _imported(request: TuningRequest, store: Store) -> list[Candidate]:
    """The results of imported sessions of this problem that are points of these spaces."""
    outcomes = [session.outcome for session in store.finished(request.problem) if session.imported]
    return _fitting([(outcome.sketch or "", outcome.config or {}) for outcome in outcomes if outcome], request.spaces)


def _similar(request: TuningRequest, store: Store) -> list[Candidate]:
    """The results of other problems on this machine that are points of these spaces.

    Kernels of one kind like similar schedules: a network's next layer may begin where the others have ended.
    """
    problem = request.problem
    results = []
    finished = Filter(target=problem.target, machine=problem.machine, state=State.FINISHED)
    for summary in store.sessions(finished)[:_RECENT]:
        if summary.workload_key == problem.workload_key:
            continue
        with suppress(StoreError):  # it was deleted since, or the database fails: a search may begin anywhere
            outcome = store.session(summary.id).outcome
            if outcome is not None and outcome.config is not None:
                results.append((outcome.sketch or "", outcome.config))
    return _fitting(results, request.spaces)


def _fitting(results: Iterable[tuple[str, Config]], spaces: Mapping[str, Space]) -> list[Candidate]:
    """The results, (sketch, configuration), that are points of these spaces, the most frequent first."""
    points: Counter[Candidate] = Counter()
    for sketch, config in results:
        with suppress(SpaceError):  # the tile sizes of another extent, or the knobs of another version
            if sketch in spaces:
                points[Candidate(sketch, spaces[sketch].point(config))] += 1
    return [candidate for candidate, _ in points.most_common(_MOST_STARTS)]


def _starts_of(session: StoredSession, spaces: Mapping[str, Space]) -> list[Candidate]:
    """The candidates that a session began at."""
    described: Sequence[Mapping[str, Any]] = session.setting.method.get(_STARTS, ())
    try:
        return [Candidate(start["sketch"], spaces[start["sketch"]].point(start["config"])) for start in described]
    except (LookupError, TypeError, SpaceError) as error:
        raise StoreError(f"session {session.id} says no candidates to start at ({one_line(error)})") from error


def _candidate(sketch: str, fingerprint: str | None, config: Config, spaces: Mapping[str, Space]) -> Candidate | None:
    space = spaces.get(sketch)
    if space is None or not space.recognises(fingerprint):
        return None
    try:
        return Candidate(sketch, space.point(config))
    except SpaceError:
        return None  # it comes from elsewhere, or a constraint has changed that is not part of the fingerprint


def _same_spaces(session: StoredSession, spaces: Mapping[str, Space]) -> bool:
    """Whether a session searched exactly these spaces."""
    fingerprints = session.setting.sketches
    return fingerprints.keys() == spaces.keys() and all(
        spaces[name].recognises(fingerprint) for name, fingerprint in fingerprints.items()
    )


def _same_compiler(session: StoredSession, setting: Setting) -> bool:
    """Whether the same code was generated for a schedule. Version 0.1 recorded no generation: it was the first."""
    before, now = session.setting.versions, setting.versions
    same_generation = before.get(CODE_GENERATION, "1") == now.get(CODE_GENERATION, "1")
    return before.get(_COMPILER) == now.get(_COMPILER) and same_generation


def _method(setting: Setting) -> dict[str, Any]:
    """What trials depend on besides the spaces."""
    others = (_STARTS, _SPACES, _BATCH, MODEL, TRANSFER)
    return {key: value for key, value in setting.method.items() if key not in others}
