"""The converter of FusedMatMul: `alpha A B`, where A and B may be transposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..node import Node, scalar


def _fused_matmul(node: Node) -> Any:
    product = node.emit(relax.op.matmul(_transposed(node, 0), _transposed(node, 1)))
    alpha = node.attribute("alpha", 1.0)
    return product if alpha == 1 else relax.op.multiply(product, scalar(alpha, product))


def _transposed(node: Node, position: int) -> Any:
    """An operand as it is multiplied. `transBatch` brings the first axis behind the other ones of the batch."""
    order = list(range(len(node.shape(position))))
    if len(order) > 1 and node.attribute(f"transBatch{'AB'[position]}", 0):
        order = [*order[1:-1], order[0], order[-1]]
    if len(order) > 1 and node.attribute(f"trans{'AB'[position]}", 0):
        order = [*order[:-2], order[-1], order[-2]]
    return node[position] if order == sorted(order) else node.emit(relax.op.permute_dims(node[position], order))


CONVERTERS: dict[str, Callable[[Node], Any]] = {"FusedMatMul": _fused_matmul}
