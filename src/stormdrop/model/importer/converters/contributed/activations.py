"""Converters of Gelu and its kin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..node import Node, scalar

_QUICK = 1.702  # the factor of a QuickGelu that states none


def _gelu(node: Node) -> Any:
    return relax.op.nn.gelu(_with_bias(node))


def _fast_gelu(node: Node) -> Any:
    return relax.op.nn.gelu_tanh(_with_bias(node))


def _quick_gelu(node: Node) -> Any:
    x = node[0]
    gate = relax.op.sigmoid(node.emit(relax.op.multiply(x, scalar(node.attribute("alpha", _QUICK), x))))
    return relax.op.multiply(x, node.emit(gate))


def _with_bias(node: Node) -> Any:
    return node.emit(relax.op.add(node[0], node[1])) if node.has(1) else node[0]


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "BiasGelu": _gelu,
    "FastGelu": _fast_gelu,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
}
