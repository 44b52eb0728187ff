"""Lists the nodes that the importer must not take, though it knows their operators: the result would be wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from ..onnx.nodes import attribute_of


def refusal_reason(node: onnx.NodeProto) -> str | None:
    """Says why a node is not taken, in the words that follow its description.

    Args:
        node: A node whose operator the importer knows.

    Returns:
        The reason; None for a node that is taken.
    """
    rule = _NOT_TAKEN.get(node.op_type)
    return None if rule is None else rule(node)


def _roi_align(node: onnx.NodeProto) -> str | None:
    """TVM takes the maximum of interpolated samples, ONNX of the products before they are summed."""
    return "has mode max" if attribute_of(node, "mode", "avg") == "max" else None


_NOT_TAKEN: Mapping[str, Callable[[onnx.NodeProto], str | None]] = {"RoiAlign": _roi_align}
