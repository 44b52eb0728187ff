"""A landscape: the times of all points of two knobs, while all other knobs are fixed, and the path of a search there.

It is the picture of Figures 5 and 10 of the Droplet Search paper. The search takes the plane of the two knobs for the
whole space, so its path stays in it. The plane of an operator is measured first, and then searched as a recording.
"""

from __future__ import annotations

import itertools
import time as clock
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, SpaceError, hint
from ..measure.replay import Recorded, Recording
from ..report import formatting
from ..space import Constraint, Coords, Knob, Space, Value
from ..trial import Candidate, Request, Status
from ..tuning.options import whole_number
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
    """A plane of two knobs, and the path of a search on it.

    Attributes:
        ground: The name of the recording or operator.
        plane: A recording whose space has the two knobs.
        fixed: The values of the other knobs.
        search: The search as it was written.
        seed: Its seed.
        trace: What the search did.
        suspect: How many measurements of the plane were taken beside foreign load.
    """

    ground: str
    plane: Recording
    fixed: Mapping[str, Value]
    search: str
    seed: int
    trace: Trace
    suspect: int = 0

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop landscape --json`.

        The place of a candidate is a pair of positions in `values`, that of the first knob first.
        """
        (space,) = self.plane.spaces
        axes = [list(knob) for knob in space.knobs]
        cells = [[Candidate(space.name, x + y) for x in axes[0]] for y in axes[1]]
        # The path begins at the first candidate and goes on to the leader after each batch. Within a batch the leader
        # changes with every measurement.
        leaders = {lead.batch: lead.candidate for lead in self.trace.leads}
        path = [next(iter(self.trace.measurements)), *(leader for leader in leaders.values() if leader is not None)]
        best = None if self.trace.winner is None else self.plane.truth(self.trace.winner)
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
            "best": best,
            "best_over_optimum": None if best is None else best / optimum,
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
    fixed: Mapping[str, str] | None = None,
    trials: int = 200,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Landscape:
    """Runs a search on the plane of two knobs.

    The other knobs have the values of the optimum of a recording, or of the default schedule of an operator. An
    operator is first measured at every point of the plane.

    Args:
        ground: A recording, or an operator to measure on this machine.
        knobs: The names of the two knobs.
        search: The search.
        fixed: Other values of some of the fixed knobs, as text.
        trials: The most evaluations of the search.
        seed: The seed of the search, and of the noise that it sees.
        on_progress: Is called while the plane of an operator is measured.

    Raises:
        InputError: A setting is bad, or no point of the plane works.
        SearchError: The search does not take one of its options on this plane.
        UnsupportedFunction: No sketch takes the operator.
        MeasureError: Nothing can be measured.
    """
    whole_number("trials", trials, 1)
    whole_number("seed", seed, 0)
    if len(knobs) != 2 or knobs[0] == knobs[1]:
        raise InputError(f"knobs {','.join(knobs)}: a landscape has two different knobs")
    suspect = 0
    if isinstance(ground, Recording):
        plane = _Plane(ground.spaces, knobs, fixed or {}, ground.optimum)
        recorded = {
            point: ground.recorded[candidate]
            for point, candidate in plane.candidates.items()
            if candidate in ground.recorded
        }
    else:
        machine = MachineGround(ground, Limits(trials))
        plane = _Plane(machine.spaces, knobs, fixed or {}, None)
        search.create([plane.space(plane.candidates)], seed)  # refuses a bad option before anything is measured
        with machine:
            recorded, suspect = _measured(machine, plane.candidates, on_progress)
    if not any(entry.seconds for entry in recorded.values()):
        raise InputError(
            f"{ground.name}: nothing works with {formatting.config(plane.fixed)}, whatever {' and '.join(knobs)} are"
        )
    space = plane.space(recorded)
    in_plane = {Candidate(space.name, point): entry for point, entry in recorded.items()}
    recording = Recording(ground.name, (space,), in_plane)
    with recording.measurer(np.random.default_rng([seed, 1])) as measurer:
        trace = run_search(search.create([space], seed), measurer, trials)
    return Landscape(ground.name, recording, plane.fixed, search.label, seed, trace, suspect)


class _Plane:
    """The points of a space that differ in two knobs only.

    Attributes:
        knobs: The two knobs.
        fixed: The values of the other knobs.
        candidates: The candidates of the whole space, by their point in the plane.
    """

    def __init__(
        self, spaces: Sequence[Space], knobs: Sequence[str], fixed: Mapping[str, str], optimum: Candidate | None
    ) -> None:
        whole = _space_with(spaces, [*knobs, *fixed], optimum)
        by_name = {knob.name: knob for knob in whole.knobs}
        self.knobs = [by_name[name] for name in knobs]
        base = whole.config(optimum.point if optimum is not None and optimum.sketch == whole.name else whole.origin)
        for name, text in fixed.items():
            if name in knobs:
                raise InputError(f"knob {name} is one of the two that vary: it cannot be fixed")
            base[name] = _value(by_name[name], text)
        self.fixed = {name: value for name, value in base.items() if name not in knobs}
        self.candidates: dict[Coords, Candidate] = {}
        for x, y in itertools.product(*self.knobs):
            varied = {knobs[0]: self.knobs[0].value(x), knobs[1]: self.knobs[1].value(y)}
            try:
                self.candidates[x + y] = Candidate(whole.name, whole.point({**self.fixed, **varied}))
            except SpaceError:
                continue  # a constraint excludes this point
        if not self.candidates:
            raise InputError(f"no point of the space has {formatting.config(self.fixed)}")
        self._name = whole.name
        origin = whole.config(whole.origin)
        self._origin = {knob.name: origin[knob.name] for knob in self.knobs}

    def space(self, points: Collection[Coords]) -> Space:
        """These points of the plane as a space. Its origin is that of the whole space if it is among them."""
        first, second = self.knobs
        length = len(first.sizes)
        members = [(first.value(point[:length]), second.value(point[length:])) for point in points]
        origin = self._origin if tuple(self._origin.values()) in members else None
        constraint = Constraint.one_of([knob.name for knob in self.knobs], members)
        return Space(self._name, self.knobs, [constraint], origin)


def _space_with(spaces: Sequence[Space], names: Sequence[str], optimum: Candidate | None) -> Space:
    """The first space that has all these knobs; that of the optimum comes first. Raises `InputError`."""
    ordered = sorted(spaces, key=lambda space: optimum is None or space.name != optimum.sketch)
    for space in ordered:
        if {knob.name for knob in space.knobs}.issuperset(names):
            return space
    existing = [knob.name for space in ordered for knob in space.knobs]
    for name in names:
        if name not in existing:
            raise InputError(f"no knob is called {name}; {hint(name, existing)}")
    raise InputError(f"no sketch has all of the knobs {', '.join(names)}")


def _value(knob: Knob, text: str) -> Value:
    """The value of a knob that is written as this text. Raises `InputError`."""
    values = {formatting.value(value): value for value in map(knob.value, knob)}
    if text not in values:
        raise InputError(f"knob {knob.name} has no value {text}; {hint(text, values)}")
    return values[text]


def _measured(
    machine: MachineGround, candidates: Mapping[Coords, Candidate], on_progress: Callable[[Progress], None] | None
) -> tuple[dict[Coords, Recorded], int]:
    """Measures the candidate of every point on this machine. Also counts the measurements beside foreign load."""
    begin, points = clock.perf_counter(), list(candidates)
    recorded: dict[Coords, Recorded] = {}
    suspect = 0
    with machine.measurer() as measurer:
        for start in range(0, len(points), BATCH):
            batch = points[start : start + BATCH]
            measurements = measurer.measure([Request(candidates[point], _REPEATS) for point in batch])
            for point, measurement in zip(batch, measurements, strict=True):
                recorded[point] = Recorded(
                    measurement.seconds, measurement.status, measurement.error, measurement.phases
                )
                suspect += measurement.suspect
            if on_progress is not None:
                failed = sum(entry.status is not Status.OK for entry in recorded.values())
                on_progress(Progress(len(recorded), failed, measurer.best, clock.perf_counter() - begin, None))
    return recorded, suspect
