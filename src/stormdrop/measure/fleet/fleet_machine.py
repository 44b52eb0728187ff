"""What runs on a machine of a fleet: the actor that measures there for one process, its holder.

    holder (`lease.py`)                              the machine
    FleetMachine(workshop)                      ->   identify, calibrate
    open(workload, setup)                       ->   a measurer of a workload
    measure(call, workload, requests), race     ->   measurements, or why there are none
    stop(call)                                  ->   ends this call, also if it has not begun
    ping()                                      ->   a sign of life, and what it does

Ray makes an actor of `FleetMachine`, which itself knows nothing of Ray. Measurements are made in one thread, one call
after the other. `ping` and `stop` run in a thread of their own, so that they answer meanwhile.
"""

from __future__ import annotations

import math
import platform
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle

from ..._version import __version__
from ...errors import LockTimeout, MeasureError, one_line
from ...machine import threads
from ...trial import Candidate, Measurement, Request
from ..contract import KernelSetup, Measurer

if TYPE_CHECKING:
    from ..pool.pool import WorkerPool
    from .identity import Calibration, MachineIdentity

WATCH = "watch"
"""The group of methods for which an actor has a thread of their own."""

F = TypeVar("F", bound=Callable[..., Any])


def _watches(method: F) -> F:
    """Puts a method into the group `WATCH`, as Ray's own decorator `ray.method` does, which needs Ray."""
    method.__ray_concurrency_group__ = WATCH  # type: ignore[attr-defined]
    return method


class LocalWorkshop:
    """What a machine has for those who measure on it: itself, with worker processes that all workloads share.

    It is pickled, and used on the machine only.
    """

    def __init__(self) -> None:
        self._pool: WorkerPool | None = None

    def identify(self) -> MachineIdentity:
        """What the machine is."""
        threads.configure()  # before TVM is loaded
        from . import identity

        return identity.identify()

    def calibrate(self, seconds: float) -> Calibration:
        """Runs the calibration kernel. Raises `LockTimeout` if the machine is not free within so many seconds."""
        from . import identity

        return identity.calibrate(self.identify().target, time.perf_counter() + seconds)

    def width(self) -> int:
        """How many candidates it should be given at a time: as many as compile side by side."""
        return min(8, threads.usable_cores())

    def pool(self, cores: int) -> WorkerPool:
        """The worker processes, which are started when they are first needed.

        Args:
            cores: The threads that a kernel may use.
        """
        from ..pool.pool import WorkerPool

        if self._pool is None or self._pool.threads != cores:
            self.close()
            self._pool = WorkerPool(cores)
        return self._pool

    def measurer(self, setup: KernelSetup, stop: threading.Event) -> Measurer:
        """A measurer of a kernel, as on this machine. Raises `MeasureError` if no worker can be started."""
        from ..local import LocalMeasurer

        return LocalMeasurer(setup, pool=self.pool(setup.target.cores), stop=stop)

    def close(self) -> None:
        """Ends the worker processes."""
        if self._pool is not None:
            self._pool.close()


Setup = Callable[[Any, threading.Event], Measurer]
"""Makes the measurer of a workload, given the machine's workshop and the event that ends its waits."""


@dataclass(frozen=True)
class Refusal:
    """Why a machine has no answer. It travels as a value, because an exception of Ray would bury its line.

    Args:
        error: One line.
        late: Whether the machine was not free before the deadline.
    """

    error: str
    late: bool = False

    def raised(self) -> MeasureError:
        """The same as an exception for the holder."""
        return LockTimeout(self.error) if self.late else MeasureError(self.error)


@dataclass(frozen=True)
class Sign:
    """A sign of life of a machine.

    Args:
        holder: Who measures there.
        since: When that began, as a Unix time in seconds.
        measured: Requests that it has answered.
        queue: Requests that it has and has not answered.
        identity: What it is, once it has said so.
        calibration: Its first calibration.
    """

    holder: str
    since: float
    measured: int = 0
    queue: int = 0
    identity: MachineIdentity | None = None
    calibration: Calibration | None = None


def versions() -> dict[str, str]:
    """The versions that have to be equal on all machines, because what travels between them is pickled."""
    return {
        "stormdrop": __version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "apache-tvm": metadata.version("apache-tvm"),
    }


class FleetMachine:
    """A machine that one process holds. Its methods are called by `lease.Lease`."""

    def __init__(self, workshop: LocalWorkshop, holder: str) -> None:
        """Takes the machine; nothing is measured or loaded yet.

        Args:
            workshop: What is there to measure with.
            holder: Who holds the machine, for people.
        """
        self._workshop = workshop
        self._holder, self._since = holder, time.time()
        self._measurers: dict[int, Measurer] = {}
        self._stop = threading.Event()
        self._measured = self._queue = 0
        self._current = self._stopped = 0  # the call that runs, and the latest one that nobody waits for any more
        self._identity: MachineIdentity | None = None
        self._calibration: Calibration | None = None

    def identify(self) -> tuple[MachineIdentity, int, dict[str, str]] | Refusal:
        """What the machine is, how many candidates it takes at a time, and the versions of what is installed."""
        try:
            self._identity = self._workshop.identify()
            return self._identity, self._workshop.width(), versions()
        except Exception as error:  # noqa: BLE001  whatever is wrong there is one line for the holder
            return Refusal(one_line(error))

    def calibrate(self, seconds: float) -> Calibration | Refusal:
        """Runs the calibration kernel.

        Args:
            seconds: How long it may wait for the machine.
        """
        try:
            calibration = self._workshop.calibrate(seconds)
        except MeasureError as error:
            return _refusal(error)
        if self._calibration is None:
            self._calibration = calibration
        return calibration

    def open(self, workload: int, setup: bytes) -> Refusal | None:
        """Begins with a workload, unless it has begun already.

        Args:
            workload: Its number in later calls.
            setup: What makes its measurer (`Setup`), pickled by cloudpickle.
        """
        if workload in self._measurers:
            return None
        try:
            self._measurers[workload] = cloudpickle.loads(setup)(self._workshop, self._stop)
        except MeasureError as error:
            return _refusal(error)
        except Exception as error:  # noqa: BLE001  what was pickled on one machine may not load on another
            return Refusal(f"the workload does not load there: {one_line(error)}")
        return None

    def measure(
        self, call: int, workload: int, requests: Sequence[Request], seconds: float
    ) -> list[Measurement] | Refusal:
        """Measures candidates.

        Args:
            call: The number of this call; later calls have higher ones.
            workload: The number of the workload.
            requests: The candidates.
            seconds: How long it may wait for the machine if others use it.
        """
        measurer = self._begin(call, workload, seconds)
        if self._stop.is_set():
            return Refusal("the measurement was stopped by its caller")
        self._queue = len(requests)
        measured = []
        try:
            for measurement in measurer.measure(requests):
                measured.append(measurement)
                self._queue -= 1
                self._measured += 1
        except MeasureError as error:
            return _refusal(error)
        finally:
            self._queue = 0
        return measured

    def race(
        self, call: int, workload: int, candidates: Sequence[Candidate], rounds: int, seconds: float
    ) -> list[Measurement] | Refusal:
        """Measures candidates in turns, as `Measurer.race` says. The other arguments are as in `measure`."""
        try:
            return self._begin(call, workload, seconds).race(candidates, rounds)
        except MeasureError as error:
            return _refusal(error)

    def shut(self, workload: int) -> None:
        """Ends with a workload."""
        measurer = self._measurers.pop(workload, None)
        if measurer is not None:
            measurer.close()

    def close(self) -> None:
        """Ends with everything."""
        with ExitStack() as stack:
            stack.callback(self._workshop.close)
            for measurer in self._measurers.values():
                stack.callback(measurer.close)

    # In a thread of their own

    @_watches
    def ping(self) -> Sign:
        """What the machine does at this moment."""
        return Sign(self._holder, self._since, self._measured, self._queue, self._identity, self._calibration)

    @_watches
    def stop(self, call: int) -> None:
        """Ends a call that nobody waits for any more, whether it runs or has not begun."""
        self._stopped = call
        if self._current == call:
            self._stop.set()

    def _begin(self, call: int, workload: int, seconds: float) -> Measurer:
        self._current = call
        self._stop.clear()
        if self._stopped >= call:
            self._stop.set()
        measurer = self._measurers[workload]
        measurer.deadline = time.perf_counter() + seconds if math.isfinite(seconds) else math.inf
        return measurer


def _refusal(error: MeasureError) -> Refusal:
    return Refusal(str(error), isinstance(error, LockTimeout))
