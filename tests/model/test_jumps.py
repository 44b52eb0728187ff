"""Models that jump: what is floored, cut, compared or chosen after inexact arithmetic may go to either side."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from stormdrop.errors import ModelError
from stormdrop.machine.cpu import Target
from stormdrop.model.compile import build
from stormdrop.model.importer.graph import Graph, load_graph
from stormdrop.model.verify import Reference

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
def test_a_step_is_right_where_rounding_decides(kind: str, target: Target) -> None:
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


@pytest.mark.compiles
def test_a_kernel_that_floors_wrongly_is_seen(target: Target) -> None:
    """A tenth of the elements is a step too low: within the error of a step, and too many."""
    graph = load_graph(jumping("times a tenth", "Floor"))
    reference = Reference.compute(graph)
    assert reference.check(build(graph, {}, target)).fault is None
    source = jumping("times a tenth", "Floor")
    source.graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.float32(0.0985), "times a tenth"))
    assert reference.check(build(load_graph(source), {}, target)).fault is not None
