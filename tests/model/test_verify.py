"""What is right and what is wrong: networks that amplify rounding, saturated outputs, NaN, constants, integers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from faulty_kernels import changed, coarse, saturated_model
from onnx import TensorProto, helper, numpy_helper
from tiny_models import make_model, residual_model

from stormdrop.errors import ModelError
from stormdrop.ir import reference
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building import compile as compile_module
from stormdrop.model.building.compile import build
from stormdrop.model.building.fallback import schedule_fallback
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.inputs.samples import samples
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.verification import expected as expected_module
from stormdrop.model.verification.rounding import LEVEL, LEVEL_WITHOUT_EXACT
from stormdrop.model.verification.verify import Reference
from stormdrop.sketches.contract import Variant
from stormdrop.sketches.registry import sketches_for


def imported_as(graph: Graph, wrong: onnx.ModelProto) -> Graph:
    """What an import that makes another model of a source would return."""
    return dataclasses.replace(load_graph(wrong), source=graph.source)


def task(graph: Graph, part: str) -> int:
    return next(task.index for task in graph.tasks if part in task.name)


def plain(graph: Graph, index: int) -> Variant:
    return Variant(schedule_fallback(graph.tasks[index].function, 16).function)


@pytest.mark.compiles
def test_saturated_logits_in_the_thousands_are_right(target: Cpu) -> None:
    graph = load_graph(saturated_model())
    model = build(graph, {}, target)
    verified = Reference.compute(graph).check(model)
    assert verified.fault is None
    (output,) = model(*Reference.compute(graph).feeds.values())
    assert np.count_nonzero(output) < output.size  # it saturates
    assert "float64" in verified.against


@pytest.mark.compiles
@pytest.mark.parametrize("part", ["conv2d", "matmul"])
def test_coarse_sums_are_seen_behind_a_saturated_softmax(part: str, target: Cpu) -> None:
    graph = load_graph(saturated_model())
    model = build(graph, {task(graph, part): coarse(plain(graph, task(graph, part)))}, target)
    fault = Reference.compute(graph).check(model).fault
    assert fault is not None and fault.error > 5 * fault.allowed
    readers = [each for each in graph.tasks if each.layers and f"of {each.described} for output" in fault.tensor]
    assert len(readers) == 1 and readers[0].layers[0] in fault.tensor


@pytest.mark.compiles
@pytest.mark.parametrize("scale", [1.0, 3000.0])
def test_a_permuted_packing_is_seen(scale: float, target: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph(saturated_model(scale))
    index = task(graph, "matmul")
    workload = Workload.create("gemm", graph.tasks[index].function, graph.tasks[index].constants)
    (sketch, space), *_ = sketches_for(workload, target)
    variant = sketch.apply(workload, target, space.config(space.origin))
    assert Reference.compute(graph).check(build(graph, {index: variant}, target)).fault is None

    def permuted(function: Any, inputs: Any) -> list[np.ndarray]:
        return [np.roll(output, 1, axis=-1) for output in reference.evaluate(function, inputs)]

    monkeypatch.setattr(compile_module, "evaluate", permuted)
    wrong = build(graph, {index: variant}, target)
    assert variant.transforms
    assert Reference.compute(graph).check(wrong).fault is not None


@pytest.mark.parametrize("scale", [1.0, 3000.0])
@pytest.mark.parametrize(
    ("weight", "change"),
    [("w2", lambda w: w[:, ::-1]), ("w3", lambda w: w[:, ::-1]), ("bias1", lambda b: 0 * b), ("b3", lambda b: 0 * b)],
)
def test_an_import_that_changes_the_model_is_refused(scale: float, weight: str, change: Any) -> None:
    source = saturated_model(scale)
    if weight == "b3":
        source = changed(source, "b3", lambda b: scale * (1 + b))
    graph = load_graph(source)
    assert Reference.compute(graph).expected
    with pytest.raises(ModelError, match="the imported graph and onnx") as caught:
        Reference.compute(imported_as(graph, changed(source, weight, change)))
    assert "\n" not in str(caught.value)


def cancelling_model() -> onnx.ModelProto:
    """a(x) - b(x), where b's weights are a's up to one part in 10,000: the difference has a large relative error."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["s"]),
        helper.make_node("MatMul", ["x", "b"], ["t"]),
        helper.make_node("Sub", ["s", "t"], ["y"]),
    ]
    model = make_model(nodes, {"a": (256, 32), "b": (256, 32)}, {"x": (4, 256)}, {"y": (4, 32)})
    rng = np.random.default_rng(0)
    a = rng.standard_normal((256, 32))
    b = a + 3e-5 * rng.standard_normal((256, 32))
    return changed(changed(model, "a", lambda _: a.astype("float32")), "b", lambda _: b.astype("float32"))


@pytest.mark.compiles
def test_a_network_that_amplifies_rounding_is_neither_refused_nor_passed_blindly(target: Cpu) -> None:
    graph = load_graph(cancelling_model())
    reference = Reference.compute(graph)
    right = reference.check(build(graph, {}, target))
    assert right.max_error > LEVEL and right.fault is None
    wrong = {0: coarse(plain(graph, 0))}
    fault = reference.check(build(graph, wrong, target)).fault
    assert fault is not None and fault.allowed < 0.5
    with pytest.raises(ModelError, match="imported graph"):
        Reference.compute(imported_as(graph, changed(cancelling_model(), "b", lambda b: b[:, ::-1])))


def gated_model(length: int, threshold: float) -> onnx.ModelProto:
    """1, 2, 3 and 4, if the mean of x is above a threshold; else zeros."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1]),
        helper.make_node("MatMul", ["mean", "slope"], ["product"]),
        helper.make_node("Sub", ["product", "threshold"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["gate"]),
        helper.make_node("Mul", ["gate", "values"], ["y"]),
    ]
    constants = {"slope": np.full((1, 4), 1e9), "threshold": np.full(4, 1e9 * threshold), "values": np.arange(1, 5)}
    extra = [numpy_helper.from_array(value.astype("float32"), name) for name, value in constants.items()]
    return make_model(nodes, {}, {"x": (1, length)}, {"y": (1, 4)}, extra=extra)


def test_a_gate_that_a_long_sum_opens_may_be_open_or_closed() -> None:
    length = 4096
    inputs = load_graph(gated_model(length, 0.0)).inputs
    (mean,) = np.mean(samples(inputs, {})[1].feeds["x"], axis=1, dtype="float64")

    def explained(threshold: float) -> float:
        graph = load_graph(gated_model(length, threshold))
        (expected,) = [one for one in Reference.compute(graph).expected if one.sample.name == "0 to 255"]
        assert expected.rounded is not None
        return expected.rounded("output 'y'", np.inf, 0.0)

    assert explained(mean * (1 - 1e-6)) > 1.0
    assert explained(mean * (1 - 1e-3)) < LEVEL


@pytest.mark.compiles
def test_the_noise_of_sums_does_not_hide_a_wrong_kernel_behind_a_mask(target: Cpu) -> None:
    """Numbers of -3e38, as masks have, and a variance of zero before a root."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "v"], ["values"]),
        helper.make_node("Mul", ["values", "dead"], ["scaled"]),
        helper.make_node("ReduceMean", ["scaled"], ["centre"], axes=[0]),
        helper.make_node("Abs", ["centre"], ["spread"]),
        helper.make_node("Sqrt", ["spread"], ["y"]),
    ]
    mask, dead = np.where(np.arange(16) < 9, 0, np.finfo("float32").min), (np.arange(8) > 0).astype("float32")
    extra = [numpy_helper.from_array(value.astype("float32"), name) for name, value in (("mask", mask), ("dead", dead))]
    shapes = {"w": (32, 16), "v": (16, 8)}
    model = seed_weights(make_model(nodes, shapes, {"x": (4, 32)}, {"y": (8,)}, extra=extra))
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 8
    model = changed(changed(model, "mask", lambda _: mask.astype("float32")), "dead", lambda _: dead)
    graph = load_graph(model)
    reference = Reference.compute(graph)
    assert reference.check(build(graph, {}, target)).fault is None
    index = task(graph, "matmul")
    fault = reference.check(build(graph, {index: coarse(plain(graph, index))}, target)).fault
    assert fault is not None and fault.allowed < 0.5


def test_an_output_of_nan_alone_is_an_error_of_its_own() -> None:
    model = changed(seed_weights(residual_model(), seed=1), "b3", lambda b: b * np.nan)
    with pytest.raises(ModelError, match="its outputs hold NaN") as caught:
        Reference.compute(load_graph(model))
    assert "\n" not in str(caught.value)


def test_inputs_for_which_the_model_computes_nan_are_left_out() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),  # nothing says of x itself that it has to be negative
        helper.make_node("Neg", ["n"], ["p"]),
        helper.make_node("Log", ["p"], ["l"]),
        helper.make_node("MatMul", ["l", "w"], ["y"]),
    ]
    model = seed_weights(make_model(nodes, {"w": (8, 4)}, {"x": (2, 8)}, {"y": (2, 4)}))
    used = [expected.sample.name for expected in Reference.compute(load_graph(model)).expected]
    assert used == ["0 to 255"]


def test_weights_that_are_all_equal_are_an_error_of_their_own() -> None:
    with pytest.raises(ModelError, match="one value everywhere"):
        Reference.compute(load_graph(residual_model()))


def test_without_an_exact_reference_the_peer_is_one(residual: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    from stormdrop.errors import UnsupportedFunction

    def refuse(_: Graph) -> None:
        raise UnsupportedFunction("no")

    monkeypatch.setattr(expected_module, "ExactModel", refuse)
    reference = Reference.compute(residual)
    assert len(reference.expected) == 3 and reference.against.startswith("onnx")
    assert reference.expected[0].allowed("output 'y'", 1.0) == LEVEL_WITHOUT_EXACT


def embedding_model(rows: int = 1000) -> onnx.ModelProto:
    """words -> Gather -> Add(Gather of types) -> MatMul."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], axis=0),
        helper.make_node("Unsqueeze", ["types", "one"], ["u"]),
        helper.make_node("Squeeze", ["u", "one"], ["v"]),
        helper.make_node("Gather", ["kinds", "v"], ["k"], axis=0),
        helper.make_node("Add", ["e", "k"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    weights = {"table": (rows, 16), "kinds": (1, 16), "w": (16, 8)}
    tensors = [numpy_helper.from_array(rng.standard_normal(shape, "float32"), name) for name, shape in weights.items()]
    tensors.append(numpy_helper.from_array(np.array([1], np.int64), "one"))
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, (1, 64)) for name in ("ids", "types")]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 64, 8))
    graph = helper.make_graph(nodes, "words", inputs, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.compiles
def test_words_are_of_the_whole_vocabulary(target: Cpu) -> None:
    graph = load_graph(embedding_model())
    reference = Reference.compute(graph)
    words = np.concatenate([expected.sample.feeds["ids"].ravel() for expected in reference.expected])
    assert words.max() > 900 and not reference.feeds["types"].any()
    assert reference.check(build(graph, {}, target)).fault is None
    # The rows behind the second one hold garbage: with words 0 and 1 alone this was not seen.
    wrong = load_graph(changed(embedding_model(), "table", lambda t: np.concatenate([t[:2], 0 * t[2:]])))
    with pytest.raises(ModelError, match="imported graph"):
        Reference.compute(dataclasses.replace(wrong, source=graph.source))


@pytest.mark.parametrize(("rounding", "right"), [(0.0, False), (5e-5, False), (2e-4, True)])
def test_onnxruntime_may_be_as_far_away_as_it_is_from_itself(
    rounding: float, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sigmoid of large negative numbers, for example, makes errors of 1e-4 of the rounding of one convolution."""
    source, wrong = seed_weights(residual_model()), seed_weights(residual_model())
    graph = load_graph(source)
    weight = next(tensor for tensor in wrong.graph.initializer if len(tensor.dims) > 1)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.0003), weight.name))
    monkeypatch.setattr(expected_module, "rounding_of_peer", lambda *_: rounding)
    if right:
        Reference.compute(imported_as(graph, wrong))
        return
    with pytest.raises(ModelError, match="compute different results, before any kernel was chosen"):
        Reference.compute(imported_as(graph, wrong))


def test_a_step_at_a_tie_is_right_and_another_zero_point_is_wrong() -> None:
    """The scales are powers of two, so that many results lie halfway between two integers."""
    w = np.random.default_rng(0).integers(-60, 60, (16, 16), "int8")

    def product(scale: float, zero: int) -> onnx.ModelProto:
        names = {
            **{"xs": np.float32(0.5), "xz": np.uint8(0), "w": w, "ws": np.float32(0.5), "wz": np.int8(0)},
            **{"ys": np.float32(scale), "yz": np.uint8(zero)},
        }
        graph = helper.make_graph(
            [helper.make_node("QLinearMatMul", ["x", *names], ["y"])],
            "product",
            [helper.make_tensor_value_info("x", TensorProto.UINT8, w.shape)],
            [helper.make_tensor_value_info("y", TensorProto.UINT8, w.shape)],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in names.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    graph = load_graph(product(0.5, 100))
    Reference.compute(imported_as(graph, product(0.5 * (1 + 1e-6), 100)))  # the ties are ties no more
    with pytest.raises(ModelError, match="different results"):
        Reference.compute(imported_as(graph, product(0.5, 101)))


@pytest.mark.compiles
@pytest.mark.parametrize("before", ["Softplus(x)", "Softsign(x)", "Tanh(x)", "ReduceMax <axes = [1]> (x)"])
@pytest.mark.parametrize("after", ["Sigmoid", "Softmax"])
def test_what_is_fused_in_front_of_what_saturates_is_no_fault(before: str, after: str, target: Cpu) -> None:
    """The kernel of the sigmoid reads what stands before the other function, too."""
    axis = "<axis = 0>" if after == "Softmax" else ""
    graph = f"g (float[3, 5] x) => (float[3, n] y) {{ a = {before} y = {after} {axis} (a) }}"
    source = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]> {graph}')
    imported = load_graph(source)
    assert Reference.compute(imported).check(build(imported, {}, target)).fault is None


def test_a_short_time_leaves_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph(seed_weights(residual_model(), seed=1))
    names = [each.sample.name for each in Reference.compute(graph).expected]
    assert len(names) == 3
    assert [each.sample.name for each in Reference.compute(graph, 0, (), 0.0).expected] == names[:1]
    real = expected_module.Computing._expected
    monkeypatch.setattr(
        expected_module.Computing,
        "_expected",
        lambda self, sample, peer: None if sample.name == names[0] else real(self, sample, peer),
    )
    assert [each.sample.name for each in Reference.compute(graph, 0, (), 0.0).expected] == names[1:2]


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_a_sigmoid_that_onnxruntime_cuts_off_is_no_wrong_import(wrong: bool) -> None:
    """onnxruntime's Sigmoid of -20 is 0. The standard's evaluator decides, and the kernels have to be as exact."""
    source, other = (
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 13]> g (float[2, 3] x) => (float[2, 1] y) '
            f"{{ s = Sigmoid(x) y = {reduction} <axes = [1]> (s) }}"
        )
        for reduction in ("ReduceMin", "ReduceMax")
    )
    graph = load_graph(source)
    feeds = {"x": np.array([[-25.0, -26.0, -30.0], [-24.0, -28.0, -22.0]], np.float32)}
    if wrong:
        with pytest.raises(ModelError, match="different results"):
            Reference.compute(imported_as(graph, other), given=[feeds])
        return
    (expected,) = Reference.compute(graph, given=[feeds]).expected
    assert expected.allowed("output 'y'", 0.01) < 1e-3
