"""onnxscript's optimizer: constant folding, dead code, identities, and its rewrite rules; without what takes it long.

Its own order of the passes is kept, and so are their results, except that an output may be an input. It tries each of
its fifty rules at each node, and one of them looks at all nodes for that; and it infers the shapes of nodes whose
shapes are known. That takes 10 s for a model of 1,500 nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxscript import rewriter
from onnxscript.optimizer._constant_folding import FoldConstantsPass
from onnxscript.rewriter import RewriteRule, RewriteRuleSet

FOLD_LIMIT = 1 << 28
"""The largest constant that is computed at import, in elements: 1 GiB of float32, enough for the weights of a layer."""


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
    """Simplify a model in place: at most two rounds of folding and rewriting, and then tidying."""
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
    """A set of rules that tries each rule at the nodes of its last operator only."""
    return RewriteRuleSet([_Indexed(rule) for rule in rules])


class _Folding(FoldConstantsPass):
    """Infers the shapes of a node only if one of them is open."""

    def _do_inference(self, node: ir.Node) -> None:
        known = (
            value.type is not None and value.shape is not None and value.shape.is_static() for value in node.outputs
        )
        if not all(known):
            super()._do_inference(node)


class _Indexed:
    """A rule as a rule set uses it: it does not look at a node of another operator than its pattern ends with."""

    def __init__(self, rule: RewriteRule) -> None:
        self._rule = rule
        self._operator = rule._target_pattern.output_nodes[0].op_identifier()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def try_rewrite(self, model: ir.Model, graph: Any, node: ir.Node, **options: Any) -> Any:
        if self._operator is not None and node.op_identifier() != self._operator:
            return None
        return self._rule.try_rewrite(model, graph, node, **options)


_DEFAULT_RULES = rule_set(rewriter._DEFAULT_REWRITE_RULES)
