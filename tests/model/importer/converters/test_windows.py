"""Where the windows of convolutions and pools stand: auto_pad, ceil_mode, dilations, images smaller than the window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from stormdrop.errors import ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.verification.exact import ExactModel

onnxruntime = pytest.importorskip("onnxruntime", reason="it says where windows stand")

MODES = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
HEIGHT, WIDTH = 20, 9


def pools(operator: str) -> Iterator[dict[str, Any]]:
    for mode, up, (size, stride) in itertools.product(MODES, (0, 1), ((4, 3), (2, 3), (5, 1))):
        attributes: dict[str, Any] = {"kernel_shape": [size, 3], "strides": [stride, 2], "auto_pad": mode}
        if mode == "NOTSET":
            attributes |= {"pads": [size // 2, 0, 1, 1], "dilations": [1, 2]}
        if up:
            attributes["ceil_mode"] = 1
        yield attributes
        if operator == "AveragePool":
            yield {**attributes, "count_include_pad": 1}
    for up, pads in itertools.product((0, 1), ([0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 3, 3])):
        yield {"kernel_shape": [3, 4], "strides": [2, 3], "pads": pads, "ceil_mode": up}


def convolutions(operator: str) -> Iterator[dict[str, Any]]:
    for mode, stride, dilation in itertools.product(MODES, (1, 2, 3), (1, 2)):
        if operator == "Conv" and dilation > 1 and mode.startswith("SAME"):
            continue  # onnxruntime does not take it
        yield {"strides": [stride, 2], "dilations": [dilation, 1], "auto_pad": mode}


def model_of(operator: str, cases: list[dict[str, Any]], opset: int, height: int, width: int) -> onnx.ModelProto:
    """One network with a node for each case: compiling many small ones would take longer."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-3, 4, (2, 2, 4, 3)).astype(np.float32)
    inputs = ["x", "w"] if "Conv" in operator else ["x"]
    nodes = [helper.make_node(operator, inputs, [f"y{i}"], f"case {i}", **case) for i, case in enumerate(cases)]
    graph = helper.make_graph(
        nodes,
        "windows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, height, width))],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(len(cases))],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def runs(operator: str, case: dict[str, Any], opset: int, height: int, width: int) -> bool:
    """Whether onnxruntime takes a node, as it does not with SAME and strides beyond the window, and knows its shape."""
    try:
        session = session_of(model_of(operator, [case], opset, height, width))
        (value,) = session.run(None, {"x": np.zeros((1, 2, height, width), np.float32)})
    except Exception:  # noqa: BLE001  onnxruntime's exceptions have no base class of their own
        return False
    return list(value.shape) == session.get_outputs()[0].shape


def session_of(model: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.long
@pytest.mark.parametrize("opset", [7, 11, 22])
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool", "Conv", "ConvTranspose"])
def test_windows_stand_where_onnxruntime_has_them(operator: str, opset: int) -> None:
    rng = np.random.default_rng(1)
    counts = []
    for height, width in ((HEIGHT, WIDTH), (6, 3), (3, 2)):
        every = list(convolutions(operator) if "Conv" in operator else pools(operator))
        cases = [case for case in every if runs(operator, case, opset, height, width)]
        counts.append(len(cases))
        if not cases:
            continue
        model = model_of(operator, cases, opset, height, width)
        x = rng.integers(-9, 10, (1, 2, height, width)).astype(np.float32)
        graph = load_graph(model)
        ours, _ = ExactModel(graph).run({"x": x})
        for case, value, right in zip(cases, ours.values(), session_of(model).run(None, {"x": x}), strict=True):
            assert value.shape == right.shape, case
            np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-5, err_msg=str(case))
    assert counts[0] > 4


@pytest.mark.compiles
def test_a_window_that_runtimes_place_differently_is_refused(target: Cpu) -> None:
    """The standard makes 9 rows of 9 with SAME and dilations, as onnxruntime says before it makes 8 of them."""
    case = {"kernel_shape": [2, 2], "dilations": [2, 1], "auto_pad": "SAME_UPPER"}
    graph = load_graph(model_of("MaxPool", [case], 22, 9, 9))
    (part,) = graph.foreign.reports
    assert "auto_pad with dilations" in part.reason
    feeds = {"x": np.zeros((1, 2, 9, 9), np.float32)}
    for run in (ExactModel(graph).run, build(graph, {}, target).run):
        with pytest.raises(ModelError, match=r"part \(MaxPool\) makes 'y0' of shape \(1, 2, 8, 9\), which should be"):
            run(feeds)
