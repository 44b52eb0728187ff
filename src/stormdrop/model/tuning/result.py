"""What tuning a model brought."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from ...errors import shown
from ...machine.cpu import Cpu
from ...report.formatting import ascii_time
from ...statistics import Interval
from ..artifact.artifact import CompiledModel
from ..artifact.metadata import sizes_in_words
from ..building.repair import Replacement
from ..building.tuned_task import TunedTask
from ..precision.choice import PrecisionReport
from ..profile import PartTime
from ..verification.verify import Verification
from .sized_result import SizeResult, timing


@dataclass(frozen=True, eq=False, repr=False)
class ModelResult:
    """A tuned model.

    Attributes:
        model: The compiled model.
        name: The name of the graph.
        target: The machine that it was tuned for.
        search: The search.
        seed: Its seed.
        seconds: Wall time with everything in it.
        phases: Where this time went, in seconds.
        artifact: The folder that it was saved to; None if it was not.
        digest: The digest of all files of this folder; see `CompiledModel.digest`.
        latency: Seconds of one execution, at the first size if there are several.
        untuned: Seconds with the default schedule of every task, timed in turns with `latency`. None after Ctrl-C, and
            if no time was left for it.
        verified: How far its outputs are from the reference.
        tasks: Its tasks with their results.
        curve: (seconds of tuning, summed seconds of the kernels).
        inside: Tasks whose winner was replaced by another finalist that was faster in the whole model.
        interrupted: Whether Ctrl-C ended the tuning.
        replaced: Schedules that had to give way because the model was wrong with them.
        disturbed: Whether something else used the machine while `latency` and `untuned` were measured.
        speedup: The time with default schedules over that of the tuned model, at the first size; None if `untuned` is.
        foreign: The parts that onnxruntime runs, with their times.
        sizes: Each size of the model, also if it is the only one.
        precision: Which of its layers are in bfloat16; None if it is in float32.
        left_out: What was not done because the model runs behind a runner, one sentence each.
        module: Makes the model as a Relax module that calls the scheduled kernels, for tools that build it themselves.
    """

    model: CompiledModel
    name: str
    target: Cpu
    search: str
    seed: int
    seconds: float
    phases: Mapping[str, float]
    artifact: Path | None
    latency: Interval
    untuned: Interval | None
    verified: Verification
    tasks: Sequence[TunedTask]
    curve: Sequence[tuple[float, float]]
    inside: Sequence[str] = ()
    interrupted: bool = False
    replaced: Sequence[Replacement] = ()
    disturbed: bool = False
    digest: str | None = None
    speedup: Interval | None = None
    foreign: Sequence[PartTime] = ()
    sizes: Sequence[SizeResult] = ()
    module: Callable[[], tvm.IRModule] | None = None
    left_out: Sequence[str] = ()
    precision: PrecisionReport | None = None

    @property
    def trials(self) -> int:
        """Distinct candidates measured, over all tasks, including those that came from the store."""
        return sum(task.result.trials for task in self.tasks if task.result is not None)

    def __repr__(self) -> str:
        """A few lines: how fast and how exact the model is, and how it was tuned."""
        latency = self.latency
        time = f"{ascii_time(latency.estimate)} ({ascii_time(latency.low)} to {ascii_time(latency.high)})"
        untuned = "" if self.untuned is None else f", untuned {ascii_time(self.untuned.estimate)}"
        work = f"{len(self.tasks)} kernels, {self.trials} trials, {self.seconds:.1f} s"
        lines = [
            f"{type(self).__name__} of {shown(self.name)} on {self.target.machine}:",
            f"latency   {time}{untuned}",
            *self._size_lines(),
            f"verified  error {self.verified.max_error:.1e} against {self.verified.against}",
            *([] if self.precision is None else [f"precision {self.precision}"]),
            f"search    {self.search}: {work}{', interrupted' if self.interrupted else ''}",
            *([f"replaced  {len(self.replaced)} schedules"] if self.replaced else []),
            *([] if self.artifact is None else [f"saved     {self.artifact}"]),
        ]
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        """What Jupyter shows."""
        from ...report.notebook import model_html

        return model_html(self.to_json())

    def _size_lines(self) -> list[str]:
        words = sizes_in_words(self.model.sizes, most=len(self.sizes))
        if len(self.sizes) < 2:
            return []
        times = [size.latency.estimate for size in self.sizes if size.latency is not None]
        return [f"          {ascii_time(seconds)} at {text}" for text, seconds in zip(words, times, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop tune --json`."""
        results = [task.result for task in self.tasks if task.result is not None]
        return {
            "model": self.name,
            "target": self.target.machine,
            "search": self.search,
            "seed": self.seed,
            "trials": self.trials,
            "failed": sum(result.failed for result in results),
            "reused": sum(result.reused for result in results),
            "suspect": sum(result.suspect for result in results),
            "seconds": self.seconds,
            "phases": dict(self.phases),
            "artifact": None if self.artifact is None else str(self.artifact),
            "digest": self.digest,
            "latency": {**timing(self.latency), "disturbed": self.disturbed},
            "untuned": None if self.untuned is None else timing(self.untuned),
            "speedup": None if self.speedup is None else list(self.speedup),
            "verified": {"max_error": self.verified.max_error, "against": self.verified.against},
            "precision": None if self.precision is None else self.precision.to_json(),
            "tasks": [task.to_json() for task in self.tasks],
            "inside": list(self.inside),
            "replaced": [replacement.to_json() for replacement in self.replaced],
            "fallbacks": [report.task for report in self.model.metadata.fallbacks],
            "foreign": [part.to_json() for part in self.foreign],
            "sizes": [size.to_json() for size in self.sizes],
            "left_out": list(self.left_out),
            "interrupted": self.interrupted,
            "converged": all(task.converged for task in self.tasks),
            "curve": [list(entry) for entry in self.curve],
        }
