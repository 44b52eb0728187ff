"""The values that all rooms share: what was asked, what was observed.

    Candidate    a point of one sketch's space
    Request      a candidate and how many samples of it are wanted
    Measurement  what one request brought: a status, samples, where the wall time went
    Trial        a request's candidate together with its measurement

All are frozen, hashable and free of TVM: a search, a record and a report can hold them anywhere.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

Point = tuple[int, ...]
"""Coordinates in a space: one integer per coordinate of each knob, in the knobs' order."""


class Status(enum.Enum):
    """How a measurement ended: the taxonomy of Table I of the NoSE paper, its timeout split in two."""

    OK = "ok"
    INSTANTIATION = "instantiation"  # the sketch could not be applied
    COMPILE_HOST = "compile_host"  # code generation for the host failed
    COMPILE_DEVICE = "compile_device"  # code generation for the device failed
    RUNTIME = "runtime"  # the kernel, or the process that ran it, died
    WRONG_ANSWER = "wrong_answer"  # the output differs from the reference
    BUILD_TIMEOUT = "build_timeout"
    RUN_TIMEOUT = "run_timeout"
    UNKNOWN = "unknown"


@dataclass(frozen=True, order=True)
class Candidate:
    """A point of the space of the sketch with this name."""

    sketch: str
    point: Point


@dataclass(frozen=True)
class Request:
    """A wish to have `repeats` samples of a candidate; asking again for a known candidate means more samples of it."""

    candidate: Candidate
    repeats: int = 3

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"a request needs at least one repeat, not {self.repeats}")


def within(requests: Iterable[Request], known: Collection[Candidate], limit: int) -> list[Request]:
    """The requests before the first that would make more than `limit` distinct candidates of the known and the new."""
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
    """Wall seconds of the parts of one measurement."""

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
        return self.schedule + self.build + self.run + self.check


@dataclass(frozen=True)
class Measurement:
    """What one request brought.

    `seconds` holds the samples (seconds per execution, each the mean of a few executions) and is empty unless
    the status is OK; `error` is one line and empty when it is OK; `suspect` says that the samples were taken
    while something else used the machine.
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
        return self.status is Status.OK


@dataclass(frozen=True)
class Trial:
    """A candidate and one measurement of it."""

    candidate: Candidate
    measurement: Measurement

    @property
    def ok(self) -> bool:
        return self.measurement.ok

    @property
    def median(self) -> float:
        """Median sample in seconds; raises ValueError for a failed trial, which has no time."""
        if not self.ok:
            raise ValueError(f"{self.candidate} failed ({self.measurement.status.value}) and has no time")
        return statistics.median(self.measurement.seconds)
