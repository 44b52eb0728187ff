"""Ansor's 164 features of each statement of a scheduled function, as TVM extracts them.

There is one row per statement that stores, and a cost model adds the scores of a candidate's rows (Ansor, OSDI 2020,
section 5.2). A candidate that cannot be scheduled has one row of zeros. Scheduling a candidate takes 5 ms, most of them
in Python, and extracting its features another 5 ms. So many candidates are shared out to processes, one for each core.
A sketch that is `Stated` computes equal features without scheduling anything, in 0.1 ms a candidate if they are many.
"""

from __future__ import annotations

import math
import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
from tvm.tirx import PrimFunc

from ..errors import MeasureError
from ..ir.workload import Workload
from ..machine.contract import Machine
from ..machine.process.child_process import ChildProcess
from ..machine.threads import thread_count
from ..space import Space
from ..surrogate.features import Features
from ..trial import Candidate
from .contract import AnySketch, Stated
from .meta_schedule import tune_context
from .statements.features import WIDTH

Rows = NDArray[np.float64]
"""The features of a candidate, of shape `(stores, 164)`."""

Job = tuple[str, Mapping[str, Any]]
"""A candidate by the name of its sketch and its configuration."""

_CACHED = 20_000  # candidates, of some 10 KB each
_FEW = 32  # candidates that this process does itself: others have to start first


def statement_features(
    sketches: Sequence[tuple[AnySketch, Space]], workload: Workload, target: Machine, kernels: int = 1
) -> Features:
    """A function from candidates to their features, an array of shape `(stores, 164)` for each.

    Args:
        sketches: Sketches with their spaces.
        workload: The function to tune.
        target: The machine to tune it for.
        kernels: How many kernels are tuned side by side; the memory for features is shared out to them.
    """
    spaces = {space.name: space for _, space in sketches}
    by_name = {space.name: sketch for sketch, space in sketches}
    here = _rows_here(by_name, workload, target, thread_count())
    workers = FeatureWorkers(by_name, workload, target)
    stated = {name: sketch for name, sketch in by_name.items() if isinstance(sketch, Stated)}
    cache: dict[Candidate, Rows] = {}  # searches score the same candidate many times

    def without_schedules(candidates: Sequence[Candidate]) -> dict[Candidate, Rows]:
        found: dict[Candidate, Rows] = {}
        for name, sketch in stated.items():
            mine = [candidate for candidate in candidates if candidate.sketch == name]
            columns = spaces[name].columns([candidate.point for candidate in mine])
            statements = sketch.statements(workload, target, columns) if mine else None
            if statements is not None:
                found |= {each: rows for each, rows, known in zip(mine, *statements, strict=True) if known}
        return found

    def rows_of(candidates: Sequence[Candidate]) -> list[Rows]:
        if len(cache) > _CACHED // kernels:
            cache.clear()
        cache.update(without_schedules([each for each in dict.fromkeys(candidates) if each not in cache]))
        new = [candidate for candidate in dict.fromkeys(candidates) if candidate not in cache]
        jobs = [(candidate.sketch, spaces[candidate.sketch].config(candidate.point)) for candidate in new]
        cache.update(zip(new, here(jobs) if len(jobs) < _FEW else workers.rows(jobs), strict=True))
        return [cache[candidate] for candidate in candidates]

    return rows_of


class FeatureWorkers:
    """Processes that know a workload's sketches, one for each core. They start when they are first needed.

    They end when nobody refers to this object any more. It is for one thread at a time.

    Args:
        sketches: The sketches, by name.
        workload: The function to tune.
        target: The machine to tune it for.
        count: The number of processes; by default that of the cores.

    Example:
        >>> from stormdrop import operators
        >>> from stormdrop.machine.cpu import Cpu
        >>> from stormdrop.sketches.registry import sketches_for
        >>> workload, target = operators.matmul(16, 16, 16), Cpu.detect()
        >>> (sketch, space), *_ = sketches_for(workload, target)
        >>> workers = FeatureWorkers({sketch.name: sketch}, workload, target, count=1)
        >>> (rows,) = workers.rows([(sketch.name, space.config(space.origin))])
        >>> rows.shape[1]
        164
    """

    def __init__(
        self, sketches: Mapping[str, AnySketch], workload: Workload, target: Machine, count: int | None = None
    ) -> None:
        self._payload = cloudpickle.dumps((sketches, workload, target))
        self._count = thread_count() if count is None else count
        self._children: list[ChildProcess] = []
        weakref.finalize(self, _close, self._children)

    def rows(self, jobs: Sequence[Job]) -> list[Rows]:
        """The features of each candidate.

        Args:
            jobs: The candidates.

        Raises:
            MeasureError: A process ends before it has answered.
        """
        share = max(1, math.ceil(len(jobs) / self._count))
        parts = [jobs[start : start + share] for start in range(0, len(jobs), share)]
        try:
            while len(self._children) < len(parts):
                child = ChildProcess(f"{__name__}:serve", (self._payload,), {"TVM_NUM_THREADS": "1"}, (__name__,))
                self._children.append(child)
            at_work = self._children[: len(parts)]
            for child, part in zip(at_work, parts, strict=True):
                child.send(part)
            return [rows for child in at_work for rows in _answer(child)]
        except (
            BaseException
        ):  # Ctrl-C, too: an answer that nobody has read would be taken for that to the next question
            _close(self._children)
            raise


def _answer(child: ChildProcess) -> list[Rows]:
    answer: list[Rows] | None = child.receive()
    if answer is None:
        raise MeasureError(f"a process that extracts features ended ({child.wait()}): {child.last_line()}")
    return answer


def _close(children: list[ChildProcess]) -> None:
    for child in children:
        child.close()
    children.clear()


def serve(connection: Connection, payload: bytes) -> None:
    """Runs one of the `FeatureWorkers`: answers until the pipe is closed.

    Args:
        connection: Brings candidates, and takes their features.
        payload: The sketches, the workload and the target, pickled.
    """
    sketches, workload, target = pickle.loads(payload)
    rows_of = _rows_here(sketches, workload, target, threads=1)
    while True:
        try:
            jobs = connection.recv()
        except EOFError:
            return
        connection.send(rows_of(jobs))


def _rows_here(
    sketches: Mapping[str, AnySketch], workload: Workload, target: Machine, threads: int
) -> Callable[[Sequence[Job]], list[Rows]]:
    """A function from candidates to their features, which this process extracts."""
    extract = extractor(workload, target, threads)

    def scheduled(job: Job) -> PrimFunc | None:
        name, config = job
        try:
            return sketches[name].apply(workload, target, config).main
        except Exception:  # noqa: BLE001  whatever a sketch raises is the candidate's failure, which its measurement records
            return None

    def rows_of(jobs: Sequence[Job]) -> list[Rows]:
        functions = [scheduled(job) for job in jobs]
        extracted = iter(extract([function for function in functions if function is not None]))
        return [np.zeros((1, WIDTH)) if function is None else next(extracted) for function in functions]

    return rows_of


def extractor(
    workload: Workload, target: Machine, threads: int
) -> Callable[[Sequence[PrimFunc]], list[NDArray[np.float64]]]:
    """A function from schedules of a workload to their features, an array of shape `(stores, 164)` for each.

    Args:
        workload: The function.
        target: The machine that it is scheduled for.
        threads: The threads that extract.
    """
    features = PerStoreFeature()
    context = tune_context(_module(workload.function), target, threads=threads)

    def rows_of(functions: Sequence[PrimFunc]) -> list[NDArray[np.float64]]:
        candidates = [MeasureCandidate(Schedule(_module(function)), []) for function in functions]
        return [array.numpy() for array in features.extract_from(context, candidates)] if candidates else []

    return rows_of


def _module(function: PrimFunc) -> Any:
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
