"""Programs compute, bit for bit, what TVM's virtual machine computes with the same kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from foreign_models import boxes_at_the_end, gelu_inside, only_a_loop, two_segments
from onnx import helper
from quantised_models import attention, residual
from sized_models import pooled_model
from tiny_models import attention_model, make_model, residual_model, zoo_model

from stand_ins.virtual_machine import assert_equal, recorded, run_by_virtual_machine
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.isolated import Importer
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.program.check import check_program
from stormdrop.model.program.document import from_json, to_json
from stormdrop.model.random_weights import seed_weights

pytestmark = pytest.mark.compiles


def passed_on() -> onnx.ModelProto:
    """What is returned is an input, a constant, the same tensor twice, and two views of one tensor."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Identity", ["y"], ["again"]),
        helper.make_node("Flatten", ["y"], ["flat"], axis=0),
        helper.make_node("Add", ["c", "c"], ["constant"]),
    ]
    outputs = {"same": (4, 8), "y": (4, 8), "again": (4, 8), "flat": (1, 32), "constant": (3,)}
    return make_model(nodes, {"w": (8, 8), "c": (3,)}, {"x": (4, 8)}, outputs)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual": lambda: seed_weights(residual_model(), 1),
    "attention": lambda: seed_weights(attention_model(), 1),
    "bytes": residual,
    "attention of bytes": attention,
    "a part inside": gelu_inside,
    "two parts": two_segments,
    "a part with an open output": boxes_at_the_end,
    "nothing but a part": only_a_loop,
    "outputs that nothing computes": lambda: seed_weights(passed_on(), 1),
    "squeezenet": lambda: seed_weights(zoo_model("squeezenet"), 1),
    "shufflenet": lambda: seed_weights(zoo_model("shufflenet"), 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_program_computes_what_the_virtual_machine_does(name: str, target: Cpu) -> None:
    graph = load_graph(MODELS[name]())
    with recorded() as modules:
        model = build(graph, {}, target)
    program = model._program.program
    check_program(program)
    assert from_json(to_json(program)) == program
    assert len(str(program).splitlines()) == 2 + len(program.sizes[0].steps)
    feeds = random_feeds(model.inputs, 3)
    assert_equal(model.run(feeds), run_by_virtual_machine(model, modules[0], 0, feeds))


def test_each_size_computes_what_the_virtual_machine_does(target: Cpu) -> None:
    with Importer() as importer, recorded() as modules:
        model = build(importer.load(pooled_model(), {"x": ((1, 3, 4), 3, 8, 8)}), {}, target)
    assert len(model.sizes) == 3
    for position, size in enumerate(model.sizes):
        feeds = random_feeds(size.inputs, 3)
        assert_equal(model.run(feeds), run_by_virtual_machine(model, modules[0], position, feeds))


def test_outputs_are_the_callers(target: Cpu) -> None:
    model = build(load_graph(seed_weights(passed_on(), 1)), {}, target)
    x = np.ones((4, 8), np.float32)
    first = model.run({"x": x})
    kept = {name: value.copy() for name, value in first.items()}
    model.run({"x": -x})
    for name, value in first.items():
        np.testing.assert_array_equal(value, kept[name])
        value[...] = 7  # and does not change what the model computes
    assert_equal(model.run({"x": x}), kept)
