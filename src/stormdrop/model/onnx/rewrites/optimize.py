"""onnxscript's optimizer: constant folding, dead code, identities, and its rewrite rules; without what takes it long.

Its own order of the passes is kept, and so are their results, except that an output may be an input. It tries each of
its fifty rules at each node, and one of them looks at all nodes for that; and it infers the shapes of nodes whose
shapes are known. That takes 10 s for a model of 1,500 nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxscript import rewriter
from onnxscript.optimizer._constant_folding import FoldConstantsPass
from onnxscript.rewriter import RewriteRule, RewriteRuleSet
from onnxscript.rewriter._pattern_ir import NodeOutputPattern, NodePattern

FOLD_LIMIT = 1 << 28
"""The largest constant that is computed at import, in elements: 1 GiB of float32, enough for the weights of a layer."""

_OF_SEQUENCES = ("ConcatFromSequence", "SplitToSequence")
_SPLITS_ARE_AN_INPUT = 13
"""The first opset in which the sizes of a Split are an input, and the axes of an Unsqueeze and of a Squeeze."""

_RULES_SINCE = {
    "FuseMaxMinToClip": 11,
    "FuseMinMaxToClip": 11,
    "FuseSuccessiveClip": 11,
    "FuseSuccessiveClipRelu": 11,
    "FuseSuccessiveReluClip": 11,
}
"""The first opset for which a rule of onnxscript is right. It asks for none, drops the bounds of a Clip that are
attributes, and writes inputs."""


def _should_fold(node: ir.Node) -> bool | None:
    """Folds `ConstantOfShape`, with which computations on shapes begin; None leaves the decision to onnxscript."""
    return True if node.op_type == "ConstantOfShape" else None


FOLDING: dict[str, Any] = {
    "input_size_limit": FOLD_LIMIT,
    "output_size_limit": FOLD_LIMIT,
    "should_fold": _should_fold,
}
"""The options of onnxscript's constant folding."""


def optimize(graph: ir.Model) -> None:
    """Simplifies a model in place: at most two rounds of folding and rewriting, and then tidying."""
    simplify = ir.passes.PassManager(
        [
            _Folding(shape_inference=True, **FOLDING),
            rewriter.RewritePass(_DEFAULT_RULES),
            passes.RemoveUnusedNodesPass(),
        ],
        steps=2,
    )
    tidy = ir.passes.Sequential(
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.LiftSubgraphInitializersToMainGraphPass(),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.NameFixPass(),
    )
    passes.InlinePass()(graph)
    simplify(graph)
    tidy(graph)


def rule_set(rules: Iterable[RewriteRule]) -> RewriteRuleSet:
    """A set of rules that tries each rule only where operators fit its pattern."""
    return RewriteRuleSet([_Indexed(rule) for rule in rules])


def fold_constants(graph: ir.Model) -> None:
    """Replaces what is computed of constants by its value.

    Args:
        graph: The model, whose types are known; it is changed.
    """
    _Folding(shape_inference=False, **FOLDING)(graph)


class _Folding(FoldConstantsPass):
    """Infers the shapes of a node only if one of them is open.

    What it computes has the type that the standard says, and its own shape.
    """

    def process_node(self, node: ir.Node, is_function: bool) -> Any:
        # What onnxscript makes of sequences has operators of opset 13, whatever the model's opset is.
        if node.op_type in _OF_SEQUENCES and self._opset_imports.get(node.domain, 0) < _SPLITS_ARE_AN_INPUT:
            return None
        return super().process_node(node, is_function)

    def _prepare_folded_tensor(self, node: ir.Node, output_name: str, output_array: Any) -> Any:
        known = node.outputs[0].type
        if isinstance(output_array, np.ndarray) and known is not None:
            # onnx's evaluator adds up integers of 32 bits in NumPy, which makes 64 of them.
            output_array = output_array.astype(known.dtype.numpy(), copy=False)
        if isinstance(output_array, np.ndarray):
            # What was inferred before the inputs were constants may have open extents, which a constant would keep.
            node.outputs[0].shape = ir.Shape(output_array.shape)
        return super()._prepare_folded_tensor(node, output_name, output_array)

    def _do_inference(self, node: ir.Node) -> None:
        known = (
            value.type is not None and value.shape is not None and value.shape.is_static() for value in node.outputs
        )
        if not all(known):
            super()._do_inference(node)


class _Indexed:
    """A rule as a rule set uses it: it tries no node whose operator, or the operators before it, do not fit."""

    def __init__(self, rule: RewriteRule) -> None:
        self._rule = rule
        self._pattern, *others = rule._target_pattern.output_nodes
        # The inputs that this pattern's last nodes have in common, by their positions at the first of them.
        self._common = [
            position
            for position, value in enumerate(self._pattern.inputs)
            if others and value is not None and all(any(value is read for read in other.inputs) for other in others)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def try_rewrite(self, model: ir.Model, graph: Any, node: ir.Node, **options: Any) -> Any:
        if not _may_match(self._pattern, node) or model.opset_imports.get("", 0) < _RULES_SINCE.get(self._rule.name, 0):
            return None
        read = [node.inputs[position] for position in self._common if position < len(node.inputs)]
        if read and read[0] is not None:
            graph = _Readers(graph, read[0])
        return self._rule.try_rewrite(model, graph, node, **options)


class _Readers:
    """A graph as a rule for several last nodes sees it: all of these read one value, so no other node can be one."""

    def __init__(self, graph: Any, value: ir.Value) -> None:
        self.graph: ir.Graph = graph if isinstance(graph, ir.Graph) else graph.graph
        self._value = value

    def __iter__(self) -> Iterator[ir.Node]:
        readers = dict.fromkeys(use.node for use in self._value.uses())
        return (node for node in readers if node.graph is self.graph)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.graph, name)


def _may_match(pattern: NodePattern, node: ir.Node) -> bool:
    """Whether the operators of a node, and of what computes its inputs, are those of a pattern.

    No rule knows a BatchNormalization that trains: it takes the statistics of the batch. None knows a ScatterND that
    adds to what is there, or takes the larger one.
    """
    if not pattern.op.matches(node.op_type):
        return False
    trains = len(node.outputs) > 1 or node.attributes.get_int("training_mode", False)
    if node.op_type == "BatchNormalization" and trains:
        return False
    if node.op_type == "ScatterND" and node.attributes.get_string("reduction", "none") != "none":
        return False
    for wanted, value in zip(pattern.inputs, node.inputs, strict=False):
        if isinstance(wanted, NodeOutputPattern):
            producer = None if value is None else value.producer()
            if producer is None or not _may_match(wanted.producer(), producer):
                return False
    return True


_DEFAULT_RULES = rule_set(rewriter._DEFAULT_REWRITE_RULES)
