"""The result of a bench: who is how fast, with intervals, and whether the outputs agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..machine.contract import CPU
from ..report.formatting import ascii_time
from ..statistics import Interval
from .service import Load, Service

TOLERANCE = 1e-3
"""The relative error up to which two contenders agree: float32, with sums in any order."""

TOLERANCE_OF_ROUNDING = 5e-2
"""The same for models in 16 bits and in bytes, which contenders round to at different places."""


@dataclass(frozen=True)
class Standing:
    """The result of one contender.

    Attributes:
        name: Its name.
        seconds: The median of its rounds, in seconds per execution.
        interval: A 95% interval of `seconds`.
        ratio: Its time over ours, compared round by round: above 1, ours is faster.
        ratio_interval: A 95% interval of `ratio`.
        error: The largest relative error of its outputs. The reference is NumPy's result for an operator, and our own
            output for a model.
        versions: The versions of its libraries, by name.
        settings: How it ran, such as threads and layouts.
        samples: Its time in each round, in seconds per execution.
        tolerance: The error up to which it agrees with the reference.
        services: How it serves calls, for each number of calls at a time that was asked for and that it can serve.
        device: What it executes on: "cpu", "cuda" or "opencl". On the latter two, all times above are the device's own,
            without copies from and to it.
        call: On these, the seconds of a call with arrays of this machine, copies included; None on a CPU.
    """

    name: str
    seconds: float
    interval: tuple[float, float]
    ratio: float
    ratio_interval: tuple[float, float]
    error: float
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[float] = ()
    tolerance: float = TOLERANCE
    services: Sequence[Service] = ()
    device: str = CPU
    call: Interval | None = None

    @property
    def agrees(self) -> bool:
        """Whether its outputs are those of the reference, within the rounding of the type that is computed in."""
        return self.error <= self.tolerance


@dataclass(frozen=True, repr=False)
class BenchResult:
    """The result of a bench.

    Attributes:
        what: What was timed.
        rounds: The number of interleaved rounds.
        disturbed: In how many of them something else used the machine.
        standings: Our own result first, then those of the peers.
        skipped: Why each of the other peers did not take part, by name.
        flops: Floating-point operations of one execution; 0 if unknown.
        load: How the contenders were called as services; None if they were not.
        disturbed_turns: In which share of the turns of the services something else used the machine.
        unserved: Why contenders did not serve all numbers of calls at a time, by name.
    """

    what: str
    rounds: int
    disturbed: int
    standings: tuple[Standing, ...]
    skipped: Mapping[str, str]
    flops: float = 0.0
    load: Load | None = None
    disturbed_turns: float = 0.0
    unserved: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """A line for each contender: its time, and that over ours."""
        width = max(len(standing.name) for standing in self.standings)
        lines = [
            f"{standing.name:<{width}}  {ascii_time(standing.seconds)}, {standing.ratio:.2f} times ours"
            for standing in self.standings
        ]
        return "\n  ".join([f"BenchResult of {self.what}, {self.rounds} rounds:", *lines])

    def _repr_html_(self) -> str:
        """What Jupyter shows."""
        from ..report.notebook import bench_html

        return bench_html(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop bench --json`."""
        contenders = [
            {
                "name": standing.name,
                "seconds": standing.seconds,
                "interval": list(standing.interval),
                "ratio": standing.ratio,
                "ratio_interval": list(standing.ratio_interval),
                "gflops": self.flops / standing.seconds / 1e9 if self.flops else None,
                "max_error": standing.error,
                "agrees": standing.agrees,
                "versions": dict(standing.versions),
                "settings": dict(standing.settings),
                "samples": list(standing.samples),
                "services": [service.to_json() for service in standing.services],
                "device": standing.device,
                "call": (call := standing.call) and {"seconds": call.estimate, "interval": [call.low, call.high]},
            }
            for standing in self.standings
        ]
        load = self.load
        return {
            "what": self.what,
            "runs": self.rounds,
            "disturbed": self.disturbed,
            "contenders": contenders,
            "skipped": dict(self.skipped),
            "load": load
            and {
                "seconds": load.seconds,
                "calls": list(load.calls),
                "turns": load.turns,
                "disturbed": self.disturbed_turns,
                "unserved": dict(self.unserved),
            },
        }
