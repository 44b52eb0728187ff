"""Calls between the sizes of a model, padded beside a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from stormdrop.errors import InputError
from stormdrop.model import PaddedModel, compile_model
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.records import open_store

pytestmark = pytest.mark.compiles

LENGTHS = (4, 8, 16)


def averaged(masked: bool) -> onnx.ModelProto:
    """A table of words; their mean over those that the mask leaves, or over all, is added to each word."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"]),
        helper.make_node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["kept", "last"], ["weights"]),
        helper.make_node("Mul", ["words", "weights"], ["left"]),
        helper.make_node("ReduceSum", ["left" if masked else "words", "axis"], ["sum"], keepdims=1),
        helper.make_node("ReduceSum", ["weights", "axis"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Add", ["words", "mean"], ["y"]),
    ]
    table = np.random.default_rng(0).normal(size=(50, 8)).astype("float32")
    constants = [
        numpy_helper.from_array(table, "table"),
        numpy_helper.from_array(np.array([2]), "last"),
        numpy_helper.from_array(np.array([1]), "axis"),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ("N", "S")) for name in ("ids", "mask")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("N", "S", 8))]
    graph = helper.make_graph(nodes, "averaged", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compiled(masked: bool, lengths: Any = LENGTHS) -> CompiledModel:
    with open_store("sqlite://") as store:
        return compile_model(averaged(masked), shapes={"ids": (1, lengths), "mask": (1, lengths)}, store=store)


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return compiled(masked=True)


def feeds_of(length: int, rows: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(length)
    return {"ids": rng.integers(1, 50, (rows, length)), "mask": np.ones((rows, length), np.int64)}


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 13, 16])
def test_any_length_up_to_the_longest(model: CompiledModel, length: int) -> None:
    session = pytest.importorskip("onnxruntime").InferenceSession(averaged(True).SerializeToString())
    padded, feeds = PaddedModel(model, mask="mask"), feeds_of(length)
    (expected,) = session.run(None, feeds)
    y = padded.run(feeds)["y"]
    assert y.shape == (1, length, 8) and y.flags.c_contiguous
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(padded(feeds["ids"], mask=feeds["mask"]), y)


def test_a_mask_that_hides_nothing_is_refused() -> None:
    careless = compiled(masked=False)
    with pytest.raises(
        InputError, match=r"^averaged: mask does not hide padding: outputs of ids=1x4,mask=1x4 change by"
    ):
        PaddedModel(careless, mask="mask")
    with pytest.raises(InputError, match="nothing hides padding"):
        PaddedModel(careless, mask=None)


def test_what_cannot_be_padded_is_one_line(model: CompiledModel) -> None:
    with pytest.raises(InputError, match="has no input 'masque'; its inputs are ids, mask"):
        PaddedModel(model, mask="masque")
    with pytest.raises(InputError, match="has one size: there is none to pad to"):
        PaddedModel(compiled(True, lengths=4), mask="mask")
    padded = PaddedModel(model, mask="mask")
    for feeds in (feeds_of(17), feeds_of(4, rows=2), feeds_of(0)):
        with pytest.raises(InputError, match=r"its sizes are .*, and what fits into one$"):
            padded.run(feeds)
    with pytest.raises(InputError, match="input 'mask' is missing"):
        padded.run({"ids": feeds_of(3)["ids"]})
    with pytest.raises(InputError, match="'ids' is given twice"):
        padded(feeds_of(3)["ids"], ids=feeds_of(3)["ids"])
    with pytest.raises(InputError, match="is float64, not int64"):
        padded.run({**feeds_of(3), "ids": np.ones((1, 3))})


def two_sequences() -> onnx.ModelProto:
    """Doubles a source and a target, whose lengths have no names and therefore move together at equal lists."""
    nodes = [helper.make_node("Add", [name, name], [f"{name}_twice"]) for name in ("source", "target")]
    inputs, outputs = (
        [helper.make_tensor_value_info(name + end, TensorProto.FLOAT, (None, 6)) for name in ("source", "target")]
        for end in ("", "_twice")
    )
    graph = helper.make_graph(nodes, "two_sequences", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sequences(source: int, target: int, width: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "source": rng.random((source, width), np.float32),
        "target": rng.random((target, width), np.float32),
    }


def padded_sequences(source: Any, target: Any) -> PaddedModel:
    with open_store("sqlite://") as store:
        shapes = {"source": (source, 6), "target": (target, 6)}
        return PaddedModel(compile_model(two_sequences(), shapes=shapes, store=store), mask=None)


def test_two_lengths_that_no_size_tells_apart_have_to_be_equal() -> None:
    padded = padded_sequences((4, 8), (4, 8))
    feeds = sequences(3, 3)
    for name, value in feeds.items():
        np.testing.assert_array_equal(padded.run(feeds)[f"{name}_twice"], 2 * value)
    for source, target in ((6, 3), (3, 6), (8, 3)):
        with pytest.raises(
            InputError,
            match=rf"axis 0 of source is {source}, axis 0 of target is {target}: axis 0 of output source_twice may "
            "belong to each of them, as they are equal at all sizes; tune a size at which they differ$",
        ):
            padded.run(sequences(source, target))


def test_an_axis_that_no_size_varies_is_not_padded() -> None:
    """Nothing would cut it back."""
    padded = padded_sequences((4, 8), 4)
    feeds = sequences(3, 4)
    for name, value in feeds.items():
        np.testing.assert_array_equal(padded.run(feeds)[f"{name}_twice"], 2 * value)
    for refused in (sequences(3, 3), sequences(3, 4, width=5)):
        with pytest.raises(InputError, match=r"its sizes are .*, and what fits into one$"):
            padded.run(refused)
