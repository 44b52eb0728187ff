"""How often a test calls one of several identical kernels faster: simulated by claims.py, measured live by this script.

    claims_noise.py [--time 60]

The Droplet Search paper tests three samples a side with Student's t at 5% (section 3.3); its footnote 4 asks for five
samples where the test is on ranks. All rates are of whole decisions, made by the search's own code: one step of a
descent on a landscape without any slope, with one neighbour and with eight. Every move is false.
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
from grounds import (
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
    {"test": "student", "repeats": 3},
    {"test": "student", "repeats": 5},
    {"test": "rank", "repeats": 4},
    {"test": "rank", "repeats": 5},
    {"test": "none", "repeats": 3},
    {"test": "ours", "repeats": 3},
)
_SAMPLES = 5  # of a live group: the most that a test wants
_PER_BATCH = 10  # groups of the one kernel, after a batch's compilation
_DRAWS = 3000


def tests(asked: Settings) -> None:
    """Prints the rates under simulated noise."""
    runs = 200 if asked.quick else 1000
    grounds = {"shared": SHARED_MACHINE, "quiet": QUIET_MACHINE}
    tasks = [(name, at, neighbours, runs) for name in grounds for at in range(len(TESTS)) for neighbours in NEIGHBOURS]
    found = spread(_simulated, tasks, asked.jobs)
    for name, levels in grounds.items():
        print(f"\nFalse moves on identical kernels, {name} machine ({_words(levels)}), {runs} decisions each")
        _print([each for each in found if each["machine"] == name])
    noise = {name: asdict(each) for name, each in grounds.items()}
    save("claim_tests", document(asked, levels=noise, found=found))


def main() -> None:
    """Measures the same kernel again and again on this machine."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--time", type=float, default=60.0, help="seconds of measuring (%(default)g)")
    batches, suspect = _groups(asked.parse_args().time)
    groups = [group for batch in batches for group in batch]
    where = machine()
    print(f"{where['cpu']}: {len(groups)} groups of {_SAMPLES} samples in {len(batches)} batches, {suspect} suspect")
    levels = _levels(batches)
    centres = [statistics.fmean(group[:3]) for group in groups]
    print(f"{_words(levels)}; coefficient of variation of groups {_variation(centres):.2%}")
    far, far_of_eight = _stored(groups)
    print(
        f"\nStudent's t on three samples, groups of any two times: {far:.1%} of comparisons, {far_of_eight:.1%} with 8"
    )
    found = []
    for at, options in enumerate(TESTS):
        for neighbours in NEIGHBOURS:
            rate, requests = _moves(at, neighbours, min(1000, len(groups)), lambda run: _Stream(groups, run))
            found.append({**options, "neighbours": neighbours, "moves": rate, "measurements": requests})
    print("\nFalse moves of whole decisions, groups in the order in which they were measured")
    _print(found)
    results = {"levels": asdict(levels), "any_two": {"one": far, "of_eight": far_of_eight}, "found": found}
    save("claim_noise", {"machine": where, "workload": WORKLOAD.name, "suspect": suspect, **results, "groups": batches})


def _print(found: Sequence[dict[str, Any]]) -> None:
    rows = []
    for options in TESTS:
        own = [each for each in found if all(each[key] == value for key, value in options.items())]
        row = [f"{each['moves']:.1%}" for each in own] + [f"{each['measurements']:.1f}" for each in own]
        rows.append([f"{options['test']}, {options['repeats']} samples", *row])
    counts = [f"{neighbours} neighbour{'s' * (neighbours > 1)}" for neighbours in NEIGHBOURS]
    table(["", *counts, *(f"measurements, {neighbours}" for neighbours in NEIGHBOURS)], rows)


def _words(levels: Levels) -> str:
    return f"batches {levels.batch:.2%}, between groups {levels.between:.2%}, within {levels.within:.2%}"


# Decisions


class _Stream:
    """Answers with what was measured live, one group after the other from the run's own place on."""

    def __init__(self, groups: Sequence[Sequence[float]], run: int) -> None:
        self._groups, self._at = groups, run

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`."""
        for request in requests:
            group = self._groups[self._at % len(self._groups)]
            self._at += 1
            yield Measurement(Status.OK, tuple(group[: request.repeats]))


def _simulated(task: tuple[str, int, int, int]) -> dict[str, Any]:
    name, at, neighbours, runs = task
    levels = {"shared": SHARED_MACHINE, "quiet": QUIET_MACHINE}[name]
    flat = _flat(neighbours)
    recording = Recording("flat", (flat,), {Candidate("flat", point): Recorded((1e-3,)) for point in flat.points()})
    rate, requests = _moves(
        at, neighbours, runs, lambda run: NoisyMeasurer(recording, np.random.default_rng([run, at]), levels)
    )
    return {"machine": name, **TESTS[at], "neighbours": neighbours, "moves": rate, "measurements": requests}


def _moves(
    at: int, neighbours: int, runs: int, measurer_of: Callable[[int], _Stream | NoisyMeasurer]
) -> tuple[float, float]:
    """The share of first steps that moved, and the mean number of measurements of a decision."""
    space = _flat(neighbours)
    moved = measured = 0
    for run in range(runs):
        measurer = measurer_of(run)
        search = create("droplet", [space], np.random.default_rng(run), max_iterations=1, **TESTS[at])
        while requests := search.ask(neighbours + 1):
            answers = measurer.measure(requests)
            search.tell([Trial(request.candidate, answer) for request, answer in zip(requests, answers, strict=True)])
            measured += len(requests)
        moved += search.best != Candidate("flat", space.origin)
    return moved / runs, measured / runs


def _flat(neighbours: int) -> Space:
    return Space("flat", [Ordinal(f"knob{i}", [0, 1]) for i in range(neighbours)])


def _stored(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """How often Student's t fires on two groups of any time, and on the fastest of eight against a ninth."""
    rng = np.random.default_rng(0)
    one = of_eight = 0
    for _ in range(_DRAWS):
        incumbent, *others = (groups[i][:3] for i in rng.choice(len(groups), 9, replace=False))
        one += student(others[0], incumbent)
        of_eight += student(min(others, key=statistics.fmean), incumbent)
    return one / _DRAWS, of_eight / _DRAWS


# Live


def _groups(seconds: float) -> tuple[list[list[tuple[float, ...]]], int]:
    """Batches of groups of the default schedule's samples, each batch after the compilation of another candidate."""
    batches: list[list[tuple[float, ...]]] = []
    suspect = 0
    with MachineGround(WORKLOAD, Limits(trials=1)) as arena, arena.measurer() as measurer:
        space = arena.spaces[0]
        kernel = Candidate(space.name, space.origin)
        rng = np.random.default_rng(0)
        end = math.inf
        while time.perf_counter() < end:
            other = Request(Candidate(space.name, space.sample(rng)), 1)
            answers = list(measurer.measure([other, *[Request(kernel, _SAMPLES)] * _PER_BATCH]))[1:]
            if end == math.inf:
                end = time.perf_counter() + seconds  # the first batch waits for the workers to start
                continue
            whole = [answer.seconds for answer in answers if len(answer.seconds) == _SAMPLES]
            if len(whole) > 1:  # a group that something disturbs may be cut short
                batches.append(whole)
            suspect += sum(answer.suspect for answer in answers)
    return batches, suspect


def _levels(batches: Sequence[Sequence[Sequence[float]]]) -> Levels:
    """Robust: medians of squares, scaled to those of a normal distribution, each level without what it holds of the
    one below."""
    logs = [np.log(np.array(batch)) for batch in batches]
    normal = 0.455  # the median of a chi-square variable of one degree
    within = np.median(np.concatenate([np.diff(batch[:, :2]).ravel() ** 2 / 2 for batch in logs])) / normal
    centres = [np.median(batch, axis=1) for batch in logs]
    groups = np.median(np.concatenate([np.diff(each) ** 2 / 2 for each in centres])) / normal
    whole = np.median(np.diff([np.median(each) for each in centres]) ** 2 / 2) / normal
    parts = (whole - groups / _PER_BATCH, groups - within * 1.43 / _SAMPLES, within)  # 1.43: median over mean, of five
    return Levels(*(math.sqrt(max(0.0, float(part))) for part in parts))


def _variation(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


if __name__ == "__main__":
    main()
