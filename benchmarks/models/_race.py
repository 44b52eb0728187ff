"""Times several models in turns, each in its own process."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import stormdrop as sd
from stormdrop.bench.contender import ContenderSpec, Unavailable
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.bench.turns import TURN, take_turns
from stormdrop.errors import MeasureError
from stormdrop.ir.relative_error import relative_error
from stormdrop.machine.contract import CPU
from stormdrop.measure.timing import TimingPlan
from stormdrop.statistics import median_interval, ratio_interval, student

PAPER_SAMPLES = 3
"""The samples of a contender that the Droplet Search paper compares (section 4.3, Figure 18)."""

_SHORT = 3.0  # seconds; rounds of usual turns are about five times as long


def artifacts(folder: Path, names: Sequence[str], feeds: Mapping[str, Any], device: str = CPU) -> list[ContenderSpec]:
    """The saved models of a folder, which are all for one kind of device, as contenders."""
    maker = f"stormdrop.bench.peers.ours:{'TunedModel' if device == CPU else 'ModelOnGpu'}"
    return [ContenderSpec(name, maker, {"artifact": str(folder / name), "inputs": feeds}, device) for name in names]


def race(specs: Sequence[ContenderSpec], reference: str, rounds: int) -> dict[str, Any]:
    """Times models or kernels in turns.

    Args:
        specs: the contenders. One that cannot take part is left out, and the reason is printed.
        reference: the name of the contender whose time is divided by the times of the others.
        rounds: the number of rounds.

    Returns:
        By name `seconds` (the median) and `speed` (the time of the reference over theirs), with 95% intervals, the
        `samples` of all rounds, and the `error` of the outputs against those of the reference; and under "disturbed"
        the number of rounds beside foreign load.

    Raises:
        MeasureError: the reference cannot take part, or a contender dies.
    """
    processes: list[ContenderProcess] = []
    with ExitStack() as stack:
        for spec in specs:
            try:
                processes.append(stack.enter_context(ContenderProcess(spec, sd.Cpu.detect().cores)))
            except (Unavailable, MeasureError) as reason:
                print(f"{spec.name} takes no part: {reason}", file=sys.stderr)
        right = next((process.outputs() for process in processes if process.name == reference), None)
        if right is None:
            raise MeasureError(f"{reference}, which the others are compared with, takes no part")
        errors = {process.name: _error(process.outputs(), right) for process in processes}
        times = take_turns(processes, rounds, _plan(processes))
    seconds_of = dict(zip((process.name for process in processes), times.seconds, strict=True))
    results: dict[str, Any] = {"disturbed": times.disturbed}
    for name, seconds in seconds_of.items():
        middle, speed = median_interval(seconds), ratio_interval(seconds_of[reference], seconds)
        results[name] = {
            "seconds": middle.estimate,
            "interval": [middle.low, middle.high],
            "speed": speed.estimate,
            "speed_interval": [speed.low, speed.high],
            "samples": list(seconds),
            "error": errors[name],
        }
    return results


def similar(a: Sequence[float], b: Sequence[float], alpha: float = 0.05) -> bool:
    """Whether the Droplet Search paper would call two times statistically similar (Figures 11 and 18).

    Student's t-test on three samples of each, with a confidence level of 95% (section 4.3). It has two sides here,
    because either can be faster; the paper does not say.

    Args:
        a: the samples of one, in seconds; the first three count.
        b: the samples of the other.
        alpha: the level of the test.
    """
    a, b = a[:PAPER_SAMPLES], b[:PAPER_SAMPLES]
    return not (student(a, b, alpha / 2) or student(b, a, alpha / 2))


def _plan(processes: Sequence[ContenderProcess]) -> TimingPlan:
    """How long a turn is. Turns have single samples if a round of these, which does not count here, is long already."""
    single = replace(TURN, repeats=1)
    begin = time.perf_counter()
    take_turns(processes, 1, single)
    return TURN if time.perf_counter() - begin <= _SHORT else single


def _error(outputs: Sequence[Any], right: Sequence[Any]) -> float:
    """The largest relative error of all outputs; infinite if their number or their shapes differ."""
    if [output.shape for output in outputs] != [output.shape for output in right]:
        return math.inf
    return max(relative_error(output, wanted) for output, wanted in zip(outputs, right, strict=True))
