"""Inputs as models have them: with open dimensions in all forms, of unknown rank, unused; also as outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_models import make_model

from stand_ins.verifying import verify
from stormdrop.errors import InputError, ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.isolated import Importer
from stormdrop.model.onnx.source import read_source
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.verification.verify import Reference

Dimension = int | str | None


def add_model(x: list[Dimension] | None, y: list[Dimension] | None = None) -> onnx.ModelProto:
    """z = x + y; None as a shape is an unknown rank."""
    node = helper.make_node("Add", ["x", "y" if y is not None else "x"], ["z"])
    model = make_model([node], {}, {}, {"z": ()})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, x))
    for name, shape in (("x", x), ("y", y)):
        if name == "x" or shape is not None:
            model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    return model


def shapes(model: onnx.ModelProto, given: dict[str, tuple[int, ...]]) -> dict[str, list[int]]:
    read = read_source(model, given).model
    return {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in read.graph.input}


def refused(model: onnx.ModelProto, given: dict[str, tuple[int, ...]] | None = None) -> str:
    with pytest.raises(ModelError) as raised:
        read_source(model, given)
    message = str(raised.value)
    assert message.isprintable()
    return message


@pytest.mark.parametrize("open_one", ["batch", -1, None, "?"])
def test_open_dimensions_in_all_forms(open_one: Dimension) -> None:
    model = add_model([open_one, 3, open_one])
    assert shapes(model, {"x": (2, 3, 2)}) == {"x": [2, 3, 2]}
    graph = load_graph(model, {"x": (2, 3, 2)})
    assert graph.inputs[0].shape == graph.outputs[0].shape == (2, 3, 2)
    message = refused(model)
    assert "dimension 0 of input 'x'" in message and "dimension 2 of input 'x'" in message
    assert "--shape x=Nx3xN" in message and ("(batch)" in message) == (open_one == "batch") and "?" not in message
    if open_one != "batch":
        assert shapes(model, {"x": (2, 3, 5)}) == {"x": [2, 3, 5]}


def test_unknown_rank() -> None:
    assert "the rank of input 'x'" in refused(add_model(None))
    assert shapes(add_model(None), {"x": (4, 5)}) == {"x": [4, 5]}
    assert load_graph(add_model(None), {"x": (4, 5)}).outputs[0].shape == (4, 5)


def test_an_explicit_zero_is_a_size() -> None:
    node = helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0)
    model = make_model(
        [node, helper.make_node("Add", ["total", "y"], ["z"])], {}, {"x": (2, 0), "y": (3,)}, {"z": (3,)}
    )
    with Importer() as importer:
        graph = importer.load(model)
        assert [info.name for info in graph.inputs] == ["y"] and graph.ignored == ("x",)
        assert [info.name for info in importer.load(model, {"x": (2, 4)}).inputs] == ["x", "y"], "0 may mean open"
    assert "dimension 0 of input 'x' is 2, not 3" in refused(model, {"x": (3, 0)})
    with pytest.raises(ModelError, match="its outputs have no elements"):
        Reference.compute(load_graph(add_model([2, 0])))


@pytest.mark.parametrize("kind", [TensorProto.STRING, TensorProto.BFLOAT16, TensorProto.COMPLEX64, 99])
def test_types_that_no_kernel_takes(kind: int) -> None:
    model = add_model([2, 3])
    model.graph.input[0].type.tensor_type.elem_type = kind
    name = TensorProto.DataType.Name(kind).lower() if kind != 99 else "99"
    with pytest.raises(ModelError, match=f"input 'x' is {name}, which is not supported; inputs are float32, float16"):
        load_graph(model)


def test_a_name_has_one_size() -> None:
    model = add_model(["n", 3], ["n", "k"])
    assert shapes(model, {"x": (4, 3), "y": (4, 3)}) == {"x": [4, 3], "y": [4, 3]}
    assert shapes(model, {"y": (4, 3)}) == {"x": [4, 3], "y": [4, 3]}
    message = refused(model, {"x": (4, 3), "y": (5, 3)})
    assert "dimension 0 of input 'y'" in message and "dimension 0 of input 'x'" in message
    assert "'n'" in message and "5 and 4" in message
    message = refused(model, {"x": (4, 3)})
    assert message.count("dimension") == 1 and "dimension 1 of input 'y' (k)" in message
    assert "--shape y=4xN" in message and "--shape x" not in message
    assert "--shape x=Nx3 --shape y=NxN" in refused(model)
    assert refused(add_model(["n", 3], ["n", 3])).count("--shape") == 1


def test_a_size_that_the_model_fixes() -> None:
    assert "dimension 1 of input 'x' is 3, not 4" in refused(add_model([-1, 3]), {"x": (2, 4)})


def test_many_open_dimensions_are_one_line() -> None:
    message = refused(add_model([f"d{axis}" for axis in range(40)]))
    assert "and 35 more" in message and len(message) < 600


def unused_model() -> onnx.ModelProto:
    """y = relu(x), with inputs of which nothing becomes anything."""
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {}, {"x": ("n", 3)}, {"y": ("n", 3)})
    labels = [
        helper.make_tensor_value_info("label", TensorProto.STRING, ["n", None]),
        helper.make_tensor_sequence_value_info("rest", TensorProto.FLOAT, None),
    ]
    for value in labels:
        model.graph.input.append(value)
    return model


def test_sizes_of_unused_inputs() -> None:
    assert load_graph(unused_model(), {"x": (2, 3)}).ignored == ("label", "rest")
    assert shapes(unused_model(), {"label": (2, 7)}) == {"x": [2, 3]}, "its dimension n is that of x"
    with Importer() as importer:
        graph = importer.load(unused_model(), {"x": (2, 3), "rest": (1,)})
    assert [info.name for info in graph.inputs] == ["x"] and graph.ignored == ("label", "rest")


def compiled(model: onnx.ModelProto, target: Cpu) -> CompiledModel:
    return build(load_graph(model), {}, target)


@pytest.mark.compiles
def test_a_feed_for_an_unused_input(target: Cpu, tmp_path: object) -> None:
    model = build(load_graph(unused_model(), {"x": (2, 3)}), {}, target)
    loaded = CompiledModel.load(model.save(f"{tmp_path}/m.sd"))
    x = np.ones((2, 3), np.float32)
    for one in (model, loaded):
        assert [info.name for info in one.inputs] == ["x"] and one.metadata.ignored == ("label", "rest")
        assert np.array_equal(one.run({"x": x, "label": np.array([["a"]])})["y"], x)
        assert np.array_equal(one(x), x) and np.array_equal(one(x, rest=[]), x)
        with pytest.raises(InputError, match="no input 'other'"):
            one.run({"x": x, "other": x})


@pytest.mark.compiles
def test_outputs_that_are_inputs_or_constants(target: Cpu, tmp_path: object) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    model = make_model(
        [helper.make_node("Relu", ["x"], ["y"])],
        {},
        {"x": (2, 3)},
        {"x": (2, 3), "y": (2, 3), "c": (2, 3)},
        extra=[numpy_helper.from_array(values, "c")],
    )
    built = compiled(model, target)
    x = np.full((2, 3), -1, np.float32)
    for one in (built, CompiledModel.load(built.save(f"{tmp_path}/m.sd"))):
        outputs = one.run({"x": x})
        assert np.array_equal(outputs["x"], x) and np.array_equal(outputs["c"], values) and not outputs["y"].any()
        outputs["x"][:] = outputs["c"][:] = 5
        assert x[0, 0] == -1 and np.array_equal(one.run({"x": x})["c"], values)


@pytest.mark.compiles
@pytest.mark.parametrize("operators", [["Identity"], ["Flatten"], ["Flatten", "Identity"], []])
def test_a_graph_without_kernels(operators: list[str], target: Cpu, tmp_path: object) -> None:
    names = ["x", *(f"v{index}" for index in range(len(operators) - 1)), "y"] if operators else ["x"]
    pairs = zip(operators, names, names[1:], strict=False)
    nodes = [helper.make_node(operator, [before], [after]) for operator, before, after in pairs]
    model = make_model(nodes, {}, {"x": (2, 3)}, {names[-1]: (2, 3)})
    built = compiled(model, target)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for one in (built, CompiledModel.load(built.save(f"{tmp_path}/m.sd"))):
        assert np.array_equal(one(x), x)


@pytest.mark.compiles
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_other_ranks_beside_images(operator: str, rank: int, target: Cpu) -> None:
    """Changing the layout of images must leave them alone, although an image is made of the result."""
    size, kernel = (6,) * rank, [3] * rank
    nodes = [
        helper.make_node(operator, ["x", "w"], ["a"], kernel_shape=kernel),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Reshape", ["b", "image"], ["c"]),
        helper.make_node("Conv", ["c", "v"], ["y"], kernel_shape=[1, 1]),
    ]
    extent = 4 if operator == "Conv" else 8
    image = numpy_helper.from_array(np.array([1, 4, extent, extent ** (rank - 1)]), "image")
    weights = {"w": (4, 4, *kernel), "v": (2, 4, 1, 1)}
    outputs: dict[str, tuple[int | str, ...]] = {"y": (1, 2, extent, extent ** (rank - 1))}
    model = seed_weights(make_model(nodes, weights, {"x": (1, 4, *size)}, outputs, extra=[image]))
    graph = load_graph(model)
    assert verify(build(graph, {}, target), graph.source).max_error < 1e-4
