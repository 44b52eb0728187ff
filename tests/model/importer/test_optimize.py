"""onnxscript's rules, tried only where they may fit: the result is that of its own set of rules."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper
from onnxscript import rewriter
from onnxscript.rewriter import RewriteRuleSet
from tiny_models import make_model

from stormdrop.model.onnx.rewrites.optimize import rule_set


def model() -> onnx.ModelProto:
    """Slices of one value, which a rule looks at in pairs; a transposition there and back, and x * 1."""
    nodes = [
        helper.make_node("Slice", ["x", "zero", "two", "one"], ["left"]),
        helper.make_node("Slice", ["x", "two", "four", "one"], ["right"]),
        helper.make_node("Slice", ["y", "zero", "two", "one"], ["begin"]),
        helper.make_node("Slice", ["y", "one", "two", "one"], ["middle"]),
        helper.make_node("Add", ["left", "right"], ["sum"]),
        helper.make_node("Mul", ["factor", "sum"], ["product"]),
        helper.make_node("Transpose", ["product"], ["turned"], perm=[1, 0]),
        helper.make_node("Transpose", ["turned"], ["back"], perm=[1, 0]),
        helper.make_node("Add", ["back", "begin"], ["total"]),
        helper.make_node("Add", ["total", "middle"], ["z"]),
    ]
    numbers = {"zero": 0, "one": 1, "two": 2, "four": 4}
    constants = [numpy_helper.from_array(np.array([value]), name) for name, value in numbers.items()]
    constants.append(numpy_helper.from_array(np.array(1, np.float32), "factor"))
    inputs = {"x": (3, 4), "y": (3, 4)}
    return onnx.shape_inference.infer_shapes(make_model(nodes, {}, inputs, {"z": (3, 2)}, 18, constants))


def test_the_result_is_that_of_onnxscripts_own_set() -> None:
    rules = rewriter._DEFAULT_REWRITE_RULES
    ours, theirs = ir.from_proto(model()), ir.from_proto(model())
    count = rule_set(rules).apply_to_model(ours)
    assert count == RewriteRuleSet(rules).apply_to_model(theirs) == 2
    assert {node.op_type for node in ours.graph} == {"Slice", "Add", "Identity"}
    one, other = (ir.to_proto(each).SerializeToString(deterministic=True) for each in (ours, theirs))
    assert one == other
