"""Converters from ONNX nodes to Relax, for the operators that TVM's importer lacks or mistakes.

A converter takes a `Node` and returns a Relax expression: a tuple if the node has several outputs. It returns None to
leave a node to TVM's importer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import convolution, elementwise, foreign, indexing, normalization, quantized, recurrent, resize
from .node import Node

CONVERTERS: dict[str, Callable[[Node], Any]] = {
    **convolution.CONVERTERS,
    **elementwise.CONVERTERS,
    **foreign.CONVERTERS,
    **indexing.CONVERTERS,
    **normalization.CONVERTERS,
    **quantized.CONVERTERS,
    **recurrent.CONVERTERS,
    **resize.CONVERTERS,
}
"""The converters by operator."""
