"""What the records say about a request: the session to continue, the one that answers it, the best schedule so far.

A finished session answers a request where it had nothing more to find, or had at least the budget that the request
brings. A short session must not be the answer to a long one for ever.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import SpaceError
from ..records import Config, Filter, Outcome, Problem, Session, Setting, State, Store, StoredTrial
from ..space import Space
from ..trial import Candidate, Trial

_STARTS = "starts"  # among a setting's method: where the search began, from what the records knew at that time
_SPACES = "spaces"  # among a setting's method: the spaces in words, for people who read records
_STARTS_AT_MOST = 3
_RECENT = 100  # sessions that are looked through for starts
_COMPILER = "apache-tvm"  # among a setting's versions: other code is generated, so other times are measured


def to_resume(store: Store, problem: Problem, setting: Setting, spaces: Mapping[str, Space]) -> Session | None:
    """The latest unfinished session of a problem and setting, unless its trials were measured in another way."""
    for session in store.unfinished(problem, setting):
        if _same_spaces(session, spaces) and _same_compiler(session, setting):
            return session if _method(session.setting) == _method(setting) else None
    return None


def with_starts(setting: Setting, starts: Sequence[Candidate], spaces: Mapping[str, Space]) -> Setting:
    """The setting of a session that begins at these candidates."""
    noted = [{"sketch": start.sketch, "config": spaces[start.sketch].config(start.point)} for start in starts]
    return dataclasses.replace(setting, method={**setting.method, _STARTS: noted})


def starts_of(session: Session, spaces: Mapping[str, Space]) -> list[Candidate]:
    """The candidates that a session began at."""
    noted: Sequence[Mapping[str, Any]] = session.setting.method.get(_STARTS, ())
    return [Candidate(each["sketch"], spaces[each["sketch"]].point(each["config"])) for each in noted]


def similar(store: Store, problem: Problem, spaces: Mapping[str, Space]) -> list[Candidate]:
    """The results of other problems on this machine that are points of these spaces, those most often found first.

    Kernels of one kind like similar schedules: a network's next layer may begin where the others have ended.
    """
    where = Filter(target=problem.target, machine=problem.machine, state=State.FINISHED)
    ends = []
    for summary in store.sessions(where)[:_RECENT]:
        outcome = store.session(summary.id).outcome
        if summary.workload_key == problem.workload_key or outcome is None or outcome.config is None:
            continue
        ends.append((outcome.sketch or "", outcome.config))
    return fitting(ends, spaces)


def fitting(found: Iterable[tuple[str, Config]], spaces: Mapping[str, Space]) -> list[Candidate]:
    """Those of some configurations, each of a sketch, that are points of these spaces; those most often found first."""
    points: Counter[Candidate] = Counter()
    for sketch, config in found:
        with suppress(SpaceError):  # another extent's tile sizes, or another version's knobs
            if sketch in spaces:
                points[Candidate(sketch, spaces[sketch].point(config))] += 1
    return [candidate for candidate, _ in points.most_common(_STARTS_AT_MOST)]


def answering(
    store: Store,
    problem: Problem,
    setting: Setting,
    spaces: Mapping[str, Space],
    trials: int | None,
    seconds: float | None,
    shared: bool = False,
) -> Session | None:
    """The finished session that answers a request of so many trials, or of so many seconds; None where none does.

    Any answers that was not disturbed at its end, has the same spaces and the same version of TVM, and converged,
    exhausted its spaces, or had at least `trials` distinct candidates (where `trials` is None: `seconds` of tuning). To
    a request that is `shared`, part of a model's, also one answers that was granted so many there and left them to
    other kernels. One that converged comes first, then the latest.
    """
    found = []
    for session in store.finished(problem):
        if not _same_spaces(session, spaces) or not _same_compiler(session, setting):
            continue
        assert session.outcome is not None
        if session.outcome.extra.get("disturbed"):
            continue  # something else used the machine while its finalists were raced: its figures are no answer
        if session.outcome.converged:
            return session
        if _enough(store, session, session.outcome, trials, seconds, shared):
            found.append(session)
    return found[0] if found else None


def best_known(store: Store, problem: Problem, spaces: Mapping[str, Space]) -> tuple[Candidate, float] | None:
    """The fastest result of all finished sessions that is a point of these spaces (by sketch), and its seconds."""
    best: tuple[Candidate, float] | None = None
    for session in store.finished(problem):
        outcome = session.outcome
        assert outcome is not None and outcome.sketch is not None
        assert outcome.config is not None and outcome.seconds is not None
        fingerprint = session.setting.sketches.get(outcome.sketch)
        candidate = _candidate(outcome.sketch, fingerprint, outcome.config, spaces)
        if candidate is not None and (best is None or outcome.seconds < best[1]):
            best = candidate, outcome.seconds
    return best


def known_trials(stored: Iterable[StoredTrial], spaces: Mapping[str, Space]) -> Iterator[tuple[StoredTrial, Trial]]:
    """Recorded trials as a search takes them; those that are no points of these spaces are left out."""
    for each in stored:
        candidate = _candidate(each.sketch, each.fingerprint, each.config, spaces)
        if candidate is not None:
            yield each, Trial(candidate, each.measurement)


def _candidate(sketch: str, fingerprint: str | None, config: Config, spaces: Mapping[str, Space]) -> Candidate | None:
    space = spaces.get(sketch)
    if space is None or not space.recognises(fingerprint):
        return None
    try:
        return Candidate(sketch, space.point(config))
    except SpaceError:
        return None  # from elsewhere, or of a constraint that has changed and does not say so


def _enough(
    store: Store, session: Session, outcome: Outcome, trials: int | None, seconds: float | None, shared: bool
) -> bool:
    if outcome.extra.get("exhausted"):
        return True
    if trials is not None:
        distinct = {(each.sketch, repr(sorted(each.config.items()))) for each in store.records(session)}
        return max(len(distinct), int(outcome.extra.get("granted", 0)) if shared else 0) >= trials
    had = outcome.extra.get("budget", outcome.extra.get("seconds"))
    return seconds is not None and had is not None and float(had) >= seconds


def _same_compiler(session: Session, setting: Setting) -> bool:
    return session.setting.versions.get(_COMPILER) == setting.versions.get(_COMPILER)


def _same_spaces(session: Session, spaces: Mapping[str, Space]) -> bool:
    """Whether a session searched exactly these spaces."""
    fingerprints = session.setting.sketches
    return fingerprints.keys() == spaces.keys() and all(
        spaces[name].recognises(fingerprint) for name, fingerprint in fingerprints.items()
    )


def _method(setting: Setting) -> dict[str, Any]:
    """What trials depend on beside the spaces."""
    return {key: value for key, value in setting.method.items() if key not in (_STARTS, _SPACES)}
