"""Models of float16 and bfloat16, which are computed in float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from stormdrop.machine.cpu import Cpu
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.onnx.rewrites.halves import compute_in_float32, has_halves
from stormdrop.model.untuned import compile_model_with
from stormdrop.tuning.options import TuneOptions

RNG = np.random.default_rng(0)
CONVOLUTION = """
    <ir_version: 9, opset_import: ["": 20]>
    layers (float16[1, 8, 6, 6] x, float[4] shift) => (float16[1, 4, 6, 6] y, float16[1, 8, 6, 6] x)
    {
        summed = Conv<pads = [1, 1, 1, 1]>(x, weight)
        y0 = Cast<to = 10>(shift)
        shape = Constant<value = int64[4] {1, 4, 1, 1}>()
        bias = Reshape(y0, shape)
        half = Constant<value = float16[1] {14336}>()
        shifted = Add(summed, bias)
        y = Mul(shifted, half)
    }
"""
BRANCHES = """
    <ir_version: 9, opset_import: ["": 20]>
    branches (float16[4] x, bool[1] which) => (float16[4] y)
    {
        scaled = Mul(x, factor)
        y = If<then_branch = taken () => (float16[4] a) { a = Add(scaled, x) },
               else_branch = other () => (float16[4] b) { b = Cast<to = 10>(scaled) }>(which)
    }
"""


def model_of(text: str, weights: Mapping[str, Any]) -> onnx.ModelProto:
    model = parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items())
    onnx.checker.check_model(model, full_check=True)
    return model


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    compute_in_float32(wide)
    onnx.checker.check_model(wide, full_check=True)
    return wide


def convolution() -> onnx.ModelProto:
    return model_of(CONVOLUTION, {"weight": RNG.normal(0, 0.1, (4, 8, 3, 3)).astype("float16")})


def outputs(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def test_only_the_interface_keeps_halves() -> None:
    model = convolution()
    wide = in_float32(model)
    assert has_halves(model) and has_halves(wide)
    assert [value.SerializeToString() for value in wide.graph.input] == [
        value.SerializeToString() for value in model.graph.input
    ]
    first, *between, last = wide.graph.node
    assert (first.op_type, list(first.input), last.op_type, list(last.output)) == ("Cast", ["x"], "Cast", ["y"])
    assert not has_halves(onnx.helper.make_model(onnx.helper.make_graph(between, "g", [], [], wide.graph.initializer)))
    graph = load_graph(model)
    assert [info.dtype for info in graph.inputs] == ["float16", "float32"]
    assert [info.dtype for info in graph.outputs] == ["float16", "float16"]


def test_it_computes_what_the_model_does() -> None:
    model = convolution()
    x, shift = RNG.normal(0, 1, (1, 8, 6, 6)).astype("float16"), RNG.normal(0, 1, 4).astype("float32")
    ours, theirs = (outputs(each, {"x": x, "shift": shift}) for each in (in_float32(model), model))
    assert ours[0].dtype == np.float16 and np.array_equal(ours[1], x)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=4e-3, atol=2e-3)


@pytest.mark.parametrize("which", [False, True])
def test_branches_read_the_wide_values(which: bool) -> None:
    model = model_of(BRANCHES, {"factor": np.array([2, 3, 4, 5], "float16")})
    feeds = {"x": np.array([1, 2, 3, 4], "float16"), "which": np.array([which])}
    np.testing.assert_array_equal(outputs(in_float32(model), feeds)[0], outputs(model, feeds)[0])


def test_the_body_of_a_loop_may_use_the_name_of_an_input() -> None:
    text = """
        <ir_version: 9, opset_import: ["": 20]>
        looped (float16[2] x, int64 n, bool go) => (float16[2] y)
        { y = Loop<body = step (int64 i, bool c, float16[2] x) => (bool d, float16[2] z)
              { d = Identity(c)  z = Add(x, one) }>(n, go, x) }
    """
    model = model_of(text, {"one": np.array([1, 1], "float16")})
    feeds = {"x": np.array([1, 2], "float16"), "n": np.array(3), "go": np.array(True)}
    assert outputs(in_float32(model), feeds)[0].tolist() == outputs(model, feeds)[0].tolist() == [4, 5]


def test_an_input_that_nothing_reads_stays_unread() -> None:
    text = """
        <ir_version: 9, opset_import: ["": 20]>
        unused (float16[2] x, float16[n] other) => (float16[2] y) { y = Relu(x) }
    """
    assert load_graph(model_of(text, {})).ignored == ("other",)


def test_what_an_operator_of_others_calls_a_precision_is_no_type() -> None:
    model = parser.parse_model("""
        <ir_version: 9, opset_import: ["": 20, "others": 1]>
        f (float16[2] x) => (float16[2] y) { y = others.Rounded<precision = 16>(x) }
    """)
    compute_in_float32(model)
    assert [node.attribute[0].i for node in model.graph.node if node.op_type == "Rounded"] == [16]


def test_weights_of_bfloat16_become_float32() -> None:
    text = """
        <ir_version: 9, opset_import: ["": 20]>
        stored (float[2] x) => (float[2] y) { wide = Cast<to = 1>(weight)  y = Mul(x, wide) }
    """
    ml_dtypes = pytest.importorskip("ml_dtypes")
    model = in_float32(model_of(text, {"weight": np.array([1.5, 3], ml_dtypes.bfloat16)}))
    (weight,) = model.graph.initializer
    assert not has_halves(model) and numpy_helper.to_array(weight).tolist() == [1.5, 3.0]
    assert numpy_helper.to_array(weight).dtype == np.float32


def test_a_new_name_is_no_other_value() -> None:
    text = """
        <ir_version: 9, opset_import: ["": 20]>
        names (float16[2] x, float[2] x_float32) => (float16[2] y)
        { other = Cast<to = 10>(x_float32)  y = Add(x, other) }
    """
    feeds = {"x": np.array([1, 2], "float16"), "x_float32": np.array([10, 20], "float32")}
    assert outputs(in_float32(model_of(text, {})), feeds)[0].tolist() == [11, 22]


def test_a_model_without_halves_stays_as_it_is() -> None:
    model = model_of('<ir_version: 9, opset_import: ["": 20]> f (float[2] x) => (float[2] y) { y = Relu(x) }', {})
    assert in_float32(model) == model and not has_halves(model)


@pytest.mark.compiles
def test_a_compiled_model_takes_and_gives_halves() -> None:
    model = convolution()
    result = compile_model_with(model, Cpu.detect(), TuneOptions(fresh=True))
    assert result.verified.fault is None
    feeds = {
        "x": RNG.normal(0, 1, (1, 8, 6, 6)).astype("float16"),
        "shift": RNG.normal(0, 1, 4).astype("float32"),
    }
    y, x = (result.model.run(feeds)[name] for name in ("y", "x"))
    assert y.dtype == np.float16 and np.array_equal(x, feeds["x"])
    np.testing.assert_allclose(y, outputs(in_float32(model), feeds)[0], rtol=2e-3, atol=1e-3)
