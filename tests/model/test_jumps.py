"""Models that jump: what is floored, cut, compared or chosen after inexact arithmetic may go to either side."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from stormdrop.errors import ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.precision.mixed import in_mixed_precision
from stormdrop.model.precision.reference import mixed_reference
from stormdrop.model.verification.arrays import error_of, mean_error
from stormdrop.model.verification.expected import Computing
from stormdrop.model.verification.verify import Reference

KINDS = {
    "floor of a sigmoid": ("Sigmoid", "times 10", "Floor"),
    "ceil of a softmax": ("Softmax", "times 100", "Ceil"),
    "integer of a sigmoid": ("Sigmoid", "times 10", "Cast"),
    "remainder of a product": ("MatMul", "Mod"),
    "fraction of a quotient": ("times a tenth", "fraction"),
    "fraction of a product": ("MatMul", "fraction"),
    "sign of a softmax": ("Softmax", "Sign"),
    "place of a saturated maximum": ("Sigmoid", "ArgMax"),
}
FACTORS = {"times 10": 10.0, "times 100": 100.0, "times a tenth": 0.1}


def jumping(*steps: str) -> onnx.ModelProto:
    """A chain of operators on images of 0 to 255, among others."""
    nodes: list[onnx.NodeProto] = []
    constants = {"w": np.random.default_rng(0).standard_normal((24, 16)).astype(np.float32), "d": np.float32(0.7)}
    value = "x"
    for number, step in enumerate(steps):
        made = f"v{number}"
        if step in FACTORS:
            constants[step] = np.float32(FACTORS[step])
            nodes.append(helper.make_node("Mul", [value, step], [made]))
        elif step == "fraction":
            nodes += [helper.make_node("Floor", [value], ["f"]), helper.make_node("Sub", [value, "f"], [made])]
        else:
            others = {"MatMul": ["w"], "Mod": ["d"]}.get(step, [])
            settings = {"Mod": {"fmod": 1}, "Cast": {"to": TensorProto.INT32}, "ArgMax": {"axis": -1}}.get(step, {})
            nodes.append(helper.make_node(step, [value, *others], [made], **settings))
        value = made
    kind = {"Cast": TensorProto.INT32, "ArgMax": TensorProto.INT64}.get(steps[-1], TensorProto.FLOAT)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 17, 24))
    tensors = [numpy_helper.from_array(np.asarray(constant), name) for name, constant in constants.items()]
    y = helper.make_tensor_value_info(value, kind, None)
    graph = helper.make_graph(nodes, "jumps", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def imported_as(graph: Graph, wrong: onnx.ModelProto) -> Graph:
    return dataclasses.replace(load_graph(wrong), source=graph.source)


@pytest.mark.compiles
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_right_where_rounding_decides(kind: str, target: Cpu) -> None:
    graph = load_graph(jumping(*KINDS[kind]))
    reference = Reference.compute(graph)
    verified = reference.check(build(graph, {}, target))
    assert verified.fault is None, str(verified.fault)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (("Sigmoid", "times 10", "Floor"), ("Sigmoid", "times 10", "Ceil")),
        (("Sigmoid", "times 10", "Floor"), ("Sigmoid", "times 10", "Round")),
        (("MatMul", "Floor"), ("MatMul", "Round")),
        (("times a tenth", "Floor"), ("times a tenth", "Ceil")),
        (("MatMul", "fraction"), ("MatMul", "Mod")),
    ],
)
def test_another_function_is_wrong(right: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    """Each number may be rounded to either side only where it is near a border."""
    graph = load_graph(jumping(*right))
    with pytest.raises(ModelError, match="the imported graph and onnx"):
        Reference.compute(imported_as(graph, jumping(*wrong)))


@pytest.mark.parametrize(("mean", "right"), [(0.01, True), (0.5, False)])
def test_the_mean_error_of_an_import_in_float64_is_its_own(mean: float, right: bool) -> None:
    """Rounding explains that a hundredth of the elements is a step away, not half of them."""
    computing = Computing(load_graph(jumping(*KINDS["integer of a sigmoid"])), 0)
    first = computing.expected()[0][0]
    name = next(iter(first.tensors))
    expected = dataclasses.replace(
        first,
        imported={name: 0.6},
        means_of_import={name: mean},
        rounded=lambda _, error, mean: error if mean <= 0.1 else 0.0,
    )
    with nullcontext() if right else pytest.raises(ModelError, match="the imported graph and onnx"):
        computing._checked(expected, "onnx", is_slow=False)


@pytest.mark.compiles
def test_a_kernel_that_floors_wrongly_is_seen(target: Cpu) -> None:
    """A tenth of the elements is a step too low: within the error of a step, and too many."""
    graph = load_graph(jumping("times a tenth", "Floor"))
    reference = Reference.compute(graph)
    assert reference.check(build(graph, {}, target)).fault is None
    source = jumping("times a tenth", "Floor")
    source.graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.float32(0.0985), "times a tenth"))
    assert reference.check(build(load_graph(source), {}, target)).fault is not None


def saturated(scale: float) -> onnx.ModelProto:
    """A quantised network as `stormdrop quantize` writes it, whose logits are in the thousands."""
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((32, 64)) / 5, "w2": scale * rng.standard_normal((64, 10)) / 8}
    constants: dict[str, np.ndarray] = {name: value.astype(np.float32) for name, value in weights.items()}
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["a"])]
    steps = {"a": 0.05, "l": scale / 32, "p": 1 / 256}
    for name in steps:
        if name == "l":
            nodes += [helper.make_node("Relu", ["a.d"], ["r"]), helper.make_node("MatMul", ["r", "w2"], ["l"])]
        if name == "p":
            nodes.append(helper.make_node("Softmax", ["l.d"], ["p"], axis=-1))
        constants |= {f"{name}.s": np.float32(steps[name]), f"{name}.z": np.uint8(0 if name == "p" else 128)}
        given = [f"{name}.s", f"{name}.z"]
        nodes.append(helper.make_node("QuantizeLinear", [name, *given], [f"{name}.q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}.q", *given], [f"{name}.d"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 32))
    y = helper.make_tensor_value_info("p.d", TensorProto.FLOAT, (4, 10))
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "saturated", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.compiles
@pytest.mark.parametrize("in_bfloat16", [False, True])
def test_an_output_behind_a_softmax_is_judged_by_what_its_kernel_reads(in_bfloat16: bool, target: Cpu) -> None:
    """A step of the largest logit, which may be right, makes another output of it."""

    def imported(model: onnx.ModelProto) -> Graph:
        return in_mixed_precision(load_graph(model)).graph if in_bfloat16 else load_graph(model)

    graph = imported(saturated(3000.0))
    reference = Reference.compute(load_graph(saturated(3000.0)))
    if in_bfloat16:
        reference = mixed_reference(graph, reference)
    (before,) = reference.sites
    first = reference.expected[0]
    moved = first.tensors[before].copy()
    largest = int(moved[0].argmax())
    moved[0, (largest + 1) % 10] = moved[0, largest] + 3000.0 / 32
    right = reference.after_saturation({before: moved})["output 'p.d'"]
    assert np.abs(right - first.tensors["output 'p.d'"]).max() > 0.9
    assert reference.check(build(graph, {}, target)).fault is None
    other = saturated(3000.0)
    weight = next(tensor for tensor in other.graph.initializer if tensor.name == "w2")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight)[:, ::-1].copy(), "w2"))
    fault = reference.check(build(imported(other), {}, target)).fault
    assert fault is not None and fault.tensor == before


def recurrent(steps: int, hidden: int) -> onnx.ModelProto:
    """h = tanh(W (x + h)), with x + h quantised dynamically at each step."""
    rng = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {
        "w": rng.integers(-127, 127, (hidden, hidden)).astype(np.int8),
        "ws": np.float32(3 / 127 / hidden**0.5),
        "h0": np.zeros((1, hidden), np.float32),
    }
    nodes: list[onnx.NodeProto] = []
    for step in range(steps):
        constants[f"i{step}"] = np.array(step)
        nodes += [
            helper.make_node("Gather", ["x", f"i{step}"], [f"x{step}"], axis=0),
            helper.make_node("Add", [f"x{step}", f"h{step}"], [f"a{step}"]),
            helper.make_node("DynamicQuantizeLinear", [f"a{step}"], [f"q{step}", f"s{step}", f"z{step}"]),
            helper.make_node("MatMulInteger", [f"q{step}", "w", f"z{step}"], [f"m{step}"]),
            helper.make_node("Cast", [f"m{step}"], [f"c{step}"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"s{step}", "ws"], [f"k{step}"]),
            helper.make_node("Mul", [f"c{step}", f"k{step}"], [f"p{step}"]),
            helper.make_node("Tanh", [f"p{step}"], [f"h{step + 1}"]),
        ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, 1, hidden))
    y = helper.make_tensor_value_info(f"h{steps}", TensorProto.FLOAT, (1, hidden))
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "recurrent", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_rounding_that_feeds_back_is_right_and_other_weights_are_wrong() -> None:
    """Each way to round takes another way through 12 steps; the kernels are compared by themselves as well."""
    graph = load_graph(recurrent(12, 24))
    computing = Computing(graph, 0)
    reference = Reference.compute(graph)
    assert reference.kernels is not None and computing.exact is not None
    (expected, *_) = reference.expected
    name, right = next(iter(expected.tensors.items()))
    for seed in range(10, 14):
        rng = np.random.default_rng(seed)
        outputs, _ = computing.exact.run(expected.sample.feeds, rounded=True, noise=rng)
        (value,) = outputs.values()
        error = error_of(value, right)
        assert error <= expected.allowed(name, error, mean_error(value, right))
    other = recurrent(12, 24)
    weight = next(tensor for tensor in other.graph.initializer if tensor.name == "w")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight)[::-1].copy(), "w"))
    with pytest.raises(ModelError, match="the imported graph and onnx"):
        Reference.compute(imported_as(graph, other))


@pytest.mark.compiles
def test_a_wrong_kernel_is_found_where_rounding_feeds_back(target: Cpu) -> None:
    """The outputs of such a network say little: a scale that is a hundredth off shows in the kernel by itself."""
    graph = load_graph(recurrent(12, 24))
    reference = Reference.compute(graph)
    right = reference.check(build(graph, {}, target))
    assert right.fault is None, str(right.fault)
    other = recurrent(12, 24)
    scale = next(tensor for tensor in other.graph.initializer if tensor.name == "ws")
    scale.CopyFrom(numpy_helper.from_array(np.float32(1.01) * numpy_helper.to_array(scale), "ws"))
    fault = reference.check(build(load_graph(other), {}, target)).fault
    assert fault is not None
