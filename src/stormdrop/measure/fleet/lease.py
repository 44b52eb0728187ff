"""A machine of a fleet as its holder sees it: the calls to its actor, and the measurer that they make.

A call is waited for as long as the machine gives signs of life. How long a candidate may take is up to the machine
itself, so no limit counts the time that a request waits, here or there. A call that nobody needs any more is stopped.
The machine gets its next call only after that one has ended.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...errors import MeasureError, one_line
from ...trial import Candidate, Measurement, Request
from ..contract import Measurer
from .fleet_machine import Refusal
from .identity import Calibration, MachineIdentity

SILENT_SECONDS = 20.0
"""A machine that has not answered for so long is given up."""

_LOOK_SECONDS = 0.2  # between two looks whether an answer is still wanted
_PING_SECONDS = 2.0  # between two signs of life

_calls = itertools.count(1)


class Overtaken(MeasureError):
    """Nobody waits for the answer any more. The machine is well. It never leaves this package."""


class Lease:
    """A machine that this process holds. One thread at a time uses it.

    Attributes:
        name: What people call the machine.
        actor: Ray's handle of its `FleetMachine`.
        identity: What it is.
        width: How many candidates it takes at a time.
        calibration: Its calibration at the beginning of the lease.
        calibrated: When it was calibrated last, a reading of `time.perf_counter`.
        doubtful: Whether it has fallen behind, so that it is calibrated before it measures again.
        lost: Why it is not used any more; empty if it is.
    """

    identity: MachineIdentity
    calibration: Calibration

    def __init__(self, name: str, actor: Any) -> None:
        """A lease of an actor that was just created.

        Args:
            name: What people call the machine.
            actor: Ray's handle.
        """
        self.name, self.actor = name, actor
        self.width = 1
        self.calibrated = 0.0
        self.doubtful = False
        self.lost = ""
        self._pending: Any = None  # the answer of a call that was stopped

    @property
    def idle(self) -> bool:
        """Whether it has answered all calls, as far as is known."""
        return self._pending is None

    def begin(self, method: str, *arguments: Any) -> Any:
        """Calls a method of `FleetMachine`, and returns Ray's reference to its answer.

        Args:
            method: The name of the method. `ping` and `stop` are answered while another call runs.
            arguments: Its arguments.
        """
        return getattr(self.actor, method).remote(*arguments)

    def answer(
        self, reference: Any, enough: Callable[[], bool] | None = None, silent_seconds: float | None = None
    ) -> Any:
        """Waits for the answer to a call.

        Args:
            reference: The answer, as `begin` returned it.
            enough: Says whether nobody waits any more; the call then goes on at the machine.
            silent_seconds: How long the machine may give no sign of life; `SILENT_SECONDS` by default.

        Raises:
            MeasureError: The machine is gone, silent, or has no answer; the message is one line.
            Overtaken: `enough()`.
        """
        silent = SILENT_SECONDS if silent_seconds is None else silent_seconds
        try:
            answer = self._wait(reference, enough or (lambda: False), silent)
        except (Overtaken, KeyboardInterrupt):
            self._pending = reference
            raise
        if isinstance(answer, Refusal):
            raise answer.raised()
        return answer

    def call(self, method: str, *arguments: Any, enough: Callable[[], bool] | None = None) -> Any:
        """`begin`, and then `answer`."""
        return self.answer(self.begin(method, *arguments), enough)

    def measured(self, method: str, *arguments: Any, enough: Callable[[], bool] | None = None) -> list[Measurement]:
        """As `call`, for a method that measures. A call that nobody waits for is stopped there.

        Args:
            method: "measure" or "race".
            arguments: Its arguments but the number of the call.
            enough: As in `call`.
        """
        number = next(_calls)
        reference = self.begin(method, number, *arguments)
        try:
            measurements: list[Measurement] = self.answer(reference, enough)
            return measurements
        except (Overtaken, KeyboardInterrupt):  # the machine must not go on for nobody
            self.begin("stop", number)
            raise

    def finish(self, enough: Callable[[], bool]) -> bool:
        """Waits until the machine has ended a call that was stopped.

        Returns:
            Whether it has; False if `enough()`.

        Raises:
            MeasureError: The machine is gone or silent.
        """
        if self._pending is None:
            return True
        try:
            self._wait(self._pending, enough, SILENT_SECONDS)
        except Overtaken:
            return False
        self._pending = None
        return True

    def calibrate(self, seconds: float, enough: Callable[[], bool]) -> Calibration:
        """Calibrates the machine.

        Args:
            seconds: How long it may wait for the machine if others use it.
            enough: Says whether nobody waits any more.

        Raises:
            MeasureError: It does not work.
            Overtaken: `enough()`.
        """
        calibration: Calibration = self.call("calibrate", seconds, enough=enough)
        self.calibrated, self.doubtful = time.perf_counter(), False
        return calibration

    def release(self) -> None:
        """Gives the machine back. Its workers end with its actor. Doing it twice is harmless."""
        import ray

        # A machine that is gone is free already.
        with contextlib.suppress(ray.exceptions.RayError, ConnectionError, ValueError):
            ray.kill(self.actor)

    def _wait(self, reference: Any, enough: Callable[[], bool], silent_seconds: float) -> Any:
        """Waits until an answer is there, and asks for signs of life meanwhile. Raises as `answer`."""
        import ray

        heard = asked = time.perf_counter()
        ping: Any = None
        while True:
            try:
                ready, _ = ray.wait([reference] if ping is None else [reference, ping], timeout=_LOOK_SECONDS)
                if reference in ready:
                    return ray.get(reference)
                if ready:
                    ray.get(ping)
                    heard, ping = time.perf_counter(), None
            except ray.exceptions.RayTaskError as error:
                raise MeasureError(f"it fails: {one_line(error.cause)}") from error
            except (ray.exceptions.RayError, ConnectionError) as error:
                raise MeasureError(f"it is gone: {type(error).__name__}") from error
            if enough():
                raise Overtaken("nobody waits for the answer")
            now = time.perf_counter()
            if now - heard > silent_seconds:
                raise MeasureError(f"it has not answered for {silent_seconds:g} s")
            if ping is None and now - asked > _PING_SECONDS:
                asked, ping = now, self.begin("ping")


class LeasedMachine(Measurer):
    """Measures one workload on a machine that this process holds.

    Attributes:
        lease: The machine.
        unwanted: Another thread sets it if nobody waits for the measurements any more.
    """

    def __init__(self, lease: Lease, workload: int, setup: bytes, stop: threading.Event) -> None:
        """A measurer that has sent nothing yet.

        Args:
            lease: The machine.
            workload: The number of the workload.
            setup: What makes its measurer there, as `FleetMachine.open` takes it.
            stop: Another thread may set it. Waiting then ends with a `MeasureError`.
        """
        self.lease = lease
        self.unwanted = threading.Event()
        self._workload, self._setup, self._stop = workload, setup, stop
        self._opened = False

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`. All measurements come together."""
        self.unwanted.clear()
        yield from self._measured("measure", list(requests))

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """See `Measurer.race`."""
        self.unwanted.clear()
        return self._measured("race", list(candidates), rounds)

    def close(self) -> None:
        """Ends with the workload. The machine stays leased."""
        if self._opened and not self.lease.lost:
            self.lease.begin("shut", self._workload)
        self._opened = False

    def _measured(self, method: str, *arguments: Any) -> list[Measurement]:
        if not self._opened:
            self.lease.call("open", self._workload, self._setup, enough=self._is_enough)
            self._opened = True
        left = self.deadline - time.perf_counter() if math.isfinite(self.deadline) else math.inf
        return self.lease.measured(method, self._workload, *arguments, left, enough=self._is_enough)

    def _is_enough(self) -> bool:
        return self._stop.is_set() or self.unwanted.is_set()
