"""Times several models in turns, each in its own process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scipy.stats import mannwhitneyu

import stormdrop as sd
from stormdrop.bench.contender import ContenderSpec, Unavailable
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.bench.turns import take_turns
from stormdrop.statistics import median_interval, ratio_interval


def artifacts(folder: Path, names: Sequence[str], feeds: Mapping[str, Any]) -> list[ContenderSpec]:
    """The saved models of a folder as contenders."""
    maker = "stormdrop.bench.peers.ours:TunedModel"
    return [ContenderSpec(name, maker, {"artifact": str(folder / name), "inputs": feeds}) for name in names]


def race(specs: Sequence[ContenderSpec], reference: str, rounds: int) -> dict[str, Any]:
    """Times contenders in turns.

    Args:
        specs: the contenders. One that cannot take part is left out, and the reason is printed.
        reference: the name of the contender whose time is divided by the times of the others.
        rounds: the number of rounds.

    Returns:
        By name `seconds` (the median) and `speed` (the time of the reference over theirs), with 95% intervals, and the
        `p` of Wilcoxon's rank-sum test of its rounds against those of the reference; and under "disturbed" the number
        of rounds beside foreign load.
    """
    processes: list[ContenderProcess] = []
    with ExitStack() as stack:
        for spec in specs:
            try:
                processes.append(stack.enter_context(ContenderProcess(spec, sd.Target.detect().cores)))
            except Unavailable as reason:
                print(f"{spec.name} takes no part: {reason}", file=sys.stderr)
        times = take_turns(processes, rounds)
    seconds_of = dict(zip((process.name for process in processes), times.seconds, strict=True))
    results: dict[str, Any] = {"disturbed": times.disturbed}
    for name, seconds in seconds_of.items():
        middle, speed = median_interval(seconds), ratio_interval(seconds_of[reference], seconds)
        results[name] = {
            "seconds": middle.estimate,
            "interval": [middle.low, middle.high],
            "speed": speed.estimate,
            "speed_interval": [speed.low, speed.high],
            "p": float(mannwhitneyu(seconds, seconds_of[reference]).pvalue),
        }
    return results
