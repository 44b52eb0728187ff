"""What a tuning tells while it runs, and what it brings."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .errors import MeasureError, UnsupportedFunction
from .records import Session, StoredTrial

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

    `seconds` per execution with its 95% `interval`; `speedup` over the default schedule as (ratio, low, high), the
    interval holding for the best of all that were raced. None where this is the default schedule (nothing was
    significantly faster), or where the two were not raced. `apply` makes the schedule.
    """

    sketch: str
    config: Mapping[str, Any]
    seconds: float
    interval: tuple[float, float]
    speedup: tuple[float, float, float] | None
    workload: Workload = field(compare=False, repr=False)
    target: Target = field(compare=False, repr=False)
    apply: Callable[[Workload, Target, Mapping[str, Any]], Variant] = field(compare=False, repr=False)

    @cached_property
    def kernel(self) -> TunedKernel:
        """The schedule, compiled in this process: call it with NumPy arrays."""
        from .kernel.compile import TunedKernel

        return TunedKernel(self.workload, self.target, self.apply(self.workload, self.target, self.config))


@dataclass(frozen=True, eq=False)
class TuneResult:
    """What a tuning brought.

    `trials` counts distinct candidates, `failed` those among them that failed, `reused` those that came from the
    store; `seconds` is the wall time of this run with everything in it and `phases` where it went. `curve` holds
    (seconds of tuning, best seconds per execution so far), earlier runs of a resumed session included; `statuses`
    counts measurements by status, `sketches` are those searched.
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
        best = self._found()
        return best.apply(self.workload, self.target, best.config)

    @property
    def kernel(self) -> TunedKernel:
        """`best.kernel`. Raises `UnsupportedFunction` where no candidate worked."""
        return self._found().kernel

    def schedule(self) -> str:
        """The best schedule as a line of decisions. Raises `UnsupportedFunction` where no candidate worked."""
        best = self._found()
        return f"{best.sketch}({', '.join(f'{key}={value!r}' for key, value in best.config.items())})"

    def tir(self) -> str:
        """The best schedule as TVMScript."""
        return str(self.variant.main.script())

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop tune-op --json`; `percent_of_peak` is null where the peak cannot be measured."""
        best: dict[str, Any] | None = None
        if self.best is not None:
            rate = self.workload.flops / self.best.seconds
            best = {
                "seconds": self.best.seconds,
                "interval": list(self.best.interval),
                "gflops": rate / 1e9,
                "percent_of_peak": self._percent_of_peak(rate),
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

    def _found(self) -> Best:
        if self.best is None:
            raise UnsupportedFunction(f"{self.workload.name}: no candidate worked")
        return self.best

    def _percent_of_peak(self, rate: float) -> float | None:
        from .measure.peak import peak

        try:
            return 100 * rate / peak(self.target).flops
        except MeasureError:  # the result stands without it
            return None


def recorded_result(
    workload: Workload,
    target: Target,
    sketches: Mapping[str, Sketch],
    session: Session,
    stored: Sequence[StoredTrial],
    elapsed: float,
) -> TuneResult:
    """The result of a finished session that found something, with its trials; `elapsed`: seconds to look it up."""
    outcome = session.outcome
    assert outcome is not None
    assert outcome.sketch is not None and outcome.config is not None and outcome.seconds is not None
    worked: dict[tuple[str, str], bool] = {}
    curve: list[tuple[float, float]] = []
    for each in stored:
        candidate = each.sketch, repr(sorted(each.config.items()))
        worked[candidate] = worked.get(candidate, True) and each.measurement.ok
        if each.measurement.ok:
            median = statistics.median(each.measurement.seconds)
            if not curve or median < curve[-1][1]:
                curve.append((each.elapsed, median))
    speedup = outcome.extra.get("speedup")
    best = Best(
        sketch=outcome.sketch,
        config=outcome.config,
        seconds=outcome.seconds,
        interval=outcome.interval or (outcome.seconds, outcome.seconds),
        speedup=tuple(speedup) if speedup else None,
        workload=workload,
        target=target,
        apply=sketches[outcome.sketch].apply,
    )
    return TuneResult(
        workload=workload,
        target=target,
        search=session.setting.search,
        seed=session.setting.seed,
        trials=len(worked),
        failed=sum(1 for ok in worked.values() if not ok),
        reused=len(worked),
        seconds=elapsed,
        phases={},
        best=best,
        baseline=outcome.baseline_seconds,
        converged=outcome.converged,
        curve=curve,
        suspect=sum(1 for each in stored if each.measurement.suspect),
        sketches=sketches,
    )
