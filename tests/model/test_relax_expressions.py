from __future__ import annotations

import pytest
from onnx import helper
from tiny_models import make_model
from tvm import relax

from stormdrop.model.graph.expressions import variables_of
from stormdrop.model.importer.import_onnx import load_graph

pytestmark = pytest.mark.compiles

_PARTS = 12


def unrolled() -> relax.Function:
    """`main` of a model that splits its input into parts, and computes each of them from the one before."""
    nodes = [helper.make_node("Split", ["x"], [f"x{part}" for part in range(_PARTS)], axis=0, num_outputs=_PARTS)]
    state = "x0"
    for part in range(1, _PARTS):
        nodes.append(helper.make_node("MatMul", [state, "w"], [f"m{part}"]))
        nodes.append(helper.make_node("Add", [f"m{part}", f"x{part}"], [f"h{part}"]))
        state = f"h{part}"
    nodes.append(helper.make_node("Concat", [state, "x0", state], ["y"], axis=0))
    model = make_model(nodes, {"w": (4, 4)}, {"x": (_PARTS, 4)}, {"y": (3, 4)}, 18)
    return load_graph(model).mod["main"]


def test_the_variables_of_an_expression_are_those_that_tvms_visitor_finds() -> None:
    main, kinds = unrolled(), set()
    for value in [main.body.body, *(binding.value for block in main.body.blocks for binding in block.bindings)]:
        visited: list[relax.Expr] = []
        relax.analysis.post_order_visit(value, visited.append)
        found = [node for node in visited if isinstance(node, relax.Var)]
        assert all(mine.same_as(theirs) for mine, theirs in zip(variables_of(value), found, strict=True))
        kinds.add(type(value).__name__)
    assert {"Call", "TupleGetItem"} <= kinds


def test_an_element_of_a_tuple_costs_no_visit_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    main = unrolled()
    elements = [
        binding.value
        for block in main.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.TupleGetItem)
    ]
    monkeypatch.delattr(relax.analysis, "post_order_visit")  # it visits the sizes of all of them
    assert len(elements) == _PARTS and all(len(variables_of(element)) == 1 for element in elements)
