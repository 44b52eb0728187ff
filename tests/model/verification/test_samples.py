from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from stormdrop.model.artifact.metadata import Metadata
from stormdrop.model.inputs.samples import random_feeds, sample_feeds, samples
from stormdrop.model.onnx.index_ranges import index_ranges
from stormdrop.runtime.sizes import TensorInfo


def test_feeds_follow_the_seed_and_the_type() -> None:
    inputs = (TensorInfo("x", (2, 3), "float32"), TensorInfo("mask", (4,), "int64"))
    feeds, again, other = random_feeds(inputs, 1), random_feeds(inputs, 1), random_feeds(inputs, 2)
    assert feeds["x"].dtype == np.float32 and feeds["mask"].dtype == np.int64
    assert np.array_equal(feeds["x"], again["x"]) and not np.array_equal(feeds["x"], other["x"])


def test_samples_are_of_different_scales() -> None:
    inputs = (TensorInfo("x", (64, 64), "float32"), TensorInfo("ids", (256,), "int64"), TensorInfo("m", (9,), "bool"))
    given = [sample.feeds for sample in samples(inputs, {"ids": 50})]
    largest = [float(np.abs(feeds["x"]).max()) for feeds in given]
    assert 2 < largest[0] < 10 and 200 < largest[1] <= 255 and 500 < largest[2] <= 1000
    assert (given[1]["x"] >= 0).all() and 0 < np.abs(given[2]["x"]).min() < 1e-5
    assert all(feeds["ids"].min() == 0 and 40 < feeds["ids"].max() < 50 for feeds in given)
    assert all(feeds["m"].dtype == bool for feeds in given)


def test_a_saved_model_says_which_numbers_its_inputs_take() -> None:
    inputs = (TensorInfo("ids", (256,), "int64"), TensorInfo("mask", (256,), "int64"))
    about = Metadata("m", inputs, (), {}, "cpu", ())
    largest = {name: feed.max() for name, feed in sample_feeds(about).items()}
    assert largest == {"ids": 1, "mask": 1}
    known: tuple[tuple[Any, int], ...] = (
        ({"ids": 50}, 49),
        ({"ids": [0, 256, True]}, 255),
        ({"ids": [0, 256, "all"]}, 1),
        ({"ids": "fifty"}, 1),
        (7, 1),
    )
    for recorded, expected in known:
        feeds = sample_feeds(replace(about, provenance={"index_ranges": recorded}))
        assert (feeds["ids"].max(), feeds["mask"].max()) == (expected, 1)


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_divisors_are_not_zero(operator: str) -> None:
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT32, (64,)) for name in "ab"]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, (64,))
    graph = onnx.helper.make_graph([onnx.helper.make_node(operator, ["a", "b"], ["y"])], "division", inputs, [output])
    ranges = index_ranges(onnx.helper.make_model(graph))
    feeds = random_feeds([TensorInfo(name, (64,), "int32") for name in "ab"], 0, ranges)
    assert set(feeds["b"].tolist()) == {1, 2}


@pytest.mark.parametrize("way", ["Equal", "OneHot"])
def test_what_is_compared_with_each_position_is_an_index(way: str) -> None:
    names = {"numbers": np.arange(257, dtype=np.int32), "depth": np.array(257), "values": np.array([0, 1])}
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in names.items()]
    given = ["wide", "numbers"] if way == "Equal" else ["wide", "depth", "values"]
    nodes = [onnx.helper.make_node("Unsqueeze", ["x"], ["wide"], axes=[2]), onnx.helper.make_node(way, given, ["y"])]
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT32, (1, 64))
    graph = onnx.helper.make_graph(nodes, "one hot", [x], [onnx.ValueInfoProto(name="y")], constants)
    assert index_ranges(onnx.helper.make_model(graph)) == {"x": 257}


def test_values_lie_within_what_they_index() -> None:
    nodes = [
        onnx.helper.make_node("Gather", ["data", "rows"], ["a"], axis=1),
        onnx.helper.make_node("GatherND", ["data", "points"], ["b"]),
        onnx.helper.make_node("CumSum", ["data", "axis"], ["c"]),
        onnx.helper.make_node("ReverseSequence", ["data", "lengths"], ["d"], time_axis=1, batch_axis=0),
        onnx.helper.make_node("Acos", ["angle"], ["e"]),
        onnx.helper.make_node("Log", ["angle"], ["f"]),
    ]
    shapes = {"rows": (4,), "points": (2, 3), "axis": (), "lengths": (7,)}
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, shape) for name, shape in shapes.items()]
    inputs.append(onnx.helper.make_tensor_value_info("data", onnx.TensorProto.FLOAT, (7, 5, 9)))
    inputs.append(onnx.helper.make_tensor_value_info("angle", onnx.TensorProto.FLOAT, (64,)))
    graph = onnx.helper.make_graph(nodes, "indices", inputs, [onnx.ValueInfoProto(name=name) for name in "abcdef"])
    ranges = index_ranges(onnx.helper.make_model(graph))
    assert ranges == {"rows": 5, "points": 5, "axis": (0, 3), "lengths": (1, 6), "angle": (0.0, 1.0)}
    for sample in samples([TensorInfo("angle", (64,), "float32")], ranges):
        assert 0 <= sample.feeds["angle"].min() < 0.3 and 0.7 < sample.feeds["angle"].max() <= 1


def test_places_where_values_are_summed_up_may_be_equal() -> None:
    node = onnx.helper.make_node("ScatterElements", ["sums", "rows", "row"], ["y"], axis=0, reduction="add")
    shapes = {"sums": (9,), "row": (6,)}
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    inputs.append(onnx.helper.make_tensor_value_info("rows", onnx.TensorProto.INT64, (6,)))
    graph = onnx.helper.make_graph([node], "sums", inputs, [onnx.ValueInfoProto(name="y")])
    assert index_ranges(onnx.helper.make_model(graph)) == {"rows": 9}


def test_places_that_are_written_to_are_different() -> None:
    """What two values write to one place depends on their order: a static cache is written to wherever it may be."""
    nodes = [
        onnx.helper.make_node("ScatterElements", ["cache", "rows", "row"], ["a"], axis=1),
        onnx.helper.make_node("Unsqueeze", ["points"], ["wide"], axes=[1]),
        onnx.helper.make_node("ScatterND", ["cache", "wide", "row"], ["b"]),
        onnx.helper.make_node("TensorScatter", ["cache", "step", "begin"], ["c"], axis=1),
    ]
    shapes = {"rows": (1, 6), "points": (6,), "begin": (1,)}
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, shape) for name, shape in shapes.items()]
    for name, shape in {"cache": (9, 16), "row": (1, 6), "step": (9, 4)}.items():
        inputs.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    graph = onnx.helper.make_graph(nodes, "writes", inputs, [onnx.ValueInfoProto(name=name) for name in "abc"])
    graph.value_info.append(onnx.helper.make_tensor_value_info("wide", onnx.TensorProto.INT64, (6, 1)))
    ranges = index_ranges(onnx.helper.make_model(graph))
    assert ranges == {"rows": (0, 16, True), "points": (0, 9, True), "begin": (0, 13)}
    given = [random_feeds([TensorInfo("rows", (1, 6), "int64")], seed, ranges)["rows"] for seed in range(40)]
    assert all(len(set(rows.ravel().tolist())) == 6 for rows in given)
    assert set(np.concatenate(given).ravel().tolist()) == set(range(16))
    grid = random_feeds([TensorInfo("rows", (8, 5), "int64")], 0, ranges)["rows"]
    assert all(len(set(line.tolist())) == len(line) for line in (*grid, *grid.T)), "they are along each axis, at least"
    many = random_feeds([TensorInfo("rows", (2, 40), "int64")], 0, ranges)["rows"]
    assert 8 < len(set(many.ravel().tolist())) <= 16, "there are more of them than places"


def test_one_value_that_is_compared_is_given_that_value() -> None:
    names = {"one": np.array([1]), "zero": np.array(0), "rate": np.array(16000)}
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in names.items()]
    nodes = [
        onnx.helper.make_node("Reshape", ["sr", "one"], ["vector"]),
        onnx.helper.make_node("Gather", ["vector", "zero"], ["number"], axis=0),
        onnx.helper.make_node("Equal", ["number", "rate"], ["y"]),
    ]
    sr = onnx.helper.make_tensor_value_info("sr", onnx.TensorProto.INT64, ())
    graph = onnx.helper.make_graph(nodes, "rate", [sr], [onnx.ValueInfoProto(name="y")], constants)
    assert index_ranges(onnx.helper.make_model(graph)) == {"sr": (16000, 16001)}
