"""Several models in turns, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import stormdrop as sd
from stormdrop.bench.contender import ContenderSpec, Unavailable
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.bench.turns import take_turns
from stormdrop.statistics import median_interval, ratio_interval


def artifacts(folder: Path, names: Sequence[str], feeds: Mapping[str, Any]) -> list[ContenderSpec]:
    """Saved models of a folder as contenders."""
    maker = "stormdrop.bench.peers.ours:TunedModel"
    return [ContenderSpec(name, maker, {"artifact": str(folder / name), "inputs": feeds}) for name in names]


def race(entries: Sequence[ContenderSpec], reference: str, rounds: int) -> dict[str, Any]:
    """By name `seconds`, and `speed`, the time of the reference over theirs, with 95% intervals.

    With them, under "disturbed", the number of rounds beside foreign load; who cannot take part is left out, and said.
    """
    players: list[ContenderProcess] = []
    with ExitStack() as stack:
        for entry in entries:
            try:
                players.append(stack.enter_context(ContenderProcess(entry, sd.Target.detect().cores)))
            except Unavailable as reason:
                print(f"{entry.name} takes no part: {reason}", file=sys.stderr)
        times = take_turns(players, rounds)
    taken = dict(zip((player.name for player in players), times.seconds, strict=True))
    found: dict[str, Any] = {"disturbed": times.disturbed}
    for name, seconds in taken.items():
        middle, speed = median_interval(seconds), ratio_interval(taken[reference], seconds)
        found[name] = {
            "seconds": middle.estimate,
            "interval": [middle.low, middle.high],
            "speed": speed.estimate,
            "speed_interval": [speed.low, speed.high],
        }
    return found
