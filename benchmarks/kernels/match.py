"""One schedule beside the peers: contenders in turns, for about as long as it may take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from stormdrop.bench import OURS, TOLERANCE
from stormdrop.contest import Entry, Player, Turn, Unavailable, compete
from stormdrop.errors import MeasureError
from stormdrop.model.verify import relative_error
from stormdrop.peers import OPERATOR_PEERS
from stormdrop.statistics import median_interval, ratio_interval

if TYPE_CHECKING:
    from stormdrop.kernel.workload import Workload

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
) -> dict[str, Any]:
    """Times a schedule beside the peers, in interleaved rounds: `rounds` of them at most, as fit into `seconds`.

    The document has the contenders, ours first, each with its median seconds, the ratio of its time over ours, both
    with 95% intervals, and its error (max|difference| over max|reference| of NumPy); and why a peer did not take part.
    Raises `MeasureError` where our kernel does not run.
    """
    inputs = workload.random_inputs(seed)
    (reference,) = workload.reference(inputs)
    ours = {"workload": workload, "sketch": sketch, "config": dict(config), "inputs": inputs}
    theirs = {"operator": workload.name.split()[0], "arguments": dict(workload.arguments), "inputs": inputs}
    entries = [Entry(OURS, "stormdrop.peers.ours:TunedOperator", ours)]
    entries += [Entry(name, OPERATOR_PEERS[name], theirs) for name in against]
    players: list[Player] = []
    errors: list[float] = []
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        for entry in entries:
            try:
                player = stack.enter_context(Player(entry, threads))
                (output,) = player.outputs()
            except (Unavailable, MeasureError) as reason:
                if entry.name == OURS:
                    raise MeasureError(str(reason)) from reason
                skipped[entry.name] = str(reason)
                continue
            players.append(player)
            errors.append(relative_error(output, reference))
        turn = Turn() if _round(players, Turn(repeats=1)) <= _SHORT else Turn(repeats=1)
        fitting = int(seconds / _round(players, turn))
        times = compete(players, max(FEWEST, min(fitting, rounds)), turn)
    contenders = []
    for player, taken, error in zip(players, times.rounds, errors, strict=True):
        middle, ratio = median_interval(taken), ratio_interval(taken, times.rounds[0])
        contenders.append(
            {
                "name": player.name,
                "seconds": middle.estimate,
                "interval": [middle.low, middle.high],
                "ratio": ratio.estimate,
                "ratio_interval": [ratio.low, ratio.high],
                "max_error": error,
                "agrees": error <= TOLERANCE,
                "versions": player.versions,
                "settings": player.settings,
            }
        )
    return {
        "rounds": len(times.rounds[0]),
        "disturbed": times.disturbed,
        "contenders": contenders,
        "skipped": skipped,
    }


def _round(players: Sequence[Player], turn: Turn) -> float:
    """Wall seconds of a round that does not count."""
    begin = time.perf_counter()
    compete(players, 1, turn)
    return time.perf_counter() - begin
