"""The converter of Attention, an operator of onnxruntime's own: attention of a sequence to itself.

    q, k, v = x W + b                                  one product
    y = softmax(scale q k^T + bias + mask) v           by heads

Before the keys and the values stand those of the past.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..node import Node, shape_of
from .heads import by_heads, joined_heads, masked_scores, mixed_values, with_past
from .masks import mask_of


def attended(node: Node, product: Any, hidden: int, mask: int, past: int, bias: Any | None = None) -> Any:
    """The outputs of a node, from its queries, keys and values.

    Args:
        node: The node.
        product: Queries, keys and values (batch, rows, 2 * hidden + hidden of the values).
        hidden: The numbers of a row's queries in all heads, which are as many as those of its keys.
        mask: The position of the mask among the inputs.
        past: The position of the keys and values of earlier calls.
        bias: What else is added to the scores.

    Raises:
        ValueError: The node has something that is not taken.
    """
    for name in ("do_rotary", "past_present_share_buffer"):
        if node.attribute(name, 0):
            raise ValueError(f"the attribute {name}")
    heads, (batch, rows, _) = node.attribute("num_heads"), shape_of(product)
    parts = node.emit(relax.op.split(product, [hidden, 2 * hidden], -1))
    query, key, value = (by_heads(node, node.emit(relax.TupleGetItem(parts, index)), heads) for index in range(3))
    before = 0
    if node.has(past) and all(node.shape(past)):
        before = node.shape(past)[3]
        earlier = node.emit(relax.op.split(node[past], 2, 0))
        key, value = (
            with_past(node, node.emit(relax.op.squeeze(relax.TupleGetItem(earlier, index), [0])), new)
            for index, new in enumerate((key, value))
        )
    added = [bias, mask_of(node, mask, batch, rows, before, before + rows)]
    scores = masked_scores(node, query, key, [each for each in added if each is not None])
    result = joined_heads(node, mixed_values(node, scores, value))
    if node.outputs == 1:
        return result
    present = [node.emit(relax.op.expand_dims(each, 0)) for each in (key, value)]
    return relax.Tuple([result, node.emit(relax.op.concat(present, 0))])


def _attention(node: Node) -> Any:
    sizes = node.attribute("qkv_hidden_sizes")
    hidden = sizes[0] if sizes else node.shape(1)[1] // 3
    product = node.emit(relax.op.matmul(node[0], node[1]))
    if node.has(2):
        product = node.emit(relax.op.add(product, node[2]))
    if node.has(6):
        raise ValueError("a past that is written in place (past_sequence_length)")
    return attended(node, product, hidden, mask=3, past=4, bias=node.optional(5))


CONVERTERS: dict[str, Callable[[Node], Any]] = {"Attention": _attention}
