"""The kernels of models, executed as CUDA source by the cores of this machine, as it is and with sanitizers."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpu._networks import NETWORKS, SHAPES
from numpy.typing import NDArray
from tvm.tirx import PrimFunc

from stand_ins.cuda_on_host import SANITIZERS, UNWRITTEN, execute_on_host
from stand_ins.opencl_execution import Execution
from stormdrop.codegen.cuda import launches
from stormdrop.errors import UnsupportedFunction, one_line
from stormdrop.ir import reference
from stormdrop.ir.dtypes import is_float
from stormdrop.ir.relative_error import relative_error
from stormdrop.ir.stages import StageGraph, shape_of
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import Gpu
from stormdrop.model.building.builder import PLAIN, TaskSchedules
from stormdrop.model.building.compile import apply_variants, plain_schedules
from stormdrop.model.graph.place import Place, place_of
from stormdrop.model.importer.any_model import import_model
from stormdrop.model.tuning.scheduler import recorded_tasks
from stormdrop.sketches.contract import Variant
from stormdrop.sketches.registry import sketches_for
from stormdrop.tuning.options import TuneOptions

Array = NDArray[Any]

RIGHT, NOT_COMPARED = "right", "not compared"
_TOLERANCE = 1e-4  # of the relative error
_FEWER = (3, 1)  # blocks, if more of them take too long


@dataclass(frozen=True)
class Kernel:
    """A kernel of a model.

    Attributes:
        name: What the model calls it.
        function: Its function, without a schedule.
        workload: The same for sketches; None if no sketch schedules it.
        place: The slice of a wider output that it writes; None if it writes all of its output.
    """

    name: str
    function: PrimFunc
    workload: Workload | None
    place: Place | None

    @property
    def key(self) -> str:
        """A digest, the same for equal kernels of several models."""
        text = self.function.script() if self.workload is None else self.workload.text
        return hashlib.sha256(f"{self.place} {text}".encode()).hexdigest()[:20]


def kernels_of(network: str, gpu: Gpu) -> list[Kernel]:
    """The kernels of one of `NETWORKS`, as its program calls them.

    Args:
        network: The name.
        gpu: The GPU that they are for.
    """
    graph = import_model(NETWORKS[network](), SHAPES.get(network))
    tuned = recorded_tasks(graph, gpu, TuneOptions(fresh=True), None).tasks
    schedules = {task.task.index: TaskSchedules.of(task, task.kernel) for task in tuned if task.kernel is not None}

    def variant(index: int, where: Place | None = None) -> Variant:
        return schedules[index].variant(schedules[index].default, where)

    variants = {index: variant(index) for index, each in schedules.items() if each.usable}
    called = apply_variants(graph, variants, plain=plain_schedules(gpu), place=variant).symbols
    return [
        Kernel(
            symbol,
            graph.tasks[index].function,
            schedules[index].kernel.workload if index in variants else None,
            place_of(symbol),
        )
        for symbol, index in called.items()
    ]


def executed(kernel: Kernel, schedule: int, gpu: Gpu, blocks: int, seconds: float) -> dict[str, Any]:
    """Executes a schedule of a kernel, and returns what was found.

    Args:
        kernel: The kernel.
        schedule: 0 for its default schedule; a random one of any sketch for each other number.
        gpu: The GPU that it is scheduled for.
        blocks: The most blocks of a grid.
        seconds: The most that an execution may take.
    """
    begin = time.perf_counter()
    found: dict[str, Any] = {"sketch": PLAIN[0], "config": {}, "verdict": "failed", "grid": 0, "executed": 0}
    try:
        variant, about = _scheduled(kernel, schedule, gpu)
        found |= about
        function = variant.main
        *_, last = launches(function, gpu)
        inputs, stages = _inputs(kernel)
        expected = None if stages is None else reference.evaluate_graph(stages, inputs, rounded=False)
        inputs = variant.arguments(inputs)
        found |= {"grid": last.blocks, "threads": last.threads}
        for most in (blocks, *_FEWER):
            found["executed"] = min(most, last.blocks)
            executions = execute_on_host(function, gpu, inputs, ("", *SANITIZERS), blocks=most, seconds=seconds)
            if not any(execution.error.startswith("takes more than") for execution in executions):
                break
        found |= _judged(executions, expected, kernel.place, last.blocks <= found["executed"])
    except Exception as error:  # noqa: BLE001  whatever a sketch, TVM or g++ raises is what the survey is to find
        found["error"] = one_line(error)
    return {**found, "seconds": round(time.perf_counter() - begin, 1)}


def _scheduled(kernel: Kernel, schedule: int, gpu: Gpu) -> tuple[Variant, dict[str, Any]]:
    """The schedule, and which one that is."""
    if kernel.workload is None:
        return Variant(plain_schedules(gpu)(kernel.function).function), {}
    rng = np.random.default_rng([schedule, int(kernel.key[:8], 16)])
    sketches = sketches_for(kernel.workload, gpu)
    sketch, space = sketches[0 if schedule == 0 else rng.integers(len(sketches))]
    config = space.config(space.origin if schedule == 0 else space.sample(rng))
    place, workload = kernel.place, kernel.workload
    placed = workload if place is None else workload.placed(place.offset, place.total)
    return sketch.apply(placed, gpu, config), {"sketch": sketch.name, "config": dict(config)}


def _inputs(kernel: Kernel) -> tuple[list[Array], StageGraph | None]:
    """Random inputs, and the stages by which NumPy evaluates the kernel; None if it knows none."""
    if kernel.workload is not None:
        return kernel.workload.random_inputs(0), kernel.workload.graph
    try:
        stages = StageGraph.parse(kernel.function, gathers=True)
        reference.check_supported(stages)
        outputs = len(stages.outputs)
    except UnsupportedFunction:
        stages, outputs = None, 1
    rng, parameters = np.random.default_rng(0), kernel.function.params
    extents = [extent for each in parameters if is_float(str(each.dtype)) for extent in shape_of(each) if extent > 1]
    most = min(extents, default=2)  # of what may be an index
    inputs = []
    for each in parameters[: len(parameters) - outputs]:
        values = (
            rng.integers(-3, 4, shape_of(each)) if is_float(str(each.dtype)) else rng.integers(0, most, shape_of(each))
        )
        inputs.append(values.astype(str(each.dtype)))
    return inputs, stages


def _judged(
    executions: Sequence[Execution], expected: Sequence[Array] | None, place: Place | None, whole: bool
) -> dict[str, Any]:
    """What the executions of a kernel show: its verdict, errors, and the elements that were compared."""
    complaints = sorted({complaint for execution in executions for complaint in execution.complaints})
    error = next((execution.error for execution in executions if execution.error), "")
    faults = [fault for fault, words in _FAULTS.items() if re.search(words, " ".join(complaints))]
    compared, wrong = 0, 0.0
    for execution in executions if expected is not None else ():
        for output, wanted in zip(execution.outputs, expected or (), strict=False):
            inside, outside = output, output[..., :0]
            if place is not None:
                end = place.offset + wanted.shape[-1]
                inside = output[..., place.offset : end]
                outside = np.concatenate([output[..., : place.offset], output[..., end:]], axis=-1)
            written = np.full(inside.shape, True) if whole else inside != UNWRITTEN
            compared = int(written.sum())
            wrong = max(wrong, relative_error(inside[written], wanted[written]))
            if not compared or (outside != UNWRITTEN).any():
                wrong = float("inf")
    faults += ["wrong"] if wrong > _TOLERANCE else []
    faults += ["failed"] if error and not faults else []
    faults += [NOT_COMPARED] if expected is None and not faults else []
    verdict = ", ".join(faults) or RIGHT
    return {"verdict": verdict, "max_error": wrong, "compared": compared, "complaints": complaints, "error": error}


_FAULTS: Mapping[str, str] = {"race": "race", "out of bounds": "overflow|SEGV|use-after", "barrier": "host fault"}
"""What is wrong, by what sanitizers and the header say."""
