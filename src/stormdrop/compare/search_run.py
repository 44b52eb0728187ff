"""A search under observation: what it would report after every measurement, and what it has cost until then.

    contenders("droplet,droplet:test=student")  ->  create(spaces, seed)  ->  walk(search, measurer, trials)  ->  Walk

An *evaluation* is a distinct candidate measured; more samples of a known one cost time, but no evaluation. What a
search would report is the candidate with the least median over all of its samples so far, among those that never
failed; when it has finished and holds another for the best (`Search.best`), that one.
"""

from __future__ import annotations

import statistics
import time as clock
import types
import typing
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InputError, SearchError, hint
from ..measure.contract import Measurer
from ..search import Search, create, options_of
from ..space import Space
from ..trial import Candidate, Phases, Status, Trial, within
from ..tuning.request import BATCH

PARTS = ("search", "schedule", "build", "run", "check")
"""What wall time goes into: asking and telling the search, and the phases of its measurements."""


@dataclass(frozen=True)
class Contender:
    """A search with options, as in `droplet:test=student:speculation=false`; `label` is that text."""

    label: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def create(self, spaces: Sequence[Space], seed: int) -> Search:
        """The search on these spaces."""
        return create(self.name, spaces, np.random.default_rng(seed), **self.options)


def contenders(text: str) -> list[Contender]:
    """Searches separated by commas, each `name` or `name:option=value:option=value`.

    Raises `SearchError` for an unknown search, option or value, `InputError` for none at all and for one given twice.
    """
    labels = [label.strip() for label in text.split(",") if label.strip()]
    if not labels:
        raise InputError("no search is named: write, for example, droplet,random")
    for label, count in Counter(labels).items():
        if count > 1:
            raise InputError(f"search {label} is given twice")
    return [_contender(label) for label in labels]


@dataclass(frozen=True)
class Lead:
    """From this many evaluations and seconds (by `PARTS`) on, `candidate` is what the search would report.

    None where nothing works any more. `batch` counts the asks until then.
    """

    batch: int
    evaluations: int
    seconds: tuple[float, ...]
    candidate: Candidate | None


@dataclass
class Walk:
    """What one run of a search did.

    evaluated       the candidates in the order in which they were first measured, with the status of that
    medians         seconds, over all samples of a candidate; only of those that never failed
    seconds         wall seconds by `PARTS`
    status_seconds  wall seconds of all measurements by their status
    suspect         measurements beside foreign load
    """

    leads: list[Lead] = field(default_factory=list)
    evaluated: dict[Candidate, Status] = field(default_factory=dict)
    medians: dict[Candidate, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=lambda: [0.0] * len(PARTS))
    status_seconds: defaultdict[Status, float] = field(default_factory=lambda: defaultdict(float))
    suspect: int = 0
    converged: bool = False

    @property
    def winner(self) -> Candidate | None:
        """What the search would report at the end; None where nothing worked."""
        return self.leads[-1].candidate if self.leads else None


def walk(search: Search, measurer: Measurer, trials: int, time: float | None = None, live: bool = False) -> Walk:
    """Runs a search until it finishes, `trials` candidates are measured, or `time` (seconds, all parts) is spent.

    A batch that has begun is measured to its end. `live` says that the measurer works while it is waited for: then the
    wall time of a measurement counts, else what its phases say. Raises what the measurer raises.
    """
    observed = _Observed()
    walked = observed.walk
    while len(walked.evaluated) < trials and (time is None or sum(walked.seconds) < time):
        start = clock.perf_counter()
        requests = within(search.ask(BATCH), walked.evaluated, trials)
        walked.seconds[0] += clock.perf_counter() - start
        if not requests:
            break
        observed.batch += 1
        told: list[Trial] = []
        start = clock.perf_counter()
        for request, measurement in zip(requests, measurer.measure(requests), strict=True):
            waited = clock.perf_counter() - start
            phases = _as_waited(measurement.phases, waited) if live else measurement.phases
            told.append(Trial(request.candidate, measurement))
            observed.take(told[-1], phases)
            start = clock.perf_counter()
        start = clock.perf_counter()
        search.tell(told)
        walked.seconds[0] += clock.perf_counter() - start
    walked.converged = search.converged
    if search.finished and search.best in walked.medians:
        observed.lead(search.best)
    return walked


class _Observed:
    """A walk that grows, and what is needed to know who leads."""

    def __init__(self) -> None:
        self.walk = Walk()
        self.batch = 0
        self._samples: defaultdict[Candidate, list[float]] = defaultdict(list)
        self._failed: set[Candidate] = set()

    def take(self, trial: Trial, phases: Phases) -> None:
        """Takes in a trial that cost these wall seconds."""
        candidate, status = trial.candidate, trial.measurement.status
        walked, before = self.walk, self.walk.winner
        walked.evaluated.setdefault(candidate, status)
        walked.status_seconds[status] += phases.total
        walked.suspect += trial.measurement.suspect
        for at, part in enumerate(PARTS[1:], start=1):
            walked.seconds[at] += getattr(phases, part)
        if not trial.ok:
            self._failed.add(candidate)
            walked.medians.pop(candidate, None)
        elif candidate not in self._failed:
            self._samples[candidate] += trial.measurement.seconds
            walked.medians[candidate] = statistics.median(self._samples[candidate])
        medians = walked.medians
        if before is None or candidate == before:
            self.lead(min(medians, key=medians.__getitem__, default=None))
        elif candidate in medians and medians[candidate] < medians[before]:
            self.lead(candidate)

    def lead(self, candidate: Candidate | None) -> None:
        """From now on this is what the search would report."""
        if candidate != self.walk.winner:
            lead = Lead(self.batch, len(self.walk.evaluated), tuple(self.walk.seconds), candidate)
            self.walk.leads.append(lead)


def _as_waited(phases: Phases, waited: float) -> Phases:
    """The phases of a measurement that was waited for, such that they sum up to that time.

    Workers build side by side, so their own seconds are no wall time: what a wait held beside run and check is shared
    between schedule and build as the measurement's own are.
    """
    rest = max(0.0, waited - phases.run - phases.check)
    preparing = phases.schedule + phases.build
    if preparing == 0.0:
        return Phases(run=phases.run + rest, check=phases.check)
    share = rest / preparing
    return Phases(phases.schedule * share, phases.build * share, phases.run, phases.check)


def _contender(label: str) -> Contender:
    name, *settings = label.split(":")
    hints = typing.get_type_hints(options_of(name))
    options: dict[str, Any] = {}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not (option and equals and value):
            raise SearchError(f"{label}: write an option as name=value, not {setting!r}")
        if option not in hints:
            raise SearchError(f"search {name!r} has no option {option!r}; {hint(option, hints)}")
        if option in options:
            raise SearchError(f"{label}: option {option} is given twice")
        options[option] = _value(label, option, value, hints[option])
    try:
        options_of(name)(**options)
    except TypeError as error:
        raise SearchError(f"{label}: {error}") from error
    return Contender(label, name, options)


def _value(label: str, option: str, text: str, hint: Any) -> Any:
    """The value of an option, by its declared type. Raises `SearchError`."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if type(None) in kinds and text.lower() == "none":
        return None
    if bool in kinds and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for kind in (int, float, str):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    wanted = " or ".join("none" if kind is type(None) else getattr(kind, "__name__", str(kind)) for kind in kinds)
    raise SearchError(f"{label}: option {option} must be {wanted}, not {text!r}")
