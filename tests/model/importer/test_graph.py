from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tiny_models import attention_model, make_model, residual_model
from tvm import relax, te
from tvm.s_tir import Schedule

from stand_ins.verifying import verify
from stormdrop.errors import ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.graph.tasks import normalise
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.random_weights import seed_weights
from stormdrop.runtime.sizes import TensorInfo


def blocks(function: object) -> list[str]:
    schedule = Schedule(tvm.IRModule({"main": function}))
    return [schedule.get(block).name_hint for block in schedule.get_child_blocks(schedule.get_sblock("root"))]


def test_tasks_are_fused_and_channels_last(residual: Graph) -> None:
    block_names = [blocks(task.function) for task in residual.tasks]
    assert ["pad", "conv2d", "T_add", "compute"] in block_names
    # Bias, residual and ReLU are fused into the 1x1 convolution; its padding by zero elements is gone.
    assert ["conv2d_nhwc", "T_add", "T_add1", "compute"] in block_names
    assert not any("T_transpose" in names for names in block_names)
    assert not any("T_reshape" in names for names in block_names)


def test_constants_are_found(residual: Graph) -> None:
    for task in residual.tasks:
        assert task.constants == ((1, 2) if "conv2d" in task.name or "matmul" in task.name else ())


def test_equal_functions_are_one_task() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a0"])]
    for i in range(3):
        nodes += [
            helper.make_node("Conv", [f"a{2 * i}", f"w{i}"], [f"a{2 * i + 1}"], kernel_shape=[1, 1]),
            helper.make_node("Relu", [f"a{2 * i + 1}"], [f"a{2 * i + 2}"]),
        ]
    nodes[-1].output[0] = "y"
    weights = {f"w{i}": (8, 8, 1, 1) for i in range(3)}
    graph = load_graph(seed_weights(make_model(nodes, weights, {"x": (1, 8, 4, 4)}, {"y": (1, 8, 4, 4)})))
    (conv,) = [task for task in graph.tasks if "conv2d" in task.name]
    assert conv.weight == 3 and conv.constants == (1,)
    assert [task.index for task in graph.tasks] == list(range(len(graph.tasks)))


def test_normal_form_forgets_symbol_and_attributes() -> None:
    x = te.placeholder((4,), name="x")
    function = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1.0)])
    renamed = function.with_attr("global_symbol", "other").with_attr("op_pattern", 4)
    assert not tvm_ffi.structural_equal(function.with_attr("op_pattern", 1), renamed)
    assert tvm_ffi.structural_equal(normalise(function), normalise(renamed))


@pytest.mark.compiles
def test_clips_and_activations_stay_in_the_layout() -> None:
    """An inverted residual block as mobile networks have it: depthwise, ReLU6 as a Clip, hard-swish."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["a", "low", "high"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=16),
        helper.make_node("HardSwish", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["y"]),
    ]
    bounds = [numpy_helper.from_array(np.array(v, np.float32), k) for k, v in (("low", 0.0), ("high", 6.0))]
    weights: dict[str, tuple[int, ...]] = {"w0": (16, 3, 3, 3), "w1": (16, 1, 3, 3)}
    model = make_model(nodes, weights, {"x": (1, 3, 16, 16)}, {"y": (1, 16)}, opset=14, extra=bounds)
    graph = load_graph(seed_weights(model))
    assert not any("transpose" in task.name for task in graph.tasks)
    assert sum("conv2d" in task.name for task in graph.tasks) == 2, "the activations are fused into the convolutions"
    assert len(graph.tasks) == 4  # the others: the mean, and the output's reshape
    assert verify(build(graph, {}, Cpu.detect()), graph.source).max_error < 1e-4


@pytest.mark.compiles
def test_transposed_convolution_keeps_its_layout() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], kernel_shape=[1, 1]),
        helper.make_node("ConvTranspose", ["a", "w1"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    weights: dict[str, tuple[int, ...]] = {"w0": (8, 3, 1, 1), "w1": (8, 4, 2, 2)}
    graph = load_graph(seed_weights(make_model(nodes, weights, {"x": (1, 3, 4, 4)}, {"y": (1, 4, 8, 8)})))
    assert verify(build(graph, {}, Cpu.detect()), graph.source).max_error < 1e-4


@pytest.mark.compiles
def test_several_inputs_and_outputs_keep_their_names() -> None:
    nodes = [helper.make_node("Sub", ["a/0", "b.1"], ["s"]), helper.make_node("Relu", ["s"], ["r:0"])]
    shape = (2, 3)
    graph = load_graph(make_model(nodes, {}, {"a/0": shape, "b.1": shape}, {"s": shape, "r:0": shape}))
    a, b = np.full(shape, 1, np.float32), np.full(shape, 3, np.float32)
    outputs = build(graph, {}, Cpu.detect()).run({"b.1": b, "a/0": a})
    assert np.array_equal(outputs["s"], a - b) and np.array_equal(outputs["r:0"], np.zeros(shape))


def test_import_prints_and_warns_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model([helper.make_node("Relu", ["a/0"], ["y"])], {}, {"a/0": (2,)}, {"y": (2,)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_graph(model)
    assert capsys.readouterr() == ("", "")


def test_output_shapes_follow_the_sizes_given() -> None:
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("ArgMax", ["f"], ["y"], axis=1)]
    model = make_model(nodes, {}, {"x": ("batch", 3, 2)}, {"y": ("batch", 1)})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    graph = load_graph(model, {"x": (4, 3, 2)})
    assert graph.outputs == (TensorInfo("y", (4, 1), "int64"),)


def test_output_shape_that_depends_on_data() -> None:
    model = make_model([helper.make_node("NonZero", ["x"], ["y"])], {}, {"x": (2, 3)}, {"y": (2, "count")})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    graph = load_graph(model)
    assert graph.outputs == (TensorInfo("y", (2, -1), "int64"),)
    assert [part.operators for part in graph.foreign.reports] == [{"NonZero": 1}]


@pytest.mark.compiles
def test_one_constant_index_is_a_slice() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 2, 0]),
        helper.make_node("Gather", ["t", "last"], ["g"], axis=1),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    last = numpy_helper.from_array(np.array(-1), "last")
    model = make_model(nodes, {}, {"x": (4, 3, 2)}, {"y": (3, 4)}, extra=[last])
    graph = load_graph(model)
    assert [task.weight for task in graph.tasks] == [1] and "take" not in graph.tasks[0].name
    x = np.random.default_rng(0).standard_normal((4, 3, 2)).astype(np.float32)
    assert np.array_equal(build(graph, {}, Cpu.detect()).run({"x": x})["y"], np.maximum(x[:, :, -1].T, 0))


@pytest.mark.compiles
def test_index_out_of_bounds_stays_inside(capfd: pytest.CaptureFixture[str]) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows = numpy_helper.from_array(table, "table")
    gather = helper.make_node("Gather", ["table", "x"], ["y"])
    model = make_model([gather], {}, {"x": (4,)}, {"y": (4, 3)}, extra=[rows])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    outputs = build(load_graph(model), {}, Cpu.detect()).run({"x": np.array([1, -1, 1 << 40, 3])})
    assert np.array_equal(outputs["y"], table[[1, 3, 3, 3]])
    assert capfd.readouterr().err == ""


@pytest.mark.compiles
def test_a_move_with_several_readers_is_fused_into_each() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Transpose", ["m"], ["t"], perm=[1, 0]),
        helper.make_node("Gather", ["t", "first"], ["a"], axis=0),
        helper.make_node("Gather", ["t", "second"], ["b"], axis=0),
        helper.make_node("Concat", ["a", "b"], ["y"], axis=0),
    ]
    indices = [numpy_helper.from_array(np.array(value), name) for value, name in ((0, "first"), (5, "second"))]
    model = make_model(nodes, {"w": (3, 8)}, {"x": (4, 3)}, {"y": (8,)}, extra=indices)
    graph = load_graph(seed_weights(model, seed=0))
    assert not any("transpose" in task.name and "slice" not in task.name for task in graph.tasks)
    assert verify(build(graph, {}, Cpu.detect()), graph.source).max_error < 1e-5


@pytest.mark.compiles
@pytest.mark.parametrize("exponent", [0.25, 0.5, 0.75, 1.0, 1.25, 2.0, 2.75, 3.0, -1.0, 0.3, 4.0])
def test_powers_of_quarters_are_products_and_roots(exponent: float) -> None:
    extra = [numpy_helper.from_array(np.array(exponent, np.float32), "e")]
    graph = load_graph(
        make_model([helper.make_node("Pow", ["x", "e"], ["y"])], {}, {"x": (9,)}, {"y": (9,)}, extra=extra)
    )
    assert ("pow" in str(graph.mod)) is (exponent in (-1.0, 0.3, 4.0))
    x = np.array([0.0, 1e-30, 1e-3, 0.5, 1.0, 2.0, 1e3, np.inf, np.nan], np.float32)
    y = build(graph, {}, Cpu.detect()).run({"x": x})["y"]
    with np.errstate(divide="ignore", over="ignore"):
        np.testing.assert_allclose(y, x ** np.float32(exponent), rtol=1e-6)


def test_a_model_without_images_is_not_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM's pass takes the square of the number of bindings, of which unrolled loops have thousands."""
    laid_out: list[Any] = []
    real = relax.transform.ConvertLayout
    monkeypatch.setattr(relax.transform, "ConvertLayout", lambda layouts: laid_out.append(layouts) or real(layouts))
    load_graph(seed_weights(attention_model()))
    assert not laid_out
    load_graph(seed_weights(residual_model()))
    assert laid_out


@pytest.mark.parametrize("kind", ["BFLOAT16", "INT4", "UINT4"])
def test_an_output_of_a_type_that_no_array_has_is_refused(kind: str) -> None:
    dtype = getattr(TensorProto, kind)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=dtype)],
        "narrow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 4))],
        [helper.make_tensor_value_info("y", dtype, (2, 4))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(ModelError, match=f"output 'y' is {kind.lower()}, which is not supported; outputs are float32"):
        load_graph(model)
