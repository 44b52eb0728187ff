"""A model of float32 whose layers multiply TF32 where `gpu_mma` does: factors are rounded as tensor cores take them.

Tensors stay in float32, and so do the layers that the sketch does not know, such as convolutions of several groups.
"""

from __future__ import annotations

import tvm

from ...ir.contractions.contraction import is_contraction
from ...ir.contractions.factors import factors_of
from ...ir.mixed_precision import in_tf32
from ...ir.stages import StageGraph
from ...ir.workload import Workload, canonical_stages
from ...machine.gpu import Gpu
from ...sketches.gpu.mma import GpuMma
from ..graph.graph import Graph
from ..graph.tasks import Task, kernel_calls
from .mixed import MixedPrecision


def with_tf32(graph: Graph, machine: Gpu) -> MixedPrecision:
    """Lets the layers of a model multiply TF32 where tensor cores can.

    Args:
        graph: The model in float32, at all of its sizes.
        machine: What it is for.
    """
    functions = {task.index: canonical_stages(task.function) for task in graph.tasks}
    layers = {
        index: stages for index, stages in functions.items() if stages and any(map(is_contraction, stages.stages))
    }
    low = {index: in_tf32(stages) for index, stages in layers.items()}
    low = {index: stages for index, stages in low.items() if _on_tensor_cores(graph.tasks[index], stages, machine)}
    indices = {callee: task.index for task in graph.tasks for callee in task.callees}
    mods, calls = [], list[int]()
    for each in graph.sizes:
        mod = tvm.IRModule(dict(each.mod.functions.items()))
        for variable in each.mod.functions:
            if (stages := low.get(indices.get(variable.name_hint, -1))) is not None:
                mod.update_func(variable, stages.function().without_attr("global_symbol"))
        mods.append(mod)
        calls += [indices[call.args[0].name_hint] for call in kernel_calls(each.mod)]
    return MixedPrecision(
        graph.rewritten(mods), [index for index in calls if index in layers], [index for index in calls if index in low]
    )


def multiplies_tf32(task: Task) -> bool:
    """Whether a task multiplies TF32.

    Args:
        task: The task.
    """
    stages = canonical_stages(task.function)
    factors = [factor for stage in (stages.stages if stages else ()) for factor in factors_of(stage) or ()]
    return any(factor.rounded for factor in factors)


def _on_tensor_cores(task: Task, stages: StageGraph, machine: Gpu) -> bool:
    workload = Workload.create(task.name, stages.function(), task.constants)
    return GpuMma().space(workload, machine) is not None
