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
from stormdrop.model.onnx.rewrites.simplify import clean


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


def test_a_folded_constant_has_its_own_shape() -> None:
    """A part of a table, and what is added to it, are as long as the input is: so what is counted of them is known."""
    nodes = [
        helper.make_node("Shape", ["words"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["scalar"]),
        helper.make_node("Unsqueeze", ["scalar", "zero"], ["count"]),
        helper.make_node("Slice", ["numbers", "zero", "count", "one"], ["positions"]),
        helper.make_node("Gather", ["table", "positions"], ["rows"]),
        helper.make_node("Add", ["words", "rows"], ["sum"]),
        helper.make_node("Shape", ["sum"], ["of_sum"]),
        helper.make_node("Gather", ["of_sum", "first"], ["tokens"]),
        helper.make_node("Range", ["start", "tokens", "step"], ["range"]),
        helper.make_node("Cast", ["range"], ["floats"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "one"], ["column"]),
        helper.make_node("Mul", ["sum", "column"], ["y"]),
    ]
    constants = [
        *(numpy_helper.from_array(np.array([value]), name) for name, value in (("zero", 0), ("one", 1))),
        *(numpy_helper.from_array(np.array(value), name) for name, value in (("start", 0), ("step", 1), ("first", 1))),
        numpy_helper.from_array(np.arange(16)[None], "numbers"),
        numpy_helper.from_array(np.ones((16, 8), np.float32), "table"),
    ]
    cleaned = clean(make_model(nodes, {}, {"words": (1, 5, 8)}, {"y": (1, 5, 8)}, extra=constants))
    assert {node.op_type for node in cleaned.graph.node} == {"Add", "Mul"}
