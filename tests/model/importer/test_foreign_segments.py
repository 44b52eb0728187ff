from __future__ import annotations

from onnx import helper
from tiny_models import make_model

from stormdrop.model.onnx.segments import Segment, Wiring, divide

FOREIGN = "Foreign"


def wired(*nodes: tuple[str, str, str], outputs: tuple[str, ...] = ("y",)) -> Wiring:
    """A graph of nodes that are given as operator, inputs and outputs; each name is one letter."""
    made = [helper.make_node(operator, list(read), list(written)) for operator, read, written in nodes]
    return Wiring(make_model(made, {"w": (2, 2)}, {"x": (2, 2)}, dict.fromkeys(outputs, (2, 2))).graph)


def steps(wiring: Wiring, crossing: bool = True) -> list[int | Segment]:
    foreign = {position for position, node in enumerate(wiring.nodes) if node.op_type == FOREIGN}
    return list(divide(wiring, foreign, lambda _: crossing))


def test_neighbours_are_one_segment() -> None:
    wiring = wired(("Relu", "x", "a"), (FOREIGN, "a", "b"), (FOREIGN, "bw", "c"), ("MatMul", "cw", "y"))
    assert steps(wiring) == [0, Segment((1, 2), ("a",), ("c",)), 3], "constants are no inputs of a segment"


def test_no_segment_reads_what_depends_on_it() -> None:
    """b -> d passes through a native kernel, so the two foreign nodes cannot be one segment."""
    wiring = wired((FOREIGN, "x", "b"), ("MatMul", "bw", "c"), (FOREIGN, "bc", "y"))
    assert steps(wiring) == [Segment((0,), ("x",), ("b",)), 1, Segment((2,), ("b", "c"), ("y",))]


def test_cheap_nodes_between_two_join_them() -> None:
    wiring = wired((FOREIGN, "x", "b"), ("Relu", "b", "c"), (FOREIGN, "c", "d"), ("Relu", "d", "y"))
    assert steps(wiring) == [Segment((0, 1, 2), ("x",), ("d",)), 3]


def test_independent_ones_are_one_segment() -> None:
    wiring = wired((FOREIGN, "x", "a"), (FOREIGN, "x", "b"), ("Add", "ab", "y"))
    assert steps(wiring) == [Segment((0, 1), ("x",), ("a", "b")), 2]


def test_what_is_no_tensor_crosses_no_border() -> None:
    wiring = wired((FOREIGN, "x", "b"), ("MatMul", "xw", "c"), ("MatMul", "cb", "d"), (FOREIGN, "bd", "y"))
    assert steps(wiring, crossing=False) == [1, Segment((0, 2, 3), ("x", "c"), ("y",))]


def test_bodies_read_from_outside() -> None:
    body = helper.make_graph([helper.make_node("Add", ["a", "x"], ["r"])], "body", [], [])
    body.output.append(helper.make_tensor_value_info("r", 1, (2, 2)))
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
    ]
    wiring = Wiring(make_model(nodes, {}, {"x": (2, 2), "c": ()}, {"y": (2, 2)}).graph)
    assert list(divide(wiring, {1}, lambda _: True)) == [0, Segment((1,), ("c", "a", "x"), ("y",))]
