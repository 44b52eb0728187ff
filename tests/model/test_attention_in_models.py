"""The three kernels of an attention as one: where it pays, and where others need what stands between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from tiny_models import heads_model, make_model

import stormdrop as sd
from stand_ins.opencl_execution import EMULATED
from stormdrop.machine.contract import Machine
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.machine.opencl import opencl_devices
from stormdrop.model.building.fallback import schedule_fallback
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.any_model import import_model
from stormdrop.model.passes.attention import with_attention
from stormdrop.model.precision.mixed import in_mixed_precision
from stormdrop.model.untuned import compile_model_with
from stormdrop.tuning.options import TuneOptions

TARGET = Cpu.detect()
SMALL = replace(TARGET, l1=256, l2=256, cores=2)
"""A machine whose caches hold the scores of none of these models."""


def names(graph: Graph) -> list[str]:
    return [task.name for task in graph.tasks]


def has_attention(graph: Graph) -> bool:
    return any(name.startswith("attention") for name in names(graph))


def test_heads_are_moved_inside() -> None:
    """Projections, one kernel for the whole attention, and one that brings the heads back."""
    graph = with_attention(import_model(heads_model()), SMALL)
    assert sorted(task.weight for task in graph.tasks) == [1, 1, 3]
    assert sum(name.startswith("attention") for name in names(graph)) == 1
    assert not any("softmax" in name for name in names(graph))
    (attention,) = (task for task in graph.tasks if task.name.startswith("attention"))
    assert [tuple(int(extent) for extent in parameter.ty.shape) for parameter in attention.function.params] == [
        (1, 24, 16),
        (1, 24, 16),
        (1, 24, 16),
        (1, 2, 24, 8),
    ]


def test_a_plain_schedule_takes_it() -> None:
    graph = with_attention(import_model(heads_model()), SMALL)
    (attention,) = (task for task in graph.tasks if task.name.startswith("attention"))
    assert schedule_fallback(attention.function).reached == "parallel, vectorised"


@pytest.mark.compiles
def test_two_attentions_of_the_same_tensors() -> None:
    """They call the same functions. In the second one queries and values change their places."""
    model = heads_model()
    places = {"q": "v", "v": "q", "s": "s_2", "p": "p_2", "a": "a_2", "t": "t_2", "y": "y_2"}
    for node in list(model.graph.node)[-5:]:
        second = onnx.NodeProto()
        second.CopyFrom(node)
        second.input[:] = [places.get(name, name) for name in node.input]
        second.output[:] = [places[name] for name in node.output]
        model.graph.node.append(second)
    model.graph.output.append(helper.make_tensor_value_info("y_2", onnx.TensorProto.FLOAT, (1, 24, 16)))
    result = compile_model_with(model, replace(TARGET, l1=256, l2=256), TuneOptions(fresh=True))
    assert [task.task.weight for task in result.tasks if task.task.name.startswith("attention")] == [2]
    assert result.verified.max_error < 1e-5


def test_unknown_caches_merge_nothing() -> None:
    graph = import_model(heads_model())
    assert with_attention(graph, replace(SMALL, l1=0, l2=0)) is graph


@pytest.mark.compiles
def test_other_sources_of_sketches_have_three_kernels() -> None:
    machine, options = replace(TARGET, l1=256, l2=256), TuneOptions(fresh=True, sketches="rules")
    result = compile_model_with(heads_model(), machine, options)
    assert not any(task.task.name.startswith("attention") for task in result.tasks)


def test_a_mask_belongs_to_the_scores() -> None:
    assert has_attention(with_attention(import_model(heads_model(mask=True)), SMALL))


@pytest.mark.parametrize("outputs", [("y", "p"), ("y", "s")], ids=["weights", "scores"])
def test_what_others_read_stays(outputs: Sequence[str]) -> None:
    graph = import_model(heads_model(outputs))
    assert with_attention(graph, SMALL) is graph


def test_scores_that_fit_the_caches_stay_as_they_are() -> None:
    graph = import_model(heads_model())
    assert with_attention(graph, TARGET) is graph
    assert with_attention(graph, replace(SMALL, l1=4096)) is graph, "those of a head fit the first cache"
    assert with_attention(graph, replace(SMALL, l2=1024)) is graph, "those of all heads fit the second ones"


def test_sizes_share_tasks() -> None:
    model = heads_model(rows="rows")
    graph = with_attention(import_model(model, {"x": (1, (24, 32), 16)}), SMALL)
    assert [has_attention(each) for each in graph.sizes] == [True, True]
    assert sum(name.startswith("attention") for name in names(graph)) == 2
    assert all(each.tasks is graph.tasks for each in graph.sizes)
    mixed = with_attention(import_model(model, {"x": (1, (4, 32), 16)}), SMALL)
    small, large = ([mixed.tasks[index].name for index in each.called] for each in mixed.sizes)
    assert any("softmax" in name for name in small) and not any("softmax" in name for name in large)


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("mask", "exported"), [(False, False), (True, False), (True, True)], ids=["plain", "mask", "exported"]
)
def test_a_compiled_model_is_right(mask: bool, exported: bool) -> None:
    """Compiling verifies it against the model that was imported; here it has the one kernel."""
    model, options = heads_model(mask=mask, exported=exported), TuneOptions(fresh=True)
    fused = compile_model_with(model, replace(TARGET, l1=256, l2=256), options)
    plain = compile_model_with(model, TARGET, options)
    rng = np.random.default_rng(1)
    feeds = [rng.standard_normal((1, 24, 16)).astype(np.float32)]
    if mask:
        feeds.append(np.triu(np.full((24, 24), -1e9, np.float32), 1)[np.newaxis, np.newaxis])
    assert any(task.task.name.startswith("attention") for task in fused.tasks)
    assert not any(task.task.name.startswith("attention") for task in plain.tasks)
    np.testing.assert_allclose(fused.model(*feeds), plain.model(*feeds), rtol=1e-4, atol=1e-5)


@pytest.mark.compiles
def test_layers_in_bfloat16_stay_apart() -> None:
    """Each of them is in mixed precision for itself."""
    machine = replace(TARGET, l1=256, l2=256)
    result = compile_model_with(heads_model(), machine, TuneOptions(fresh=True, precision="bf16"))
    assert not any(task.task.name.startswith("attention") for task in result.tasks)


@pytest.mark.parametrize("target", [GPUS["a100"], GPUS["t4"], EMULATED], ids=lambda target: target.name)
def test_a_gpu_has_one_kernel_with_scales_and_guards(target: Machine) -> None:
    graph = with_attention(import_model(heads_model(mask=True, exported=True)), target)
    assert sorted(task.weight for task in graph.tasks) == [1, 1, 3]
    (attention,) = (task for task in graph.tasks if task.name.startswith("attention"))
    shapes = [tuple(int(extent) for extent in parameter.ty.shape) for parameter in attention.function.params]
    assert sorted(shapes) == [(1, 1, 24, 24), (1, 2, 24, 8), *[(1, 24, 16)] * 3], "neither scale nor 0 is a parameter"


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_a_gpu_has_one_kernel_in_16_bits(precision: str, dtype: str) -> None:
    """Also if queries and keys are scaled: kernels of their own round them."""
    options = TuneOptions(precision=precision)
    for exported in (False, True):
        graph = import_model(heads_model(mask=True, exported=exported, head=16, projected=True))
        assert with_attention(graph, GPUS["a100"], options) is graph, "it is not in 16 bits yet"
        low = in_mixed_precision(graph, dtype=dtype).graph
        fused = with_attention(low, GPUS["a100"], options, lowered=True)
        (attention,) = (task for task in fused.tasks if task.name.startswith("attention"))
        dtypes = [str(parameter.dtype) for parameter in attention.function.params]
        assert sorted(dtypes) == sorted([*[dtype] * 3, "float32", "float32"]), "what the last layer reads is float32"
        for target in (GPUS["t4"], EMULATED, TARGET):
            assert with_attention(low, target, options, lowered=True) is low


def test_a_head_that_tensor_cores_do_not_take_stays_apart() -> None:
    low = in_mixed_precision(import_model(heads_model(head=8, projected=True)), dtype="float16").graph
    assert with_attention(low, GPUS["a100"], TuneOptions(precision="fp16"), lowered=True) is low


@pytest.mark.compiles
@pytest.mark.skipif(not opencl_devices(), reason="OpenCL finds no device here")
@pytest.mark.parametrize("exported", [False, True])
def test_a_gpu_computes_it_tuned_and_saved(exported: bool, tmp_path: Path) -> None:
    model, folder = heads_model(mask=True, exported=exported), tmp_path / "heads.sd"
    target = sd.parse_machine("opencl")
    result = sd.tune_model(model, target=target, trials=6, search="random", fresh=True, out=folder)
    assert "gpu_attention" in {step["sketch"] for step in result.model.metadata.provenance["schedules"]}
    assert result.verified.max_error < 1e-5
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 24, 16)).astype(np.float32)
    mask = np.triu(np.full((24, 24), -np.inf, np.float32), 1)[np.newaxis, np.newaxis]
    mask[..., 7, :] = -np.inf
    feeds = {"x": x, "mask": mask}
    (right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    assert np.isnan(right[0, 7]).all() != exported
    np.testing.assert_allclose(sd.load(folder).run(feeds)["y"], right, rtol=1e-4, atol=1e-5)


def decoder(keys: int) -> onnx.ModelProto:
    """A query of each of 2 heads, which attends to some keys of 64."""
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    inputs: dict[str, tuple[int | str, ...]] = {"q": (2, 1, 64), "k": (2, 64, keys), "v": (2, keys, 64)}
    return make_model(nodes, {}, inputs, {"y": (2, 1, 64)})


@pytest.mark.parametrize("keys", [16, 4096])
def test_a_gpu_has_one_kernel_for_a_single_query(keys: int) -> None:
    assert has_attention(with_attention(import_model(decoder(keys)), GPUS["a100"]))


def test_a_head_that_does_not_fit_a_gpu_stays_apart() -> None:
    small = replace(GPUS["a100"], shared_per_block=1 << 8)
    assert not has_attention(with_attention(import_model(heads_model()), small))
