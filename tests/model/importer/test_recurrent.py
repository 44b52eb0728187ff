"""LSTM, GRU and RNN: what onnxruntime computes, by one kernel a step in small layers, and by two in large ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.graph.tasks import kernel_calls
from stormdrop.model.importer.converters import recurrent as recurrent_operators
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.inputs.samples import random_feeds

pytestmark = pytest.mark.compiles

_LENGTH, _BATCH, _INPUTS, _HIDDEN = 4, 2, 6, 8
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(
    operator: str,
    *,
    direction: str = "forward",
    length: int = _LENGTH,
    optional: tuple[str, ...] = ("bias",),
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one recurrent node with seeded weights, and the optional inputs that are named."""
    rng = np.random.default_rng(0)
    gates, directions = _GATES[operator], 2 if direction == "bidirectional" else 1
    state = (directions, _BATCH, _HIDDEN)
    weights = {
        "w": rng.standard_normal((directions, gates * _HIDDEN, _INPUTS)) / 2,
        "r": rng.standard_normal((directions, gates * _HIDDEN, _HIDDEN)) / 2,
        "bias": rng.standard_normal((directions, 2 * gates * _HIDDEN)) / 2,
        "peepholes": rng.standard_normal((directions, 3 * _HIDDEN)) / 2,
    }
    constants = {name: value.astype(np.float32) for name, value in weights.items()}
    constants["lengths"] = np.array([length, length - 2], np.int32)
    positions = ["x", "w", "r", "bias", "lengths", "hidden", "cell", "peepholes"]
    given = [name if name in ("x", "w", "r", *optional) else "" for name in positions]
    while not given[-1]:
        given.pop()
    inputs = {"x": (length, _BATCH, _INPUTS), "hidden": state, "cell": state}
    outputs = {"y": (length, *state), "last": state, "last_cell": state}
    names = list(outputs)[: 3 if operator == "LSTM" else 2]
    node = helper.make_node(operator, given, names, hidden_size=_HIDDEN, direction=direction, **attributes)
    graph = helper.make_graph(
        [node],
        "recurrent",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, inputs[name]) for name in inputs if name in given],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, outputs[name]) for name in names],
        [numpy_helper.from_array(constants[name], name) for name in given if name in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def error(graph: Graph) -> float:
    """The largest difference from onnxruntime."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="it computes what is right")
    feeds = random_feeds(graph.inputs)
    assert isinstance(graph.source, onnx.ModelProto)
    session = onnxruntime.InferenceSession(graph.source.SerializeToString())
    names = [info.name for info in graph.outputs]
    right = dict(zip(names, session.run(names, feeds), strict=True))
    ours = build(graph, {}, Cpu.detect()).run(feeds)
    return max(float(np.abs(ours[name] - right[name]).max()) for name in names)


@pytest.mark.parametrize(
    ("operator", "direction", "optional", "attributes"),
    [
        ("LSTM", "bidirectional", ("bias", "hidden", "cell"), {}),
        ("LSTM", "reverse", ("bias", "lengths"), {}),
        ("LSTM", "forward", ("peepholes",), {"clip": 0.3, "input_forget": 1}),
        ("GRU", "bidirectional", ("bias", "hidden"), {"linear_before_reset": 1}),
        ("GRU", "reverse", ("bias",), {}),
        ("GRU", "forward", (), {"linear_before_reset": 1}),
        ("RNN", "bidirectional", ("bias",), {"activations": ["Relu", "Tanh"]}),
    ],
    ids=["lstm-both", "lstm-lengths", "lstm-peepholes", "gru-both", "gru-reverse", "gru-no-bias", "rnn-both"],
)
@pytest.mark.parametrize("small", [True, False], ids=["small", "large"])
def test_agrees_with_onnxruntime(
    operator: str,
    direction: str,
    optional: tuple[str, ...],
    attributes: dict[str, Any],
    small: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not small:
        monkeypatch.setattr(recurrent_operators, "SMALL", 0)
    graph = load_graph(recurrent(operator, direction=direction, optional=optional, **attributes))
    assert not graph.foreign.reports
    assert error(graph) < 1e-6


def kernels_of_steps(operator: str, **attributes: Any) -> list[str]:
    """The names of the kernels that a sequence of a model calls, step by step."""
    states = ("hidden", "cell") if operator == "LSTM" else ("hidden",)
    calls = kernel_calls(load_graph(recurrent(operator, optional=("bias", *states), **attributes)).mod)
    names = [call.args[0].name_hint for call in calls]
    assert len(set(names)) <= len(names) / _LENGTH + 5  # the first step may read its states in another shape
    return names


@pytest.mark.parametrize(
    ("operator", "attributes", "small", "large"),
    [
        ("LSTM", {}, 1, 2),
        ("GRU", {"linear_before_reset": 1}, 1, 2),
        ("GRU", {}, 3, 4),  # of which the first product is for itself in either case
        ("RNN", {}, 1, 1),  # what follows a product element by element is fused with it anyway
    ],
)
def test_the_kernels_of_a_step(
    operator: str, attributes: dict[str, int], small: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = 3  # the inputs' product, its parts, and the sequence
    assert len(kernels_of_steps(operator, **attributes)) <= small * _LENGTH + around
    monkeypatch.setattr(recurrent_operators, "SMALL", 0)
    assert small * _LENGTH < len(kernels_of_steps(operator, **attributes)) <= large * _LENGTH + around


def test_one_step_copies_nothing_but_its_outputs() -> None:
    graph = load_graph(recurrent("LSTM", length=1, optional=("bias", "hidden", "cell")))
    names = [call.args[0].name_hint for call in kernel_calls(graph.mod)]
    assert len([name for name in names if not name.startswith("reshape")]) == 2
    assert error(graph) < 1e-6


_QUANTISED = "com.microsoft"


def quantised(hidden: int = 16, per_column: bool = False, batch: int = 1, **attributes: Any) -> onnx.ModelProto:
    """A model of one DynamicQuantizeLSTM in both directions, whose weights have one scale or one per column."""
    rng, length, inputs = np.random.default_rng(0), 6, 12
    scale = (2, 4 * hidden) if per_column else (2,)
    dtype = "int8" if per_column else "uint8"
    limits, point = np.iinfo(dtype), np.zeros(scale, dtype) if per_column else np.array([120, 131], dtype)

    def weights(rows: int) -> Any:
        return rng.integers(limits.min, limits.max, (2, rows, 4 * hidden), dtype, endpoint=True)

    constants = {
        "w": weights(inputs),
        "r": weights(hidden),
        "bias": rng.normal(0, 0.3, (2, 8 * hidden)).astype("float32"),
        "w_scale": rng.uniform(1e-3, 3e-3, scale).astype("float32"),
        "w_zero": point,
        "r_scale": rng.uniform(1e-3, 3e-3, scale).astype("float32"),
        "r_zero": point,
    }
    given = ["x", "w", "r", "bias", "", "hidden", "cell", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        given,
        ["y", "last", "last_cell"],
        domain=_QUANTISED,
        hidden_size=hidden,
        direction="bidirectional",
        **attributes,
    )
    shapes = {"x": (length, batch, inputs), "hidden": (2, batch, hidden), "cell": (2, batch, hidden)}
    graph = helper.make_graph(
        [node],
        "quantised",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_QUANTISED, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("per_column", [False, True], ids=["one-scale", "scale-per-column"])
def test_a_quantised_lstm_rounds_where_onnxruntime_does(per_column: bool) -> None:
    graph = load_graph(quantised(per_column=per_column))
    assert not graph.foreign.reports
    assert error(graph) < 1e-6


def test_onnxruntime_runs_a_quantised_lstm_of_several_sequences() -> None:
    graph = load_graph(quantised(batch=2))
    assert [part.operators for part in graph.foreign.reports] == [{f"{_QUANTISED}.DynamicQuantizeLSTM": 1}]
