"""The converter of MatMulNBits: a product with weights that are codes of 4 or 8 bits, with a scale for each group.

The weights stay codes here. Where a machine has no use for them, `precision.decoded_weights` decodes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te

from ....operators.weight_only import BITS, product_with_codes
from ...onnx.contributed import DOMAIN, MATMUL_N_BITS
from ...tensors import Array
from .node import Node, const


def _matmul_n_bits(node: Node) -> Any:
    """`data W^T + bias`, where W[n, k] = scale[n, g] (code[n, k] - zero[n, g]) and g = k // block_size."""
    bits, block = node.attribute("bits", 4), node.attribute("block_size", 32)
    n, k = node.attribute("N"), node.attribute("K")
    if bits not in BITS:
        raise ValueError(f"codes of {bits} bits")
    if node.has(4):
        raise ValueError("weights in another order (g_idx)")
    if node.dtype() != "float32" or node.dtype(2) != "float32":
        raise ValueError(f"data of type {node.dtype()} with scales of type {node.dtype(2)}")
    codes, scales, zeros = node.constant(1), node.constant(2), node.constant(3)
    assert codes is not None and scales is not None, "the standard of the operator requires them"
    groups = -(-k // block)
    codes, scales = codes.reshape(n, -1), scales.reshape(n, groups)
    if zeros is not None:
        zeros = _zero_points(zeros, n, groups, bits)
    data = node[0]
    if groups * block != k:
        around = [*([0, 0] * (len(node.shape()) - 1)), 0, groups * block - k]
        data = node.emit(relax.op.nn.pad(data, around))
    constants = [const(values) for values in (codes, scales, *([] if zeros is None else [zeros]))]
    product = node.compute(_product, data, *constants, bits=bits, name="matmul_of_codes")
    return node.emit(relax.op.add(product, node[5])) if node.has(5) else product


def _product(a: Any, codes: Any, scale: Any, zero: Any = None, *, bits: int) -> Any:
    element = product_with_codes(a, codes, zero, scale, bits)
    return te.compute((*a.shape[:-1], codes.shape[0]), element, name="matmul_of_codes")


def _zero_points(zeros: Array, n: int, groups: int, bits: int) -> Array:
    """A zero point for each group: two of 4 bits share a byte, and each row has bytes of its own."""
    if zeros.dtype != np.uint8:
        raise ValueError(f"zero points of type {zeros.dtype}")
    return zeros.reshape(n, groups) if bits == 8 else _halves(zeros.reshape(n, -1))[:, :groups]


def _halves(values: Array) -> Array:
    """Both halves of each byte of a row, the lower one first."""
    return np.stack([values & 15, values >> 4], axis=-1).reshape(len(values), -1)


CONVERTERS: dict[str, Callable[[Node], Any]] = {f"{DOMAIN}.{MATMUL_N_BITS}": _matmul_n_bits}
