"""Products with keys or values that several heads share, without copies of these for each head.

    a [B, 6, S, K] x repeated(x [B, 2, K, N])   ->   a as [B, 2, 3 S, K] x x, as [B, 6, S, N]

The rows of the heads that share keys lie one after the other already: all of it but the product is a reshape. Exporters
write the copies as Unsqueeze, Expand and Reshape, perhaps with a Transpose of the last two axes before the product.
"""

from __future__ import annotations

import onnx
from onnx import helper

from ..nodes import attribute_of
from ..standard import is_standard
from .rewriting import Rewriting

_TURNED = [0, 1, 3, 2]


def with_grouped_heads(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replaces products of heads with keys or values that were copied for each of them.

    Args:
        model: The model, whose shapes are known where this is to find something; it is not changed.

    Returns:
        The new model; the same one if it has no such product.
    """
    if not any(is_standard(node, "Expand") for node in model.graph.node):
        return model
    return _GroupedHeads(model).rewritten()


class _GroupedHeads(Rewriting):
    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        graph = model.graph
        self._shapes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*graph.input, *graph.value_info, *graph.output)
        }

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if not is_standard(node, "MatMul"):
            return [node]
        right, turned = self.producer(node.input[1]), False
        if right is not None and is_standard(right, "Transpose") and attribute_of(right, "perm") == _TURNED:
            right, turned = self.producer(right.input[0]), True
        shared = None if right is None else self._shared(right)
        left, out = (self._shapes.get(name, []) for name in (node.input[0], node.output[0]))
        if shared is None or right is None or len(left) != 4 or len(out) != 4 or not all((*left, *out)):
            return [node]
        (batch, heads, *_), copied = self._shapes[shared], self._shapes[right.output[0]]
        if left[:2] != copied[:2]:
            return [node]
        name, rows = node.output[0], left[1] // heads * left[2]
        grouped, made, keys = (self.fresh(f"{name}_{part}") for part in ("grouped", "made", "keys"))
        as_groups = self.constant(f"{name}_as_groups", [batch, heads, rows, left[3]])
        as_heads = self.constant(f"{name}_as_heads", out)
        turn = [helper.make_node("Transpose", [shared], [keys], perm=_TURNED)] if turned else []
        return [
            *turn,
            helper.make_node("Reshape", [node.input[0], as_groups], [grouped]),
            helper.make_node("MatMul", [grouped, keys if turned else shared], [made], node.name),
            helper.make_node("Reshape", [made, as_heads], [name]),
        ]

    def _shared(self, reshape: onnx.NodeProto) -> str | None:
        """What a Reshape copies for each head of a group: [B, H, T, D] becomes [B, H G, T, D]; None if it does not."""
        expand = self.producer(reshape.input[0]) if is_standard(reshape, "Reshape") else None
        unsqueeze = self.producer(expand.input[0]) if expand is not None and is_standard(expand, "Expand") else None
        if expand is None or unsqueeze is None or not is_standard(unsqueeze, "Unsqueeze"):
            return None
        shared = unsqueeze.input[0]
        names = (shared, unsqueeze.output[0], expand.output[0], reshape.output[0])
        before, one, several, after = (self._shapes.get(name, []) for name in names)
        if len(before) != 4 or len(several) != 5 or not all((*before, *several)):
            return None
        batch, heads, group, *rest = several
        kept = before == [batch, heads, *rest] and one == [batch, heads, 1, *rest]
        return shared if kept and after == [batch, heads * group, *rest] else None
