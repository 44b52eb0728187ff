"""What the measurer and its workers say to each other, over one pipe per worker.

    measurer -> worker   Load, Data, Build, Run, Race
    worker -> measurer   Ready once, then per job any number of Step and one Built, Failed, Ran or Raced

`key` names a candidate within a loaded session; the worker knows nothing of spaces and points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from ..machine.foreign_load import Counters
from ..trial import Phases, Status
from .timing import TimingPlan

Key = int

KERNELS = 40
"""Built kernels that a worker keeps: two batches and the incumbents; so many can race at most."""


@dataclass(frozen=True)
class Load:
    """Start on another workload: `payload` is the pickled (workload, target, sketches by name, passing bytes)."""

    payload: bytes


@dataclass(frozen=True)
class Data:
    """The loaded workload's inputs, or its expected outputs with their tolerance."""

    inputs: tuple[NDArray[Any], ...] = ()
    outputs: tuple[NDArray[Any], ...] = ()
    tolerance: float = 0.0


@dataclass(frozen=True)
class Build:
    """Apply a sketch at a configuration, and compile."""

    key: Key
    sketch: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """Execute a built kernel; compare its output unless that was done before."""

    key: Key
    plan: TimingPlan
    check: bool


@dataclass(frozen=True)
class Race:
    """Sample built and checked kernels in turns."""

    keys: tuple[Key, ...]
    rounds: int
    sample_seconds: float


@dataclass(frozen=True)
class Ready:
    """The worker has loaded what it needs and waits for jobs."""


@dataclass(frozen=True)
class Step:
    """The worker goes on to this phase: schedule, build, run or check."""

    phase: str


@dataclass(frozen=True)
class Built:
    """`dropped` are the keys of kernels that made room."""

    phases: Phases
    dropped: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Failed:
    """The candidate is at fault; the worker is well."""

    status: Status
    error: str
    phases: Phases = field(default_factory=Phases)


@dataclass(frozen=True)
class Ran:
    """Samples in seconds per execution, and the differences of the counters over their sampling."""

    samples: tuple[float, ...]
    load: Counters
    phases: Phases


@dataclass(frozen=True)
class Raced:
    """Samples per key, in the order of the request."""

    samples: tuple[tuple[float, ...], ...]
    load: Counters
    seconds: float


Job = Build | Run | Race
Answer = Built | Failed | Ran | Raced
