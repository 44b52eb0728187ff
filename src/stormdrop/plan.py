"""A request to tune, made definite: the sketches that apply with their spaces, the search, what records go by."""

from __future__ import annotations

import dataclasses
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import UnsupportedFunction
from .records import Problem, Setting
from .result import Progress
from .search import Search, create, options_of
from .space import Space
from .trial import Candidate

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from .kernel.sketch import Sketch
    from .kernel.target import Target
    from .kernel.workload import Workload

DEFAULT_SECONDS = 60.0
"""Wall time of a tuning that is given neither trials nor time."""

BATCH = 8
"""Requests per ask. The same in every run, so that a resumed search makes the asks of the interrupted one."""


@dataclass(frozen=True)
class Plan:
    """All that a tuning needs but a measurer and a store. `seconds` of wall time are granted from `begin` on."""

    workload: Workload
    target: Target
    sketches: Sequence[tuple[Sketch, Space]]
    searcher: Search
    setting: Setting
    trials: int | None
    seconds: float | None
    begin: float
    on_progress: Callable[[Progress], None] | None

    @property
    def problem(self) -> Problem:
        workload, target = self.workload, self.target
        return Problem(workload.key, workload.text, workload.name, f"llvm {target.mcpu}", target.machine)

    @property
    def spaces(self) -> dict[str, Space]:
        return {space.name: space for _, space in self.sketches}

    @property
    def default(self) -> Candidate:
        """The default schedule."""
        first = self.sketches[0][1]
        return Candidate(first.name, first.origin)

    @property
    def elapsed(self) -> float:
        return clock.perf_counter() - self.begin


def make_plan(
    workload: Workload | PrimFunc,
    target: Target | None,
    search: str,
    options: Mapping[str, Any] | None,
    trials: int | None,
    time: float | None,
    seed: int,
    sketches: Sequence[Sketch] | None,
    begin: float,
    on_progress: Callable[[Progress], None] | None,
) -> Plan:
    """The plan of a request; see `tune` for the arguments.

    Raises `SearchError` for an unknown search or option, `UnsupportedFunction` for a function that no sketch takes.
    """
    from .kernel.registry import sketches_for
    from .kernel.target import Target
    from .kernel.workload import Workload

    if not isinstance(workload, Workload):
        workload = Workload.create("function", workload)
    machine = target or Target.detect()
    found = sketches_for(workload, machine, sketches)
    if not found:
        raise UnsupportedFunction(f"{workload.name}: no sketch applies to this function")
    spaces, given = [space for _, space in found], dict(options or {})
    searcher = create(search, spaces, np.random.default_rng(seed), **given)  # checks the name and the options
    setting = Setting(
        search=search,
        seed=seed,
        sketches={space.name: space.fingerprint for space in spaces},
        options=dataclasses.asdict(options_of(search)(**given)),
        method={"batch": BATCH},
        versions={name: metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy")},
    )
    budget = time if time is not None or trials is not None else DEFAULT_SECONDS
    return Plan(workload, machine, found, searcher, setting, trials, budget, begin, on_progress)
