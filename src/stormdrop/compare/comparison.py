"""Compares searches on the same grounds: how good their kernels are after how many evaluations, and at what cost.

    grounds, searches, seeds  ->  a trace of each search from each seed on each ground  ->  Comparison

The time of every candidate of a recorded ground is known, and nothing but the search costs time here. An operator is
measured on this machine. All searches see the same noise: the k-th measurement of a recorded candidate brings the same
samples in every run from one seed. On the machine the searches take turns seed by seed, each time beginning with
another one, so that a machine that drifts favours none of them. Every run starts from nothing, but its workers run
already.
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
from ..report.summary import WITHIN, comparison_document, name_of_optimum
from ..space import Space
from ..trial import Candidate
from ..tuning.options import whole_number
from ..tuning.result import Progress
from ..tuning.trace import Trace
from .grounds import Ground, Limits, MachineGround, Optimum, RecordedGround, Times
from .search_run import PARTS
from .search_spec import SearchSpec

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from ..ir.workload import Workload


_NAMED = 3  # grounds in the text of a comparison, at most


@dataclass(frozen=True)
class SearchRun:
    """One search from one seed.

    Attributes:
        search: The search as it was written.
        seed: Its seed.
        trace: What it did.
        times: The true seconds of its leaders, one per lead of the trace.
    """

    search: str
    seed: int
    trace: Trace
    times: Times


@dataclass(frozen=True)
class GroundResult:
    """A ground with its runs.

    Attributes:
        name: The name of the ground.
        spaces: Its spaces.
        recorded: Whether it is a recording. Its optimum is then the best of what was recorded, else that of the runs.
        optimum: The best candidate that is known, with its seconds; None if nothing worked.
        runs: The runs, search by search.
    """

    name: str
    spaces: Sequence[Space]
    recorded: bool
    optimum: Optimum | None
    runs: Sequence[SearchRun]

    def to_json(self) -> dict[str, Any]:
        """What a comparison's document says of the ground besides its runs."""
        candidate, seconds = self.optimum or (None, None)
        schedule = {f"optimum_{key}": value for key, value in _schedule(self.spaces, candidate).items()}
        return {"ground": self.name, "recorded": self.recorded, "optimum": seconds, **schedule}


@dataclass(frozen=True, repr=False)
class Comparison:
    """What a comparison brought.

    Attributes:
        grounds: The grounds with their runs.
        searches: The searches as they were written.
        seeds: The number of seeds.
        limits: The bounds of each run.
        interrupted: Whether Ctrl-C ended it. It then holds only the seeds that all searches finished on a ground.
    """

    grounds: Sequence[GroundResult]
    searches: Sequence[str]
    seeds: int
    limits: Limits
    interrupted: bool = False

    def __repr__(self) -> str:
        """A line for each search: how good its best candidates are, over all seeds and grounds."""
        document = self.to_json()
        end = f"{name_of_optimum(document['grounds'])} after {self.limits.trials} trials"
        names = ", ".join(ground.name for ground in self.grounds[:_NAMED])
        more = f" and {len(self.grounds) - _NAMED} more" if len(self.grounds) > _NAMED else ""
        width = max(map(len, self.searches), default=0)
        means = [entry["best_over_optimum"]["mean"] for entry in document["summary"]]
        lines = [
            f"{search:<{width}}  {'never worked' if mean is None else f'{mean:.3f} times the {end}'}"
            for search, mean in zip(self.searches, means, strict=True)
        ]
        seeds = f"{self.seeds} seeds{', interrupted' if self.interrupted else ''}"
        return "\n  ".join([f"Comparison on {names}{more}, {seeds}:", *lines])

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop compare --json`."""
        settings = {"seeds": self.seeds, **dataclasses.asdict(self.limits), "interrupted": self.interrupted}
        runs = [_run_document(ground, run) for ground in self.grounds for run in ground.runs]
        return comparison_document(settings, self.searches, [ground.to_json() for ground in self.grounds], runs)


def compare(
    grounds: Sequence[Recording] | Workload | PrimFunc,
    searches: Sequence[SearchSpec],
    *,
    seeds: int = 10,
    trials: int = 200,
    time: float | None = None,
    exact: bool = False,
    jobs: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> Comparison:
    """Runs every search from every seed (0 to seeds - 1) on every ground. Ctrl-C ends it with what is complete.

    Args:
        grounds: Recordings, or one operator to measure on this machine.
        searches: The searches to compare.
        seeds: How many runs of each search on each ground.
        trials: The most evaluations of a run.
        time: The most seconds of a run. On a recording these are the seconds that it says measuring took, and those
            that the search takes here; on the machine they are wall time.
        exact: Recordings answer without noise.
        jobs: How many runs on recordings go on side by side. This makes searches look slower than they are.
        on_progress: Is called after every run.

    Raises:
        InputError: A setting is bad.
        SearchError: A search does not take one of its options on these grounds.
        UnsupportedFunction: No sketch takes the function.
        MeasureError: Nothing can be measured.
    """
    for name, value in (("seeds", seeds), ("trials", trials), ("jobs", jobs)):
        whole_number(name, value, 1)
    if not searches:
        raise InputError("no search to compare")
    limits = Limits(trials, time, exact)
    with ExitStack() as stack:
        opened: Sequence[Ground]
        if isinstance(grounds, Sequence):
            opened = [RecordedGround(recording, limits) for recording in grounds]
        elif exact or jobs > 1:
            raise InputError(
                f"{'exact' if exact else 'jobs'} is for recordings: an operator is measured here, run by run"
            )
        else:
            opened = [stack.enter_context(MachineGround(grounds, limits))]
        _check(opened, searches)
        traces, interrupted = _run_all(opened, searches, seeds, jobs, on_progress)
        results = []
        for index, ground in enumerate(opened):
            on_ground = {task: trace for task, trace in traces.items() if task.ground == index}
            if on_ground:
                result, ended = _judged(ground, on_ground, [spec.label for spec in searches], race=not interrupted)
                results.append(result)
                interrupted = interrupted or ended
    return Comparison(results, [spec.label for spec in searches], seeds, limits, interrupted)


# The runs


@dataclass(frozen=True)
class _Task:
    ground: int
    seed: int
    search: SearchSpec


def _check(grounds: Sequence[Ground], searches: Sequence[SearchSpec]) -> None:
    """Refuses before the work what would be refused during it."""
    names = [ground.name for ground in grounds]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two recordings are called {name}")
    for ground, search in itertools.product(grounds, searches):
        search.create(ground.spaces, 0)


def _run_all(
    grounds: Sequence[Ground],
    searches: Sequence[SearchSpec],
    seeds: int,
    jobs: int,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[dict[_Task, Trace], bool]:
    """The traces of those seeds that all searches finished, and whether Ctrl-C ended it."""
    tasks = [
        _Task(index, seed, searches[(seed + turn) % len(searches)])
        for index, seed, turn in itertools.product(range(len(grounds)), range(seeds), range(len(searches)))
    ]
    traces: dict[_Task, Trace] = {}
    begin, evaluations, failed, interrupted = clock.perf_counter(), 0, 0, False
    try:
        for task, trace in zip(tasks, _traces(grounds, tasks, jobs), strict=True):
            traces[task] = trace
            evaluations += len(trace)
            failed += trace.failed
            if on_progress is not None:
                elapsed = clock.perf_counter() - begin
                on_progress(Progress(evaluations, failed, None, elapsed, None, grounds[task.ground].name))
    except KeyboardInterrupt:
        complete = len(traces) // len(searches) * len(searches)
        if not complete:
            raise
        traces, interrupted = dict(itertools.islice(traces.items(), complete)), True
    return traces, interrupted


def _traces(grounds: Sequence[Ground], tasks: Sequence[_Task], jobs: int) -> Iterator[Trace]:
    """The trace of each task, in order, each as soon as it is there."""
    if jobs == 1:
        yield from (grounds[task.ground].run(task.search, task.seed) for task in tasks)
        return
    pickled = cloudpickle.dumps(grounds)
    executor = ProcessPoolExecutor(jobs, get_context("spawn"), _begin_job, (pickled,))
    try:
        yield from executor.map(_job, tasks)
    finally:
        executor.shutdown(cancel_futures=True)


_grounds_of_job: Sequence[Ground] = ()


def _begin_job(pickled: bytes) -> None:
    global _grounds_of_job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gathers the results
    _grounds_of_job = cloudpickle.loads(pickled)


def _job(task: _Task) -> Trace:
    return _grounds_of_job[task.ground].run(task.search, task.seed)


def _judged(ground: Ground, traces: dict[_Task, Trace], labels: Sequence[str], race: bool) -> tuple[GroundResult, bool]:
    """The result of a ground, and whether Ctrl-C ended its last race."""
    interrupted = False
    try:
        optimum, times = ground.true_times(list(traces.values()), race)
    except KeyboardInterrupt:
        interrupted = True
        optimum, times = ground.true_times(list(traces.values()), race=False)
    runs = [
        SearchRun(task.search.label, task.seed, trace, leaders)
        for (task, trace), leaders in zip(traces.items(), times, strict=True)
    ]
    runs.sort(key=lambda run: (labels.index(run.search), run.seed))
    return GroundResult(ground.name, ground.spaces, isinstance(ground, RecordedGround), optimum, runs), interrupted


# The document


def _run_document(ground: GroundResult, run: SearchRun) -> dict[str, Any]:
    trace, optimum = run.trace, ground.optimum
    best = run.times[-1] if run.times else None
    statuses = Counter(status.value for status in trace.first_statuses.values())
    return {
        "ground": ground.name,
        "search": run.search,
        "seed": run.seed,
        "evaluations": len(trace),
        "best": best,
        "best_over_optimum": None if best is None or optimum is None else best / optimum[1],
        "evaluations_to_within": {label: _first_within(ground, run, factor) for label, factor in WITHIN.items()},
        "search_seconds": trace.seconds[0],
        "seconds": sum(trace.seconds),
        "phases": dict(zip(PARTS, trace.seconds, strict=True)),
        "statuses": dict(statuses),
        "status_seconds": {status.value: seconds for status, seconds in trace.status_seconds.items()},
        "suspect": trace.suspect,
        "converged": trace.converged,
        **_schedule(ground.spaces, trace.winner),
        "trajectory": {
            "evaluations": [lead.evaluations for lead in trace.leads],
            "best": list(run.times),
            **{part: [lead.seconds[index] for lead in trace.leads] for index, part in enumerate(PARTS)},
        },
    }


def _first_within(ground: GroundResult, run: SearchRun, factor: float) -> int | None:
    if ground.optimum is None:
        return None
    for lead, seconds in zip(run.trace.leads, run.times, strict=True):
        if seconds is not None and seconds <= factor * ground.optimum[1]:
            return lead.evaluations
    return None


def _schedule(spaces: Sequence[Space], candidate: Candidate | None) -> dict[str, Any]:
    if candidate is None:
        return {"sketch": None, "config": None}
    space = next(space for space in spaces if space.name == candidate.sketch)
    return {"sketch": candidate.sketch, "config": space.config(candidate.point)}
