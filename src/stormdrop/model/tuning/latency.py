"""The last timing of a tuned model: whole executions in turns, alone on the machine, and then each kernel inside it.

Whole executions of a model that runs behind a runner are timed there (`board.py`).
"""

from __future__ import annotations

import math
import time as clock
from collections.abc import Sequence
from contextlib import closing, suppress

from ...errors import LockTimeout, ModelError
from ...machine.cpu import Cpu
from ...machine.sharing.foreign_load import LoadWatch, read_counters, spent_since
from ...machine.sharing.lock import MachineLock
from ...measure.timing import FEWEST_ROUNDS, MOST_ROUNDS, rounds_within
from ...statistics import Interval, median_interval, ratio_interval
from ..artifact.artifact import CompiledModel
from ..artifact.onnxruntime_parts import CHOOSING
from ..building.board import BoardModel, in_turns
from ..graph.expressions import bindings_of, part_index
from ..graph.graph import Graph
from ..importer.whole_part import run_by_onnxruntime
from ..inputs.samples import Feeds
from ..profile import PartTime, Profile, part_times, profile
from ..tensors import Array
from .tuning_run import TuningRun

_LOCK_SECONDS = 0.5  # that the machine is waited for before the last timing, even if no time is left
_LATENCY_SECONDS = 5.0  # of the last timing, at most, except for very slow models
_SHORT_SECONDS = 1.0  # of that of a small model
_LEAST_SECONDS = 0.25  # that it takes, even if no time is left: three rounds beside other load say nothing
_PROFILE_SECONDS = 0.5  # of the timing of the kernels inside the model, at most, except for slow models

_MOST = 0.5
"""The share of onnxruntime's time for a model from which on it runs all of it. Kernels that are 1.5 times as fast would
save a sixth of the time with half of the model; what lies between the parts costs as much."""
_MOST_ANYWAY = "onnxruntime has to run most of the model, and is faster with all of it"

Call = tuple[CompiledModel, Feeds]
"""A model, and its inputs at one of its sizes."""


def execution_seconds(model: CompiledModel, feeds: Feeds) -> float:
    """Seconds of one execution of a model, after another one.

    Args:
        model: The model.
        feeds: Its inputs by name.
    """
    if isinstance(model, BoardModel):
        return model.stopwatch(feeds)(1)
    model.run(feeds)  # loads code and memory
    return model.seconds(feeds)


def _turn_seconds(model: CompiledModel, feeds: Feeds) -> float:
    """Wall seconds of `execution_seconds`: two executions. A GPU's own seconds do not tell them."""
    seconds = execution_seconds(model, feeds)
    if not model.device:
        return 2 * seconds
    begin = clock.perf_counter()
    execution_seconds(model, feeds)
    return clock.perf_counter() - begin


def choose_parts(graph: Graph, machine: Cpu, feeds: Sequence[Feeds], run: TuningRun) -> Graph:
    """Lets onnxruntime run all of a model if its parts take most of the time that it needs for all of it.

    Its parts, or the only part in their place, have one thread where they are faster with it, alone on the machine. If
    another process keeps the machine, or the run has no time left, the parts stay as they are, and have all threads.

    Args:
        graph: The model, after its parts have run in the verification.
        machine: The machine.
        feeds: Its inputs by name, at each of its sizes.
        run: The run of the tuning.

    Returns:
        The graph of what is faster: the same one, or one that has to be verified.
    """
    examples, graph.foreign.examples = graph.foreign.examples, None
    if not run.has_time:
        return graph
    is_whole = all(part.whole for part in graph.foreign.reports)
    whole = None if is_whole else run_by_onnxruntime(graph, _MOST_ANYWAY)
    end = clock.perf_counter() + _granted(run, _LOCK_SECONDS)
    with closing(MachineLock()) as lock, suppress(LockTimeout), lock.exclusive(end):
        seconds = _seconds(graph, examples, machine, run)
        if whole is None or not run.has_time:
            return graph
        given = [[one[info.name] for info in size.inputs] for size, one in zip(whole.sizes, feeds, strict=True)]
        with suppress(ModelError):  # onnxruntime takes the parts, and not what is around them
            if seconds >= _MOST * _seconds(whole, dict(enumerate(given)), machine, run):
                return whole
    return graph


def _seconds(graph: Graph, examples: dict[int, list[Array]] | None, machine: Cpu, run: TuningRun) -> float:
    """The seconds that the parts of all sizes take, each as often as a size has it, with the numbers of threads chosen.

    Args:
        graph: The model.
        examples: Inputs of its parts, by index.
        machine: The machine.
        run: The run of the tuning.
    """
    graph.foreign.examples = examples
    try:
        within = _granted(run, CHOOSING)
        seconds = graph.foreign.choose_threads(graph.name, machine.cores, machine.keep_denormals, within)
    finally:
        graph.foreign.examples = None
    parts = [part_index(binding.value) for size in graph.sizes for binding in bindings_of(size.mod["main"])]
    return sum(seconds.get(part, 0.0) for part in parts if part is not None)


def latencies(calls: Sequence[Call], cores: int, run: TuningRun) -> tuple[list[Interval], Interval | None, bool]:
    """Times models at their sizes in turns, alone on the machine.

    A round that was disturbed is taken again, as often as there are rounds and as long as the run has time left. There
    are few rounds if it has none, and as few as possible after Ctrl-C. If another process keeps the machine until the
    run should end, the few rounds that are taken beside it count as disturbed. Ctrl-C ends the timing: what was timed
    by then is what is known, and NaN if it is too little.

    Args:
        calls: What is timed.
        cores: The cores of the machine.
        run: The run of the tuning.

    Returns:
        Seconds per call; the time of the first call of the second half over that of the first call, turn by turn (the
        model with default schedules over the tuned one, at the first size), None if there is one call; and whether
        something disturbed it: foreign load, or clocks of a GPU that were held back.
    """
    if isinstance(calls[0][0], BoardModel):
        return *_summary(_rounds_on_board(calls, run), len(calls)), False  # nobody else has the board meanwhile
    wanted = FEWEST_ROUNDS
    every: list[list[float]] = []
    quiet: list[list[float]] = []
    try:
        watch = LoadWatch(cores)
        turns = [_turn_seconds(model, feeds) for model, feeds in calls]
        # Fifteen rounds of a small model are over in some milliseconds, which may be noisy ones.
        most = max(MOST_ROUNDS, round(_SHORT_SECONDS / sum(turns)))
        wanted = rounds_within(turns, _granted(run, _LATENCY_SECONDS, _LEAST_SECONDS), most=most)
        until = max(run.end, clock.perf_counter() + _LOCK_SECONDS)
        with suppress(LockTimeout), closing(MachineLock()) as lock, lock.exclusive(until):
            while len(quiet) < wanted and len(every) < 2 * wanted and (len(every) < wanted or run.has_time):
                before = read_counters()
                # The first execution brings back what the other model's weights have driven from the caches.
                every.append([execution_seconds(model, feeds) for model, feeds in calls])
                if not watch.suspect(spent_since(before, calls[0][0].device, calls[0][0].gpu)):
                    quiet.append(every[-1])
        while len(every) < min(wanted, rounds_within(turns, _LEAST_SECONDS)):  # another process keeps the machine
            every.append([execution_seconds(model, feeds) for model, feeds in calls])
    except KeyboardInterrupt:
        run.interrupted = True
    if len(every) < FEWEST_ROUNDS:
        return *_summary([], len(calls)), True
    rounds = quiet if len(quiet) >= FEWEST_ROUNDS else every
    return *_summary(rounds, len(calls)), len(quiet) < wanted


def times_of_parts(model: CompiledModel, feeds: Sequence[Feeds]) -> list[PartTime]:
    """The times of the parts of all sizes; of a part that several sizes have, that of the first of them.

    Args:
        model: The model.
        feeds: Its inputs at each size.
    """
    times = {each.part.file: each for of_size in reversed(feeds) for each in part_times(model, of_size)}
    return [times[part.file] for part in model.foreign.reports if part.file in times]


def inside_profile(model: CompiledModel, feeds: Feeds, run: TuningRun) -> Profile | None:
    """The times of the kernels inside the model.

    Args:
        model: The model.
        feeds: Its inputs by name.
        run: The run of the tuning.

    Returns:
        The times; None after Ctrl-C, if another process keeps the machine, of a slow model if no time is left, and on a
        board.
    """
    if run.interrupted or isinstance(model, BoardModel):
        return None
    until = max(run.end, clock.perf_counter())  # the last timing has waited already
    turn = 1.5 * _turn_seconds(model, feeds)
    if run.left == 0.0 and FEWEST_ROUNDS * turn > _PROFILE_SECONDS:
        return None
    rounds = rounds_within([turn], _granted(run, _PROFILE_SECONDS))
    with suppress(LockTimeout):
        return profile(model, feeds, rounds, until)
    return None


def _granted(run: TuningRun, most: float, least: float = 0.0) -> float:
    """The seconds that a timing may take: those that the run has left, within bounds, and none after Ctrl-C."""
    if run.interrupted:
        return 0.0
    return most if run.left is None else max(least, min(most, run.left))


def _rounds_on_board(calls: Sequence[Call], run: TuningRun) -> list[list[float]]:
    try:
        seconds = [execution_seconds(model, feeds) for model, feeds in calls]
        return in_turns(
            calls, rounds_within([2 * each for each in seconds], _granted(run, _LATENCY_SECONDS, _LEAST_SECONDS))
        )
    except KeyboardInterrupt:
        run.interrupted = True
        return []


def _summary(rounds: Sequence[Sequence[float]], calls: int) -> tuple[list[Interval], Interval | None]:
    """The seconds of each call, and the ratio of two of them; NaN if there were no rounds."""
    if not rounds:
        return [Interval(math.nan, math.nan, math.nan)] * calls, None
    times = list(zip(*rounds, strict=True))
    ratio = ratio_interval(times[len(times) // 2], times[0]) if len(times) > 1 else None
    return [median_interval(seconds) for seconds in times], ratio
