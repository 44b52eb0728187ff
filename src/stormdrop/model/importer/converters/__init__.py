"""Converters from ONNX nodes to Relax, for the operators that TVM's importer lacks or mistakes.

A converter takes a `Node` and returns a Relax expression: a tuple if the node has several outputs. It returns None to
leave a node to TVM's importer.

node.py              what a converter gets
elementwise.py       each element by itself; shapes and constants
indexing.py          elements chosen by an index, sums along an axis
extrema.py           the largest and the smallest elements
normalization.py     normalizations and reductions
windows.py           where the windows of convolutions and pools stand
resize.py            Resize and Upsample
recurrent.py         RNN, GRU, LSTM
regions.py           RoiAlign
quantized.py         quantized tensors
integer_products.py  products and convolutions of integers, less their zero points
codes.py             products with weights that are codes of 4 or 8 bits
onnxruntime_part.py  the nodes that stand for an onnxruntime part
contributed/         operators that onnxruntime has beside the standard
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import (
    codes,
    contributed,
    elementwise,
    extrema,
    indexing,
    normalization,
    onnxruntime_part,
    quantized,
    recurrent,
    regions,
    resize,
    windows,
)
from .node import Node

CONVERTERS: dict[str, Callable[[Node], Any]] = {
    **codes.CONVERTERS,
    **contributed.CONVERTERS,
    **elementwise.CONVERTERS,
    **extrema.CONVERTERS,
    **onnxruntime_part.CONVERTERS,
    **indexing.CONVERTERS,
    **normalization.CONVERTERS,
    **quantized.CONVERTERS,
    **recurrent.CONVERTERS,
    **regions.CONVERTERS,
    **resize.CONVERTERS,
    **windows.CONVERTERS,
}
"""The converters by operator, with the domain of an operator that is none of the standard."""
