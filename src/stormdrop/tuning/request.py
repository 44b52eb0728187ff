"""A request to tune: the spaces, the search on them, the budget, and what the records are kept under."""

from __future__ import annotations

import dataclasses
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..report.layer_label import layer_label
from ..search import GeneratorSearch, Knowledge, Search, create, options_with
from ..space import Space
from ..trial import Candidate
from .options import TuneOptions

if TYPE_CHECKING:
    from ..records import Config, Problem, Setting
    from .result import Progress

BATCH = 8
"""Requests per ask. A fleet or a rack that measures more at the same time has larger batches."""


CODE_GENERATION = "code generation"
"""Among the versions of a setting: `codegen.compile.GENERATION`."""

_NO_KNOWLEDGE = Knowledge()

_LABEL = 80  # characters of the layers of a kernel

_ROUNDS = 2  # in a batch for each that is measured at the same time, so that few wait at its end


@dataclass(frozen=True)
class Reuse:
    """What of the records a tuning may use.

    Args:
        resume: Continue the latest unfinished session.
        answer: Return the result of a finished session that suffices, and measure nothing.
        disturbed: Let a session whose last race was disturbed answer, too, if no other one does.
        shared: The trials are a kernel's part of a model's; a session that left some of them to others suffices.
        starts: Begin at the results of similar problems.
        rival: Let the best earlier result take part in the last race.
        hints: Results of related problems, (sketch, configuration), that are not in the records yet.
        transfer: Begin where records of other machines, and of other shapes of the operator, say.
    """

    resume: bool = False
    answer: bool = True
    disturbed: bool = False
    shared: bool = False
    starts: bool = True
    rival: bool = True
    hints: Sequence[tuple[str, Config]] = ()
    transfer: bool = False


@dataclass(frozen=True)
class TuningRequest:
    """Everything that a session needs, except for a measurer and a store.

    Attributes:
        problem: What is tuned and for which machine; records are kept under it.
        setting: How it is tuned, as the records keep it.
        spaces: The spaces by name. The origin of the first one is the default.
        searcher: The search on them.
        trials: The most distinct candidates; None is no bound.
        seconds: The wall seconds that are granted; None is no bound.
        begin: When the seconds began to count, a reading of `time.perf_counter`.
        on_progress: Is called with the progress after every batch.
        knowledge: What the search is told besides the spaces.
        reuse: What of the records may be used.
        batch: Requests per ask.
        ahead: Whether the search proposes each batch while the one before it is measured.
        layers: The names of the layers of a model that are tuned, for people; empty if it is no kernel of a model.
    """

    problem: Problem
    setting: Setting
    spaces: Mapping[str, Space]
    searcher: Search
    trials: int | None
    seconds: float | None
    begin: float
    on_progress: Callable[[Progress], None] | None
    knowledge: Knowledge
    reuse: Reuse
    batch: int = BATCH
    ahead: bool = False
    layers: Sequence[str] = ()

    @classmethod
    def create(
        cls,
        problem: Problem,
        spaces: Sequence[Space],
        options: TuneOptions,
        *,
        trials: int | None,
        seconds: float | None,
        begin: float,
        versions: Mapping[str, str],
        reuse: Reuse,
        on_progress: Callable[[Progress], None] | None = None,
        knowledge: Knowledge = _NO_KNOWLEDGE,
        method: Mapping[str, Any] | None = None,
        layers: Sequence[str] = (),
        width: int = 1,
    ) -> TuningRequest:
        """The request for these options.

        Args:
            problem: What is tuned and for which machine; records are kept under it.
            spaces: The spaces to search; the origin of the first one is the default.
            options: The options of the tuning.
            trials: The most distinct candidates; None is no bound.
            seconds: The wall seconds that are granted; None is no bound.
            begin: When the seconds began to count, a reading of `time.perf_counter`.
            versions: Versions of the tools that measured times depend on.
            reuse: What of the records may be used.
            on_progress: Is called with the progress after every batch.
            knowledge: What the search is told besides the spaces.
            method: What else trials depend on, for the records.
            layers: The names of the layers of a model that are tuned, for people.
            width: How many candidates are measured at the same time. Batches are wide enough for all of them, and a
                search that can ask ahead does.

        Raises:
            SearchError: The search or one of its options is unknown, there is no space, or two have the same name.
        """
        from ..records import Setting  # here: the command line needs the defaults before it needs a database

        rng = np.random.default_rng(options.seed)
        searcher = create(options.search, spaces, rng, knowledge, **options.search_options)
        ahead = width > 1 and _asking_ahead(searcher)
        batch = max(BATCH, width if ahead else _ROUNDS * width)
        setting = Setting(
            search=options.search,
            seed=options.seed,
            sketches={space.name: space.fingerprint for space in spaces},
            options=options_with(options.search, options.search_options).recorded(),
            method={"batch": batch, "spaces": {space.name: space.describe() for space in spaces}, **(method or {})},
            versions=versions,
        )
        by_name = {space.name: space for space in spaces}
        return cls(
            problem,
            setting,
            by_name,
            searcher,
            trials,
            seconds,
            begin,
            on_progress,
            knowledge,
            reuse,
            batch,
            ahead,
            layers,
        )

    @cached_property
    def named(self) -> Mapping[str, Any]:
        """What is tuned, as events name it: `workload`, and `layers` in few words if they are known."""
        label = layer_label(self.layers, _LABEL)
        return {"workload": self.problem.workload_name, **({"layers": label} if label else {})}

    @property
    def default(self) -> Candidate:
        """The candidate that others are compared with: the origin of the first space."""
        first = next(iter(self.spaces.values()))
        return Candidate(first.name, first.origin)

    def starting_at(self, starts: Sequence[Candidate]) -> TuningRequest:
        """The same request with a search that begins at these candidates."""
        spaces, rng = list(self.spaces.values()), np.random.default_rng(self.setting.seed)
        knowledge = dataclasses.replace(self.knowledge, starts=tuple(starts))
        searcher = create(self.setting.search, spaces, rng, knowledge, **self.setting.options)
        if self.ahead:
            _asking_ahead(searcher)
        return dataclasses.replace(self, searcher=searcher, knowledge=knowledge)

    @property
    def elapsed(self) -> float:
        """Wall seconds since the request began."""
        return clock.perf_counter() - self.begin


def _asking_ahead(searcher: Search) -> bool:
    """Lets a search propose each batch while the one before it is measured; False if it cannot."""
    if not (isinstance(searcher, GeneratorSearch) and searcher.can_ask_ahead):
        return False
    searcher.ask_ahead()
    return True
