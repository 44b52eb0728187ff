"""The messages between a measurer and its workers: jobs and answers, over one pipe per worker.

    measurer -> worker   Load, Data, Reals, Build, Run, Verify, Race
    worker -> measurer   Ready once, then for every job any number of Step and one Built, Failed, Ran, Verified, Raced
                         or NoDevice

A worker knows nothing of spaces and points. A `key` names a candidate within a loaded session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from ...machine.sharing.foreign_load import Counters
from ...trial import Phases, Status
from ..timing import TimingPlan

Key = int
"""The number of a candidate within a loaded session."""

KERNELS = 40
"""How many built kernels a worker keeps: those of two batches, and the incumbents. No more kernels can race."""


@dataclass(frozen=True)
class Load:
    """Asks the worker to begin with another workload. It has no answer.

    Args:
        payload: The pickled tuple (workload, target, sketches by name, bytes of constants that pass through the caches
            between two executions).
    """

    payload: bytes


@dataclass(frozen=True)
class Data:
    """Brings the inputs of the loaded workload, or its expected outputs. It has no answer.

    Args:
        inputs: One array per input; empty if this brings outputs.
        outputs: One array per output; empty if this brings inputs.
        ties: What the outputs may be instead, as of `Workload.reference_with_ties`; empty if there is nothing else.
        tolerance: The error that is allowed, max|difference| / max|expected|. It comes with the outputs.
    """

    inputs: tuple[NDArray[Any], ...] = ()
    outputs: tuple[NDArray[Any], ...] = ()
    ties: tuple[NDArray[Any], ...] = ()
    tolerance: float = 0.0


@dataclass(frozen=True)
class Reals:
    """Brings inputs of very different magnitudes, and what is expected of them. It has no answer.

    Args:
        inputs: One array per input.
        outputs: One array per output.
        allowed: How far each element of each output may be from the expected one, because of rounding.
    """

    inputs: tuple[NDArray[Any], ...]
    outputs: tuple[NDArray[Any], ...]
    allowed: tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class Build:
    """Asks for a kernel. The answer is `Built` or `Failed`.

    Args:
        key: Names the kernel in later jobs.
        sketch: The name of the sketch to apply.
        config: The configuration to apply it at.
    """

    key: Key
    sketch: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """Asks for samples of a built kernel. The answer is `Ran` or `Failed`.

    Args:
        key: The kernel.
        plan: How the samples are taken.
        check: Whether its output is compared first; False if the same kernel gave the right output before.
    """

    key: Key
    plan: TimingPlan
    check: bool


@dataclass(frozen=True)
class Verify:
    """Asks for one execution of a built kernel on the inputs of `Reals`. The answer is `Verified` or `Failed`.

    Args:
        key: The kernel.
    """

    key: Key


@dataclass(frozen=True)
class Race:
    """Asks for samples of several kernels in turns. The answer is `Raced` or `Failed`.

    Args:
        keys: The kernels, which must have been built and checked.
        rounds: How many samples are taken of each.
        sample_seconds: The seconds that the executions of one sample fill together.
    """

    keys: tuple[Key, ...]
    rounds: int
    sample_seconds: float


@dataclass(frozen=True)
class Ready:
    """The first message of a worker: it has loaded TVM and waits for jobs."""


@dataclass(frozen=True)
class Step:
    """Says that the worker begins a phase of its job.

    Args:
        phase: Schedule, build, run or check.
    """

    phase: str


@dataclass(frozen=True)
class Built:
    """The answer to `Build`: the kernel is ready.

    Args:
        phases: The wall seconds of scheduling and building.
        dropped: The keys of kernels that the worker has dropped to make room.
    """

    phases: Phases
    dropped: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Failed:
    """The answer to any job that fails through the fault of its candidate. The worker itself is well.

    Args:
        status: How the job failed.
        error: One line that says why.
        phases: The wall seconds until then.
        transient: Whether the cause may lie outside of the candidate. It is then tried once more.
    """

    status: Status
    error: str
    phases: Phases = field(default_factory=Phases)
    transient: bool = False


@dataclass(frozen=True)
class Ran:
    """The answer to `Run`.

    Args:
        samples: Seconds per execution.
        load: The differences of the load counters over the sampling.
        phases: The wall seconds of running and checking.
    """

    samples: tuple[float, ...]
    load: Counters
    phases: Phases


@dataclass(frozen=True)
class Verified:
    """The answer to `Verify`: the outputs are right.

    Args:
        phases: The wall seconds of running and checking.
    """

    phases: Phases


@dataclass(frozen=True)
class Raced:
    """The answer to `Race`.

    Args:
        samples: Seconds per execution: for each kernel of the job, in its order, one sample per round.
        load: The differences of the load counters over the sampling.
        seconds: The wall seconds of the race.
        wrong: What is wrong with the outputs of a kernel after the race, one line per kernel that is not right.
    """

    samples: tuple[tuple[float, ...], ...]
    load: Counters
    seconds: float
    wrong: Mapping[Key, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NoDevice:
    """The answer to any job of a worker whose device cannot be reached. Nothing can be measured, so the worker ends.

    Args:
        error: One line that says why.
    """

    error: str


Job = Build | Run | Verify | Race
"""The jobs that are answered."""

Answer = Built | Failed | Ran | Verified | Raced
"""The answers to them."""
