"""Layers of bytes whose zero points data decide: exact products of bytes, less what the zero points are worth."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import stormdrop as sd
from stormdrop.ir.contractions.factors import factors_of
from stormdrop.ir.workload import Workload
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph

Array = NDArray[Any]

RNG = np.random.default_rng(0)
IMAGE, ROWS = (1, 8, 7, 6), (2, 5, 12)


def random(dtype: str, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    values: Array = RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return values


CONVOLUTIONS: dict[str, tuple[Array, Any, dict[str, Any]]] = {
    "padded": (random("int8", 16, 8, 3, 3), None, {"pads": [1, 0, 1, 2]}),
    "unsigned": (random("uint8", 16, 8, 3, 3), np.uint8(3), {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    "per_channel": (random("int8", 6, 8, 1, 1), random("int8", 6), {}),
    "groups": (random("uint8", 8, 4, 3, 3), random("uint8", 8), {"group": 2, "dilations": [1, 2]}),
    "depthwise": (random("uint8", 8, 1, 3, 3), np.uint8(200), {"group": 8, "pads": [1, 1, 1, 1]}),
}
PRODUCTS: dict[str, tuple[Array, Any]] = {
    "signed": (random("int8", 12, 10), None),
    "shifted": (random("uint8", 12, 10), np.uint8(120)),
    "far": (random("uint8", 12, 10), np.uint8(2)),
    "per_column": (random("int8", 12, 10), random("int8", 10)),
}


def layers() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of all layers, whose data and their zero points are inputs; and the weights by output."""
    nodes, constants, outputs = [], [], []
    for operator, data, cases in (
        ("ConvInteger", "image", CONVOLUTIONS),
        ("MatMulInteger", "rows", {name: (*case, {}) for name, case in PRODUCTS.items()}),
    ):
        for name, (weights, point, attributes) in cases.items():
            constants.append(numpy_helper.from_array(weights, f"{name}_w"))
            inputs = [data, f"{name}_w", f"{data}_zero"]
            if point is not None:
                constants.append(numpy_helper.from_array(np.asarray(point), f"{name}_z"))
                inputs.append(f"{name}_z")
            nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
            outputs.append(helper.make_tensor_value_info(name, TensorProto.INT32, None))
    nodes.append(helper.make_node("MatMulInteger", ["rows", "others", "rows_zero", "others_zero"], ["both"]))
    outputs.append(helper.make_tensor_value_info("both", TensorProto.INT32, None))
    shapes = {"image": IMAGE, "image_zero": (), "rows": ROWS, "rows_zero": (), "others": (2, 12, 9), "others_zero": ()}
    inputs = [helper.make_tensor_value_info(name, TensorProto.UINT8, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "layers", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return model, {name: random("uint8", *shape) for name, shape in shapes.items()}


def convolved(x: Array, w: Array, attributes: dict[str, Any]) -> Array:
    """A convolution of integers, by its definition."""
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    dilations, groups = attributes.get("dilations", [1, 1]), attributes.get("group", 1)
    x = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    of_group, many = x.shape[1] // groups, w.shape[0] // groups
    reach = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, w.shape[2:], strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    parts = [
        np.einsum("nchwij,ocij->nohw", windows[:, of_group * g : of_group * (g + 1)], w[many * g : many * (g + 1)])
        for g in range(groups)
    ]
    return np.concatenate(parts, 1)


def wide(values: Any, axis: int = 0, rank: int = 0) -> Array:
    """Integers that do not overflow; zero points per channel as an array that broadcasts."""
    numbers = np.asarray(0 if values is None else values, np.int64)
    return numbers.reshape([-1 if place == axis else 1 for place in range(rank)]) if numbers.ndim == 1 else numbers


def expected(feeds: dict[str, Array]) -> dict[str, Array]:
    image, rows, others = (wide(feeds[name]) - wide(feeds[f"{name}_zero"]) for name in ("image", "rows", "others"))
    right = {
        name: convolved(image, wide(w) - wide(point, 0, 4), attributes)
        for name, (w, point, attributes) in CONVOLUTIONS.items()
    }
    right |= {name: rows @ (wide(w) - wide(point, 1, 2)) for name, (w, point) in PRODUCTS.items()}
    return {**right, "both": rows @ others}


@pytest.fixture(scope="module")
def imported() -> tuple[Graph, dict[str, Array]]:
    model, feeds = layers()
    return load_graph(model), feeds


def test_every_layer_multiplies_bytes(imported: tuple[Graph, dict[str, Array]]) -> None:
    graph, _ = imported
    assert not graph.foreign.reports
    widened = []
    for task in graph.tasks:
        for stage in Workload.create(task.name, task.function, task.constants).graph.stages:
            factors = factors_of(stage) if stage.combine == "sum" else None
            if factors is not None:
                widened.append(all(factor.widened for factor in factors))
    of_groups = sum("group" in attributes for _, _, attributes in CONVOLUTIONS.values())  # sums of their windows
    assert sum(widened) == len(CONVOLUTIONS) + len(PRODUCTS) + len(["both"]) + of_groups


@pytest.mark.compiles
def test_the_sums_are_exact(imported: tuple[Graph, dict[str, Array]]) -> None:
    from stormdrop.machine.cpu import Cpu
    from stormdrop.model.building.compile import build

    graph, feeds = imported
    model = build(graph, {}, Cpu.detect())
    for zero in (0, 3, 128, 255):
        points = {name: np.array(zero, np.uint8) for name in feeds if name.endswith("_zero")}
        ours = model.run({**feeds, **points})
        for name, right in expected({**feeds, **points}).items():
            np.testing.assert_array_equal(ours[name], right, name)


@pytest.mark.compiles
def test_numbers_are_rounded_to_bytes_as_onnxruntime_rounds_them() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"])
    kinds = {"q": TensorProto.UINT8, "scale": TensorProto.FLOAT, "zero": TensorProto.UINT8}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 40))
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    graph = helper.make_graph([node], "rounded", [x], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session, ours = onnxruntime.InferenceSession(model.SerializeToString()), sd.compile_model(model)
    rng = np.random.default_rng(1)
    for low, high in ((-1, 1), (0.5, 3), (-4, -1), (-1e-30, 1e-30), (0, 0)):
        values = rng.uniform(low, high, (3, 40)).astype("float32")
        for mine, theirs in zip(ours(values), session.run(None, {"x": values}), strict=True):
            np.testing.assert_array_equal(mine, theirs)
