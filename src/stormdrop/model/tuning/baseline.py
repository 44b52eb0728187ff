"""What a model takes before it is tuned: with its default schedules, each kernel inside it, and by onnxruntime.

The tuning begins with this: its user sees at once what there is to gain, the costliest kernels are tuned first, and
the model is there for the last comparison, however little time is left then.
"""

from __future__ import annotations

import logging
import math
import statistics
import time as clock
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from ...errors import DeviceError, LockTimeout, ModelError
from ...machine.contract import CPU, Machine
from ...machine.gpu import Gpu
from ...machine.process.memory import available_memory
from ...machine.sharing.lock import MachineLock
from ...measure.timing import FEWEST_ROUNDS, rounds_within
from ..artifact.artifact import CompiledModel
from ..building.builder import ModelBuilder
from ..building.tuned_task import Choice
from ..graph.graph import Graph
from ..graph.onnx_origin import origin_of
from ..inputs.samples import Feeds
from ..profile import profile, seconds_by_task
from .latency import execution_seconds
from .tuning_run import TuningRun

_PER_KERNEL = 0.1  # CPU seconds, about, that a kernel takes to compile
_SHARE = 0.25  # of the time that is left: the most that the compilation may be expected to take
_TIMING = 0.02  # of the time that is left: the most that a timing takes
_TIMING_SECONDS = 0.5  # of a timing, at most
_SLOW = 0.05  # of the time that is left: the kernels of a model are not timed if a few rounds take longer
_LOCK_SECONDS = 0.5  # that the machine is waited for
_MEMORY = 0.25  # of the memory that is there: the most that the weights may have

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Baseline:
    """What a model takes before it is tuned.

    Attributes:
        model: The model with its default schedules; None if it was not built.
        combination: These schedules.
        missing: Why it was not built, in words; empty if it was.
        build_seconds: Wall seconds that the build took.
        seconds: Seconds of an execution, at the first size; None if it was not timed.
        by_task: Seconds of all calls of a task in one execution of each size, by the index of the task; empty if the
            kernels were not timed.
        peer: Seconds of an execution by onnxruntime, at the first size; None if it was not timed.
    """

    model: CompiledModel | None = None
    combination: Mapping[int, Choice] = field(default_factory=dict)
    missing: str = ""
    build_seconds: float = 0.0
    seconds: float | None = None
    by_task: Mapping[int, float] = field(default_factory=dict)
    peer: float | None = None


def measure_baseline(
    graph: Graph, builder: ModelBuilder, machine: Machine, feeds: Sequence[Feeds], run: TuningRun
) -> Baseline:
    """Builds a model with its default schedules and times it, as far as that is a small part of the run's time.

    Args:
        graph: The model.
        builder: Builds it.
        machine: This machine.
        feeds: The inputs at each of its sizes.
        run: The run of the tuning.
    """
    free = available_memory()  # of this machine, which has the weights of a model for a GPU, too
    if graph.constant_bytes > _MEMORY * (min(free, machine.free_memory) if isinstance(machine, Gpu) else free):
        return Baseline(missing="its weights take much of the memory")
    if _PER_KERNEL * len(graph.tasks) / machine.cores > _SHARE * _left(run):
        return Baseline(missing="no time was left")
    run.say(f"compiling {len(graph.tasks)} kernels with default schedules")
    begin = clock.perf_counter()
    try:
        model = builder.build(builder.defaults)
    except ModelError as error:  # the tuning finds out which schedule it is
        _logger.warning("the untuned model: %s", error)
        return Baseline(missing="a default schedule cannot be compiled", peer=_peer(graph, machine, feeds[0], run))
    taken = clock.perf_counter() - begin
    run.say("timing the untuned model")
    try:
        seconds, by_task = _times(model, feeds, run)
    except DeviceError as error:
        _logger.warning("the untuned model: %s", error)
        return Baseline(missing="a default schedule cannot be run")
    return Baseline(model, builder.defaults, "", taken, seconds, by_task, _peer(graph, machine, feeds[0], run))


def _left(run: TuningRun) -> float:
    return math.inf if run.left is None else run.left


def _times(model: CompiledModel, feeds: Sequence[Feeds], run: TuningRun) -> tuple[float | None, dict[int, float]]:
    """Seconds of an execution at the first size, and those of each task at all sizes, alone on the machine."""
    granted = min(_TIMING * _left(run), _TIMING_SECONDS) / len(feeds)
    first, by_task = None, dict[int, float]()
    try:
        for of_size in feeds:
            with closing(MachineLock()) as lock, lock.exclusive(clock.perf_counter() + _LOCK_SECONDS):
                once = execution_seconds(model, of_size)
            first = once if first is None else first
            if FEWEST_ROUNDS * 3 * once > _SLOW * _left(run):
                return first, {}
            rounds = rounds_within([3 * once], granted)
            measured = profile(model, of_size, rounds, clock.perf_counter() + _LOCK_SECONDS)
            first = measured.seconds if of_size is feeds[0] else first
            for index, times in seconds_by_task(model, measured).items():
                by_task[index] = by_task.get(index, 0.0) + statistics.median(times)
    except LockTimeout:  # another process keeps the machine
        return first, {}
    return first, by_task


def _peer(graph: Graph, machine: Machine, feeds: Feeds, run: TuningRun) -> float | None:
    """Seconds of an execution by onnxruntime; None if it is not installed, or does not run the model."""
    if machine.device != CPU:  # onnxruntime would run on the CPU
        return None
    run.say("timing onnxruntime")
    granted = min(_TIMING * _left(run), _TIMING_SECONDS)
    with closing(MachineLock()) as lock:
        try:
            return origin_of(graph.source).seconds(
                feeds, machine.cores, granted, lambda: lock.exclusive(clock.perf_counter() + _LOCK_SECONDS)
            )
        except LockTimeout:
            return None
        except ModelError as error:  # the verification has said what matters
            _logger.info("onnxruntime is not timed: %s", error)
            return None
