"""Models that run at each size of a range."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.helper import make_node
from tiny_models import make_model

import stormdrop as sd
from stormdrop.errors import ArtifactError, InputError, ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model import untuned
from stormdrop.model.artifact.artifact_files import OPENS
from stormdrop.model.artifact.loading import load_program
from stormdrop.model.importer.any_model import import_model
from stormdrop.model.open_sizes.open_graph import CompiledSizes
from stormdrop.model.program.document import opens_from_json
from stormdrop.model.random_weights import seed_weights

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(
        Cpu.detect().lanes < 16, reason="ranges were tried with vectors of 16 numbers, which are not here"
    ),
]

WIDTH, HEADS, LAST = 32, 4, 40


def encoder() -> onnx.ModelProto:
    """Positions of a table are added, then attention over all tokens, a dense layer, and residuals."""
    constants = {"one": [1], "zero": [0], "minus": [-1], "width": [WIDTH], "heads": [HEADS, WIDTH // HEADS]}
    nodes = [
        make_node("Shape", ["x"], ["shape"]),
        make_node("Gather", ["shape", "one"], ["n"]),
        make_node("Slice", ["table", "zero", "n", "zero"], ["positions"]),
        make_node("Add", ["x", "positions"], ["h"]),
        make_node("Concat", ["minus", "n", "heads"], ["by_heads"], axis=0),
        make_node("Concat", ["minus", "n", "width"], ["as_before"], axis=0),
    ]
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            make_node("MatMul", ["h", f"w{part}"], [f"{part}0"]),
            make_node("Reshape", [f"{part}0", "by_heads"], [f"{part}1"]),
            make_node("Transpose", [f"{part}1"], [part], perm=order),
        ]
    nodes += [
        make_node("MatMul", ["q", "k"], ["s0"]),
        make_node("Mul", ["s0", "scale"], ["s1"]),
        make_node("Softmax", ["s1"], ["s"], axis=-1),
        make_node("MatMul", ["s", "v"], ["a0"]),
        make_node("Transpose", ["a0"], ["a1"], perm=[0, 2, 1, 3]),
        make_node("Reshape", ["a1", "as_before"], ["a"]),
        make_node("Add", ["a", "h"], ["r"]),
        make_node("MatMul", ["r", "up"], ["u"]),
        make_node("Relu", ["u"], ["f"]),
        make_node("MatMul", ["f", "down"], ["d"]),
        make_node("Add", ["d", "r"], ["y"]),
    ]
    weights = {f"w{part}": (WIDTH, WIDTH) for part in "qkv"}
    weights |= {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH), "table": (64, WIDTH)}
    extra = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    extra.append(numpy_helper.from_array(np.float32(0.3), "scale"))
    shape: list[int | str] = [1, "n", WIDTH]
    return seed_weights(make_model(nodes, weights, {"x": shape}, {"y": shape}, extra=extra), seed=3)


def expected(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    w = {each.name: numpy_helper.to_array(each).astype("f8") for each in model.graph.initializer}
    h = x[0] + w["table"][: x.shape[1]]
    q, k, v = ((h @ w[f"w{part}"]).reshape(len(h), HEADS, -1).transpose(1, 0, 2) for part in "qkv")
    scores = np.exp(q @ k.transpose(0, 2, 1) * w["scale"])
    r = (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(h.shape) + h
    return (np.maximum(r @ w["up"], 0) @ w["down"] + r)[None]


@pytest.fixture(scope="module")
def source() -> onnx.ModelProto:
    return encoder()


@pytest.fixture(scope="module")
def folder(source: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("range") / "encoder.sd"
    sd.compile_model(source, shapes={"x": (1, sd.Range(1, LAST), WIDTH)}, fresh=True, out=path)
    return path


def test_it_is_right_at_each_size(source: onnx.ModelProto, folder: Path) -> None:
    """Also where a range computes a size that was compiled, too."""
    model = sd.load(folder)
    assert f"; x=1x18x32, and each from x=1x5x32 to x=1x{LAST}x32" in str(model)
    by_ranges, compiled = model.by_ranges(), {size.inputs[0].shape[1] for size in model.sizes}
    assert compiled == {1, 2, 3, 4, 5, 18, LAST}
    for n in range(1, LAST + 1):
        x = np.random.default_rng(n).normal(size=(1, n, WIDTH)).astype("f4")
        for each in (model, *([by_ranges] if n >= 5 else [])):
            y = each(x)
            assert y.shape == x.shape
            np.testing.assert_allclose(y, expected(source, x), rtol=1e-4, atol=1e-4)


def test_its_inputs_at_a_size(folder: Path) -> None:
    model = sd.load(folder)
    for n in (4, 18, 23, LAST):
        assert [info.shape for info in model.metadata_at({"x": (1, n, WIDTH)}).outputs] == [(1, n, WIDTH)]
    with pytest.raises(InputError, match=f"has no size x=1x41x32; .*, and each from x=1x5x32 to x=1x{LAST}x32"):
        model.metadata_at({"x": (1, LAST + 1, WIDTH)})


def test_sizes_take_turns(folder: Path) -> None:
    """More of them than are kept ready, and again."""
    model = sd.load(folder)
    inputs = [np.random.default_rng(n).normal(size=(1, n, WIDTH)).astype("f4") for n in range(18, 36)]
    first = [model(x) for x in inputs]
    for x, y in zip(inputs, first, strict=True):
        np.testing.assert_array_equal(model(x), y)


def test_a_size_outside_of_the_range(folder: Path) -> None:
    with pytest.raises(InputError, match=f"has no size x=1x41x32; .*, and each from x=1x5x32 to x=1x{LAST}x32"):
        sd.load(folder)(np.zeros((1, LAST + 1, WIDTH), "f4"))
    with pytest.raises(InputError, match="has no size x=2x8x32"):
        sd.load(folder)(np.zeros((2, 8, WIDTH), "f4"))


def _lengthen(opened: dict[str, Any]) -> None:
    """Makes a range end behind the table of positions, which has 64 of them."""
    opened["last"]["n"] = 100
    for step in opened["steps"]:
        for case in step["cases"]:
            case["most"] = [10_000] * len(case["most"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda opens: opens[0]["views"].pop(), "which there are not|an argument that is no view"),
        (lambda opens: opens[0]["last"].update(n=1), "a range is from"),
        (lambda opens: opens[-1]["last"].update(n=100), "a step has no kernel for"),
        (lambda opens: [_lengthen(each) for each in opens], "a range needs .* elements of constant"),
        (lambda opens: opens.append(3), "Expected `object`"),
    ],
)
def test_damaged_ranges(change: Any, message: str, folder: Path) -> None:
    program, *_ = load_program(folder)
    opens = json.loads((folder / OPENS).read_text())
    assert opens_from_json(json.dumps(opens).encode(), program.program) == program.opens
    change(opens)
    with pytest.raises(ValueError, match=message):
        opens_from_json(json.dumps(opens).encode(), program.program)


def test_a_range_whose_sizes_are_all_compiled(source: onnx.ModelProto) -> None:
    model = sd.compile_model(source, shapes={"x": (1, sd.Range(1, 3), WIDTH)}, fresh=True)
    assert not model.opens and len(model.sizes) == 3


def test_a_tuned_model(source: onnx.ModelProto) -> None:
    tuned = sd.tune_model(source, shapes={"x": (1, sd.Range(20, 30), WIDTH)}, trials=20, fresh=True).model
    x = np.random.default_rng(0).normal(size=(1, 26, WIDTH)).astype("f4")
    np.testing.assert_allclose(tuned(x), expected(source, x), rtol=1e-4, atol=1e-4)


def test_two_ranges() -> None:
    """Rows of a product are counted in one number, and softmax is over one of two."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["p"]),
        make_node("Softmax", ["p"], ["s"], axis=1),
        make_node("Transpose", ["s"], ["y"], perm=[0, 2, 1]),
    ]
    source = seed_weights(make_model(nodes, {"w": (16, 24)}, {"x": ("b", "n", 16)}, {"y": ("b", 24, "n")}), seed=1)
    w = numpy_helper.to_array(source.graph.initializer[0])
    model = sd.compile_model(source, shapes={"x": (sd.Range(2, 7), sd.Range(3, 40), 16)}, fresh=True)
    assert "and each from x=2x3x16 to x=7x40x16" in str(model)
    rng = np.random.default_rng(0)
    for b, n in itertools.product(range(2, 8), range(3, 41)):
        x = rng.normal(size=(b, n, 16)).astype("f4")
        p = np.exp(x @ w)
        np.testing.assert_allclose(model(x), (p / p.sum(1, keepdims=True)).transpose(0, 2, 1), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="has no size x=8x40x16"):
        model(np.zeros((8, 40, 16), "f4"))


def test_a_part_by_onnxruntime_is_refused_before_anything_is_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(untuned, "recorded_tasks", None)
    model = make_model([make_node("Det", ["x"], ["y"])], {}, {"x": ("n", 3, 3)}, {"y": ("n",)})
    with pytest.raises(ModelError, match=r"has no open sizes: onnxruntime runs a part of it \(Det\)"):
        sd.compile_model(model, shapes={"x": (sd.Range(20, 40), 3, 3)}, fresh=True)


def test_what_is_checked_between_compiled_sizes() -> None:
    """A model that is another one there. Here the other sizes are those of another model."""

    def at(sizes: Any, factor: float, operator: str = "Mul") -> Any:
        extra = [numpy_helper.from_array(np.full(8, factor, "f4"), "factors")]
        node = make_node(operator, ["x", "factors"], ["y"])
        return import_model(make_model([node], {}, {"x": ("n", 8)}, {"y": ("n", 8)}, extra=extra), {"x": (sizes, 8)})

    shapes = {"x": (sd.Range(20, 40), 8)}
    sizes = CompiledSizes(at(sd.Range(20, 40), 3.0), shapes)
    (part,) = [each for each in sizes.parts if 25 in range(each.box.least[0], each.box.most[0])]
    assert sizes.between(part) == [(32,), (39,)] and sizes.shapes((32,)) == {"x": (32, 8)}
    sizes.check(at(25, 3.0), part)
    with pytest.raises(ModelError, match="a constant has other values than they tell"):
        sizes.check(at(39, 4.0), part)
    with pytest.raises(
        ModelError, match=r"at n = 39 it has other kernels than at n = 21: .* are the first that differ"
    ):
        sizes.check(at(39, 3.0, "Add"), part)


def right(model: Any, source: onnx.ModelProto, shapes: Iterable[tuple[int, ...]]) -> None:
    """Checks a model beside onnxruntime."""
    peer = pytest.importorskip("onnxruntime").InferenceSession(source.SerializeToString())
    rng = np.random.default_rng(0)
    for shape in shapes:
        x = rng.normal(size=shape).astype("f4")
        (y,) = peer.run(None, {"x": x})
        np.testing.assert_allclose(model(x), y, rtol=1e-4, atol=1e-4)


def test_kernels_that_are_equal_at_a_compiled_size_only() -> None:
    """With 18 rows, one of the compiled sizes, both products are of 18 x 18 x 18."""
    nodes = [
        make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        make_node("MatMul", ["x", "t"], ["s"]),
        make_node("Softmax", ["s"], ["p"], axis=-1),
        make_node("MatMul", ["p", "x"], ["y"]),
    ]
    source = make_model(nodes, {}, {"x": (2, "n", 18)}, {"y": (2, "n", 18)})
    model = sd.compile_model(source, shapes={"x": (2, sd.Range(16, 80), 18)}, fresh=True)
    right(model, source, [(2, n, 18) for n in range(16, 81)])


def test_a_model_that_changes_between_compiled_sizes_is_refused() -> None:
    """From 9 rows on it computes another function."""
    branches = [
        onnx.helper.make_graph(
            [make_node(operator, ["x"], [name])], name, [], [onnx.helper.make_tensor_value_info(name, 1, ["n", 4])]
        )
        for operator, name in (("Neg", "small"), ("Tanh", "large"))
    ]
    nodes = [
        make_node("Shape", ["x"], ["shape"]),
        make_node("Gather", ["shape", "zero"], ["n"]),
        make_node("Less", ["n", "nine"], ["few"]),
        make_node("If", ["few"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    extra = [numpy_helper.from_array(np.array(value), name) for name, value in (("zero", 0), ("nine", 9))]
    source = make_model(nodes, {}, {"x": ("n", 4)}, {"y": ("n", 4)}, extra=extra)
    with pytest.raises(ModelError, match=r"has no open sizes: at n = .* it has other kernels than at n = 5"):
        sd.compile_model(source, shapes={"x": (sd.Range(2, 100), 4)}, fresh=True)


def test_a_shape_that_is_rounded_is_refused() -> None:
    """A few sizes fit many quotients that are rounded."""
    scales = numpy_helper.from_array(np.array([1, 1, 1.2, 1], "f4"), "scales")
    node = make_node(
        "Resize", ["x", "", "scales"], ["y"], mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )  # fmt: skip
    source = make_model([node], {}, {"x": (1, 2, "n", 4)}, {"y": (1, 2, "m", 4)}, extra=[scales])
    with pytest.raises(ModelError, match="has no open sizes"):
        sd.compile_model(source, shapes={"x": (1, 2, sd.Range(4, 72), 4)}, fresh=True)


def test_a_constant_that_is_another_one_at_each_size_is_refused() -> None:
    """A table that is read from its end."""
    nodes = [
        make_node("Shape", ["x"], ["n"]),
        make_node("Neg", ["n"], ["first"]),
        make_node("Slice", ["table", "first", "end", "zero"], ["tail"]),
        make_node("Mul", ["x", "tail"], ["y"]),
    ]
    extra = [numpy_helper.from_array(np.array([value]), name) for name, value in (("zero", 0), ("end", 2**31))]
    extra.append(numpy_helper.from_array(np.arange(64, dtype="f4"), "table"))
    model = make_model(nodes, {}, {"x": ("n",)}, {"y": ("n",)}, extra=extra)
    with pytest.raises(ModelError, match="a constant has other values"):
        sd.compile_model(model, shapes={"x": (sd.Range(20, 40),)}, fresh=True)


def test_a_number_that_is_counted_is_refused() -> None:
    """The number of rows is a constant of the same shape, and another value, at each size."""
    nodes = [
        make_node("Shape", ["x"], ["shape"]),
        make_node("Gather", ["shape", "zero"], ["count"]),
        make_node("Cast", ["count"], ["float"], to=onnx.TensorProto.FLOAT),
        make_node("Mul", ["float", "factors"], ["scales"]),
        make_node("Mul", ["x", "scales"], ["y"]),
    ]
    extra = [
        numpy_helper.from_array(np.array([0]), "zero"),
        numpy_helper.from_array(np.arange(8, dtype="f4"), "factors"),
    ]
    model = make_model(nodes, {}, {"x": ("n", 8)}, {"y": ("n", 8)}, extra=extra)
    with pytest.raises(ModelError, match="a constant has other values"):
        sd.compile_model(model, shapes={"x": (sd.Range(20, 40), 8)}, fresh=True)


def test_a_concatenation_and_a_native_model(tmp_path: Path) -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("MatMul", ["x", "v"], ["b0"]),
        make_node("Relu", ["b0"], ["b"]),
        make_node("Concat", ["a", "b"], ["y"], axis=1),
    ]
    source = make_model(nodes, {"w": (16, 32), "v": (16, 64)}, {"x": ("n", 16)}, {"y": ("n", 96)})
    source = seed_weights(source, seed=1)
    w, v = (numpy_helper.to_array(each) for each in source.graph.initializer)
    model = sd.compile_model(source, shapes={"x": (sd.Range(20, 40), 16)}, fresh=True)
    for n in range(20, 41):
        x = np.random.default_rng(n).normal(size=(n, 16)).astype("f4")
        np.testing.assert_allclose(model(x), np.hstack([x @ w, np.maximum(x @ v, 0)]), rtol=1e-4, atol=1e-4)
    with pytest.raises(ArtifactError, match="runs at a range of sizes, which a native model does not"):
        model.save(tmp_path / "native.sd", native=True)


def test_products_at_every_size_of_a_long_range() -> None:
    """The number of tiles, whose divisor is a product of two tiles, once looked like another one, wrong from 217 on."""
    product = make_node("MatMul", ["x", "w"], ["y"])
    source = make_model([product], {"w": (24, 40)}, {"x": ("n", 24)}, {"y": ("n", 40)})
    source = seed_weights(source, seed=1)
    w = numpy_helper.to_array(source.graph.initializer[0])
    model = sd.compile_model(source, shapes={"x": (sd.Range(5, 300), 24)}, fresh=True)
    for n in range(5, 301):
        x = np.random.default_rng(n).normal(size=(n, 24)).astype("f4")
        np.testing.assert_allclose(model(x), x @ w, rtol=1e-4, atol=1e-4)


def unet(steps: int) -> onnx.ModelProto:
    """Convolutions that halve an image and a path that doubles it again; the two are concatenated."""
    nodes, name = [], "x"
    for level in range(steps):
        nodes += [
            make_node("Conv", [name, f"w{level}"], [f"c{level}"], strides=[2, 2], pads=[1, 1, 1, 1]),
            make_node("Relu", [f"c{level}"], [f"r{level}"]),
        ]
        name = f"r{level}"
    nodes += [
        make_node("Resize", [name, "", "scales"], ["u"], mode="nearest", coordinate_transformation_mode="asymmetric"),
        make_node("Concat", ["u", f"r{steps - 2}"], ["both"], axis=1),
        make_node("Conv", ["both", "last"], ["y"]),
    ]
    weights = {f"w{level}": (8, 8 if level else 3, 3, 3) for level in range(steps)} | {"last": (4, 16, 1, 1)}
    extra = [numpy_helper.from_array(np.array([1, 1, 2, 2], "f4"), "scales")]
    shapes: dict[str, list[int | str]] = {"x": [1, 3, "h", "w"]}
    return seed_weights(make_model(nodes, weights, shapes, {"y": [1, 4, "a", "b"]}, extra=extra), seed=2)


def test_a_network_for_images_of_any_height_and_width() -> None:
    source = unet(steps=2)
    model = sd.compile_model(source, shapes={"x": (1, 3, sd.Range(16, 48, 4), sd.Range(20, 60, 4))}, fresh=True)
    right(model, source, [(1, 3, h, w) for h, w in itertools.product(range(16, 49, 4), range(20, 61, 4))])
    with pytest.raises(InputError, match="has no size x=1x3x18x20"):
        model(np.zeros((1, 3, 18, 20), "f4"))
