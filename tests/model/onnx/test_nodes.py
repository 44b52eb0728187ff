"""How the attributes of an ONNX node are read."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import stormdrop
from stormdrop.model.onnx.nodes import as_text, attribute_of, constants_of, with_nodes

PACKAGE = Path(str(stormdrop.__file__)).parent


def test_an_attribute_is_a_python_value() -> None:
    node = helper.make_node("Some", ["x"], ["y"], axis=2, alpha=0.5, mode="max", perm=[1, 0], activations=["Relu"])
    assert attribute_of(node, "axis") == 2
    assert attribute_of(node, "alpha", 1.0) == 0.5
    assert attribute_of(node, "mode", "avg") == "max"
    assert attribute_of(node, "perm", [0]) == [1, 0]
    assert attribute_of(node, "activations") == ["Relu"]


def test_an_attribute_that_is_left_out_has_the_default() -> None:
    node = helper.make_node("Some", ["x"], ["y"])
    assert attribute_of(node, "axis") is None and attribute_of(node, "axis", 1) == 1


def test_an_attribute_of_another_type_than_the_default_has_the_default() -> None:
    node = helper.make_node("Some", ["x"], ["y"], axis=1.5)
    assert attribute_of(node, "axis", 1) == 1


@pytest.mark.parametrize("changed", [{"ref_attr_name": "outer"}, {"type": onnx.AttributeProto.UNDEFINED}])
def test_an_attribute_without_a_value_has_the_default(changed: dict[str, int | str]) -> None:
    node = helper.make_node("Some", ["x"], ["y"], axis=3)
    for field, value in changed.items():
        setattr(node.attribute[0], field, value)
    assert attribute_of(node, "axis", 1) == 1


def test_bytes_become_text() -> None:
    assert as_text((b"Relu", b"Tanh")) == ("Relu", "Tanh")
    assert as_text(b"\xff") == "\\xff"
    assert as_text(1.5) == 1.5


def test_constants_are_initializers_and_the_values_of_constant_nodes() -> None:
    tensor = numpy_helper.from_array(np.arange(3), "kept")
    nodes = [
        helper.make_node("Constant", [], ["made"], value=numpy_helper.from_array(np.ones(2))),
        helper.make_node("Constant", [], ["number"], value_float=1.0),
        helper.make_node("Constant", [], ["foreign"], domain="elsewhere", value=numpy_helper.from_array(np.ones(2))),
    ]
    found = constants_of(helper.make_graph(nodes, "graph", [], [], [tensor]))
    assert list(found) == ["kept", "made"] and list(found["made"].dims) == [2]


def test_a_copy_has_other_nodes_and_the_model_keeps_its_own() -> None:
    old, new = helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Tanh", ["x"], ["y"])
    model = helper.make_model(helper.make_graph([old], "graph", [], []))
    copy = with_nodes(model, iter([new, new]))
    assert [node.op_type for node in copy.graph.node] == ["Tanh", "Tanh"]
    assert [node.op_type for node in model.graph.node] == ["Relu"] and copy.graph.name == "graph"


def test_nothing_else_reads_attributes() -> None:
    readers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("get_attribute_value", "get_node_attr_value")
    }
    assert readers == {"model/onnx/nodes.py"}
