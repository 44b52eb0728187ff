"""What a tuning reports while it runs, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedFunction
from ..report.formatting import ascii_time
from ..report.search_end import IN_WORDS
from ..statistics import Interval, median_interval

if TYPE_CHECKING:
    from ..codegen.compile import TunedKernel
    from ..ir.workload import Workload
    from ..machine.contract import Machine
    from ..records import Config, Outcome, Setting
    from ..sketches.contract import AnySketch, Variant
    from ..space import Space
    from ..trial import Candidate
    from .trace import Trace


@dataclass(frozen=True)
class KernelProgress:
    """How far the tuning of one kernel of a model is.

    Attributes:
        name: Its name.
        calls: How often an execution of the model calls it.
        state: "waiting", "tuning" (now), "paused", "done", "recorded" (earlier records have answered) or "plain" (it
            is not tuned).
        trials: Distinct candidates measured.
        best_seconds: Seconds of a call of the fastest so far, inside the model if the default was timed there; None
            before anything has worked.
        layers: The names of the layers of the model that its calls compute; see `report.layer_label`.
        untuned_seconds: Seconds of a call in the model with default schedules; None if that was not timed.
    """

    name: str
    calls: int
    state: str
    trials: int = 0
    best_seconds: float | None = None
    layers: tuple[str, ...] = ()
    untuned_seconds: float | None = None


@dataclass(frozen=True)
class Progress:
    """How far a tuning is.

    Attributes:
        trials: Distinct candidates measured.
        failed: How many of them failed.
        best_seconds: Seconds per execution of the fastest so far; None before anything has worked.
        elapsed: Wall seconds since the tuning began.
        budget_seconds: Wall seconds that it may take; None is no bound.
        message: What it is doing, for a model.
        of: The word for what takes `best_seconds`.
        kernels: The kernels of a model; empty for a single kernel.
        untuned_seconds: Seconds of an execution of a model with default schedules; None if it was not timed.
        peer_seconds: Seconds of an execution by onnxruntime; None if it was not timed.
        checking: Whether the input is still checked: if it is wrong, an error is all that there is to say.
    """

    trials: int
    failed: int
    best_seconds: float | None
    elapsed: float
    budget_seconds: float | None
    message: str = ""
    of: str = "best"
    kernels: Sequence[KernelProgress] = ()
    untuned_seconds: float | None = None
    peer_seconds: float | None = None
    checking: bool = False


@dataclass(frozen=True, repr=False)
class Best:
    """A configuration as it was measured last, beside the default.

    Attributes:
        sketch: The name of its space.
        config: The value of each knob.
        seconds: Seconds per execution.
        interval: The 95% interval of `seconds`.
        speedup: The default's time over this one's, as (ratio, low, high); the interval holds for the best of all that
            raced. None if this is the default, because nothing was significantly faster, if the two did not race, or if
            something else used the machine during the race.
    """

    sketch: str
    config: Mapping[str, Any]
    seconds: float
    interval: tuple[float, float]
    speedup: tuple[float, float, float] | None

    @classmethod
    def measured(
        cls,
        spaces: Mapping[str, Space],
        candidate: Candidate,
        samples: Sequence[float],
        speedup: Interval | None = None,
    ) -> Best:
        """A candidate of one of these spaces with its samples, in seconds."""
        seconds = low = high = samples[0]
        if len(samples) > 1:
            seconds, low, high = median_interval(samples)
        config = spaces[candidate.sketch].config(candidate.point)
        ratio = None if speedup is None else (speedup.estimate, speedup.low, speedup.high)
        return cls(candidate.sketch, config, seconds, (low, high), ratio)

    def schedule(self) -> str:
        """The configuration as a line of decisions."""
        return f"{self.sketch}({', '.join(f'{key}={value!r}' for key, value in self.config.items())})"

    def __repr__(self) -> str:
        return f"{self.schedule()}: {self.timing()}"

    def timing(self) -> str:
        """The time with its interval, and how much faster that is than the default."""
        low, high = self.interval
        time = f"{ascii_time(self.seconds)} ({ascii_time(low)} to {ascii_time(high)})"
        return time if self.speedup is None else f"{time}, {self.speedup[0]:.2f} times as fast as the default"

    def to_json(self) -> dict[str, Any]:
        """`best` in the document of a result."""
        return {
            "seconds": self.seconds,
            "interval": list(self.interval),
            "config": dict(self.config),
            "sketch": self.sketch,
            "speedup": None if self.speedup is None else list(self.speedup),
        }


@dataclass(frozen=True, repr=False)
class BestSchedule(Best):
    """The best schedule of a kernel, as it was measured last, beside the default.

    Attributes:
        workload: The function that was tuned.
        target: The machine that it was tuned for.
        apply: Makes the schedule at a configuration.
    """

    workload: Workload = field(compare=False)
    target: Machine = field(compare=False)
    apply: Callable[[Workload, Machine, Mapping[str, Any]], Variant] = field(compare=False)

    @cached_property
    def kernel(self) -> TunedKernel:
        """The schedule, compiled in this process: call it with NumPy arrays."""
        from ..codegen.compile import TunedKernel

        return TunedKernel(self.workload, self.target, self.apply(self.workload, self.target, self.config))

    def to_json(self) -> dict[str, Any]:
        """`best` in the document of a kernel's result, with its rates.

        `percent_of_peak` is null if the kernel is not in float32, or if the peak is not known (`peak_within`).
        """
        rate = self.workload.flops / self.seconds
        return {
            **super().to_json(),
            "gflops": rate / 1e9,
            "percent_of_peak": self._percent_of_peak(rate),
            "gigabytes_per_second": self.workload.bytes / self.seconds / 1e9,
        }

    def _percent_of_peak(self, rate: float) -> float | None:
        from ..machine.limits.peak import known_peak

        if any(spec.dtype != "float32" for spec in self.workload.inputs):
            return None
        limits = known_peak(self.target)
        return None if limits is None else 100 * rate / limits.flops


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult:
    """What a search brought, whatever was tuned.

    Attributes:
        search: The name of the search.
        seed: Its seed.
        trials: Distinct candidates measured.
        failed: How many of them failed.
        reused: How many of them came from the store.
        seconds: Wall time of this run with everything in it.
        phases: Where this time went, in seconds.
        best: The result; None if no candidate worked.
        finalists: The candidates of the last race that worked, else the best that were measured, the fastest first.
        baseline: Seconds of the default, the first space's origin, in the same race as the best.
        compared: The default's time over the best's in that race, as (ratio, low, high), whether or not it is claimed
            as `best.speedup`. None if the best is the default, or if the two did not race.
        kept_default: Whether the best is the default.
        default_failed: Whether the default was tried and does not work.
        converged: Whether the search ended because it expects nothing better.
        end: Why the search ended: "converged"; "exhausted", because every candidate was measured; "finished", at a
            limit of its own; or "budget", because its trials or its time were spent.
        curve: (seconds of tuning, seconds per execution of the fastest candidate from then on), including earlier runs
            of a resumed session.
        suspect: Measurements that were taken beside foreign load.
        interrupted: Whether Ctrl-C ended it.
        ended_by: The error of a space that ended the search early, one line; empty if there was none.
        statuses: Measurements by status.
        error: The most frequent error, one line; empty if nothing failed.
        disturbed: Whether something else used the machine during the last race, or left no time for it. Then no
            speedup is claimed.
        by_sketch: The fastest candidate of each sketch, by its samples in the search.
        transfer: What records of elsewhere have given, as `tuning.transfer.Transfer.to_json` describes it; None if
            nothing.
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
    compared: tuple[float, float, float] | None
    kept_default: bool
    default_failed: bool
    converged: bool
    end: str
    curve: Sequence[tuple[float, float]]
    suspect: int
    interrupted: bool
    statuses: Mapping[str, int]
    error: str
    disturbed: bool
    by_sketch: Sequence[Best]
    transfer: Mapping[str, Any] | None
    ended_by: str

    @classmethod
    def of_trace(
        cls,
        trace: Trace,
        setting: Setting,
        default: Candidate,
        spaces: Mapping[str, Space],
        *,
        best: Best | None,
        **others: Any,
    ) -> SearchResult:
        """A result with everything that follows from the trace; `others` are the remaining attributes."""
        plain = default.sketch, spaces[default.sketch].config(default.point)
        fastest: dict[str, Candidate] = {}
        for candidate in trace.working:
            fastest.setdefault(candidate.sketch, candidate)
        return cls(
            by_sketch=[Best.measured(spaces, candidate, trace.samples(candidate)) for candidate in fastest.values()],
            search=setting.search,
            seed=setting.seed,
            trials=len(trace),
            failed=trace.failed,
            curve=trace.curve,
            suspect=trace.suspect,
            statuses=trace.statuses,
            error=trace.error,
            ended_by="",
            best=best,
            kept_default=best is not None and (best.sketch, best.config) == plain,
            default_failed=any(not measurement.ok for measurement in trace.measurements.get(default, ())),
            **others,
        )

    def __repr__(self) -> str:
        """A few lines: the best, and how it was found."""
        if self.best is None:
            found = [self.why_no_best]
        else:
            found = [f"best      {self.best.timing()}", f"schedule  {self.best.schedule()}"]
        end = "interrupted" if self.interrupted else IN_WORDS[self.end]
        end = f"ended by an error: {self.ended_by}" if self.ended_by else end
        counts = f"{self.trials} trials, {self.failed} failed, {self.reused} from records, {self.seconds:.1f} s"
        lines = [f"{type(self).__name__} of {self._subject}:", *found, f"search    {self.search}: {counts}, {end}"]
        if self.disturbed and self.best is not None:
            lines.append("disturbed something else used the machine during the last race: no speed-up is claimed")
        elif self.suspect:
            lines.append(f"disturbed something else used the machine during {self.suspect} measurements")
        return "\n  ".join(lines)

    @property
    def proven(self) -> bool:
        """Whether the best has raced with the default, and nothing else used the machine meanwhile."""
        return self.baseline is not None and not self.disturbed

    @property
    def why_no_best(self) -> str:
        """Why there is no result, in a line: an error, or nothing was tried, or nothing that was tried has worked."""
        if self.ended_by:
            tried = "no candidate worked" if self.trials else "nothing was measured"
            return f"{tried} before an error ended the search: {self.ended_by}"
        if not self.trials:
            return (
                "nothing was measured before it was interrupted" if self.interrupted else "no time was left to measure"
            )
        return f"no candidate worked; the most frequent error: {self.error}"

    def _repr_html_(self) -> str:
        """What Jupyter shows."""
        from ..report.notebook import kernel_html

        return kernel_html(self.to_json())

    @property
    def _subject(self) -> str:
        """What was tuned, in words."""
        return "a search"

    def outcome(self, **extra: Any) -> Outcome:
        """The result as the end of a session in the records, with more that is kept there."""
        from ..records import Outcome

        kept = {"seconds": self.seconds, "compared": None if self.compared is None else list(self.compared), **extra}
        if self.best is None:
            return Outcome(baseline_seconds=self.baseline, converged=self.converged, extra=kept)
        best = self.best
        kept["speedup"] = None if best.speedup is None else list(best.speedup)
        config: Config = dict(best.config)
        return Outcome(best.sketch, config, best.seconds, best.interval, self.baseline, self.converged, kept)

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
            "baseline": {"seconds": self.baseline, "failed": self.default_failed},
            "compared": None if self.compared is None else list(self.compared),
            "kept_default": self.kept_default,
            "converged": self.converged,
            "end": self.end,
            "interrupted": self.interrupted,
            "ended_by": self.ended_by,
            "disturbed": self.disturbed,
            "curve": [list(entry) for entry in self.curve],
        }


@dataclass(frozen=True, eq=False, repr=False)
class MinimizeResult(SearchResult):
    """What minimizing a callable brought.

    Attributes:
        name: The name that its records are kept under.
    """

    name: str

    @property
    def _subject(self) -> str:
        return self.name or "a function without a name"

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON document."""
        return {"name": self.name, "error": self.error, **super().to_json()}


@dataclass(frozen=True, eq=False, repr=False)
class TuneResult(SearchResult):
    """What tuning a kernel brought.

    Attributes:
        best: The best schedule; None if no candidate worked.
        workload: The function that was tuned.
        target: The machine that it was tuned for.
        sketches: The sketches that were searched, by name.
    """

    best: BestSchedule | None
    workload: Workload
    target: Machine
    sketches: Mapping[str, AnySketch]

    @classmethod
    def of(
        cls, searched: SearchResult, workload: Workload, target: Machine, sketches: Mapping[str, AnySketch]
    ) -> TuneResult:
        """The result of a search over the spaces of these sketches, by name."""
        best: BestSchedule | None = None
        if searched.best is not None:
            best = BestSchedule(
                **vars(searched.best), workload=workload, target=target, apply=sketches[searched.best.sketch].apply
            )
        return cls(**{**vars(searched), "best": best}, workload=workload, target=target, sketches=sketches)

    @property
    def _subject(self) -> str:
        return f"{self.workload.name} on {self.target.machine}"

    @property
    def variant(self) -> Variant:
        """The best schedule, applied. Raises `UnsupportedFunction` if no candidate worked."""
        best = self._working_best()
        return best.apply(self.workload, self.target, best.config)

    @property
    def kernel(self) -> TunedKernel:
        """`best.kernel`. Raises `UnsupportedFunction` if no candidate worked."""
        return self._working_best().kernel

    def schedule(self) -> str:
        """The best schedule as a line of decisions. Raises `UnsupportedFunction` if no candidate worked."""
        return self._working_best().schedule()

    def steps(self) -> str:
        """What the best schedule does: what is packed, how axes are split, and the loops in order.

        Raises:
            UnsupportedFunction: No candidate worked.
        """
        from ..sketches.steps import steps

        return steps(self.variant)

    def tir(self) -> str:
        """The best schedule as TVMScript. Raises `UnsupportedFunction` if no candidate worked."""
        return str(self.variant.main.script())

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop tune-op --json`."""
        return {
            "op": self.workload.name,
            "target": self.target.machine,
            **super().to_json(),
            "transfer": None if self.transfer is None else dict(self.transfer),
        }

    def _working_best(self) -> BestSchedule:
        if self.best is None:
            raise UnsupportedFunction(f"{self.workload.name}: {self.why_no_best}")
        return self.best
