"""Searches side by side on the same grounds: how good a kernel after how many evaluations, and at what cost.

    grounds, searches, seeds  ->  a `Walk` of each search from each seed on each ground  ->  Comparison

A ground is a recording, where the time of every candidate is known and nothing but the search costs time here, or an
operator, which is measured on this machine. All searches see the same noise: the k-th measurement of a candidate of a
recording brings the same samples in every run of a seed. On the machine the searches take turns seed by seed, each
time beginning with another one, so that a machine that drifts wrongs none of them; every run starts from nothing, but
finds the workers started.
"""

from __future__ import annotations

import dataclasses
import itertools
import signal
import time as clock
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import cloudpickle

from ..errors import InputError
from ..measure.replay import Recording
from ..report.summary import WITHIN, document
from ..space import Space
from ..trial import Candidate, Status
from ..tuning.result import Progress
from .grounds import Arena, Limits, MachineArena, RecordedArena, Times
from .search_run import PARTS, Contender, Walk

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from ..ir.workload import Workload


@dataclass(frozen=True)
class Run:
    """One search from one seed; `times` are the true seconds of what led, one per lead of the walk."""

    search: str
    seed: int
    walk: Walk
    times: Times


@dataclass(frozen=True)
class Ground:
    """A ground with its runs. `optimum` is the best that is known of it, with its seconds; None where nothing worked.

    Of a recording (`recorded`) that is the best of what was recorded; of an operator, the best of the runs.
    """

    name: str
    spaces: Sequence[Space]
    recorded: bool
    optimum: tuple[Candidate, float] | None
    runs: Sequence[Run]

    def to_json(self) -> dict[str, Any]:
        """What a comparison's document says of the ground beside its runs."""
        candidate, seconds = self.optimum or (None, None)
        schedule = {f"optimum_{key}": value for key, value in _schedule(self.spaces, candidate).items()}
        return {"ground": self.name, "recorded": self.recorded, "optimum": seconds, **schedule}


@dataclass(frozen=True)
class Comparison:
    """What a comparison brought; where Ctrl-C ended it, only the seeds that all searches had finished on a ground."""

    grounds: Sequence[Ground]
    searches: Sequence[str]
    seeds: int
    limits: Limits
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop compare --json`."""
        settings = {"seeds": self.seeds, **dataclasses.asdict(self.limits), "interrupted": self.interrupted}
        runs = [_run_document(ground, run) for ground in self.grounds for run in ground.runs]
        return document(settings, self.searches, [ground.to_json() for ground in self.grounds], runs)


def compare(
    grounds: Sequence[Recording] | Workload | PrimFunc,
    searches: Sequence[Contender],
    *,
    seeds: int = 10,
    trials: int = 200,
    time: float | None = None,
    exact: bool = False,
    jobs: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> Comparison:
    """Runs every search from every seed (0 to seeds - 1) on every ground.

    A run ends after `trials` evaluations (see `walk`), or `time` seconds: those that the recording says measuring took
    plus those that the search takes here; on the machine, wall time. `exact` answers from recordings without noise.
    `jobs` runs on recordings go on side by side, which makes the searches look slower than they are.

    Ctrl-C ends it with what is complete. Raises `InputError` for a bad setting, `SearchError` for an option that a
    search does not take on these grounds, `UnsupportedFunction` for a function that no sketch takes, `MeasureError`
    where nothing can be measured.
    """
    for name, value in (("seeds", seeds), ("trials", trials), ("jobs", jobs)):
        if value < 1:
            raise InputError(f"{name} {value}: must be 1 or more")
    if not searches:
        raise InputError("no search to compare")
    limits = Limits(trials, time, exact)
    with ExitStack() as stack:
        arenas: Sequence[Arena]
        if isinstance(grounds, Sequence):
            arenas = [RecordedArena(recording, limits) for recording in grounds]
        elif exact or jobs > 1:
            raise InputError(
                f"{'exact' if exact else 'jobs'} is for recordings: an operator is measured here, run by run"
            )
        else:
            arenas = [stack.enter_context(MachineArena(grounds, limits))]
        _check(arenas, searches)
        labels = [contender.label for contender in searches]
        walks, interrupted = _walk_all(arenas, searches, seeds, jobs, on_progress)
        found = []
        for at, arena in enumerate(arenas):
            own = {task: walked for task, walked in walks.items() if task.arena == at}
            if own:
                try:
                    optimum, times = arena.judge(list(own.values()), race=not interrupted)
                except KeyboardInterrupt:
                    interrupted = True
                    optimum, times = arena.judge(list(own.values()), race=False)
                runs = [Run(t.search.label, t.seed, w, each) for (t, w), each in zip(own.items(), times, strict=True)]
                runs.sort(key=lambda run: (labels.index(run.search), run.seed))
                found.append(Ground(arena.name, arena.spaces, isinstance(arena, RecordedArena), optimum, runs))
    return Comparison(found, labels, seeds, limits, interrupted)


# The runs


@dataclass(frozen=True)
class _Task:
    arena: int
    seed: int
    search: Contender


def _check(arenas: Sequence[Arena], searches: Sequence[Contender]) -> None:
    """Says before the work what would be refused in it."""
    names = [arena.name for arena in arenas]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two recordings are called {name}")
    for arena, contender in itertools.product(arenas, searches):
        contender.create(arena.spaces, 0)


def _walk_all(
    arenas: Sequence[Arena],
    searches: Sequence[Contender],
    seeds: int,
    jobs: int,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[dict[_Task, Walk], bool]:
    """The walks of those seeds that all searches finished, and whether it was interrupted."""
    tasks = [
        _Task(at, seed, searches[(seed + turn) % len(searches)])
        for at, seed, turn in itertools.product(range(len(arenas)), range(seeds), range(len(searches)))
    ]
    walks: dict[_Task, Walk] = {}
    begin, evaluations, failed, interrupted = clock.perf_counter(), 0, 0, False
    try:
        for task, walked in zip(tasks, _walks(arenas, tasks, jobs), strict=True):
            walks[task] = walked
            evaluations += len(walked.evaluated)
            failed += sum(status is not Status.OK for status in walked.evaluated.values())
            if on_progress is not None:
                elapsed = clock.perf_counter() - begin
                on_progress(Progress(evaluations, failed, None, elapsed, None, arenas[task.arena].name))
    except KeyboardInterrupt:
        complete = len(walks) // len(searches) * len(searches)
        if not complete:
            raise
        walks, interrupted = dict(itertools.islice(walks.items(), complete)), True
    return walks, interrupted


def _walks(arenas: Sequence[Arena], tasks: Sequence[_Task], jobs: int) -> Iterator[Walk]:
    """The walk of each task, in order, each as soon as it is there."""
    if jobs == 1:
        yield from (arenas[task.arena].walk(task.search, task.seed) for task in tasks)
        return
    known = cloudpickle.dumps(arenas)
    executor = ProcessPoolExecutor(jobs, get_context("spawn"), _begin_job, (known,))
    try:
        yield from executor.map(_job, tasks)
    finally:
        executor.shutdown(cancel_futures=True)


_arenas_of_job: Sequence[Arena] = ()


def _begin_job(known: bytes) -> None:
    global _arenas_of_job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who gathers the results
    _arenas_of_job = cloudpickle.loads(known)


def _job(task: _Task) -> Walk:
    return _arenas_of_job[task.arena].walk(task.search, task.seed)


# The document


def _run_document(ground: Ground, run: Run) -> dict[str, Any]:
    walked, optimum = run.walk, ground.optimum
    best = run.times[-1] if run.times else None
    statuses = Counter(status.value for status in walked.evaluated.values())
    return {
        "ground": ground.name,
        "search": run.search,
        "seed": run.seed,
        "evaluations": len(walked.evaluated),
        "best": best,
        "best_over_optimum": None if best is None or optimum is None else best / optimum[1],
        "evaluations_to_within": {label: _first_within(ground, run, factor) for label, factor in WITHIN.items()},
        "search_seconds": walked.seconds[0],
        "seconds": sum(walked.seconds),
        "phases": dict(zip(PARTS, walked.seconds, strict=True)),
        "statuses": dict(statuses),
        "status_seconds": {status.value: seconds for status, seconds in walked.status_seconds.items()},
        "suspect": walked.suspect,
        "converged": walked.converged,
        **_schedule(ground.spaces, walked.winner),
        "trajectory": {
            "evaluations": [lead.evaluations for lead in walked.leads],
            "best": list(run.times),
            **{part: [lead.seconds[at] for lead in walked.leads] for at, part in enumerate(PARTS)},
        },
    }


def _first_within(ground: Ground, run: Run, factor: float) -> int | None:
    if ground.optimum is None:
        return None
    for lead, seconds in zip(run.walk.leads, run.times, strict=True):
        if seconds is not None and seconds <= factor * ground.optimum[1]:
            return lead.evaluations
    return None


def _schedule(spaces: Sequence[Space], candidate: Candidate | None) -> dict[str, Any]:
    if candidate is None:
        return {"sketch": None, "config": None}
    space = next(space for space in spaces if space.name == candidate.sketch)
    return {"sketch": candidate.sketch, "config": space.config(candidate.point)}
