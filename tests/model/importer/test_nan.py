"""A NaN passes through maxima and minima wherever it stands, as in NumPy and torch; so do rows of the least number."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph

pytestmark = pytest.mark.compiles

Array = np.ndarray[Any, Any]


def outputs(
    nodes: list[onnx.NodeProto], feeds: dict[str, Array], names: list[str], constants: dict[str, Array] | None = None
) -> dict[str, Array]:
    """What the compiled model of a few nodes computes; all of its outputs are open."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "nan", inputs, [onnx.ValueInfoProto(name=name) for name in names], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    imported = load_graph(model)
    assert not imported.foreign.reports
    return build(imported, {}, Cpu.detect()).run(feeds)


def one_nan_a_row(length: int) -> Array:
    """Rows of normal numbers, in each of which another element is NaN; the last row has none."""
    rows = np.random.default_rng(0).standard_normal((length + 1, length)).astype(np.float32)
    rows[np.arange(length), np.arange(length)] = np.nan
    return rows


def test_reductions_of_a_row() -> None:
    x = one_nan_a_row(19)
    names = {"ReduceMax": "max", "ReduceMin": "min", "ArgMax": "argmax", "ArgMin": "argmin"}
    nodes = [
        helper.make_node(operator, ["x"], [name], keepdims=0, **({"axis": 1} if "Arg" in operator else {"axes": [1]}))
        for operator, name in names.items()
    ]
    nodes.append(helper.make_node("Softmax", ["x"], ["softmax"], axis=1))
    ours = outputs(nodes, {"x": x}, [*names.values(), "softmax"])
    for name in names.values():
        assert np.array_equal(ours[name], getattr(np, name)(x, axis=1), equal_nan=name in ("max", "min")), name
    assert np.isnan(ours["softmax"][:-1]).all() and np.isfinite(ours["softmax"][-1]).all()


def test_reductions_over_the_other_axis() -> None:
    x = one_nan_a_row(19).T.copy()
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["max"], keepdims=0, axes=[0]),
        helper.make_node("ArgMin", ["x"], ["argmin"], keepdims=0, axis=0),
    ]
    ours = outputs(nodes, {"x": x}, ["max", "argmin"])
    assert np.array_equal(ours["max"], x.max(axis=0), equal_nan=True)
    assert np.array_equal(ours["argmin"], x.argmin(axis=0))


def test_a_window() -> None:
    """One image for each position of a NaN; every window that holds it is NaN, and no other."""
    height, width = 5, 6
    x = np.random.default_rng(0).standard_normal((height * width, 1, height, width)).astype(np.float32)
    for position, image in enumerate(x):
        image.reshape(-1)[position] = np.nan
    nodes = [
        helper.make_node("MaxPool", ["x"], ["pooled"], kernel_shape=[3, 2], pads=[1, 0, 1, 0], strides=[1, 2]),
        helper.make_node("MaxPool", ["x"], ["same", "places"], kernel_shape=[3, 2], pads=[1, 0, 1, 0], strides=[1, 2]),
        helper.make_node("GlobalMaxPool", ["x"], ["whole"]),
    ]
    ours = outputs(nodes, {"x": x}, ["pooled", "same", "places", "whole"])
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), axis=(2, 3))[:, :, :, ::2]
    right = windows.max(axis=(-2, -1))
    assert np.isnan(right).any() and np.isfinite(right).any()
    assert np.array_equal(ours["pooled"], right, equal_nan=True)
    assert np.array_equal(ours["same"], right, equal_nan=True)
    assert np.array_equal(x.reshape(-1)[ours["places"]], right, equal_nan=True)
    assert np.isnan(ours["whole"]).all()


def test_each_element() -> None:
    a = np.array([np.nan, 1, np.nan, 2, -1, 3], np.float32)
    b = np.array([1, np.nan, np.nan, 1, -2, 4], np.float32)
    constants = {"low": np.float32(-0.5), "high": np.float32(2.5)}
    nodes = [
        helper.make_node("Max", ["a", "b"], ["max"]),
        helper.make_node("Min", ["a", "b"], ["min"]),
        helper.make_node("Relu", ["a"], ["relu"]),
        helper.make_node("Clip", ["a", "low", "high"], ["clip"]),
    ]
    ours = outputs(nodes, {"a": a, "b": b}, ["max", "min", "relu", "clip"], constants)
    right = {
        "max": np.maximum(a, b),
        "min": np.minimum(a, b),
        "relu": np.maximum(a, 0),
        "clip": np.clip(a, -0.5, 2.5),
    }
    for name, value in right.items():
        assert np.array_equal(ours[name], value, equal_nan=True), name


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64", "float32"])
@pytest.mark.parametrize("last", [0, 1])
def test_rows_of_the_least_number(dtype: str, last: int) -> None:
    """The first place, or the last one; not the -1 with which a search may begin."""
    numbers = np.iinfo(dtype) if dtype != "float32" else np.finfo(dtype)
    least, most = (-np.inf, np.inf) if dtype == "float32" else (numbers.min, numbers.max)
    rows = np.array([[least] * 3, [least, 1, 1], [most] * 3, [most, most, 1], [1, 1, 2]], dtype)
    nodes = [
        helper.make_node(operator, ["x"], [operator], axis=1, keepdims=0, select_last_index=last)
        for operator in ("ArgMax", "ArgMin")
    ]
    ours = outputs(nodes, {"x": rows}, ["ArgMax", "ArgMin"])
    right = {"ArgMax": [0, 1, 0, 0, 2], "ArgMin": [0, 0, 0, 2, 0]}
    right_of_last = {"ArgMax": [2, 2, 2, 1, 2], "ArgMin": [2, 0, 2, 2, 1]}
    assert {name: value.tolist() for name, value in ours.items()} == (right_of_last if last else right)
