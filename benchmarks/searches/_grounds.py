"""What the scripts of this folder share: recorded spaces, noise, processes, progress, descriptions of the machine."""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _common import OUT, chosen, machine, save

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.compare import recordings
from stormdrop.measure.replay import Recording, ReplayMeasurer
from stormdrop.search import Knowledge, create
from stormdrop.space.analytic import landscapes
from stormdrop.trial import Candidate, Measurement, Phases, Request, Status, Trial
from stormdrop.tuning.request import BATCH
from stormdrop.tuning.result import Progress

__all__ = ["OUT", "chosen", "machine", "save", "table"]

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "kernel_tuner"

EASY = "dedispersion_A4000"
"""A recorded space in which 12% of the points are within 5% of the optimum: on it all searches look alike."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Settings:
    """The settings of a script. `sources` name recordings as `stormdrop.compare.recordings.load` takes them."""

    sources: tuple[str, ...]
    seeds: int
    jobs: int
    quick: bool

    @property
    def hard(self) -> tuple[str, ...]:
        """The sources on which searches differ."""
        return tuple(source for source in self.sources if EASY not in source)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every script on recorded spaces has; see `settings_of`."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=DATA, help="a folder of Kernel Tuner caches (%(default)s)")
    options.add_argument("--seeds", type=int, help="runs of each search (10; 2 with --quick)")
    options.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    options.add_argument("--quick", action="store_true", help="two of the spaces, few seeds: to try the scripts")
    return options


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings of a command line, on the recorded spaces of Kernel Tuner."""
    paths = caches(arguments.data)
    if arguments.quick:
        paths = [path for path in paths if path.name.startswith(("convolution_A6000", "gemm"))] or paths[:2]
    sources = tuple(map(str, paths))
    return Settings(sources, arguments.seeds or (2 if arguments.quick else 10), arguments.jobs, arguments.quick)


def caches(folder: Path) -> list[Path]:
    """The Kernel Tuner caches in a folder. Ends the program with one line if there is none."""
    paths = sorted(folder.glob("*.json.gz")) + sorted(folder.glob("*.json"))
    if not paths:
        raise SystemExit(
            f"{folder} holds no Kernel Tuner caches (.json, .json.gz): name a folder that does with --data; "
            "the collection is https://github.com/AutoTuningAssociation/benchmark_hub"
        )
    return paths


def analytic() -> list[str]:
    """The names of the analytic landscapes as sources."""
    return [f"analytic:{name}" for name in landscapes()]


@cache
def loaded(source: str) -> Recording:
    """The recording of a source, once per process."""
    return recordings.load(source)


def spread(function: Callable[[T], R], tasks: Iterable[T], jobs: int) -> list[R]:
    """The results of a function in the order of its tasks, computed in `jobs` processes.

    The function must be defined at the top level of a module.
    """
    tasks = list(tasks)
    if jobs == 1:
        return [function(task) for task in tasks]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as executor:
        return list(executor.map(function, tasks))


def geomean(ratios: Iterable[float]) -> float:
    """The geometric mean; NaN for no ratios."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def random_start(recording: Recording, seed: int) -> Candidate:
    """A random candidate that works, the same for the same seed. (Runs that begin at the origin hardly differ.)"""
    rng = np.random.default_rng([seed, 2])
    working = [candidate for candidate, known in recording.recorded.items() if known.seconds]
    return working[int(rng.integers(len(working)))]


@dataclass(frozen=True)
class Levels:
    """Standard deviations of log times: between batches, between the groups of a batch, within a group."""

    batch: float
    between: float
    within: float


SHARED_MACHINE = Levels(batch=0.01, between=0.0055, within=0.007)
"""With this noise between and within groups, Student's t at 5% calls 14% of identical kernels different. That was the
rate on the development machine before idle workers were paused (docs/explanation/claims.md)."""

QUIET_MACHINE = Levels(batch=0.002, between=0.002, within=0.004)


class NoisyMeasurer:
    """Replays the true times of a recording under log-normal noise on three levels (`stormdrop.statistics`).

    Every call of `measure` is one batch. The phases are those of the recording; `samples` counts the samples so far.
    """

    def __init__(self, recording: Recording, rng: np.random.Generator, levels: Levels) -> None:
        self._recording, self._rng, self._levels = recording, rng, levels
        self._known: set[Candidate] = set()
        self.samples = 0

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`."""
        batch = self._rng.normal(0.0, self._levels.batch)
        for request in requests:
            recorded = self._recording.recorded[request.candidate]
            phases = recorded.phases
            if request.candidate in self._known:
                phases = Phases(run=phases.run)
            self._known.add(request.candidate)
            true = self._recording.truth(request.candidate)
            if true is None:
                yield Measurement(recorded.status, (), recorded.error, phases)
                continue
            group = batch + self._rng.normal(0.0, self._levels.between)
            logs = group + self._rng.normal(0.0, self._levels.within, request.repeats)
            self.samples += request.repeats
            yield Measurement(Status.OK, tuple((true * np.exp(logs)).tolist()), phases=phases)


def descend(
    recording: Recording,
    measurer: ReplayMeasurer | NoisyMeasurer,
    seed: int,
    start: Candidate | None = None,
    width: int = BATCH,
    **options: Any,
) -> dict[str, Any]:
    """The figures of one run of droplet from `start`, or from the origin.

    `end` is the true time of what it found over the optimum. `seconds` is the wall time that `width` workers would
    need: the candidates of a batch are built side by side, and kernels run one after the other.
    """
    knowledge = Knowledge(starts=() if start is None else (start,))
    search = create("droplet", recording.spaces, np.random.default_rng(seed), knowledge, **options)
    evaluated: set[Candidate] = set()
    batches = measurements = 0
    seconds = 0.0
    while requests := search.ask(width):
        batch = list(measurer.measure(requests))
        pairs = zip(requests, batch, strict=True)
        search.tell([Trial(request.candidate, measurement) for request, measurement in pairs])
        evaluated.update(request.candidate for request in requests)
        batches += 1
        measurements += len(requests)
        phases = [measurement.phases for measurement in batch]
        seconds += max(phase.schedule + phase.build for phase in phases)
        seconds += sum(phase.run + phase.check for phase in phases)
    end = None if search.best is None else recording.truth(search.best)
    return {
        "ground": recording.name,
        "seed": seed,
        "end": None if end is None else end / recording.optimum_seconds,
        "evaluations": len(evaluated),
        "measurements": measurements,
        "batches": batches,
        "seconds": seconds,
    }


def document(settings: Settings, **results: Any) -> dict[str, Any]:
    """The results with the machine and the settings that they came from."""
    origin = {"machine": machine(), "sources": [Path(source).name for source in settings.sources]}
    return {**origin, "seeds": settings.seeds, "quick": settings.quick, **results}


def describe_machine(*packages: str) -> dict[str, Any]:
    """Prints and returns the CPU, its cores, and the versions of Python and these packages. Measures nothing."""
    target = sd.Cpu.detect()
    installed = {distribution.metadata["Name"] for distribution in metadata.distributions()}
    versions = {name: metadata.version(name) for name in packages if name in installed}
    python = platform.python_version()
    print(f"{target.cpu}, {target.cores} cores, Python {python}, stormdrop {sd.__version__}, {versions}")
    versions = {"stormdrop": sd.__version__, **versions}
    return {"cpu": target.cpu, "cores": target.cores, "python": python, "versions": versions}


def share_cores(jobs: int) -> None:
    """Gives the linear algebra of processes that are started from now on one thread each, if there are several.

    With more threads than cores they wait for each other: two runs of storm side by side, with two threads each on two
    cores, took ten times as long.
    """
    if jobs > 1:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"


def show_progress(progress: Progress) -> None:
    """Shows the progress of a comparison on one line of standard error."""
    print(f"\r{progress.message:<28}{progress.trials} evaluations, {progress.elapsed:.0f} s", end="", file=sys.stderr)
