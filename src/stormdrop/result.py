"""What a tuning tells while it runs, and what it brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import UnsupportedFunction

if TYPE_CHECKING:
    from .kernel.compile import TunedKernel
    from .kernel.sketch import Sketch, Variant
    from .kernel.target import Target
    from .kernel.workload import Workload


@dataclass(frozen=True)
class Progress:
    """How far a tuning is: distinct candidates measured and failed, seconds per execution of the best so far."""

    trials: int
    failed: int
    best_seconds: float | None
    elapsed: float
    budget_seconds: float | None
    message: str = ""


@dataclass(frozen=True)
class Best:
    """A schedule as it was measured last, beside the default schedule.

    `seconds` per execution with its 95% `interval`; `speedup` over the default schedule with its interval, None where
    the two are the same schedule or the interval holds 1 (no significant difference).
    """

    sketch: str
    config: Mapping[str, Any]
    seconds: float
    interval: tuple[float, float]
    speedup: tuple[float, float, float] | None = None


@dataclass(frozen=True, eq=False)
class TuneResult:
    """What a tuning brought.

    `trials` counts distinct candidates, `failed` those among them that failed, `reused` those that came from the
    store; `seconds` is wall time with everything in it and `phases` where it went. `curve` holds (seconds since the
    start, best seconds per execution so far), `statuses` counts measurements by status, `sketches` are those searched.
    """

    workload: Workload
    target: Target
    search: str
    seed: int
    trials: int
    failed: int
    reused: int
    seconds: float
    phases: Mapping[str, float]
    best: Best | None
    baseline: float | None
    converged: bool
    curve: Sequence[tuple[float, float]]
    suspect: int = 0
    interrupted: bool = False
    statuses: Mapping[str, int] = field(default_factory=dict)
    sketches: Mapping[str, Sketch] = field(default_factory=dict)

    @property
    def variant(self) -> Variant:
        """The best schedule, applied. Raises `UnsupportedFunction` where no candidate worked."""
        if self.best is None:
            raise UnsupportedFunction(f"{self.workload.name}: no candidate worked")
        return self.sketches[self.best.sketch].apply(self.workload, self.target, self.best.config)

    @property
    def kernel(self) -> TunedKernel:
        """The best schedule, compiled in this process: call it with NumPy arrays."""
        from .kernel.compile import TunedKernel

        return TunedKernel(self.workload, self.target, self.variant)

    def schedule(self) -> str:
        """The best schedule as a line of decisions."""
        assert self.best is not None
        return f"{self.best.sketch}({', '.join(f'{key}={value!r}' for key, value in self.best.config.items())})"

    def tir(self) -> str:
        """The best schedule as TVMScript."""
        return str(self.variant.main.script())

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop tune-op --json`."""
        from .measure.peak import peak

        best: dict[str, Any] | None = None
        if self.best is not None:
            rate = self.workload.flops / self.best.seconds
            best = {
                "seconds": self.best.seconds,
                "interval": list(self.best.interval),
                "gflops": rate / 1e9,
                "percent_of_peak": 100 * rate / peak(self.target).flops,
                "gigabytes_per_second": self.workload.bytes / self.best.seconds / 1e9,
                "config": dict(self.best.config),
                "sketch": self.best.sketch,
                "speedup": None if self.best.speedup is None else list(self.best.speedup),
            }
        return {
            "op": self.workload.name,
            "target": self.target.machine,
            "search": self.search,
            "seed": self.seed,
            "trials": self.trials,
            "failed": self.failed,
            "reused": self.reused,
            "suspect": self.suspect,
            "seconds": self.seconds,
            "phases": dict(self.phases),
            "statuses": dict(self.statuses),
            "best": best,
            "baseline": {"seconds": self.baseline},
            "converged": self.converged,
            "interrupted": self.interrupted,
            "curve": [list(entry) for entry in self.curve],
        }
