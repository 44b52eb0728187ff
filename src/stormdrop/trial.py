"""The values that all packages share: what a search requests, and what a measurement observes.

    Candidate    a point of one sketch's space
    Request      a candidate, and how many samples of it are wanted
    Measurement  the outcome of one request: a status, the samples, and where the wall time went
    Trial        a candidate together with one measurement of it

All of them are frozen, hashable and free of TVM, so a search, a record or a report can hold them.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

Point = tuple[int, ...]
"""Coordinates in a space: one integer per coordinate of each knob, in the knobs' order."""


class Status(enum.Enum):
    """How a measurement ended: the taxonomy of Table I of the NoSE paper."""

    OK = "ok"
    INSTANTIATION = "instantiation"  # the sketch could not be applied
    COMPILE_HOST = "compile_host"  # code generation for the host failed
    COMPILE_DEVICE = "compile_device"  # code generation for the device failed
    RUNTIME = "runtime"  # the kernel, or the process that ran it, died
    WRONG_ANSWER = "wrong_answer"  # the output differs from the reference
    BUILD_TIMEOUT = "build_timeout"  # scheduling and compilation took too long
    RUN_TIMEOUT = "run_timeout"  # the kernel ran too long
    UNKNOWN = "unknown"


@dataclass(frozen=True, order=True)
class Candidate:
    """A point of one sketch's space.

    Args:
        sketch: The sketch's name, which is the name of its space.
        point: The point.
    """

    sketch: str
    point: Point


@dataclass(frozen=True)
class Request:
    """A request for samples of a candidate. A further request for a known candidate asks for more samples of it.

    Args:
        candidate: The candidate to measure.
        repeats: The number of samples.

    Raises:
        ValueError: `repeats` is less than 1.
    """

    candidate: Candidate
    repeats: int = 3

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"a request needs at least one repeat, not {self.repeats}")


def within(requests: Iterable[Request], known: Collection[Candidate], limit: int) -> list[Request]:
    """The requests at the beginning that keep to a limit of distinct candidates.

    Args:
        requests: The requests, in their order.
        known: The candidates that count already.
        limit: The largest number of distinct candidates, known and requested.

    Returns:
        All requests before the first one that would exceed the limit.
    """
    allowed: list[Request] = []
    new: set[Candidate] = set()
    for request in requests:
        if request.candidate not in known:
            new.add(request.candidate)
        if len(known) + len(new) > limit:
            break
        allowed.append(request)
    return allowed


@dataclass(frozen=True)
class Phases:
    """The wall time of the parts of one measurement, in seconds."""

    schedule: float = 0.0
    build: float = 0.0
    run: float = 0.0
    check: float = 0.0

    def __add__(self, other: Phases) -> Phases:
        return Phases(
            self.schedule + other.schedule,
            self.build + other.build,
            self.run + other.run,
            self.check + other.check,
        )

    @property
    def total(self) -> float:
        """The sum of all parts, in seconds."""
        return self.schedule + self.build + self.run + self.check


@dataclass(frozen=True)
class Measurement:
    """The outcome of one request.

    Args:
        status: How the measurement ended.
        seconds: The samples in seconds per execution, each the mean of a few executions; empty unless the status is
            OK.
        error: One line that says what failed; empty if the status is OK.
        phases: Where the wall time went.
        suspect: Whether something else used the machine while the samples were taken.

    Raises:
        ValueError: The status is OK without samples, or is not OK with samples.

    Example:
        >>> Measurement(Status.OK, seconds=(1.2e-3, 1.3e-3, 1.2e-3)).ok
        True
    """

    status: Status
    seconds: tuple[float, ...] = ()
    error: str = ""
    phases: Phases = field(default_factory=Phases)
    suspect: bool = False

    def __post_init__(self) -> None:
        if (self.status is Status.OK) != bool(self.seconds):
            raise ValueError(f"a measurement has samples exactly when it is OK: {self.status}, {self.seconds}")

    @property
    def ok(self) -> bool:
        """Whether the status is OK."""
        return self.status is Status.OK


@dataclass(frozen=True)
class Trial:
    """A candidate and one measurement of it.

    Example:
        >>> trial = Trial(Candidate("streaming", (0, 2)), Measurement(Status.OK, seconds=(3.0, 1.0, 2.0)))
        >>> trial.median
        2.0
    """

    candidate: Candidate
    measurement: Measurement

    @property
    def ok(self) -> bool:
        """Whether the measurement is OK."""
        return self.measurement.ok

    @property
    def median(self) -> float:
        """The median sample in seconds. Raises ValueError for a failed trial, which has no time."""
        if not self.ok:
            raise ValueError(f"{self.candidate} failed ({self.measurement.status.value}) and has no time")
        return statistics.median(self.measurement.seconds)
