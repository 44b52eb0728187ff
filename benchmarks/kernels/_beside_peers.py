"""Times one schedule beside its peers and beside a copy, in turns, for about as long as it is told."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import add_to_import_path

from stormdrop.bench.contender import ContenderSpec, Unavailable
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.bench.peers import OPERATOR_PEERS
from stormdrop.bench.plan import OURS
from stormdrop.bench.result import TOLERANCE
from stormdrop.bench.turns import TURN, take_turns
from stormdrop.errors import MeasureError
from stormdrop.ir.relative_error import relative_error
from stormdrop.measure.timing import TimingPlan
from stormdrop.statistics import median_interval, ratio_interval

if TYPE_CHECKING:
    from stormdrop.ir.workload import Workload

FEWEST = 6  # rounds; with fewer there is no interval by order statistics
_SHORT = 0.5  # seconds; if a round of single samples takes longer, rounds have single samples


def time_beside_peers(
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
    inputs: Sequence[Any] | None = None,
    makers: Mapping[str, str] = OPERATOR_PEERS,
    tolerance: float = TOLERANCE,
    timed: Sequence[ContenderSpec] = (),
) -> dict[str, Any]:
    """Times a schedule beside the peers in interleaved rounds.

    Args:
        workload: the function.
        sketch: the name of the sketch of our schedule.
        config: the configuration of our schedule.
        against: the names of the peers.
        threads: the number of threads of every contender.
        seconds: about how long it may take.
        rounds: the most rounds, even if more fit into `seconds`.
        seed: the seed of the inputs.
        copied: if given, a copy that moves so many bytes (read plus written) takes turns with the contenders.
        inputs: the inputs; by default random ones.
        makers: what makes each peer, by name.
        tolerance: the error up to which a contender agrees with NumPy.
        timed: further contenders, which take turns and whose results nobody compares.

    Returns:
        A document with the contenders, ours first. Each has its median seconds and the ratio of its time over ours,
        both with 95% intervals, and its error (max|difference| over max|reference| of NumPy). "copy" holds the times of
        the copy, "timed" those of the further contenders by name, "skipped" the reasons why peers did not take part.

    Raises:
        MeasureError: our kernel does not run.
    """
    inputs = workload.random_inputs(seed) if inputs is None else list(inputs)
    (reference,) = workload.reference(inputs)
    ours = {"workload": workload, "sketch": sketch, "config": dict(config), "inputs": inputs}
    theirs = {"operator": workload.name.split()[0], "arguments": dict(workload.arguments), "inputs": inputs}
    specs = [ContenderSpec(OURS, "stormdrop.bench.peers.ours:TunedOperator", ours)]
    specs += [ContenderSpec(name, makers[name], theirs) for name in against]
    processes: list[ContenderProcess] = []
    errors: list[float] = []
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        for spec in specs:
            try:
                process = stack.enter_context(ContenderProcess(spec, threads))
                (output,) = process.outputs()
            except (Unavailable, MeasureError) as reason:
                if spec.name == OURS:
                    raise MeasureError(str(reason)) from reason
                skipped[spec.name] = str(reason)
                continue
            processes.append(process)
            errors.append(relative_error(output, reference))
        processes += [stack.enter_context(ContenderProcess(spec, threads)) for spec in timed]
        if copied is not None:
            processes.append(stack.enter_context(_copy(copied, threads)))
        single = replace(TURN, repeats=1)
        turn = TURN if _round_seconds(processes, single) <= _SHORT else single
        fitting = int(seconds / _round_seconds(processes, turn))
        times = take_turns(processes, max(FEWEST, min(fitting, rounds)), turn)
    contenders = [
        {
            **_figures(taken, times.seconds[0]),
            "name": process.name,
            "max_error": error,
            "agrees": error <= tolerance,
            "versions": process.versions,
            "settings": process.settings,
        }
        for process, taken, error in zip(processes, times.seconds, errors, strict=False)  # without the further ones
    ]
    further = zip(timed, times.seconds[len(errors) :], strict=False)  # without the copy
    return {
        "rounds": len(times.seconds[0]),
        "disturbed": times.disturbed,
        "contenders": contenders,
        "copy": None if copied is None else _figures(times.seconds[-1], times.seconds[0]),
        "timed": {spec.name: _figures(taken, times.seconds[0]) for spec, taken in further},
        "skipped": skipped,
    }


def _copy(moved: float, threads: int) -> ContenderProcess:
    add_to_import_path(Path(__file__).parent)
    return ContenderProcess(ContenderSpec("copy", "_copying:Copy", {"moved": moved}), threads)


def _figures(taken: Sequence[float], ours: Sequence[float]) -> dict[str, Any]:
    """Median seconds, and the ratio over ours, with their 95% intervals."""
    middle, ratio = median_interval(taken), ratio_interval(taken, ours)
    return {
        "seconds": middle.estimate,
        "interval": [middle.low, middle.high],
        "ratio": ratio.estimate,
        "ratio_interval": [ratio.low, ratio.high],
    }


def _round_seconds(processes: Sequence[ContenderProcess], turn: TimingPlan) -> float:
    """Wall seconds of a round that does not count."""
    begin = time.perf_counter()
    take_turns(processes, 1, turn)
    return time.perf_counter() - begin
