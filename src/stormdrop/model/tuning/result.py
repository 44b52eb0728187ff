"""What compiling a model brought, and what tuning it did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm

from ...errors import TargetError, shown
from ...machine.contract import CUDA, Machine
from ...machine.gpu import Gpu
from ...report.formatting import ascii_time, json_value
from ...report.headline import headline, never_tuned
from ...runtime.sizes import sizes_in_words
from ...statistics import Interval
from ..artifact.artifact import CompiledModel
from ..building.repair import Replacement
from ..building.tuned_task import TunedTask
from ..precision.choice import PrecisionReport
from ..profile import PartTime
from ..verification.verify import Verification
from .sized_result import SizeResult, timing


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CompileResult:
    """A compiled model, and how it was made.

    Attributes:
        model: The compiled model.
        name: The name of the graph.
        target: The machine that it was compiled for.
        seconds: Wall time with everything in it.
        phases: Where this time went, in seconds.
        artifact: The folder that it was saved to; None if it was not.
        digest: The digest of all files of this folder; see `CompiledModel.digest`.
        verified: How far its outputs are from the reference.
        tasks: Its tasks, with their results if the records or its tuning have any.
        replaced: Schedules that had to give way because the model was wrong with them.
        sizes: Each size of the model, also if it is the only one.
        precision: Which of its layers are in bfloat16; None if it is in float32.
    """

    model: CompiledModel
    name: str
    target: Machine
    seconds: float
    phases: Mapping[str, float]
    artifact: Path | None
    digest: str | None
    verified: Verification
    tasks: Sequence[TunedTask]
    replaced: Sequence[Replacement] = ()
    sizes: Sequence[SizeResult] = ()
    precision: PrecisionReport | None = None

    def __repr__(self) -> str:
        exact = f"error {self.verified.max_error:.1e} against {self.verified.against}"
        return f"{type(self).__name__} of {self.model!r}\n  verified {exact}"

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop compile --json`."""
        changed = {each.task for each in self.replaced}
        borrowed = {task.task.name: task.borrowed.machine for task in self.tasks if task.borrowed is not None}
        return {
            **self._document(),
            "architectures": _architectures(self.target),
            "kernels": len(self.tasks),
            "recorded": [task.task.name for task in self.tasks if task.result is not None],
            "borrowed": {name: machine for name, machine in borrowed.items() if name not in changed},
            "foreign": [
                {"operators": dict(part.operators), "nodes": part.nodes, "reason": part.reason}
                for part in self.model.metadata.foreign
            ],
        }

    def _document(self) -> dict[str, Any]:
        """What the documents of `stormdrop compile` and `stormdrop tune` have in common."""
        return {
            "model": self.name,
            "target": _title(self.target),
            "seconds": self.seconds,
            "phases": dict(self.phases),
            "artifact": None if self.artifact is None else str(self.artifact),
            "digest": self.digest,
            "verified": {"max_error": self.verified.max_error, "against": self.verified.against},
            "precision": None if self.precision is None else self.precision.to_json(),
            "replaced": [replacement.to_json() for replacement in self.replaced],
            "sizes": [size.to_json() for size in self.sizes],
            "fallbacks": [report.task for report in self.model.metadata.fallbacks],
            "layers": self._layers(),
        }

    def _layers(self) -> list[dict[str, Any]]:
        """Each layer of the model with the kernels that compute it: none if it is folded away."""
        metadata = self.model.metadata
        kernels: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for task in self.tasks:
            for name in task.layers:
                kernels[name][task.task.name] = None
        for call in (call for calls in metadata.calls for call in calls):
            if call.kernel not in self.model.symbols:  # a part that onnxruntime runs, or a function of TVM's
                for position in call.layers:
                    kernels[metadata.layers[position].name][call.kernel] = None
        return [{**asdict(layer), "kernels": list(kernels[layer.name])} for layer in metadata.layers]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ModelResult(CompileResult):
    """A tuned model: what a `CompileResult` has, and how it was tuned.

    Attributes:
        search: The search.
        seed: Its seed.
        latency: Seconds of one execution, at the first size if there are several.
        untuned: Seconds with the default schedule of every task, timed in turns with `latency`. None if that model was
            not built.
        curve: (seconds of tuning, summed seconds of the kernels).
        inside: Tasks that have another schedule in the model than the one that was the fastest alone.
        interrupted: Whether Ctrl-C ended the tuning.
        disturbed: Whether something else used the machine while `latency` and `untuned` were measured.
        speedup: The time with default schedules over that of the tuned model, at the first size; None if `untuned` is.
        foreign: The parts that onnxruntime runs, with their times.
        left_out: What was not done because the model runs behind a runner, one sentence each.
        peer: Seconds of an execution by onnxruntime, at the first size, timed for a moment before the tuning; None if
            it is not installed, does not run the model, or was not timed for lack of time or memory.
        not_compared: Why there is no `untuned`, in words; empty if there is.
        module: Makes the model as a Relax module that calls the scheduled kernels, for tools that build it themselves.
    """

    search: str
    seed: int
    latency: Interval
    untuned: Interval | None
    curve: Sequence[tuple[float, float]]
    inside: Sequence[str] = ()
    interrupted: bool = False
    disturbed: bool = False
    speedup: Interval | None = None
    foreign: Sequence[PartTime] = ()
    peer: float | None = None
    not_compared: str = ""
    module: Callable[[], tvm.IRModule] | None = None
    left_out: Sequence[str] = ()

    @property
    def trials(self) -> int:
        """Distinct candidates measured, over all tasks, including those that came from the store."""
        return sum(task.result.trials for task in self.tasks if task.result is not None)

    def __repr__(self) -> str:
        """A few lines: how fast and how exact the model is, and how it was tuned."""
        document = json_value(self.to_json())
        left = never_tuned(document)
        work = f"{len(self.tasks)} kernels, {self.trials} trials, {self.seconds:.1f} s"
        lines = [
            f"{type(self).__name__} of {shown(self.name)} on {_title(self.target)}:",
            f"latency   {headline(document)}",
            *self._size_lines(),
            f"verified  error {self.verified.max_error:.1e} against {self.verified.against}",
            *([] if self.precision is None else [f"precision {self.precision}"]),
            f"search    {self.search}: {work}{', interrupted' if self.interrupted else ''}",
            *([] if left is None else [f"left      {left}"]),
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
            **self._document(),
            "search": self.search,
            "seed": self.seed,
            "trials": self.trials,
            "failed": sum(result.failed for result in results),
            "reused": sum(result.reused for result in results),
            "suspect": sum(result.suspect for result in results),
            "latency": {**timing(self.latency), "disturbed": self.disturbed},
            "untuned": None if self.untuned is None else timing(self.untuned),
            "speedup": None if self.speedup is None else list(self.speedup),
            "not_compared": self.not_compared or None,
            "peer": None if self.peer is None else {"name": "onnxruntime", "seconds": self.peer},
            "tasks": [task.to_json() for task in self.tasks],
            "inside": list(self.inside),
            "foreign": [part.to_json() for part in self.foreign],
            "left_out": list(self.left_out),
            "interrupted": self.interrupted,
            "converged": all(task.converged for task in self.tasks),
            "curve": [list(entry) for entry in self.curve],
        }


def _architectures(target: Machine) -> list[str]:
    """The architectures that a model for an NVIDIA GPU has code for; none for another machine."""
    return [target.arch, *target.architectures] if isinstance(target, Gpu) and target.device == CUDA else []


def _title(target: Machine) -> str:
    """The identity of a machine; the name of one that is not here."""
    try:
        return target.machine
    except TargetError:
        return target.name
