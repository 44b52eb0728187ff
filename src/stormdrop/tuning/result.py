"""What a tuning tells while it runs, and what it brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import MeasureError, UnsupportedFunction

if TYPE_CHECKING:
    from ..codegen.compile import TunedKernel
    from ..ir.workload import Workload
    from ..machine.cpu import Machine
    from ..sketches.contract import Sketch, Variant


@dataclass(frozen=True)
class Progress:
    """How far a tuning is: distinct candidates measured and failed, seconds per execution of the best so far.

    `of` says what takes `best_seconds`.
    """

    trials: int
    failed: int
    best_seconds: float | None
    elapsed: float
    budget_seconds: float | None
    message: str = ""
    of: str = "best"


@dataclass(frozen=True)
class Best:
    """A configuration as it was measured last, beside the default one. `sketch` is the name of its space.

    `seconds` per execution with its 95% `interval`; `speedup` over the default as (ratio, low, high), the interval
    holding for the best of all that were raced. None where this is the default (nothing was significantly faster),
    or where the two were not raced.
    """

    sketch: str
    config: Mapping[str, Any]
    seconds: float
    interval: tuple[float, float]
    speedup: tuple[float, float, float] | None

    def to_json(self) -> dict[str, Any]:
        """`best` in the document of a result."""
        return {
            "seconds": self.seconds,
            "interval": list(self.interval),
            "config": dict(self.config),
            "sketch": self.sketch,
            "speedup": None if self.speedup is None else list(self.speedup),
        }


@dataclass(frozen=True)
class BestSchedule(Best):
    """The best of a kernel. `apply` makes the schedule."""

    workload: Workload = field(compare=False, repr=False)
    target: Machine = field(compare=False, repr=False)
    apply: Callable[[Workload, Machine, Mapping[str, Any]], Variant] = field(compare=False, repr=False)

    @cached_property
    def kernel(self) -> TunedKernel:
        """The schedule, compiled in this process: call it with NumPy arrays."""
        from ..codegen.compile import TunedKernel

        return TunedKernel(self.workload, self.target, self.apply(self.workload, self.target, self.config))

    def to_json(self) -> dict[str, Any]:
        """With its rates; `percent_of_peak`, of float32, is null where the peak cannot be measured."""
        rate = self.workload.flops / self.seconds
        return {
            **super().to_json(),
            "gflops": rate / 1e9,
            "percent_of_peak": self._percent_of_peak(rate),
            "gigabytes_per_second": self.workload.bytes / self.seconds / 1e9,
        }

    def _percent_of_peak(self, rate: float) -> float | None:
        from ..machine.peak import peak

        if any(spec.dtype != "float32" for spec in self.workload.inputs):
            return None
        try:
            return 100 * rate / peak(self.target).flops
        except MeasureError:  # the result stands without it
            return None


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What a search brought, whatever was tuned.

    `trials` counts distinct candidates, `failed` those among them that failed, `reused` those that came from the
    store; `seconds` is the wall time of this run with everything in it and `phases` where it went. `baseline` are
    the seconds of the default, the first space's origin, in the same race as the best; `default_failed` says that it
    was tried and does not work. `finalists` are those of the last race that worked, else the best that were measured,
    the fastest first. `curve` holds (seconds of tuning, best seconds per execution so far), earlier runs of a resumed
    session included; `statuses` counts measurements by status, and `error` is the line that most of those that failed
    brought.
    """

    search: str
    seed: int
    trials: int
    failed: int
    reused: int
    seconds: float
    phases: Mapping[str, float]
    best: Best | None
    finalists: Sequence[Best]
    baseline: float | None
    default_failed: bool
    converged: bool
    curve: Sequence[tuple[float, float]]
    suspect: int
    interrupted: bool
    statuses: Mapping[str, int]
    error: str

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON document."""
        return {
            "search": self.search,
            "seed": self.seed,
            "trials": self.trials,
            "failed": self.failed,
            "reused": self.reused,
            "suspect": self.suspect,
            "seconds": self.seconds,
            "phases": dict(self.phases),
            "statuses": dict(self.statuses),
            "best": None if self.best is None else self.best.to_json(),
            "baseline": {"seconds": self.baseline},
            "converged": self.converged,
            "interrupted": self.interrupted,
            "curve": [list(entry) for entry in self.curve],
        }


@dataclass(frozen=True, eq=False)
class MinimizeResult(SearchResult):
    """What minimizing a callable brought; `name` is what its records are kept under."""

    name: str

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON document."""
        return {"name": self.name, "error": self.error, **super().to_json()}


@dataclass(frozen=True, eq=False)
class TuneResult(SearchResult):
    """What tuning a kernel brought; `sketches` are those searched."""

    best: BestSchedule | None
    workload: Workload
    target: Machine
    sketches: Mapping[str, Sketch]

    @classmethod
    def of(cls, found: SearchResult, workload: Workload, target: Machine, sketches: Mapping[str, Sketch]) -> TuneResult:
        """The result of a search over the spaces of these sketches, by name."""
        best: BestSchedule | None = None
        if found.best is not None:
            best = BestSchedule(
                **vars(found.best), workload=workload, target=target, apply=sketches[found.best.sketch].apply
            )
        return cls(**{**vars(found), "best": best}, workload=workload, target=target, sketches=sketches)

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
        """The document of `stormdrop tune-op --json`."""
        return {"op": self.workload.name, "target": self.target.machine, **super().to_json()}

    def _found(self) -> BestSchedule:
        if self.best is None:
            raise UnsupportedFunction(f"{self.workload.name}: no candidate worked")
        return self.best
