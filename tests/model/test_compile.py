from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tiny_models import zoo_model
from tvm import te

from stand_ins.verifying import verify
from stormdrop.errors import ModelError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.random_weights import seed_weights
from stormdrop.sketches.contract import Variant
from stormdrop.sketches.meta_schedule import meta_schedule_sketches

pytestmark = pytest.mark.compiles


def gemm_variant(weight_index: Callable[[Any, Any], tuple[Any, Any]]) -> Variant:
    """The gemm of the residual model with its weight [k, n] packed to [n, k]; `weight_index` is what packing reads."""
    x, packed, bias = te.placeholder((1, 16)), te.placeholder((10, 16)), te.placeholder((10,))
    k = te.reduce_axis((0, 16))
    product = te.compute((1, 10), lambda i, j: te.sum(x[i, k] * packed[j, k], axis=k))
    main = te.create_prim_func([x, packed, bias, te.compute((1, 10), lambda i, j: product[i, j] + bias[j])])
    weight = te.placeholder((16, 10))
    pack = te.create_prim_func([weight, te.compute((10, 16), lambda n, k: weight[weight_index(n, k)])])
    return Variant(main, {1: pack})


def gemm(graph: Graph) -> int:
    (index,) = [task.index for task in graph.tasks if "matmul" in task.name]
    return index


def test_plain_schedules_are_right_and_reported(residual: Graph, target: Cpu) -> None:
    model = build(residual, {}, target)
    result = verify(model, residual.source)
    assert result.max_error < 1e-4
    assert result.against.startswith(("onnxruntime", "onnx.reference"))
    assert {report.task for report in model.metadata.fallbacks} == {task.name for task in residual.tasks}


def test_squeezenet(target: Cpu) -> None:
    graph = load_graph(seed_weights(zoo_model("squeezenet"), seed=3))
    assert len(graph.tasks) == 28 and not any("transpose" in task.name for task in graph.tasks)
    model = build(graph, {}, target)
    assert verify(model, graph.source, seed=3).max_error < 1e-4
    assert {report.reached for report in model.metadata.fallbacks} == {"parallel, vectorised"}


def test_packed_constant(residual: Graph, target: Cpu) -> None:
    model = build(residual, {gemm(residual): gemm_variant(lambda n, k: (k, n))}, target)
    assert verify(model, residual.source).max_error < 1e-4
    assert not any("matmul" in report.task for report in model.metadata.fallbacks)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda n, k: (k, (n + 1) % 10),  # shifted outputs
        lambda n, k: ((k + 1) % 16, n),  # shifted inputs
        lambda n, k: (15 - k, n),  # permuted inputs
    ],
)
def test_a_permuted_or_shifted_weight_fails_the_verification(
    residual: Graph, target: Cpu, wrong: Callable[[Any, Any], tuple[Any, Any]]
) -> None:
    model = build(residual, {gemm(residual): gemm_variant(wrong)}, target)
    assert verify(model, residual.source).max_error > 1e-2


def test_weights_that_metaschedule_lays_out_anew(residual: Graph, target: Cpu) -> None:
    (task, *_) = [task for task in residual.tasks if "conv2d" in task.name]
    workload = Workload.create(task.name, task.function, task.constants)
    spaces = [(sketch, sketch.space(workload, target)) for sketch in meta_schedule_sketches(workload, target)]
    variants = [sketch.apply(workload, target, space.config(space.origin)) for sketch, space in spaces if space]
    packed = [variant for variant in variants if variant.transforms]
    assert packed
    model = build(residual, {task.index: packed[0]}, target)
    assert verify(model, residual.source).max_error < 1e-4


def test_variants_that_do_not_fit(residual: Graph, target: Cpu) -> None:
    variant = gemm_variant(lambda n, k: (k, n))
    with pytest.raises(ModelError, match="has no task 99"):
        build(residual, {99: variant}, target)
    pool = next(task.index for task in residual.tasks if "pool" in task.name)
    with pytest.raises(ModelError, match="takes 4 arguments"):
        build(residual, {pool: variant}, target)
    with pytest.raises(ModelError, match=r"argument 0 of task .* is no constant"):
        build(residual, {gemm(residual): Variant(variant.main, {0: variant.transforms[1]})}, target)
