"""Which nodes of a model have operators of the ONNX standard, and which version of the standard a model names."""

from __future__ import annotations

import onnx

from ...errors import shown

_DOMAINS = ("", "ai.onnx")
"""Two names of one domain: that of the standard's operators."""


def is_standard(node: onnx.NodeProto, *operators: str) -> bool:
    """Whether a node has an operator of the standard.

    Args:
        node: The node.
        operators: The names of the operators in question; by default all operators.
    """
    return node.domain in _DOMAINS and (not operators or node.op_type in operators)


def qualified_name(node: onnx.NodeProto) -> str:
    """The operator of a node, with its domain if that is not the standard's."""
    return node.op_type if is_standard(node) else f"{node.domain}.{node.op_type}"


def operator_name(node: onnx.NodeProto) -> str:
    """The operator of a node, for messages, with its domain if it is none of the standard."""
    return shown(qualified_name(node))


def opset_of(model: onnx.ModelProto, unnamed: int = 1) -> int:
    """The version of the standard's operators ("opset") that a model names.

    Args:
        model: The model.
        unnamed: The version of a model that names none.
    """
    return next((entry.version for entry in model.opset_import if entry.domain in _DOMAINS), unnamed)
