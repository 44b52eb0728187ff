"""Two knobs of a space, all others fixed: the times of all their points, and a search that walks on them.

The picture of Figures 5 and 10 of the Droplet Search paper. The search sees the plane as a space of its own, so its
path lies in it. Of an operator the plane is measured first; the walk is then on what was measured.
"""

from __future__ import annotations

import itertools
import time as clock
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, SpaceError, hint
from ..measure.replay import Recorded, Recording
from ..space import Constraint, Coords, Knob, Space, Value
from ..trial import Candidate, Request, Status
from ..tuning.request import BATCH
from ..tuning.result import Progress
from ..tuning.trace import Trace
from .grounds import Limits, MachineGround
from .search_run import run_search
from .search_spec import SearchSpec

if TYPE_CHECKING:
    from ..ir.workload import Workload

_REPEATS = 3


@dataclass(frozen=True)
class Landscape:
    """A plane and a walk on it; `plane` is a recording of two knobs, `fixed` the values of the others.

    `suspect` counts the measurements of the plane beside foreign load.
    """

    ground: str
    plane: Recording
    fixed: Mapping[str, Value]
    search: str
    seed: int
    trace: Trace
    suspect: int = 0

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop landscape --json`; places are positions in `values`, of the first knob first."""
        (space,) = self.plane.spaces
        axes = [list(knob) for knob in space.knobs]
        cells = [[Candidate(space.name, x + y) for x in axes[0]] for y in axes[1]]
        # From where it began, over what led after each batch: within one, who leads changes with every measurement.
        leads = {lead.batch: lead.candidate for lead in self.trace.leads}
        path = [next(iter(self.trace.measurements)), *(each for each in leads.values() if each is not None)]
        end = None if self.trace.winner is None else self.plane.truth(self.trace.winner)
        optimum = self.plane.optimum_seconds
        return {
            "ground": self.ground,
            "sketch": space.name,
            "knobs": [knob.name for knob in space.knobs],
            "values": [[knob.value(coords) for coords in axis] for knob, axis in zip(space.knobs, axes, strict=True)],
            "fixed": dict(self.fixed),
            "seconds": [[self.plane.truth(cell) for cell in row] for row in cells],
            "statuses": [[self._status(cell) for cell in row] for row in cells],
            "optimum": optimum,
            "optimum_at": self._place(self.plane.optimum),
            "search": self.search,
            "seed": self.seed,
            "evaluations": len(self.trace.measurements),
            "suspect": self.suspect,
            "converged": self.trace.converged,
            "best": end,
            "best_over_optimum": None if end is None else end / optimum,
            "path": [self._place(candidate) for candidate, _ in itertools.groupby(path)],
            "evaluated": [self._place(candidate) for candidate in self.trace.measurements],
        }

    def _status(self, candidate: Candidate) -> str | None:
        recorded = self.plane.recorded.get(candidate)
        return None if recorded is None else recorded.status.value

    def _place(self, candidate: Candidate) -> list[int]:
        x, y = self.plane.spaces[0].knobs
        length = len(x.sizes)
        return [list(x).index(candidate.point[:length]), list(y).index(candidate.point[length:])]


def landscape(
    ground: Recording | Workload,
    knobs: Sequence[str],
    search: SearchSpec,
    *,
    at: Mapping[str, str] | None = None,
    trials: int = 200,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Landscape:
    """The plane of two knobs, and `search` walking on it for `trials` evaluations at most.

    The other knobs have the values of the optimum of a recording, or of the default schedule of an operator, but for
    those in `at`, as text. An operator is measured at every point of the plane.

    Raises `InputError` for a bad setting, `SearchError` for an unknown search or option, `UnsupportedFunction` and
    `MeasureError` as tuning does.
    """
    if trials < 1:
        raise InputError(f"trials {trials}: must be 1 or more")
    if len(knobs) != 2 or knobs[0] == knobs[1]:
        raise InputError(f"knobs {','.join(knobs)}: a landscape has two different knobs")
    suspect = 0
    if isinstance(ground, Recording):
        plane = _Plane(ground.spaces, knobs, at or {}, ground.optimum)
        inside = {at: ground.recorded[full] for at, full in plane.inside.items() if full in ground.recorded}
    else:
        machine = MachineGround(ground, Limits(trials))
        plane = _Plane(machine.spaces, knobs, at or {}, None)
        search.create([plane.space(plane.inside)], seed)  # what it refuses is said before the work
        with machine:
            inside, suspect = _measured(machine, plane.inside, on_progress)
    if not any(recorded.seconds for recorded in inside.values()):
        raise InputError(
            f"{ground.name}: nothing works with {_text_of(plane.fixed)}, whatever {' and '.join(knobs)} are"
        )
    space = plane.space(inside)
    recording = Recording(ground.name, (space,), {Candidate(space.name, at): known for at, known in inside.items()})
    with recording.measurer(np.random.default_rng([seed, 1])) as measurer:
        trace = run_search(search.create([space], seed), measurer, trials)
    return Landscape(ground.name, recording, plane.fixed, search.label, seed, trace, suspect)


class _Plane:
    """The points of a space that differ in two knobs only: `inside` holds them by their place in the plane."""

    def __init__(
        self, spaces: Sequence[Space], knobs: Sequence[str], at: Mapping[str, str], optimum: Candidate | None
    ) -> None:
        whole = _space_with(spaces, [*knobs, *at], optimum)
        by_name = {knob.name: knob for knob in whole.knobs}
        self.knobs = [by_name[name] for name in knobs]
        base = whole.config(optimum.point if optimum is not None and optimum.sketch == whole.name else whole.origin)
        for name, text in at.items():
            if name in knobs:
                raise InputError(f"knob {name} is one of the two that vary: it cannot be fixed")
            base[name] = _value(by_name[name], text)
        self.fixed = {name: value for name, value in base.items() if name not in knobs}
        self.inside: dict[Coords, Candidate] = {}
        for x, y in itertools.product(*self.knobs):
            varied = {knobs[0]: self.knobs[0].value(x), knobs[1]: self.knobs[1].value(y)}
            try:
                self.inside[x + y] = Candidate(whole.name, whole.point({**self.fixed, **varied}))
            except SpaceError:
                continue  # outside: a plane through a space with constraints has holes
        if not self.inside:
            raise InputError(f"no point of the space has {_text_of(self.fixed)}")
        self._name = whole.name
        origin = whole.config(whole.origin)
        self._origin = {knob.name: origin[knob.name] for knob in self.knobs}

    def space(self, inside: Iterable[Coords]) -> Space:
        """These points of the plane as a space; its origin is the whole space's where that is among them."""
        first = len(self.knobs[0].sizes)
        members = [(self.knobs[0].value(at[:first]), self.knobs[1].value(at[first:])) for at in inside]
        origin = self._origin if tuple(self._origin.values()) in members else None
        constraint = Constraint.one_of([knob.name for knob in self.knobs], members)
        return Space(self._name, self.knobs, [constraint], origin)


def _space_with(spaces: Sequence[Space], names: Sequence[str], optimum: Candidate | None) -> Space:
    """The first space that has all these knobs, that of the optimum before others. Raises `InputError`."""
    ordered = sorted(spaces, key=lambda space: optimum is None or space.name != optimum.sketch)
    for space in ordered:
        if {knob.name for knob in space.knobs}.issuperset(names):
            return space
    known = [knob.name for space in ordered for knob in space.knobs]
    for name in names:
        if name not in known:
            raise InputError(f"no knob is called {name}; {hint(name, known)}")
    raise InputError(f"no sketch has all of the knobs {', '.join(names)}")


def _value(knob: Knob, text: str) -> Value:
    """The value that is written like this. Raises `InputError`."""
    values = {_written(value): value for value in map(knob.value, knob)}
    if text not in values:
        raise InputError(f"knob {knob.name} has no value {text}; {hint(text, values)}")
    return values[text]


def _written(value: Value) -> str:
    """As on the command line: 8, ij, 4x8x1."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _text_of(config: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={_written(value)}" for name, value in config.items())


def _measured(
    machine: MachineGround, inside: Mapping[Coords, Candidate], on_progress: Callable[[Progress], None] | None
) -> tuple[dict[Coords, Recorded], int]:
    """Every point, measured on this machine, and the number of measurements beside foreign load."""
    begin, places = clock.perf_counter(), list(inside)
    found: dict[Coords, Recorded] = {}
    suspect = 0
    with machine.measurer() as measurer:
        for start in range(0, len(places), BATCH):
            batch = places[start : start + BATCH]
            answers = measurer.measure([Request(inside[at], _REPEATS) for at in batch])
            for at, answer in zip(batch, answers, strict=True):
                found[at] = Recorded(answer.seconds, answer.status, answer.error, answer.phases)
                suspect += answer.suspect
            if on_progress is not None:
                failed = sum(known.status is not Status.OK for known in found.values())
                on_progress(Progress(len(found), failed, measurer.best, clock.perf_counter() - begin, None))
    return found, suspect
