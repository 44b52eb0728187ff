"""Lists the nodes that the importer must not take, though it knows their operators: the result would be wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
from onnx import helper

_Attributes = Mapping[str, Any]


def refusal_reason(node: onnx.NodeProto) -> str | None:
    """Say why a node is not taken, in the words that follow its description.

    Args:
        node: A node whose operator the importer knows.

    Returns:
        The reason; None for a node that is taken.
    """
    rule = _NOT_TAKEN.get(node.op_type)
    return None if rule is None else rule({entry.name: helper.get_attribute_value(entry) for entry in node.attribute})


def _roi_align(attributes: _Attributes) -> str | None:
    """TVM takes the maximum of interpolated samples, ONNX of the products before they are summed."""
    return "has mode max" if attributes.get("mode", b"avg") == b"max" else None


_NOT_TAKEN: Mapping[str, Callable[[_Attributes], str | None]] = {"RoiAlign": _roi_align}
