"""Transfer: records of another machine, or of another shape of the same operator, say where a search begins.

The best schedules of another machine are the best for reasons that do not hold here. A model of its trials says which
kinds of schedules are good: a search that begins at the points which the model expects to be the best needs fewer
evaluations (docs/explanation/results.md, "Records of another GPU"). So only starts are taken over, and no times: all
of them are measured here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from ..errors import SpaceError, StoreError
from ..machine.contract import CUDA
from ..machine.similar_gpus import recorded_gpu, unlikeness
from ..records import Filter, Problem, State, Store, StoredTrial, Summary
from ..space import Space
from ..surrogate import knob_encodings
from ..surrogate.boosted import BoostedTrees
from ..trial import Candidate

STARTS = 8
"""The most starts that records of elsewhere give."""

_SESSIONS = 8  # whose trials are read, at most: the newest ones
_FEWEST = 16  # trials that the spaces have, for a model of them
_EVERY = 100_000  # combinations up to which all points of a space are compared
_SAMPLED = 4096  # points that are compared in a larger space
_SHARE = 4  # of the trials of a tuning one in so many is for starts


@dataclass(frozen=True)
class Transfer:
    """What was taken over from records of elsewhere.

    Attributes:
        starts: Where the search begins, the most promising point first.
        trials: How many recorded trials the model has seen.
        sessions: How many sessions they are of.
        sources: The other machines and, for another shape on this machine, the other functions, by name.
    """

    starts: Sequence[Candidate] = ()
    trials: int = 0
    sessions: int = 0
    sources: Sequence[str] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """`transfer` in the documents of `tune-op` and `tune`."""
        return {
            "starts": len(self.starts),
            "trials": self.trials,
            "sessions": self.sessions,
            "sources": list(self.sources),
        }


def transfer(
    problem: Problem, spaces: Mapping[str, Space], store: Store, seed: int, trials: int | None = None
) -> Transfer | None:
    """Where a search should begin, as records of elsewhere say.

    Used are the finished sessions of this function on other machines, for an NVIDIA GPU those of the most similar GPUs
    first, and those of other shapes of this operator on this machine. A recorded configuration counts if these spaces
    have it.

    Args:
        problem: What is tuned.
        spaces: The spaces by name.
        store: The records.
        seed: Seeds the model and the points that it compares.
        trials: The most candidates that the tuning may measure; None is no bound.

    Returns:
        What to take over; None if there are too few such records.
    """
    samples: dict[Candidate, list[float]] = {}
    sources: list[str] = []
    sessions = 0
    for summary in _related(problem, store):
        found: dict[Candidate, float] = {}
        with suppress(StoreError):  # it was deleted since, or the database fails: a search may begin anywhere
            found = speeds(store.records(store.session(summary.id)), spaces)
        if found:
            sessions += 1
            elsewhere = summary.machine != problem.machine
            sources.append(summary.machine if elsewhere else summary.workload_name)
            for candidate, speed in found.items():
                samples.setdefault(candidate, []).append(speed)
    told = {candidate: float(np.mean(of_candidate)) for candidate, of_candidate in samples.items()}
    if len(told) < _FEWEST or not any(told.values()):
        return None
    count = STARTS if trials is None else max(1, min(STARTS, trials // _SHARE))
    starts = predicted_starts(list(spaces.values()), told, count, np.random.default_rng(seed))
    return Transfer(starts, len(told), sessions, tuple(dict.fromkeys(sources)))


def speeds(trials: Iterable[StoredTrial], spaces: Mapping[str, Space]) -> dict[Candidate, float]:
    """The speed of each recorded candidate over that of the fastest one in its session; 0 if it failed.

    Args:
        trials: The trials of a session.
        spaces: The spaces by name. What they do not have is left out.
    """
    seconds: dict[tuple[str, str], list[float]] = {}
    candidates: dict[tuple[str, str], Candidate | None] = {}
    failed: set[tuple[str, str]] = set()
    for trial in trials:
        key = (trial.sketch, repr(sorted(trial.config.items())))
        if key not in candidates:
            candidates[key] = _candidate(trial, spaces)
        seconds.setdefault(key, []).extend(trial.measurement.seconds)
        if not trial.measurement.ok:
            failed.add(key)
    medians = {key: median(samples) for key, samples in seconds.items() if samples and key not in failed}
    fastest = min(medians.values(), default=0.0)
    return {
        candidate: fastest / medians[key] if key in medians else 0.0
        for key, candidate in candidates.items()
        if candidate is not None
    }


def predicted_starts(
    spaces: Sequence[Space], told: Mapping[Candidate, float], count: int, rng: np.random.Generator
) -> list[Candidate]:
    """The points that boosted trees, fitted to trials of elsewhere, expect to be the fastest.

    Args:
        spaces: The spaces.
        told: The relative speed of candidates elsewhere, 0 for those that failed.
        count: How many points are wanted.
        rng: Seeds the trees, and draws the points that are compared if a space is large.

    Returns:
        At most `count` points, the most promising one first.

    Example:
        >>> from stormdrop.space import Ordinal
        >>> space = Space("line", [Ordinal("x", range(64))])
        >>> told = {Candidate("line", (x,)): 1 / (1 + (x - 40) ** 2) for x in range(0, 64, 3)}
        >>> start, = predicted_starts([space], told, 1, np.random.default_rng(0))
        >>> abs(start.point[0] - 40) <= 3
        True
    """
    features = knob_encodings(spaces)
    trees = BoostedTrees(rng, objective="regression")
    trees.fit(features(list(told)), np.array(list(told.values())))
    compared = list(dict.fromkeys([*told, *(candidate for space in spaces for candidate in _points(space, rng))]))
    order = np.argsort(-trees.predict(features(compared)), kind="stable")[:count]
    return [compared[index] for index in order.tolist()]


def _related(problem: Problem, store: Store) -> list[Summary]:
    """The finished sessions of this function elsewhere, and then those of this operator's other shapes here."""
    finished = State.FINISHED
    same = store.sessions(Filter(workload_key=problem.workload_key, state=finished))
    here = store.sessions(Filter(target=problem.target, machine=problem.machine, state=finished))
    elsewhere = [each for each in same if (each.target, each.machine) != (problem.target, problem.machine)]
    if problem.target.startswith(CUDA):
        gpu = recorded_gpu(problem.target, problem.machine)
        elsewhere.sort(key=lambda each: unlikeness(problem.target, gpu, each.target, each.machine))
    operator = _operator(problem.workload_name)
    shapes = [
        each for each in here if each.workload_key != problem.workload_key and _operator(each.workload_name) == operator
    ]
    return [*elsewhere, *shapes][:_SESSIONS]


def _operator(name: str) -> str:
    """The name of a function without numbers: the importer numbers functions that are alike, as in `conv2d1_relu`."""
    return re.sub(r"\d+", "", name)


def _candidate(trial: StoredTrial, spaces: Mapping[str, Space]) -> Candidate | None:
    with suppress(SpaceError):  # the tile sizes of another extent, or the knobs of another version
        if trial.sketch in spaces:
            return Candidate(trial.sketch, spaces[trial.sketch].point(trial.config))
    return None


def _points(space: Space, rng: np.random.Generator) -> Iterable[Candidate]:
    if space.bound <= _EVERY:
        return (Candidate(space.name, point) for point in space.points())
    return (Candidate(space.name, space.sample(rng)) for _ in range(_SAMPLED))
