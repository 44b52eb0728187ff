"""How often a test calls one of several identical kernels faster. claims.py simulates it; this script measures it.

    claims_noise.py [--time 60]

The Droplet Search paper compares three samples with three by Student's t at 5% (section 3.3). Its footnote 4 asks for
five samples if the test is on ranks. All rates are those of whole decisions by the search's own code: one step of a
descent on a flat landscape, with one neighbour and with eight. Every move is a false one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from _grounds import (
    QUIET_MACHINE,
    SHARED_MACHINE,
    Levels,
    NoisyMeasurer,
    Settings,
    document,
    machine,
    save,
    spread,
    table,
)

import stormdrop as sd
from stormdrop.compare.grounds import Limits, MachineGround
from stormdrop.measure.replay import Recorded, Recording
from stormdrop.search import create
from stormdrop.space import Ordinal, Space
from stormdrop.statistics import student
from stormdrop.trial import Candidate, Measurement, Request, Status, Trial

WORKLOAD = sd.operators.conv2d(n=1, h=56, w=56, ci=64, co=64, kh=3, kw=3, pad=1)
NEIGHBOURS = (1, 8)
TESTS: tuple[dict[str, Any], ...] = (
    {"test": "student", "repeats": 3, "sides": 1},
    {"test": "student", "repeats": 5, "sides": 1},
    {"test": "rank", "repeats": 4},
    {"test": "rank", "repeats": 5},
    {"test": "none", "repeats": 3},
    {"test": "ours", "repeats": 3},
    {"test": "student", "repeats": 3, "sides": 2},  # the last one: the noise of a row depends on its place
)
_SAMPLES = 5  # in a live group: the most that a test wants
_PER_BATCH = 10  # groups of the kernel after the compilation of a batch
_DRAWS = 3000


def tests(settings: Settings) -> None:
    """Prints and saves the rates under simulated noise."""
    runs = 200 if settings.quick else 1000
    machines = {"shared": SHARED_MACHINE, "quiet": QUIET_MACHINE}
    tasks = [
        (name, test, neighbours, runs) for name in machines for test in range(len(TESTS)) for neighbours in NEIGHBOURS
    ]
    rates = spread(_simulated, tasks, settings.jobs)
    for name, levels in machines.items():
        print(f"\nFalse moves on identical kernels, {name} machine ({_words(levels)}), {runs} decisions each")
        _print([rate for rate in rates if rate["machine"] == name])
    noise = {name: asdict(levels) for name, levels in machines.items()}
    save("claim_tests", document(settings, levels=noise, found=rates))


def main() -> None:
    """Measures the same kernel again and again on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", type=float, default=60.0, help="seconds of measuring (%(default)g)")
    batches, suspect = _groups(parser.parse_args().time)
    groups = [group for batch in batches for group in batch]
    host = machine()
    print(f"{host['cpu']}: {len(groups)} groups of {_SAMPLES} samples in {len(batches)} batches, {suspect} suspect")
    levels = _levels(batches)
    centres = [statistics.fmean(group[:3]) for group in groups]
    print(f"{_words(levels)}; coefficient of variation of groups {_variation(centres):.2%}")
    any_two, any_of_eight = _random_pairs(groups)
    rates = f"{any_two:.1%} of comparisons differ, {any_of_eight:.1%} with the fastest of 8"
    print(f"\nStudent's t on three samples of two groups that were measured at any two moments: {rates}")
    figures = []
    for test, options in enumerate(TESTS):
        for neighbours in NEIGHBOURS:
            rate, requests = _moves(test, neighbours, min(1000, len(groups)), lambda run: _Stream(groups, run))
            figures.append({**options, "neighbours": neighbours, "moves": rate, "measurements": requests})
    print("\nFalse moves of whole decisions, groups in the order in which they were measured")
    _print(figures)
    results = {"levels": asdict(levels), "any_two": {"one": any_two, "of_eight": any_of_eight}, "found": figures}
    save("claim_noise", {"machine": host, "workload": WORKLOAD.name, "suspect": suspect, **results, "groups": batches})


def _print(rates: Sequence[dict[str, Any]]) -> None:
    rows = []
    for options in TESTS:
        group = [rate for rate in rates if all(rate[key] == value for key, value in options.items())]
        row = [f"{rate['moves']:.1%}" for rate in group] + [f"{rate['measurements']:.1f}" for rate in group]
        sides = ", two-sided" if options.get("sides") == 2 else ""
        rows.append([f"{options['test']}, {options['repeats']} samples{sides}", *row])
    counts = [f"{neighbours} neighbour{'s' * (neighbours > 1)}" for neighbours in NEIGHBOURS]
    table(["", *counts, *(f"measurements, {neighbours}" for neighbours in NEIGHBOURS)], rows)


def _words(levels: Levels) -> str:
    return f"batches {levels.batch:.2%}, between groups {levels.between:.2%}, within {levels.within:.2%}"


# Decisions


class _Stream:
    """Replays what was measured live, one group after the other, from the group with the number `run` on."""

    def __init__(self, groups: Sequence[Sequence[float]], run: int) -> None:
        self._groups, self._next = groups, run

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`."""
        for request in requests:
            group = self._groups[self._next % len(self._groups)]
            self._next += 1
            yield Measurement(Status.OK, tuple(group[: request.repeats]))


def _simulated(task: tuple[str, int, int, int]) -> dict[str, Any]:
    name, test, neighbours, runs = task
    levels = {"shared": SHARED_MACHINE, "quiet": QUIET_MACHINE}[name]
    flat = _flat(neighbours)
    recording = Recording("flat", (flat,), {Candidate("flat", point): Recorded((1e-3,)) for point in flat.points()})
    rate, requests = _moves(
        test, neighbours, runs, lambda run: NoisyMeasurer(recording, np.random.default_rng([run, test]), levels)
    )
    return {"machine": name, **TESTS[test], "neighbours": neighbours, "moves": rate, "measurements": requests}


def _moves(
    test: int, neighbours: int, runs: int, measurer_of: Callable[[int], _Stream | NoisyMeasurer]
) -> tuple[float, float]:
    """The share of decisions that moved, and the mean number of measurements of a decision."""
    space = _flat(neighbours)
    moved = measured = 0
    for run in range(runs):
        measurer = measurer_of(run)
        search = create("droplet", [space], np.random.default_rng(run), max_iterations=1, **TESTS[test])
        while requests := search.ask(neighbours + 1):
            pairs = zip(requests, measurer.measure(requests), strict=True)
            search.tell([Trial(request.candidate, measurement) for request, measurement in pairs])
            measured += len(requests)
        moved += search.best != Candidate("flat", space.origin)
    return moved / runs, measured / runs


def _flat(neighbours: int) -> Space:
    return Space("flat", [Ordinal(f"knob{i}", [0, 1]) for i in range(neighbours)])


def _random_pairs(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """How often Student's t tells two random groups apart, and the fastest of eight random groups from a ninth."""
    rng = np.random.default_rng(0)
    one = of_eight = 0
    for _ in range(_DRAWS):
        incumbent, *others = (groups[i][:3] for i in rng.choice(len(groups), 9, replace=False))
        one += student(others[0], incumbent)
        of_eight += student(min(others, key=statistics.fmean), incumbent)
    return one / _DRAWS, of_eight / _DRAWS


# Live


def _groups(seconds: float) -> tuple[list[list[tuple[float, ...]]], int]:
    """Batches of groups of samples of the default schedule, and the number of suspect measurements.

    Before every batch another candidate is compiled.
    """
    batches: list[list[tuple[float, ...]]] = []
    suspect = 0
    with MachineGround(WORKLOAD, Limits(trials=1)) as ground, ground.measurer() as measurer:
        space = ground.spaces[0]
        kernel = Candidate(space.name, space.origin)
        rng = np.random.default_rng(0)
        end = math.inf
        while time.perf_counter() < end:
            other = Request(Candidate(space.name, space.sample(rng)), 1)
            measurements = list(measurer.measure([other, *[Request(kernel, _SAMPLES)] * _PER_BATCH]))[1:]
            if end == math.inf:
                end = time.perf_counter() + seconds  # the first batch waits for the workers to start
                continue
            whole = [group.seconds for group in measurements if len(group.seconds) == _SAMPLES]
            if len(whole) > 1:  # a group that something disturbs may be cut short
                batches.append(whole)
            suspect += sum(group.suspect for group in measurements)
    return batches, suspect


def _levels(batches: Sequence[Sequence[Sequence[float]]]) -> Levels:
    """Robust estimates of the three levels of noise.

    They come from medians of squares, scaled to those of a normal distribution. What a level holds of the one below is
    taken off.
    """
    logs = [np.log(np.array(batch)) for batch in batches]
    normal = 0.455  # the median of a chi-square variable of one degree
    within = np.median(np.concatenate([np.diff(batch[:, :2]).ravel() ** 2 / 2 for batch in logs])) / normal
    centres = [np.median(batch, axis=1) for batch in logs]
    groups = np.median(np.concatenate([np.diff(medians) ** 2 / 2 for medians in centres])) / normal
    whole = np.median(np.diff([np.median(medians) for medians in centres]) ** 2 / 2) / normal
    parts = (whole - groups / _PER_BATCH, groups - within * 1.43 / _SAMPLES, within)  # 1.43: median over mean, of five
    return Levels(*(math.sqrt(max(0.0, float(part))) for part in parts))


def _variation(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


if __name__ == "__main__":
    main()
