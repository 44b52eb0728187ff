"""Models compiled for a GPU that need not be here: what `ptxas` says of each kernel, and how long it might take."""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu._expected_seconds import CompiledLaunch, seconds_by_bytes, seconds_by_sketch
from tvm.tirx import PrimFunc

from stormdrop.codegen.device_code import DeviceModule
from stormdrop.machine.gpu import Gpu
from stormdrop.model.building.builder import PLAIN, ModelBuilder
from stormdrop.model.building.kernel_library import KernelLibrary
from stormdrop.model.graph.tasks import Task
from stormdrop.model.importer.any_model import import_model
from stormdrop.model.passes.attention import with_attention
from stormdrop.model.tuning.scheduler import recorded_tasks
from stormdrop.runtime.program import bytes_of
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions

LAUNCH = ("blocks", "threads", "registers", "shared", "spilled")
"""What stands of each launch in an entry, in this order."""


class _ObservedLibrary(KernelLibrary):
    """Keeps the modules that it was asked for last."""

    compiled: Sequence[DeviceModule] = ()

    def modules(self, functions: Mapping[str, PrimFunc]) -> list[Any]:
        self.compiled = super().modules(functions)
        return list(self.compiled)


def compiled(path: Path, gpu: Gpu) -> dict[str, Any]:
    """Compiles a model with its default schedules, without executing anything, and returns the entry of it.

    Args:
        path: The ONNX file.
        gpu: The GPU.
    """
    begin, options = time.perf_counter(), TuneOptions(fresh=True)
    graph = with_attention(import_model(path), gpu, options)
    imported = time.perf_counter()
    tuned = recorded_tasks(graph, gpu, options, None)
    library = _ObservedLibrary(gpu)
    builder = ModelBuilder(graph, tuned.tasks, gpu, options, {}, library=library)
    model = builder.build(builder.winners)
    built = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        model.write_files(Path(folder), native=False)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    resources = {each.name: each for module in library.compiled for each in module.resources}
    code = {symbol: kernel for module in library.compiled for symbol, kernel in module.kernels.items()}
    calls = Counter(step.name for steps in model.program.sizes for step in steps.steps if step.kind == "kernel")
    kernels = []
    for symbol, count in calls.items():
        index = model.symbols.get(symbol)
        task = None if index is None else tuned.tasks[index]
        launches = []
        for launch in code[symbol].launches:
            needs = resources[launch.entry]
            blocks, threads = (x * y * z for x, y, z in (launch.groups, launch.items))
            shared = needs.shared + launch.shared
            launches.append(CompiledLaunch(blocks, threads, needs.registers, shared, needs.spilled))
        choice = PLAIN if index is None else builder.winners.get(index, PLAIN)
        kernel = None if task is None else task.kernel
        seconds = math.nan if kernel is None else seconds_by_sketch(kernel, choice, gpu)
        if math.isnan(seconds):
            seconds = seconds_by_bytes(launches, _bytes(kernel, None if task is None else task.task), gpu)
        kernels.append(
            {
                "name": symbol,
                "sketch": choice[0],
                "calls": count,
                "seconds": seconds,
                "launches": [
                    [each.blocks, each.threads, each.registers, each.shared, each.spilled] for each in launches
                ],
            }
        )
    return {
        **_summed(kernels),
        "plain": {report.task: report.reached for report in model.metadata.fallbacks},
        "parts": len(model.metadata.foreign),
        "import_seconds": imported - begin,
        "compile_seconds": built - imported,
        "bytes": size,
        "code_bytes": sum(len(image.code) for module in library.compiled for image in module.images),
        "kernels": kernels,
    }


def _bytes(kernel: KernelTask | None, task: Task | None) -> float:
    """Bytes that a kernel moves. If no sketch reads its function: twice its output."""
    if kernel is not None:
        return kernel.workload.bytes
    if task is None:
        return 0.0
    output = task.function.params[-1]
    return 2.0 * bytes_of([int(extent) for extent in output.shape], str(output.dtype))


def _summed(kernels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What an execution of all kernels takes."""
    by_sketch: defaultdict[str, float] = defaultdict(float)
    for kernel in kernels:
        by_sketch[kernel["sketch"]] += kernel["calls"] * kernel["seconds"]
    spilling = [
        kernel["name"] for kernel in kernels if any(launch[LAUNCH.index("spilled")] for launch in kernel["launches"])
    ]
    return {
        "calls": sum(kernel["calls"] for kernel in kernels),
        "launches": sum(kernel["calls"] * len(kernel["launches"]) for kernel in kernels),
        "spilling": spilling,
        "without_launch": [kernel["name"] for kernel in kernels if not kernel["launches"]],
        "seconds": sum(by_sketch.values()),
        "seconds_by_sketch": dict(by_sketch),
    }
