"""A sample of ONNX's own node tests, which must be right natively. `benchmarks/models/node_tests.py` runs all."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.runner import Runner

from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph

pytestmark = pytest.mark.compiles

# By the module of `onnx.backend.test.case.node`: the inputs that become constants, and the cases.
_SAMPLE: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "affinegrid": ((1,), ("affine_grid_2d",)),
    "attention": ((), ("attention_local_window", "attention_4d_gqa_with_past_and_present")),
    "batch_normalization": ((), ("batchnorm_example_training_mode",)),
    "bitcast": ((), ("bitcast_float32_to_int32",)),
    "bitshift": ((), ("bitshift_left_int32_shift_ge_width", "bitshift_left_int32_negative_shift")),
    "causal_conv_with_state": ((), ("causal_conv_with_state_with_past_state",)),
    "celu": ((), ("celu",)),
    "center_crop_pad": ((1,), ("center_crop_pad_crop_and_pad",)),
    "col2im": ((1, 2), ("col2im_pads", "col2im_5d")),
    "convtranspose": ((), ("convtranspose_output_shape",)),
    "cumprod": ((1,), ("cumprod_1d_reverse_exclusive",)),
    "dynamicquantizelinear": ((), ("dynamicquantizelinear", "dynamicquantizelinear_min_adjusted")),
    "eyelike": ((), ("eyelike_with_dtype",)),
    "gru": ((), ("gru_defaults", "gru_seq_length", "gru_bidirectional")),
    "isinf": ((), ("isinf_positive", "isinf_negative")),
    "layernormalization": ((), ("layer_normalization_3d_axis1_epsilon", "layer_normalization_default_axis")),
    "linear_attention": ((), ("linear_attention_gated",)),
    "loop": ((0, 1), ("loop11",)),
    "lpnormalization": ((), ("l1normalization_axis_last", "lpnormalization_default")),
    "lstm": ((), ("lstm_with_initial_bias", "lstm_with_peepholes", "lstm_reverse", "lstm_bidirectional")),
    "max": ((), ("max_example", "max_int8")),
    "maxpool": ((), ("maxpool_with_argmax_2d_precomputed_pads", "maxpool_with_argmax_2d_precomputed_strides")),
    "mean": ((), ("mean_example",)),
    "mod": ((), ("mod_float_edge_cases_fmod_0_float32", "mod_mixed_sign_float32", "mod_int64_fmod")),
    "negativeloglikelihoodloss": ((), ("nllloss_NCd1d2_with_weight",)),
    "pow": ((), ("pow_types_float32_int64", "pow_types_int64_int64")),
    "qlinearconv": ((), ("qlinearconv",)),
    "qlinearmatmul": ((), ("qlinearmatmul_3D_int8_float32",)),
    "quantizelinear": ((), ("quantizelinear", "quantizelinear_axis")),
    "reducemax": ((1,), ("reduce_max_bool_inputs", "reduce_max_keepdims_random")),
    "resize": (
        (1, 2, 3),
        (
            "resize_upsample_scales_nearest",
            "resize_downsample_scales_linear_antialias",
            "resize_upsample_scales_cubic_A_n0p5_exclude_outside",
            "resize_tf_crop_and_resize_extrapolation_value",
            "resize_upsample_sizes_nearest_ceil_half_pixel",
        ),
    ),
    "reversesequence": ((), ("reversesequence_time", "reversesequence_batch")),
    "rmsnormalization": ((), ("rms_normalization_3d_axis1_epsilon",)),
    "rnn": ((), ("simple_rnn_with_initial_bias", "rnn_seq_length", "simple_rnn_reverse")),
    "rotaryembedding": ((), ("rotary_embedding_interleaved",)),
    "scan": ((), ("scan9_sum",)),
    "scatterelements": ((), ("scatter_elements_with_negative_indices", "scatter_elements_with_reduction_max")),
    "softmax_cross_entropy_loss": ((), ("sce_mean_weight_ii_3d",)),
    "spacetodepth": ((), ("spacetodepth_crd_mode_example", "spacetodepth_example")),
    "squeeze": ((1,), ("squeeze_negative_axes",)),
    "swish": ((), ("swish",)),
    "tensorscatter": ((), ("tensorscatter_circular",)),
    "thresholdedrelu": ((), ("thresholdedrelu",)),
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, (_, names) in _SAMPLE.items() for name in names]
)
def test_node(module: str, name: str) -> None:
    case = _cases(module)[name]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    feeds = {value.name: _array(array) for value, array in zip(model.graph.input, case.data_sets[0][0], strict=True)}
    constants = {
        model.graph.node[0].input[place] for place in _SAMPLE[module][0] if place < len(model.graph.node[0].input)
    }
    for key in sorted(constants - {""}):
        model.graph.initializer.append(numpy_helper.from_array(feeds.pop(key), key))
    kept = [value for value in model.graph.input if value.name in feeds]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    expected = [_array(array) for array in case.data_sets[0][1]]
    outputs = _run(model, feeds)
    Runner.assert_similar_outputs(expected, outputs, rtol=case.rtol, atol=case.atol)


def test_an_attention_is_native_and_ignores_masked_rows() -> None:
    names = ["q", "k", "v", "mask"]
    node = helper.make_node("Attention", names, ["y"])
    shape = (1, 2, 3, 8)
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names[:3]]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, (3, 3)))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    model = helper.make_model(
        helper.make_graph([node], "attention", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 23)],
        ir_version=10,
    )
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name in names[:3]}
    mask = np.tril(np.ones((3, 3), bool))
    mask[1] = False
    (y,) = _run(model, {**feeds, "mask": mask})
    scores = feeds["q"] @ feeds["k"].transpose(0, 1, 3, 2) / np.sqrt(8) + np.where(mask, 0, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = np.nan_to_num(weights / weights.sum(-1, keepdims=True))
    np.testing.assert_allclose(y, weights @ feeds["v"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_a_division_of_integers_by_zero_does_not_end_the_process(operator: str) -> None:
    smallest = np.iinfo(np.int32).min
    feeds = {"a": np.array([7, -7, 5, smallest], np.int32), "b": np.array([2, 2, 0, -1], np.int32)}
    (y,) = _run(_binary(operator, TensorProto.INT32, 4), feeds)
    expected = [3, -3, 0, smallest] if operator == "Div" else [1, 1, 0, 0]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("operator", ["Equal", "Xor", "And", "Or"])
def test_booleans_are_compared(operator: str) -> None:
    values = {"a": np.array([True, True, False, False]), "b": np.array([True, False, True, False])}
    (y,) = _run(_binary(operator, TensorProto.BOOL, 4), values)
    expected = {"Equal": np.equal, "Xor": np.logical_xor, "And": np.logical_and, "Or": np.logical_or}[operator]
    np.testing.assert_array_equal(y, expected(values["a"], values["b"]))


@pytest.mark.parametrize("operator", ["Celu", "Elu", "Selu", "ThresholdedRelu", "Softplus", "Mish", "LeakyRelu"])
def test_activations_take_float64(operator: str) -> None:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node(operator, ["x"], ["y"])],
            "activation",
            [helper.make_tensor_value_info("x", TensorProto.DOUBLE, (5,))],
            [helper.make_tensor_value_info("y", TensorProto.DOUBLE, (5,))],
        ),
        opset_imports=[helper.make_opsetid("", 22)],
        ir_version=10,
    )
    x = np.array([-3.0, -0.5, 0.0, 0.5, 30.0])
    expected = {
        "Celu": np.where(x > 0, x, np.expm1(x)),
        "Elu": np.where(x > 0, x, np.expm1(x)),
        "Selu": 1.05070102214813232421875 * np.where(x > 0, x, 1.67326319217681884765625 * np.expm1(x)),
        "ThresholdedRelu": np.where(x > 1, x, 0),
        "Softplus": np.logaddexp(0, x),
        "Mish": x * np.tanh(np.logaddexp(0, x)),
        "LeakyRelu": np.where(x > 0, x, 0.01 * x),
    }[operator]
    (y,) = _run(model, {"x": x})
    np.testing.assert_allclose(y, expected, rtol=1e-7)


def test_the_largest_of_infinities_is_infinite() -> None:
    node = helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=0)
    model = helper.make_model(
        helper.make_graph(
            [node],
            "largest",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2,))],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    x = np.array([[-np.inf, -np.inf, -np.inf], [1, 3, 2]], np.float32)
    np.testing.assert_array_equal(_run(model, {"x": x})[0], [-np.inf, 3])


def test_a_mean_beside_a_small_deviation_costs_no_digits() -> None:
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[1])
    kind = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 40)) for name in "xy"]
    graph = helper.make_graph([node], "normalization", kind[:1], kind[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    x = (1000 + np.random.default_rng(0).standard_normal((2, 40))).astype(np.float32)
    centred = x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True))
    np.testing.assert_allclose(_run(model, {"x": x})[0], expected, atol=2e-4)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_what_the_importer_would_get_wrong_is_not_taken(mode: str) -> None:
    pytest.importorskip("onnxruntime", reason="it runs what is not taken")
    kinds = {"x": (1, 2, 8, 8), "r": (1, 4), "y": (1, 2, 1, 1)}
    x, regions, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, kinds[name]) for name in kinds)
    node = helper.make_node("RoiAlign", ["x", "r", "b"], ["y"], mode=mode)
    batch = numpy_helper.from_array(np.zeros(1, np.int64), "b")
    graph = helper.make_graph([node], "regions", [x, regions], [y], [batch])
    reports = load_graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)).foreign
    assert ["mode max" in report.reason for report in reports.reports] == ([True] if mode == "max" else [])


@functools.cache
def _cases(module: str) -> dict[str, Any]:
    """The cases that a module of onnx exports when it is imported, by name."""
    from onnx.backend.test.case.node import _NodeTestCases

    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    return {case.name.removeprefix("test_"): case for case in _NodeTestCases}


def _run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """The outputs of a model that is compiled with plain schedules."""
    graph = load_graph(model)
    assert [part.reason for part in graph.foreign.reports] == []
    outputs = build(graph, {}, Cpu.detect()).run({info.name: feeds[info.name] for info in graph.inputs})
    return [outputs[info.name] for info in graph.outputs]


def _binary(operator: str, kind: int, count: int) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(name, kind, (count,)) for name in "ab"]
    graph = helper.make_graph(
        [helper.make_node(operator, ["a", "b"], ["y"])],
        "binary",
        inputs,
        [helper.make_tensor_value_info("y", kind, (count,))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
