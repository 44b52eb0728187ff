"""Builds a model with a chosen schedule for each task."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi import structural_walk

from ...codegen.gpu_lowering import lower_for_gpu
from ...errors import SpaceError, one_line
from ...ir.workload import Workload
from ...machine.contract import Machine
from ...machine.cpu import Cpu
from ...machine.gpu import Gpu
from ...sketches.contract import AnySketch, Variant
from ...sketches.registry import BUILTIN
from ...tuning.kernel import KernelTask
from ...tuning.options import TuneOptions
from ..artifact.artifact import CompiledModel
from ..artifact.artifact_files import checksum
from ..artifact.metadata import Work
from ..graph.graph import Graph
from ..graph.onnx_origin import origin_of
from ..graph.place import Place
from ..inputs.combinations import GivenShapes, is_list
from ..inputs.inputs import Values
from ..open_sizes.kernels import Scheduled
from ..open_sizes.open_program import Compiled, open_program
from ..open_sizes.trials import Trials
from ..verification.verify import Verification
from .board import Board, BoardModel
from .compile import CreateModel, PlacedVariant, apply_variants, build, plain_schedules
from .fallback import schedule_fallback
from .kernel_library import KernelLibrary
from .stand_in import stand_in_for
from .tuned_task import Choice, TunedTask, TunedTasks

_logger = logging.getLogger(__name__)

PLAIN: Choice = ("plain", {})
"""The schedule of `fallback`, which needs no sketch."""


class ModelBuilder:
    """Builds the model with a schedule for each task.

    `winners` are what the tuning of each task found, else what it has borrowed, else its default schedule. `defaults`
    are the default schedules; for a task whose default was tried and does not work, what its tuning found. With a
    `board`, the models run there. A `library` has the kernels that other builders have compiled. With `ranges`, the
    shapes of inputs that have some, models are built for `open`.
    """

    def __init__(
        self,
        graph: Graph,
        tasks: Sequence[TunedTask],
        target: Machine,
        options: TuneOptions,
        provenance: Mapping[str, Any],
        board: Board | None = None,
        library: KernelLibrary | None = None,
        ranges: GivenShapes | None = None,
    ) -> None:
        self._graph, self._target, self._provenance, self._ranges = graph, target, provenance, ranges
        self._create: CreateModel = CompiledModel if board is None else partial(BoardModel, board)
        self.library = library or KernelLibrary(target)
        self._stand_in = None if board is not None else stand_in_for(target, graph)
        self._executable: tuple[CompiledModel, CompiledModel] | None = None  # a model, and what stands in for it
        all_schedules = [TaskSchedules.of(task, task.kernel) for task in tasks if task.kernel is not None]
        self._work = {
            each.task.task.index: Work(each.kernel.workload.flops, each.kernel.workload.bytes) for each in all_schedules
        }
        # Only the built-in sketches promise the same configurations for a slice of a wider output.
        # A kernel for any size writes a tensor of its own.
        self._places = options.sketches in (None, BUILTIN) and ranges is None
        self._schedules = {schedules.task.task.index: schedules for schedules in all_schedules if schedules.usable}
        self.winners: dict[int, Choice] = {index: schedules.winner for index, schedules in self._schedules.items()}
        self.defaults: dict[int, Choice] = {index: schedules.default for index, schedules in self._schedules.items()}

    @property
    def graph(self) -> Graph:
        """What is built, without schedules."""
        return self._graph

    def build(self, combination: Mapping[int, Choice]) -> CompiledModel:
        """The compiled model of a combination."""
        return build(
            self._graph,
            self._variants(combination),
            self._target,
            place=self._placed(combination),
            provenance=self._provenance,
            work=self._work,
            library=self.library,
            create=self._create,
        )

    def open(self, model: CompiledModel, combination: Mapping[int, Choice]) -> None:
        """Makes a model of a combination run at each size between those that it was compiled for.

        Args:
            model: The model, which `build` has made.
            combination: The schedules of its tasks.

        Raises:
            ModelError: Its kernels are others at other sizes.
        """
        plain = plain_schedules(self._target)

        def schedule_plainly(_: int, function: tirx.PrimFunc) -> Scheduled:
            return Scheduled(Variant(plain(function).function))

        def schedule_without_vectors(_: int, function: tirx.PrimFunc) -> Scheduled:
            return Scheduled(Variant(schedule_fallback(function, lanes=1).function))

        def schedule(index: int, function: tirx.PrimFunc) -> Scheduled:
            choice = combination.get(index, PLAIN)
            if choice == PLAIN:
                return schedule_plainly(index, function)
            task, (name, config) = self._graph.tasks[index], choice
            workload, sketch = Workload.create(task.name, function, task.constants), self._schedules[index].sketch(name)
            return Scheduled(sketch.apply(workload, self._target, config), sketch.max_error)

        program = model._program
        kernels = {name: self.library.function(name) for name in program.program.kernels if name in model.symbols}
        compiled = Compiled(self._graph, program, model.symbols, kernels)
        schedules = [schedule, schedule_plainly, schedule_without_vectors]
        assert isinstance(self._target, Cpu) and self._ranges is not None
        with Trials(self._target) as trials:
            model.open(*open_program(compiled, self._ranges, schedules, self.library, trials))

    def executable(self, model: CompiledModel, combination: Mapping[int, Choice]) -> CompiledModel:
        """The model of a combination as this machine can run it: itself, or what stands in for it; see `StandIn`."""
        if self._stand_in is None:
            return model
        if self._executable is None or self._executable[0] is not model:
            other = self._stand_in.build(self._graph, self._variants(combination), self._placed(combination))
            self._executable = (model, other)
        return self._executable[1]

    @property
    def executed_by(self) -> str:
        """What runs `executable`, if the machine that the model is for is not here; else empty."""
        return "" if self._stand_in is None else self._stand_in.words

    def build_keeping_denormals(self, combination: Mapping[int, Choice]) -> CompiledModel | None:
        """The model of a combination whose kernels compute with denormals; None if those of `build` do so already."""
        if not isinstance(self._target, Cpu) or self._target.keep_denormals:
            return None
        target = replace(self._target, keep_denormals=True)
        place = self._placed(combination, target)
        return build(self._graph, self._variants(combination, target), target, place=place, create=self._create)

    def scheduled(self, combination: Mapping[int, Choice]) -> tvm.IRModule:
        """The model of a combination as Relax code that calls scheduled kernels, which nothing has compiled."""
        plain = plain_schedules(self._target)
        return apply_variants(
            self._graph, self._variants(combination), plain=plain, place=self._placed(combination)
        ).mod

    def scheduled_text(self, index: int, choice: Choice) -> str | None:
        """The TensorIR of a task's kernel with this schedule, as text; None if the schedule is a plain one."""
        return None if choice == PLAIN else str(self._schedules[index].variant(choice).main.script())

    def cores(self, index: int, choice: Choice) -> int:
        """How many cores a schedule of a task keeps busy."""
        return busy_cores(self._schedules[index].variant(choice).main, self._target.cores)

    def default_inside(self, index: int, combination: Mapping[int, Choice]) -> bool:
        """Whether a combination has a task's default schedule in the place of what its tuning found."""
        default = self.defaults.get(index)
        return default is not None and combination.get(index) == default != self.winners[index]

    def _variants(self, combination: Mapping[int, Choice], target: Cpu | None = None) -> dict[int, Variant]:
        """The variants of the tasks, for their own target or another one; what has none gets a plain schedule."""
        chosen = {index: choice for index, choice in combination.items() if choice != PLAIN}
        return {index: self._schedules[index].variant(choice, target=target) for index, choice in chosen.items()}

    def _placed(self, combination: Mapping[int, Choice], target: Cpu | None = None) -> PlacedVariant | None:
        if not self._places:
            return None
        return lambda index, where: self._schedules[index].variant(combination[index], where, target)

    def is_exact(self, index: int, choice: Choice) -> bool:
        """Whether a schedule of a task only reorders what the task computes."""
        return choice == PLAIN or self._schedules[index].sketch(choice[0]).max_error == 0

    def exact_alternatives(self, index: int, wrong: Choice) -> list[Choice]:
        """The exact schedules of a task that stand in for one that is wrong, the fastest first, a plain one last."""
        schedules = self._schedules[index]
        candidates = [*schedules.measured, schedules.default, PLAIN]
        exact = [choice for choice in candidates if self.is_exact(index, choice) and choice != wrong]
        return [choice for position, choice in enumerate(exact) if choice not in exact[:position]]

    def complete_provenance(self, combination: Mapping[int, Choice], verified: Verification) -> dict[str, Any]:
        """Where the model comes from, with how it was verified and the schedule of each task."""
        return {
            **self._provenance,
            "index_ranges": dict(origin_of(self._graph.source).index_ranges()),
            "verified": {"max_error": verified.max_error, "against": verified.against},
            "schedules": [
                {"task": each.task.task.name, "workload": key, "sketch": sketch, "config": dict(config)}
                for index, each in self._schedules.items()
                for key, (sketch, config) in [(each.kernel.workload.key, combination[index])]
            ],
        }


@dataclass(frozen=True)
class TaskSchedules:
    """The schedules of a task, alone or writing into a slice of a wider output."""

    task: TunedTask
    kernel: KernelTask
    winner: Choice
    default: Choice
    usable: bool = True
    _variants: dict[str, Variant] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, task: TunedTask, kernel: KernelTask) -> TaskSchedules:
        """The schedules of a tuned task.

        They are not usable if nothing was found and the default does not schedule, which MetaSchedule's sketches do
        not promise, or TVM cannot lower it for a GPU: the task then gets a plain schedule.
        """
        space = kernel.sketches[0][1]
        default: Choice = (space.name, space.config(space.origin))
        result = task.result
        untuned = default if task.borrowed is None else task.borrowed.choice
        winner = untuned if result is None or result.best is None else (result.best.sketch, result.best.config)
        if result is not None and result.best is not None and result.default_failed:
            default = winner
        schedules = cls(task, kernel, winner, default)
        try:
            variant = schedules.variant(default)
        except SpaceError:
            return replace(schedules, default=winner, usable=winner != default)
        untimed = result is None or result.best is None
        if untimed and isinstance(kernel.target, Gpu) and not _lowers(task, variant, kernel.target):
            return replace(schedules, default=winner, usable=winner != default)
        return schedules

    def variant(self, choice: Choice, where: Place | None = None, target: Cpu | None = None) -> Variant:
        """The schedule of a choice, which is made at the first call.

        Args:
            choice: The sketch and its configuration.
            where: The slice of a wider output that the kernel writes.
            target: Another target than that of the tuning.
        """
        name, config = choice
        key = repr((name, sorted(config.items()), where, target is not None and target.keep_denormals))
        if key not in self._variants:
            self._variants[key] = self._scheduled(name, config, where, target)
        return self._variants[key]

    def _scheduled(self, name: str, config: Mapping[str, Any], where: Place | None, target: Cpu | None) -> Variant:
        workload = self.kernel.workload
        workload = workload if where is None else workload.placed(where.offset, where.total)
        return self.sketch(name).apply(workload, target or self.kernel.target, config)

    def sketch(self, name: str) -> AnySketch:
        """The sketch of this name."""
        return next(sketch for sketch, _ in self.kernel.sketches if sketch.name == name)

    @property
    def measured(self) -> list[Choice]:
        """The finalists and the fastest schedule of each sketch, the fastest first."""
        result = self.task.result
        if result is None:
            return []
        fastest = sorted([*result.finalists, *result.by_sketch], key=lambda best: best.seconds)
        return [(best.sketch, best.config) for best in fastest]


def _lowers(task: TunedTask, variant: Variant, gpu: Gpu) -> bool:
    """Whether TVM lowers a schedule that was never measured. A warning is logged if it does not."""
    if problem := _problem_of(tvm_ffi.StructuralKey(variant.main), gpu):
        _logger.warning("%s: its default schedule cannot be lowered: %s", task.task.described, problem)
    return not problem


@lru_cache(maxsize=1024)  # a tuning builds its models more than once
def _problem_of(function: tvm_ffi.StructuralKey, gpu: Gpu) -> str:
    """Why TVM does not lower a function; empty if it does."""
    try:
        lower_for_gpu(function.key, gpu.tvm())
    except Exception as error:  # noqa: BLE001  TVM raises anything from ValueError to its InternalError
        return one_line(error)
    return ""


def busy_cores(function: tirx.PrimFunc, cores: int) -> int:
    """How many cores a scheduled function keeps busy, by its widest parallel loop.

    Args:
        function: The function.
        cores: The cores of the machine.
    """
    loops: list[tirx.For] = []
    structural_walk(function.body, (tirx.For, loops.append))
    extents = [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.PARALLEL]
    return min(max(extents, default=1), cores)


def source_of(model: Any) -> dict[str, str]:
    """The file that a model will be imported from, with its SHA-256 as it is now; empty for anything else."""
    if not isinstance(model, str | Path):
        return {}
    try:
        return {"source": str(Path(model).resolve()), "sha256": checksum(Path(model))}
    except OSError:
        return {}  # the import says what is wrong with the file


def provenance_of(
    source: Mapping[str, str],
    shapes: GivenShapes | None,
    options: TuneOptions,
    tuned: TunedTasks,
    values: Values | None = None,
    state: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Where a model comes from: its file, as `source_of` found it before the import, and how it was tuned."""
    provenance: dict[str, Any] = {
        "search": options.search,
        "seed": options.seed,
        "trials": sum(task.result.trials for task in tuned.tasks if task.result is not None),
        "versions": {name: packages.version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx")},
    }
    if shapes:
        provenance["shapes"] = {
            name: [[int(one) for one in size] if is_list(size) else size for size in shape]
            for name, shape in shapes.items()
        }
    if values:
        provenance["values"] = {name: np.asarray(value).tolist() for name, value in values.items()}
    if state:
        provenance["state"] = dict(state)
    return {**provenance, **source}
