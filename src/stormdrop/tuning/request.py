"""A request to search, made definite: the spaces, the search on them, the budget, and what records go by."""

from __future__ import annotations

import dataclasses
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..search import Knowledge, Search, create, options_of
from ..space import Space
from ..trial import Candidate
from .duration import seconds_of

if TYPE_CHECKING:
    from ..records import Problem, Setting
    from .result import Progress

DEFAULT_SEARCH = "storm"
"""The search that is used where none is named."""

DEFAULT_SECONDS = 60.0
"""Wall time of a tuning that is given neither trials nor time."""

BATCH = 8
"""Requests per ask. The same in every run, so that a resumed search makes the asks of the interrupted one."""

NOTHING = Knowledge()
"""What a search is told beside its spaces where nobody knows more."""


@dataclass(frozen=True)
class Plan:
    """All that a tuning needs but a measurer and a store. `seconds` of wall time are granted from `begin` on."""

    problem: Problem
    setting: Setting
    spaces: Mapping[str, Space]
    searcher: Search
    trials: int | None
    seconds: float | None
    begin: float
    on_progress: Callable[[Progress], None] | None
    knowledge: Knowledge

    @property
    def default(self) -> Candidate:
        """What the others are compared with: the origin of the first space."""
        first = next(iter(self.spaces.values()))
        return Candidate(first.name, first.origin)

    def starting(self, starts: Sequence[Candidate]) -> Plan:
        """The same with a search that begins at these candidates."""
        spaces, rng = list(self.spaces.values()), np.random.default_rng(self.setting.seed)
        knowledge = dataclasses.replace(self.knowledge, starts=tuple(starts))
        return dataclasses.replace(
            self, searcher=create(self.setting.search, spaces, rng, knowledge, **self.setting.options)
        )

    @property
    def elapsed(self) -> float:
        return clock.perf_counter() - self.begin


def check_request(trials: int | None, time: float | str | None, resume: bool, fresh: bool) -> float | None:
    """The seconds of a time as people write it. Raises `InputError` for bad numbers and contradictions."""
    if trials is not None and trials < 1:
        raise InputError(f"trials={trials} must be 1 or more")
    seconds = seconds_of(time)
    if resume and fresh:
        raise InputError("resume and fresh exclude each other: continue a session, or tune as if nothing were known")
    return seconds


def make_plan(
    problem: Problem,
    spaces: Sequence[Space],
    search: str,
    options: Mapping[str, Any] | None,
    versions: Mapping[str, str],
    trials: int | None,
    seconds: float | None,
    seed: int,
    begin: float,
    on_progress: Callable[[Progress], None] | None,
    knowledge: Knowledge = NOTHING,
    method: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of a request. `versions` are those of the tools that the measured times depend on; `method` is what else
    the trials depend on.

    Raises `SearchError` for an unknown search or option, for no space, and for two of the same name.
    """
    from ..records import Setting  # here: the command line needs the defaults above before it needs a database

    given = dict(options or {})
    searcher = create(
        search, spaces, np.random.default_rng(seed), knowledge, **given
    )  # checks the name and the options
    setting = Setting(
        search=search,
        seed=seed,
        sketches={space.name: space.fingerprint for space in spaces},
        options=dataclasses.asdict(options_of(search)(**given)),
        method={"batch": BATCH, "spaces": {space.name: space.describe() for space in spaces}, **(method or {})},
        versions=versions,
    )
    budget = seconds if seconds is not None or trials is not None else DEFAULT_SECONDS
    by_name = {space.name: space for space in spaces}
    return Plan(problem, setting, by_name, searcher, trials, budget, begin, on_progress, knowledge)
