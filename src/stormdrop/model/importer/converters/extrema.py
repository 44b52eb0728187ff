"""Converters of operators that look for the largest or the smallest elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from .node import Node, dtype_of, is_float, limits, normalised
from .normalization import reduced

_SORTED_AS = {"int8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
"""Types that TVM does not sort, and those that hold the same numbers and are sorted."""


def _arg_extremum(largest: bool) -> Callable[[Node], Any]:
    """ArgMax, ArgMin: the first or the last place along an axis at which the extremum is.

        m = max(x)
        y = min(k if x[k] == m else n)

    TVM begins with the place -1 and the smallest number of the type, so that a row of nothing else is at -1. A NaN is
    the extremum of its row, as in NumPy.
    """

    def convert(node: Node) -> Any | None:
        x, dtype, shape = node[0], node.dtype(), node.shape()
        axis = normalised(node.attribute("axis", 0), len(shape))
        kept, last = bool(node.attribute("keepdims", 1)), bool(node.attribute("select_last_index", 0))
        if dtype == "bool" or 0 in shape:
            return None
        start = (-np.inf if largest else np.inf) if is_float(dtype) else limits(dtype)[0 if largest else 1]
        combine = (lambda a, b: tirx.max(a, b)) if largest else (lambda a, b: tirx.min(a, b))
        name = "max" if largest else "min"
        reducer = te.comm_reducer(combine, lambda kind: tirx.const(start, kind), name=name)
        best = node.compute(lambda x: reduced(x, [axis], True, reducer, name), x, name=name)

        def places(x: Any, best: Any) -> Any:
            extent = shape[axis]
            along = te.reduce_axis((0, extent), name="k")

            def place(*indices: Any) -> Any:
                outer = list(indices) if kept else [*indices[:axis], tirx.const(0, "int32"), *indices[axis:]]
                element = x(*outer[:axis], along.var, *outer[axis + 1 :])
                found = is_extremum(element, best(*outer[:axis], 0, *outer[axis + 1 :]))
                # A place in 32 bits. TVM makes int64 of int32 here, of which a vector holds half as many.
                elsewhere = tirx.const(0 if last else extent, "uint32")
                candidate = tirx.Select(found, along.var.astype("uint32"), elsewhere)
                return te.max(candidate, axis=along) if last else te.min(candidate, axis=along)

            rest = [*shape[:axis], *([1] if kept else []), *shape[axis + 1 :]]
            return te.compute(rest, place, name="place")

        return relax.op.astype(node.compute(places, x, best, name="arg_" + name), "int64")

    return convert


def is_extremum(element: Any, best: Any) -> Any:
    """Whether an element is the extremum of its row or window; if that is NaN, whether it is NaN."""
    same, dtype = element == best, dtype_of(element)
    if not is_float(dtype):
        return same
    return tirx.any(same, tirx.isnan(element))


def _top_k(node: Node) -> Any | None:
    """TVM sorts some types only, and in opset 10 looks for the number of elements among the attributes."""
    dtype, count = node.dtype(), node.constant(1)
    if dtype == "uint64":
        raise ValueError("numbers of uint64 are not sorted")
    if count is None:
        return None
    if dtype not in _SORTED_AS:
        node.replace_attributes({"k": int(count.reshape(-1)[0])}, ())
        return None
    sorted_ones = node.emit(
        relax.op.topk(
            relax.op.astype(node[0], _SORTED_AS[dtype]),
            int(count.reshape(-1)[0]),
            axis=node.attribute("axis", -1),
            ret_type="both",
            largest=bool(node.attribute("largest", 1)),
            dtype="int64",
        )
    )
    values = node.emit(relax.op.astype(relax.TupleGetItem(sorted_ones, 0), dtype))
    return relax.Tuple([values, node.emit(relax.TupleGetItem(sorted_ones, 1))])


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "ArgMax": _arg_extremum(largest=True),
    "ArgMin": _arg_extremum(largest=False),
    "TopK": _top_k,
}
