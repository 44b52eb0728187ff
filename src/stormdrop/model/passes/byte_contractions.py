"""Lets what follows a contraction of bytes be computed in its kernel.

TVM's fusion adds element-wise operators to the kernel of a contraction that it recognises: a sum of products of two
loads. It does not recognise products of bytes, which are widened before they are multiplied. Requantising their sums
would be a kernel of its own, which reads four bytes for each one that it writes.
"""

from __future__ import annotations

import tvm
from tvm import tirx

from ...errors import UnsupportedFunction
from ...ir.contractions.contraction import is_contraction
from ...ir.contractions.factors import factors_of
from ...ir.stages import Stage, StageGraph

_PATTERN = "op_pattern"
_FUSES_WHAT_FOLLOWS = 4  # TVM's `kOutEWiseFusable`


def mark_byte_contractions(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the mark of a contraction on each function that sums up products of widened integers.

    It runs before `AnnotateTIROpPattern`, which leaves functions with a mark alone.
    """
    marked = {
        name: function.with_attr(_PATTERN, _FUSES_WHAT_FOLLOWS)
        for name, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc) and _sums_products_of_bytes(function)
    }
    if not marked:
        return mod
    mod = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    for name, function in marked.items():
        mod.update_func(name, function)
    return mod


def _sums_products_of_bytes(function: tirx.PrimFunc) -> bool:
    try:
        stages = StageGraph.parse(function).stages
    except UnsupportedFunction:  # no sequence of plain loop nests: it has no contraction that we schedule
        return False
    return sum(map(_is_of_bytes, stages)) == 1 and stages[-1].combine is not None


def _is_of_bytes(stage: Stage) -> bool:
    factors = factors_of(stage)
    return is_contraction(stage) and factors is not None and any(factor.widened for factor in factors)
