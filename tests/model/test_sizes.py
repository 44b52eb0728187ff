"""Models of several sizes: one artifact, exact dispatch, padded batches."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from foreign_models import gelu_inside
from sized_models import centred_model, counting_model, pooled_model, scaled_model, summed_model
from tiny_models import make_model

from stormdrop.errors import InputError, ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model import compile_model, load
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.metadata import Metadata
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.isolated import Importer
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.records import open_store

pytestmark = pytest.mark.compiles

SIZES = {"x": ((1, 4, 8), 3, 8, 8)}


@pytest.fixture(scope="module")
def importer() -> Any:
    with Importer() as importer:
        yield importer


@pytest.fixture(scope="module")
def graph(importer: Importer) -> Graph:
    return importer.load(pooled_model(), SIZES)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sizes") / "pooled.sd"
    compiled(pooled_model(), SIZES, out=folder)
    return folder


@pytest.fixture(scope="module")
def model(saved: Path) -> CompiledModel:
    return load(saved)


def compiled(source: onnx.ModelProto, shapes: Any, **options: Any) -> CompiledModel:
    with open_store("sqlite://") as store:
        return compile_model(source, shapes=shapes, store=store, **options)


def test_sizes_share_constants_and_tasks_that_are_equal(importer: Importer, graph: Graph) -> None:
    assert [size.inputs[0].shape[0] for size in graph.sizes] == [1, 4, 8]
    assert all(size.tasks is graph.tasks for size in graph.sizes)
    assert not graph.called & graph.others[0].called, "no kernel of this model is equal at two batches"
    wide = importer.load(two_inputs(), {"a": ((2, 3), 8), "b": (4, 8)})
    shared = wide.called & wide.others[0].called
    assert [wide.tasks[index].weight for index in shared] == [2], "the branch of the other input has one size"
    addresses = [{constant.data_ptr() for constant in constants(size)} for size in graph.sizes]
    assert addresses[0] == addresses[1] == addresses[2] != set()


def two_inputs() -> onnx.ModelProto:
    nodes = [
        onnx.helper.make_node("Relu", ["a"], ["y"]),
        onnx.helper.make_node("Tanh", ["b"], ["z"]),
    ]
    return make_model(nodes, {}, {"a": ("N", 8), "b": ("M", 8)}, {"y": ("N", 8), "z": ("M", 8)})


def constants(graph: Graph) -> list[Any]:
    from tvm import relax
    from tvm.ir import GenericConst

    found: list[Any] = []
    relax.analysis.post_order_visit(
        graph.mod["main"], lambda node: found.append(node.value) if isinstance(node, GenericConst) else None
    )
    return found


def test_each_size_computes_what_it_does_alone(importer: Importer, model: CompiledModel, target: Cpu) -> None:
    for size in model.sizes:
        alone = build(importer.load(pooled_model(), {"x": size.shapes[0]}), {}, target)
        x = random_feeds(size.inputs, 3)["x"]
        np.testing.assert_allclose(model(x), alone(x), rtol=1e-5, atol=1e-5)


def test_weights_are_stored_once(importer: Importer, target: Cpu, tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Gather", ["table", "x"], ["y"])]
    source = make_model(nodes, {"table": (5000, 16)}, {}, {"y": ("N", 16)})
    source.graph.input.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT64, ("N",)))
    build(importer.load(source, {"x": ((2, 3, 4),)}), {}, target).save(tmp_path / "all.sd")
    build(importer.load(source, {"x": (2,)}), {}, target).save(tmp_path / "one.sd")
    sizes = [(tmp_path / name / "weights.bin").stat().st_size for name in ("all.sd", "one.sd")]
    assert sizes[0] == sizes[1] < 5000 * 16 * 4 + 5000


def test_fewer_rows_run_by_the_next_larger_size(model: CompiledModel) -> None:
    assert model.metadata.batched == ("x",)
    x = random_feeds(model.sizes[-1].inputs, 5)["x"]
    whole = model(x).copy()
    for rows in range(1, 9):
        part = model(x[:rows])
        assert part.shape == (rows, 10)
        np.testing.assert_allclose(part, whole[:rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "source", [centred_model, counting_model, scaled_model, summed_model], ids=lambda source: source.__name__
)
def test_rows_that_depend_on_each_other_are_not_padded(source: Any) -> None:
    model = compiled(source(), {"x": ((2, 4), 16)})
    assert model.metadata.batched == ()
    with pytest.raises(InputError) as caught:
        model(np.ones((3, 16), np.float32))
    assert str(caught.value) == "tiny has no size x=3x16; its sizes are x=2x16; x=4x16"


@pytest.mark.parametrize("shape", [(9, 3, 8, 8), (0, 3, 8, 8), (3, 3, 8, 9), (3, 8, 8), ()], ids=str)
def test_a_size_that_is_not_there_is_one_line(model: CompiledModel, shape: tuple[int, ...]) -> None:
    with pytest.raises(
        InputError, match="its sizes are x=1x3x8x8; x=4x3x8x8; x=8x3x8x8, and fewer rows of x"
    ) as caught:
        model(np.zeros(shape, np.float32))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="is float64, not float32"):
        model(np.zeros((3, 3, 8, 8)))


def test_parts_that_onnxruntime_runs_are_those_of_their_size() -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="it runs a part of the model")
    source = gelu_inside()
    for value in (*source.graph.input, *source.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    model = compiled(source, {"x": ((1, 3), 3, 8, 8)})
    session = onnxruntime.InferenceSession(source.SerializeToString())
    for rows in (1, 2, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 3, 8, 8)).astype(np.float32)
        np.testing.assert_allclose(model(x), session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_threads_may_run_different_sizes(model: CompiledModel) -> None:
    inputs = [random_feeds(size.inputs, 7)["x"] for size in model.sizes]
    expected = [model(x).copy() for x in inputs]
    wrong: list[int] = []

    def call(position: int) -> None:
        for step in range(60):
            which = (position + step) % len(inputs)
            if not np.array_equal(model(inputs[which]), expected[which]):
                wrong.append(which)

    threads = [threading.Thread(target=call, args=(position,)) for position in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_says_its_sizes(model: CompiledModel) -> None:
    assert repr(model).endswith("sizes    x=1x3x8x8; x=4x3x8x8; x=8x3x8x8; fewer rows of x")
    assert model.metadata.at({"x": (4, 3, 8, 8)}).outputs[0].shape == (4, 10)
    assert model.metadata.at({}).inputs == model.inputs
    with pytest.raises(InputError, match="has no size x=5x3x8x8; its sizes are x=1x3x8x8"):
        model.metadata.at({"x": (5, 3, 8, 8)})


def test_metadata_of_one_size_are_as_before(model: CompiledModel, saved: Path) -> None:
    document = json.loads((saved / "metadata.json").read_text())
    assert len(document["sizes"]) == 3 and document["batched"] == ["x"]
    one = Metadata(**{**model.metadata.__dict__, "sizes": (), "batched": ()})
    assert not {"sizes", "batched"} & set(json.loads(one.to_json({})))


@pytest.mark.parametrize("damage", ["first", "twice", "names", "batched"])
def test_sizes_that_are_not_of_one_model(saved: Path, damage: str) -> None:
    document = json.loads((saved / "metadata.json").read_text())
    document["digest"] = "0" * 64
    sizes = document["sizes"]
    if damage == "first":
        sizes.reverse()
    elif damage == "twice":
        sizes.append(sizes[-1])
    elif damage == "names":
        sizes[1]["inputs"][0]["name"] = "z"
    else:
        document["batched"] = ["z"]
    with pytest.raises(ValueError, match=r"size|input"):
        Metadata.from_json(json.dumps(document).encode())


def test_a_size_that_contradicts_the_model_is_one_line(importer: Importer) -> None:
    with pytest.raises(ModelError, match="dimension 1 of input 'x' is 3, not 4"):
        importer.load(pooled_model(), {"x": (1, (3, 4), 8, 8)})
