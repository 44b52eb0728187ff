"""Constants do not keep a tensor in its layout: what follows a convolution becomes a part of its kernel."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper
from tiny_models import make_model

from stormdrop.model.graph.tasks import kernel_calls
from stormdrop.model.importer.import_onnx import load_graph

CONV = {"kernel_shape": [1, 1]}


def test_a_constant_may_be_the_first_operand() -> None:
    """The blocks of PP-OCR: conv, c * x + d, hard swish, conv."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", **CONV),
        helper.make_node("Mul", ["scale", "a"], ["b"], "scaled"),
        helper.make_node("Add", ["b", "offset"], ["c"], "moved"),
        helper.make_node("HardSwish", ["c"], ["d"], "swish"),
        helper.make_node("Conv", ["d", "w"], ["y"], "second", **CONV),
    ]
    numbers = {"scale": 1.5, "offset": 0.25}
    extra = [numpy_helper.from_array(np.array([value], np.float32), name) for name, value in numbers.items()]
    shape = (1, 8, 5, 7)
    model = make_model(nodes, {"w": (8, 8, 1, 1)}, {"x": shape}, {"y": shape}, opset=14, extra=extra)
    calls = [call.args[0].name_hint for call in kernel_calls(load_graph(model).mod)]
    assert [name for name in calls if "conv2d" not in name and not name.startswith("transpose")] == []
    assert len(calls) <= 4  # both convolutions, and the layout of the input and of the output
