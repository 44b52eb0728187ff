"""Named operators: each builds a `Workload` from its arguments.

    matmul(512, 512, 512)                           # the Python call
    create("matmul", {"m": "512", ...})             # the same from text, as the command line does

Weights (of dense, the convolutions and the normalisations) are constant inputs, which a sketch may lay out anew ahead
of time. The inputs of a workload have the order in which the formula of the operator's docstring names them.

    declare.py        makes a definition an operator; reads and checks arguments
    epilogue.py       bias, residual and activation after a contraction
    contractions.py   matmul, dense, batch_matmul, attention_scores, attention
    windows.py        conv1d, conv2d, depthwise_conv2d, pool2d, global_pool2d
    quantized.py      types and epilogues of operators on bytes
    weight_only.py    weight_only_dense
    rows.py           reduce, softmax, layer_norm, rms_norm
    movement.py       elementwise, transpose, concatenate
"""

from __future__ import annotations

from .contractions import attention, attention_scores, batch_matmul, dense, matmul
from .declare import EXAMPLES, OPERATORS, create, find, names, usage
from .movement import concatenate, elementwise, transpose
from .rows import layer_norm, reduce, rms_norm, softmax
from .weight_only import weight_only_dense
from .windows import conv1d, conv2d, depthwise_conv2d, global_pool2d, pool2d

__all__ = [
    "EXAMPLES",
    "OPERATORS",
    "attention",
    "attention_scores",
    "batch_matmul",
    "concatenate",
    "conv1d",
    "conv2d",
    "create",
    "dense",
    "depthwise_conv2d",
    "elementwise",
    "find",
    "global_pool2d",
    "layer_norm",
    "matmul",
    "names",
    "pool2d",
    "reduce",
    "rms_norm",
    "softmax",
    "transpose",
    "usage",
    "weight_only_dense",
]
