"""What the scripts of this folder run on, and what they share: recorded spaces, noise, workers, tables, results."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import OUT, machine, save

from stormdrop.cli.output import table
from stormdrop.compare import recordings
from stormdrop.measure.replay import Recording, ReplayMeasurer
from stormdrop.search import Knowledge, create
from stormdrop.space.analytic import landscapes
from stormdrop.trial import Candidate, Measurement, Phases, Request, Status, Trial
from stormdrop.tuning.request import BATCH

__all__ = ["OUT", "machine", "save", "table"]

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "kernel_tuner"
LIVE = ROOT / "examples" / "data"

EASY = "dedispersion_A4000"
"""A recorded space of which 12% is within 5% of the optimum: it does not tell searches apart."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Settings:
    """What a script was asked for. `sources` name recordings, as `stormdrop.compare.recordings.load` takes them."""

    sources: tuple[str, ...]
    seeds: int
    jobs: int
    quick: bool

    @property
    def hard(self) -> tuple[str, ...]:
        """The sources that tell searches apart."""
        return tuple(source for source in self.sources if EASY not in source)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every script on recorded spaces has; see `settings`."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--data", type=Path, default=DATA, help="a folder of Kernel Tuner caches (%(default)s)")
    found.add_argument("--seeds", type=int, help="runs of each search (10; 2 with --quick)")
    found.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    found.add_argument("--quick", action="store_true", help="two of the spaces, few seeds: to try the scripts")
    return found


def settings(asked: argparse.Namespace) -> Settings:
    """The settings of parsed options: Kernel Tuner's spaces, and this machine's where there is a recording."""
    caches = sorted(asked.data.glob("*.json.gz"))
    if not caches:
        sys.exit(f"{asked.data} holds no *.json.gz: give a folder of Kernel Tuner caches with --data")
    if asked.quick:
        caches = [path for path in caches if path.name.startswith(("convolution_A6000", "gemm"))] or caches[:2]
    found = [*caches, *sorted(LIVE.glob("*.jsonl.gz"))]
    return Settings(tuple(map(str, found)), asked.seeds or (2 if asked.quick else 10), asked.jobs, asked.quick)


def analytic() -> list[str]:
    """The analytic landscapes, as sources."""
    return [f"analytic:{name}" for name in landscapes()]


@cache
def loaded(source: str) -> Recording:
    """The recording of a source, once per process."""
    return recordings.load(source)


def spread(function: Callable[[T], R], tasks: Iterable[T], jobs: int) -> list[R]:
    """The function's results in the order of the tasks, computed side by side. It must be of a module's top level."""
    tasks = list(tasks)
    if jobs == 1:
        return [function(task) for task in tasks]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as executor:
        return list(executor.map(function, tasks))


def geomean(ratios: Iterable[float]) -> float:
    """The geometric mean; not a number for none."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def random_start(recording: Recording, seed: int) -> Candidate:
    """A candidate that works, by seed: runs that begin at an origin hardly differ."""
    rng = np.random.default_rng([seed, 2])
    working = [candidate for candidate, known in recording.recorded.items() if known.seconds]
    return working[int(rng.integers(len(working)))]


@dataclass(frozen=True)
class Levels:
    """Standard deviations of log times: what a batch has in common, between its groups, within a group."""

    batch: float
    between: float
    within: float


SHARED_MACHINE = Levels(batch=0.01, between=0.0055, within=0.007)
"""With these between and within groups Student's t at 5% calls 14% of identical kernels different, as it did on the
development machine before the workers that do not run were paused (docs/explanation/results.md)."""

QUIET_MACHINE = Levels(batch=0.002, between=0.002, within=0.004)


class NoisyMeasurer:
    """Answers with a recording's true times under log-normal noise of three levels (`stormdrop.statistics`).

    Each `measure` is one batch. Phases are the recording's; `samples` counts what was measured.
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
    """What one run of droplet came to, from a start or the origin: `end` is its true time over the optimum.

    `seconds` is wall time as `width` workers would need it: a batch's candidates are built side by side, kernels run
    one after the other.
    """
    knowledge = Knowledge(starts=() if start is None else (start,))
    search = create("droplet", recording.spaces, np.random.default_rng(seed), knowledge, **options)
    evaluated: set[Candidate] = set()
    batches = measurements = 0
    seconds = 0.0
    while requests := search.ask(width):
        answers = list(measurer.measure(requests))
        search.tell([Trial(request.candidate, answer) for request, answer in zip(requests, answers, strict=True)])
        evaluated.update(request.candidate for request in requests)
        batches += 1
        measurements += len(requests)
        seconds += max(a.phases.schedule + a.phases.build for a in answers)
        seconds += sum(a.phases.run + a.phases.check for a in answers)
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


def document(asked: Settings, **results: Any) -> dict[str, Any]:
    """A result with the machine and the settings that it came from."""
    ran_on = {"machine": machine(), "sources": [Path(source).name for source in asked.sources]}
    return {**ran_on, "seeds": asked.seeds, "quick": asked.quick, **results}
