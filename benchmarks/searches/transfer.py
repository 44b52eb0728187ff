"""Whether records of one machine save evaluations on another: storm on spaces of one kernel, recorded on both.

    python benchmarks/searches/transfer.py [--quick] [--recordings conv2d_Zen3.jsonl.gz,conv2d_Zen4.jsonl.gz]

For each ordered pair of GPUs in `--data` (exhaustive caches of Kernel Tuner, KERNEL_GPU.json.gz), or of CPUs in
`--recordings` (files of record_space.py, KERNEL_CPU.jsonl.gz), and each seed, storm tunes the kernel on the other
machine with `--trials` evaluations. Then it tunes it on this one, and is told of the first:

    nothing     nothing
    best        the best point, as a start
    best 8      the best eight points, as starts
    prior       boosted trees fitted to all its trials, as a prior that orders the points of the opening
    predicted   the eight points of this space that the trees expect to be the best, as starts: what `sd.tune` does
    opened      the same, and the opening has three other points in place of ten
    gaussian    the eight points that a Gaussian process, as storm has it, expects to be the best, as starts
    observed    all its trials, as observations of the Gaussian process that count for a fraction of a measurement

The figure is the number of evaluations until a candidate within 5% of the optimum was measured; `--trials` + 1 if none
was. The document has it for each run.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from _grounds import document, loaded, parser, save, settings_of, share_cores, spread, table
from numpy.typing import NDArray

from stormdrop.errors import SpaceError
from stormdrop.measure.replay import Recording
from stormdrop.search import Knowledge, Search, create
from stormdrop.search.parts.proposer import Proposer
from stormdrop.search.storm import Storm
from stormdrop.surrogate import knob_encodings
from stormdrop.surrogate.boosted import BoostedTrees
from stormdrop.surrogate.gaussian import GaussianProcess
from stormdrop.surrogate.levels import Levels
from stormdrop.trial import Candidate, Trial
from stormdrop.tuning.request import BATCH
from stormdrop.tuning.transfer import STARTS, predicted_starts

WAYS = ("nothing", "best", "best 8", "prior", "predicted", "opened", "gaussian", "observed")
NEAR = 1.05
WEIGHT = 0.2
"""How many measurements here an observation elsewhere counts for."""

Task = tuple[str, str, str, int, int]
"""The other source, this one, a way, a seed and the number of evaluations."""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--trials", type=int, default=200, help="evaluations of a run (%(default)s)")
    options.add_argument("--recordings", help="files that record_space.py has written, separated by commas, for --data")
    options.add_argument("--ways", default=",".join(WAYS), help="separated by commas (%(default)s)")
    arguments = options.parse_args()
    settings = settings_of(arguments)
    if arguments.recordings:
        settings = replace(settings, sources=tuple(arguments.recordings.split(",")))
    share_cores(settings.jobs)
    ways = arguments.ways.split(",")
    tasks: list[Task] = [
        (other, this, way, seed, arguments.trials)
        for other, this in pairs(settings.sources)
        for seed in range(settings.seeds)
        for way in ways
    ]
    if not tasks:
        raise SystemExit(f"{arguments.recordings or arguments.data} holds no kernel that was recorded on two machines")
    runs = spread(run, tasks, settings.jobs)
    grouped: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in runs:
        grouped[each["pair"], each["way"]].append(each["evaluations"])
        grouped["all pairs", each["way"]].append(each["evaluations"])
    rows = [
        (pair, way, f"{statistics.median(counts):g}", f"{statistics.fmean(counts):.0f}")
        for (pair, way), counts in grouped.items()
    ]
    table(("from -> to", "told", "median", "mean"), rows)
    save("transfer", document(settings, trials=arguments.trials, runs=runs))


def pairs(sources: Sequence[str]) -> list[tuple[str, str]]:
    """The ordered pairs of sources of one kernel."""
    kernel = {source: Path(source).name.partition("_")[0] for source in sources}
    return [(other, this) for other in sources for this in sources if other != this and kernel[other] == kernel[this]]


def run(task: Task) -> dict[str, Any]:
    """The figures of one run."""
    other, this, way, seed, trials = task
    recording = loaded(this)
    told = moved(loaded(other), recording, session(other, seed, trials))
    search = searching(way, recording, told, seed)
    goal = NEAR * recording.optimum_seconds
    found = next(
        (number for number, seconds in enumerate(evaluated(search, recording, seed, trials), 1) if seconds <= goal),
        trials + 1,
    )
    first, second = (Path(source).name.partition(".")[0] for source in (other, this))
    name = f"{first} -> {second.rpartition('_')[2]}"
    return {"pair": name, "way": way, "seed": seed, "evaluations": found}


def searching(way: str, recording: Recording, told: Mapping[Candidate, float], seed: int) -> Search:
    """Storm on a recording, told the times of another machine in one of the ways."""
    rng, spaces = np.random.default_rng(seed), recording.spaces
    best = sorted((candidate for candidate in told if told[candidate] < np.inf), key=told.__getitem__)
    if way == "observed":
        search = Observing(spaces, rng)
        search.elsewhere = dict(told)
        return search
    if way == "prior":
        return create("storm", spaces, rng, Knowledge(prior=Trees(recording, told)))
    if way in ("predicted", "opened"):
        fastest = min(told.values())
        speeds = {candidate: fastest / seconds for candidate, seconds in told.items()}
        starts = predicted_starts(spaces, speeds, STARTS, np.random.default_rng(seed))
        knowledge = Knowledge(starts=tuple(starts))
        return create("storm", spaces, rng, knowledge, opening=3 if way == "opened" else 10)
    begins = {"nothing": [], "best": best[:1], "best 8": best[:8]}.get(way)
    if begins is None:
        begins = expected(recording, told)[:STARTS]
    return create("storm", spaces, rng, Knowledge(starts=tuple(begins)))


class Trees:
    """A prior: boosted trees fitted to the times of another machine."""

    def __init__(self, recording: Recording, told: Mapping[Candidate, float]) -> None:
        self._features = knob_encodings(recording.spaces)
        self._trees = BoostedTrees(np.random.default_rng(0), objective="regression")
        speeds = np.array([0.0 if seconds == np.inf else 1 / seconds for seconds in told.values()])
        self._trees.fit(self._features(list(told)), speeds)

    def __call__(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        return -self._trees.predict(self._features(candidates))


def expected(recording: Recording, told: Mapping[Candidate, float]) -> list[Candidate]:
    """All points, the one first that a Gaussian process on the times of another machine expects to be the fastest."""
    (space,) = recording.spaces
    best, levels, points = min(told.values()), Levels(space), list(space.points())
    worst = max(2 * best, max(seconds for seconds in told.values() if seconds < np.inf))
    values = np.log1p(np.log(np.minimum(list(told.values()), worst) / best))  # the slow end is compressed, as in storm
    process = GaussianProcess(levels.sizes, large=levels.merged)
    process.fit(levels([candidate.point for candidate in told]), values, np.ones(len(values)))
    order = np.argsort(process.predict(levels(points)).mean, kind="stable")
    return [Candidate(space.name, points[index]) for index in order.tolist()]


class Observing(Storm):
    """Storm whose Gaussian process also sees the times of another machine, until a point is measured here."""

    name = "observing"
    elsewhere: dict[Candidate, float]

    def _update(self, proposers: Sequence[Proposer], learn: bool) -> None:
        values = self._values()
        best = min(self.elsewhere.values())
        slowest = max(2 * best, max(seconds for seconds in self.elsewhere.values() if seconds < np.inf))
        soft = self.options.soft
        for proposer in proposers:
            observed: dict[Any, Any] = {
                candidate.point: (soft * np.log1p(np.log(min(seconds, slowest) / best) / soft), WEIGHT)
                for candidate, seconds in self.elsewhere.items()
                if candidate.sketch == proposer.space.name
            }
            for candidate, value in values.items():
                if candidate.sketch == proposer.space.name:
                    observed[candidate.point] = (value, self._groups[candidate])
            proposer.update(observed, learn)


@cache
def session(source: str, seed: int, trials: int) -> tuple[Trial, ...]:
    """The trials of storm on a recording."""
    recording = loaded(source)
    search = create("storm", recording.spaces, np.random.default_rng([seed, 7]))
    done: list[Trial] = []
    for _ in evaluated(search, recording, seed + 1_000, trials, done):
        pass
    return tuple(done)


def evaluated(
    search: Search, recording: Recording, seed: int, trials: int, done: list[Trial] | None = None
) -> list[float]:
    """The recorded medians of the distinct candidates in the order of their evaluations; infinite for failures."""
    measurer = recording.measurer(np.random.default_rng([seed, 1]))
    order: dict[Candidate, float] = {}
    while len(order) < trials and (requests := search.ask(BATCH)):
        batch = [
            Trial(request.candidate, measurement)
            for request, measurement in zip(requests, measurer.measure(requests), strict=True)
        ]
        search.tell(batch)
        if done is not None:
            done += batch
        for trial in batch:
            truth = recording.truth(trial.candidate)
            order.setdefault(trial.candidate, float("inf") if truth is None else truth)
    return list(order.values())[:trials]


def moved(source: Recording, target: Recording, trials: Sequence[Trial]) -> dict[Candidate, float]:
    """The median seconds of the trials on another machine, by the candidate with the same configuration here."""
    samples: dict[Candidate, list[float]] = defaultdict(list)
    failed: set[Candidate] = set()
    spaces = {space.name: space for space in source.spaces}
    (here,) = target.spaces
    for trial in trials:
        try:
            point = here.point(spaces[trial.candidate.sketch].config(trial.candidate.point))
        except SpaceError:
            continue  # this machine does not have the configuration
        candidate = Candidate(here.name, point)
        samples[candidate] += trial.measurement.seconds
        if not trial.ok:
            failed.add(candidate)
    return {
        candidate: float("inf") if candidate in failed else statistics.median(seconds)
        for candidate, seconds in samples.items()
    }


if __name__ == "__main__":
    main()
