"""QAttention, DynamicQuantizeMatMul and MatMulIntegerToFloat, of onnxruntime's own: the same, by kernels of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.graph.onnx_origin import OnnxOrigin
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.onnx.index_ranges import index_ranges
from stormdrop.model.onnx.rewrites.qdq import rounds_to_bytes

pytestmark = pytest.mark.compiles

_DOMAIN = "com.microsoft"
_BATCH, _LENGTH, _INPUTS, _HEADS, _SIZE, _PAST = 2, 3, 10, 2, 4, 2
_HIDDEN = _HEADS * _SIZE

FORMS = [("uint8", False), ("uint8", True), ("int8", False), ("int8", True)]

Array = NDArray[Any]


def model_of(
    operator: str, inputs: dict[str, Array], constants: dict[str, Array], order: str, outputs: str = "y", **given: Any
) -> onnx.ModelProto:
    """A model of one node. `order` names its inputs; "-" stands for one that is left out."""
    names = ["" if name == "-" else name for name in order.split()]
    node = helper.make_node(operator, names, outputs.split(), domain=_DOMAIN, **given)
    graph = helper.make_graph(
        [node],
        "bytes",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in inputs.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def weights(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, per_column: bool) -> dict[str, Array]:
    """Codes, their scales and their zero points."""
    info, columns = np.iinfo(dtype), shape[-1:] if per_column else ()
    middle = (info.min + info.max + 1) // 2
    return {
        "w": rng.integers(info.min, info.max, shape, dtype, endpoint=True),
        "w_scale": rng.uniform(5e-3, 1e-2, columns).astype("float32"),
        "w_zero": np.asarray(middle + rng.integers(-9, 9, columns), dtype),
    }


def attention(
    mask: Array | None = None, past: bool = False, dtype: str = "uint8", per_column: bool = False, **given: Any
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one QAttention, and its inputs."""
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {"x": rng.integers(0, 255, (_BATCH, _LENGTH, _INPUTS), "uint8", endpoint=True)}
    if mask is not None:
        feeds["mask"] = mask.astype("int32")
    if past:
        feeds["past"] = rng.standard_normal((2, _BATCH, _HEADS, _PAST, _SIZE)).astype("float32")
    constants = {
        **weights(rng, (_INPUTS, 3 * _HIDDEN), dtype, per_column),
        "bias": rng.normal(0, 0.3, 3 * _HIDDEN).astype("float32"),
        "x_scale": np.array([0.02], np.float32),
        "x_zero": np.uint8(120),
    }
    order = f"x w bias x_scale w_scale {'-' if mask is None else 'mask'} x_zero w_zero {'past' if past else ''}"
    outputs = "y present" if past else "y"
    return model_of("QAttention", feeds, constants, order, outputs, num_heads=_HEADS, **given), feeds


def expect_same(model: onnx.ModelProto, feeds: dict[str, Array], bound: float = 2e-6) -> None:
    """Expects what onnxruntime computes, without its help."""
    graph = load_graph(model)
    assert not graph.foreign.reports
    names = [output.name for output in model.graph.output]
    expected = OnnxOrigin(model).outputs([feeds], names)[0][0]
    got = build(graph, {}, Cpu.detect())(**feeds)
    for name, value in zip(names, got if isinstance(got, tuple) else (got,), strict=True):
        assert value.shape == expected[name].shape
        assert np.abs(value - expected[name]).max() <= bound * np.abs(expected[name]).max(), name


def foreign_operators(graph: Graph) -> list[Any]:
    return [part.operators for part in graph.foreign.reports]


_KEYS = _LENGTH + _PAST
MASKS = {
    "ends": np.array([2, 4]),
    "ends-and-starts": np.array([3, 5, 1, 0]),
    "keys": np.array([[1, 0, 1, 1, 0], [0, -1, 0, 2, 1]]),
    "queries": np.random.default_rng(1).integers(0, 2, (_BATCH, _LENGTH, _KEYS)) | np.eye(_LENGTH, _KEYS, dtype=int),
    "one-of-each": np.zeros((_BATCH, 1)),
    "one": np.zeros((1, 1)),
    "none": None,
}


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_masks_what_onnxruntime_masks(mask: str, unidirectional: int) -> None:
    expect_same(*attention(MASKS[mask], past=True, unidirectional=unidirectional))


@pytest.mark.parametrize(("dtype", "per_column"), FORMS)
def test_attention_has_its_weights_in_every_form(dtype: str, per_column: bool) -> None:
    expect_same(*attention(dtype=dtype, per_column=per_column, unidirectional=1))


def test_attention_takes_its_attributes() -> None:
    keys = np.array([[1, 0, 1], [0, 0, 1]])
    expect_same(*attention(keys, scale=0.3, mask_filter_value=-1.0, unidirectional=1))


def test_a_row_that_is_masked_everywhere_has_the_softmax_of_its_scores() -> None:
    # To add -10000 costs the scores four digits.
    expect_same(*attention(np.zeros((_BATCH, _LENGTH))), bound=2e-4)


def test_onnxruntime_runs_what_is_not_taken() -> None:
    attributes: tuple[dict[str, Any], ...] = ({"do_rotary": 1}, {"past_present_share_buffer": 1})
    for unknown in attributes:
        model, _ = attention(**unknown)
        assert foreign_operators(load_graph(model)) == [{f"{_DOMAIN}.QAttention": 1}]


def test_samples_of_a_mask_are_lengths_of_sequences() -> None:
    lengths, keys = (attention(mask)[0] for mask in (np.ones(_BATCH), np.ones((_BATCH, _LENGTH))))
    assert index_ranges(lengths)["mask"] == (1, _LENGTH + 1)
    assert "mask" not in index_ranges(keys)  # 0 and 1, as other integers


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("bias", ["", "bias"])
@pytest.mark.parametrize(("dtype", "per_column"), FORMS)
def test_products_of_bytes_are_scaled(dtype: str, per_column: bool, bias: str, rank: int) -> None:
    rng = np.random.default_rng(0)
    rows = (2, 7, 12)[3 - rank :]
    codes = {"x": rng.integers(0, 255, rows, "uint8", endpoint=True)}
    reals = {"x": rng.standard_normal(rows).astype("float32")}
    constants = {**weights(rng, (12, 5), dtype, per_column), "bias": rng.standard_normal(5).astype("float32")}
    constants = {name: value for name, value in constants.items() if name != "bias" or bias}
    scale = {"x_scale": np.float32(0.02), "x_zero": np.uint8(130)}
    order = f"x w x_scale w_scale x_zero w_zero {bias}"
    expect_same(model_of("MatMulIntegerToFloat", codes, constants | scale, order), codes)
    dynamic = model_of("DynamicQuantizeMatMul", reals, constants, f"x w w_scale w_zero {bias}")
    assert rounds_to_bytes(dynamic)
    expect_same(dynamic, reals)


def test_zero_points_may_be_left_out() -> None:
    rng = np.random.default_rng(0)
    x = {"x": rng.standard_normal((4, 12)).astype("float32")}
    constants = weights(rng, (12, 5), "int8", False)
    del constants["w_zero"]
    expect_same(model_of("DynamicQuantizeMatMul", x, constants, "x w w_scale"), x)


def test_a_dynamically_quantised_transformer_has_no_foreign_part() -> None:
    """As onnxruntime's tools write it: what QAttention reads is rounded by a DynamicQuantizeLinear."""
    model, feeds = attention()
    graph = model.graph
    graph.node.insert(0, helper.make_node("DynamicQuantizeLinear", ["real"], ["x", "x_scale", "x_zero"]))
    kept = [each for each in graph.initializer if each.name not in ("x_scale", "x_zero")]
    del graph.input[:], graph.initializer[:]
    graph.initializer.extend(kept)
    graph.input.append(helper.make_tensor_value_info("real", TensorProto.FLOAT, feeds["x"].shape))
    expect_same(model, {"real": np.random.default_rng(0).standard_normal(feeds["x"].shape).astype("float32")})
