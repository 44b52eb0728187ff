"""Layers are followed through rewrites of small graphs that are written down."""

from __future__ import annotations

from stormdrop.model.graph.flow import Flow, Value, followed


def value(name: str, *reads: str, passes: bool = False, moves: bool = True) -> Value:
    return Value((name,), reads, passes, moves)


def marks(**layers: int) -> dict[object, frozenset[int]]:
    return {name: frozenset([layer]) for name, layer in layers.items()}


def after(before: list[Value], rewritten: list[Value], own: dict[object, frozenset[int]]) -> dict[object, set[int]]:
    return {name: set(layers) for name, layers in followed(flow(before), own, flow(rewritten)).items()}


def flow(values: list[Value]) -> Flow:
    """The graph of these values, of which the last one is the output."""
    return Flow.of(values, values[-1].makes)


def test_what_keeps_its_name_keeps_its_layers() -> None:
    graph = [value("conv", "x"), value("relu", "conv")]
    assert after(graph, graph, marks(conv=0, relu=1)) == {"conv": {0}, "relu": {1}}


def test_a_decomposed_operator_keeps_its_layer_in_all_of_its_parts() -> None:
    before = [value("norm", "x"), value("relu", "norm")]
    parts = [value("a", "x"), value("b", "a"), value("norm", "b"), value("relu", "norm")]
    assert after(before, parts, marks(norm=0, relu=1)) == {"a": {0}, "b": {0}, "norm": {0}, "relu": {1}}


def test_a_change_of_layout_belongs_to_who_needs_it() -> None:
    before = [value("relu", "x"), value("conv", "relu")]
    inserted = [value("relu", "x"), value("moved", "relu"), value("conv", "moved"), value("back", "conv")]
    assert after(before, inserted, marks(relu=0, conv=1)) == {"relu": {0}, "moved": {1}, "conv": {1}, "back": {1}}


def test_an_operator_that_its_reader_takes_over_stands_with_it() -> None:
    before = [value("conv", "x"), value("bias", "conv"), value("norm", "bias"), value("relu", "norm")]
    folded = [value("new", "x"), value("norm", "new"), value("relu", "norm")]
    own = marks(conv=0, bias=1, norm=2, relu=3)
    assert after(before, folded, own) == {"new": {0, 1, 2}, "norm": {0, 1, 2}, "relu": {3}}


def test_what_the_last_operator_was_goes_to_what_is_the_output_now() -> None:
    before = [value("conv", "x"), value("norm", "conv")]
    assert after(before, [value("conv", "x")], marks(conv=0, norm=1)) == {"conv": {0, 1}}


def test_a_constant_and_a_reshape_are_folded_away() -> None:
    before = [value("weights"), value("turned", "weights"), value("flat", "x", moves=False)]
    before += [value("dense", "flat", "turned")]
    own = marks(weights=0, turned=1, flat=2, dense=3)
    assert after(before, [value("dense", "x")], own) == {"dense": {3}}


def test_an_element_of_a_tuple_belongs_to_who_made_the_tuple() -> None:
    before = [value("split", "x"), value("relu", "split")]
    rewritten = [value("split", "x"), value("first", "split", passes=True), value("relu", "first")]
    assert after(before, rewritten, marks(split=0, relu=1)) == {"split": {0}, "first": {0}, "relu": {1}}


def test_a_rewrite_may_say_what_a_new_value_stands_for() -> None:
    before = [value("a", "x"), value("b", "x"), value("joined", "a", "b"), value("relu", "joined")]
    placed = [value("new_a", "x"), value("new_b", "x", "new_a"), value("relu", "new_b")]
    own = marks(a=0, b=1, joined=2, relu=3)
    found = followed(flow(before), own, flow(placed), {"new_a": ["a"], "new_b": ["b", "joined"]})
    assert found == {
        "new_a": frozenset([0]),
        "new_b": frozenset([1, 2]),
        "relu": frozenset([3]),
    }


def test_what_no_output_depends_on_is_computed_by_nobody() -> None:
    before = [value("dead", "x"), value("conv", "x")]
    assert after(before, [value("conv", "x")], marks(dead=0, conv=1)) == {"conv": {1}}


def test_what_is_left_over_of_a_rewrite_does_not_keep_its_layers() -> None:
    before = [value("moved", "x"), value("conv", "moved")]
    rewritten = [value("moved", "x"), value("copy", "x"), value("conv", "copy")]
    assert after(before, rewritten, marks(moved=0, conv=1)) == {"copy": {0, 1}, "conv": {0, 1}}
