"""What to expect of a product with codes before anything is measured: cycles that decode, multiply and correct."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....machine.cpu import Cpu
from .product import DIGITS, WORD, Product

# Costs in cycles of a core that starts one multiply-add per cycle.
_DECODING = 1.5  # of a vector of codes
_BROADCAST = 0.5  # of an element of the data
_LOOP = 2.0  # per iteration over codes
_HALVING = 0.75  # of a vector of bytes with two codes
_LATENCY = 5.0  # of a dot product
_JOINING = 5.0  # per vector of sums and group: of the sums of all digits
_GROUP = 6.0  # per vector of sums and group
_TILE = 200.0
_CROWDED, _SPILLS = 40, 2.5  # vectors of words in a step, from which on LLVM loads too many ahead; what that costs
_WAITING = 1.1  # times that codes take from memory if nothing fetches them ahead


def cycles(product: Product, knobs: Mapping[str, NDArray[Any]], target: Cpu) -> NDArray[np.float64]:
    """The expected cycles of n configurations.

    Args:
        product: The product.
        knobs: n values of each knob, by name.
        target: The machine.
    """
    rows, vectors = knobs["rows"], np.ceil(knobs["columns"] / target.lanes)
    steps = product.words * product.places
    groups = math.prod(axis.extent for axis in product.groups)
    step = vectors * (rows + _DECODING) + _BROADCAST * rows
    step = step * np.where(knobs["unroll"] * vectors > _CROWDED, _SPILLS, 1.0)
    group = steps * np.maximum(step, 4.0) + product.words / knobs["unroll"] * _LOOP + _GROUP * rows * vectors
    tiles = np.ceil(product.rows / rows) * np.ceil(product.contraction.column.extent / knobs["columns"])
    waiting = np.where(knobs["ahead"] > 0, 1.0, _WAITING) if "ahead" in knobs else 1.0
    return np.asarray(np.ceil(tiles / target.cores) * (groups * group + _TILE) * waiting, float)


def dot_cycles(product: Product, knobs: Mapping[str, NDArray[Any]], target: Cpu) -> NDArray[np.float64]:
    """The same of products by dot products of bytes."""
    rows, vectors = knobs["rows"], np.ceil(knobs["columns"] / target.lanes)
    words = product.words * product.places / WORD  # of four codes
    groups = math.prod(axis.extent for axis in product.groups)
    step = vectors * (DIGITS * rows + _HALVING * (product.bits == 4)) + _BROADCAST * DIGITS * rows
    waits = _LATENCY / (DIGITS * rows * vectors)  # of the next sum for the one before it
    group = words * step * np.maximum(waits, 1.0) + product.words / knobs["unroll"] * _LOOP + _JOINING * rows * vectors
    tiles = np.ceil(product.rows / rows) * np.ceil(product.contraction.column.extent / knobs["columns"])
    waiting = np.where(knobs["ahead"] > 0, 1.0, _WAITING) if "ahead" in knobs else 1.0
    return np.asarray(np.ceil(tiles / target.cores) * (groups * group + _TILE) * waiting, float)
