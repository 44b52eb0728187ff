"""One schedule beside the peers and beside a copy: contenders in turns, for about as long as it may take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import findable

from stormdrop.bench.bench import OURS, TOLERANCE
from stormdrop.bench.contender import ContenderSpec, Unavailable
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.bench.peers import OPERATOR_PEERS
from stormdrop.bench.turns import TURN, take_turns
from stormdrop.errors import MeasureError
from stormdrop.ir.relative_error import relative_error
from stormdrop.measure.timing import TimingPlan
from stormdrop.statistics import median_interval, ratio_interval

if TYPE_CHECKING:
    from stormdrop.ir.workload import Workload

FEWEST = 6  # rounds: fewer give no interval by order statistics
_SHORT = 0.5  # seconds: where a round of single samples takes longer, it stays at those


def beside(
    workload: Workload,
    sketch: str,
    config: Mapping[str, Any],
    against: Sequence[str],
    *,
    threads: int,
    seconds: float,
    rounds: int,
    seed: int = 0,
    copied: float | None = None,
) -> dict[str, Any]:
    """Times a schedule beside the peers, in interleaved rounds: `rounds` of them at most, as fit into `seconds`.

    The document has the contenders, ours first, each with its median seconds, the ratio of its time over ours, both
    with 95% intervals, and its error (max|difference| over max|reference| of NumPy); and why a peer did not take part.
    Where `copied` is given, a copy takes turns with them that moves so many bytes, read and written together: its
    times stand apart, under "copy". Raises `MeasureError` where our kernel does not run.
    """
    inputs = workload.random_inputs(seed)
    (reference,) = workload.reference(inputs)
    ours = {"workload": workload, "sketch": sketch, "config": dict(config), "inputs": inputs}
    theirs = {"operator": workload.name.split()[0], "arguments": dict(workload.arguments), "inputs": inputs}
    entries = [ContenderSpec(OURS, "stormdrop.bench.peers.ours:TunedOperator", ours)]
    entries += [ContenderSpec(name, OPERATOR_PEERS[name], theirs) for name in against]
    players: list[ContenderProcess] = []
    errors: list[float] = []
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        for entry in entries:
            try:
                player = stack.enter_context(ContenderProcess(entry, threads))
                (output,) = player.outputs()
            except (Unavailable, MeasureError) as reason:
                if entry.name == OURS:
                    raise MeasureError(str(reason)) from reason
                skipped[entry.name] = str(reason)
                continue
            players.append(player)
            errors.append(relative_error(output, reference))
        if copied is not None:
            players.append(stack.enter_context(_copy(copied, threads)))
        single = replace(TURN, repeats=1)
        turn = TURN if _round(players, single) <= _SHORT else single
        fitting = int(seconds / _round(players, turn))
        times = take_turns(players, max(FEWEST, min(fitting, rounds)), turn)
    standings = [
        {
            **_standing(taken, times.seconds[0]),
            "name": player.name,
            "max_error": error,
            "agrees": error <= TOLERANCE,
            "versions": player.versions,
            "settings": player.settings,
        }
        for player, taken, error in zip(players, times.seconds, errors, strict=False)  # without the copy
    ]
    return {
        "rounds": len(times.seconds[0]),
        "disturbed": times.disturbed,
        "contenders": standings,
        "copy": None if copied is None else _standing(times.seconds[-1], times.seconds[0]),
        "skipped": skipped,
    }


def _copy(moved: float, threads: int) -> ContenderProcess:
    findable(Path(__file__).parent)
    return ContenderProcess(ContenderSpec("copy", "copying:Copy", {"moved": moved}), threads)


def _standing(taken: Sequence[float], ours: Sequence[float]) -> dict[str, Any]:
    """Median seconds, and the ratio over ours, with their 95% intervals."""
    middle, ratio = median_interval(taken), ratio_interval(taken, ours)
    return {
        "seconds": middle.estimate,
        "interval": [middle.low, middle.high],
        "ratio": ratio.estimate,
        "ratio_interval": [ratio.low, ratio.high],
    }


def _round(players: Sequence[ContenderProcess], turn: TimingPlan) -> float:
    """Wall seconds of a round that does not count."""
    begin = time.perf_counter()
    take_turns(players, 1, turn)
    return time.perf_counter() - begin
