"""Sorts, the largest elements, and cumulative sums as loops that a GPU executes in parallel.

On CPUs TVM calls functions of its runtime for them, or one core goes through a row. Its forms for GPUs are kernels that
it has scheduled itself, with sizes that are computed when they are launched. These ones are plain loops: those over
`parallel` are independent, and `gpu_fallback` binds them to threads.

A sort counts, in each run of some elements, how many of them stand before each one: that is its place. Then pairs of
runs are merged. Of two equal elements the first one stays first, as on CPUs; NaN is larger than all numbers, as in
NumPy and torch:

runs of 1024     place[i] = sum over j of the run: x[j] is before x[i]
merged           place[i] = i + how many elements of the other run are before x[i], by bisection

A cumulative sum of a long row is one of pieces: of each in a thread, then of their sums, then of each once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..passes.legalize import Rule

_RUN = 1024  # elements whose places are counted: for more, merging takes fewer comparisons
_PIECE = 512  # elements that a thread sums up one after the other, at most, unless pieces of more are as many

Compare = Callable[[Any, Any], Any]
"""Whether the first of two elements has to stand before the second one; False if they are equal."""


def _sort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _call_sorted(builder, call, call.attrs.descending, "values")


def _argsort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _call_sorted(builder, call, call.attrs.descending, "indices", dtype=str(call.attrs.dtype))


def _topk(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs = call.attrs
    return _call_sorted(builder, call, attrs.largest, str(attrs.ret_type), int(attrs.k), str(attrs.dtype))


def _call_sorted(
    builder: relax.BlockBuilder, call: relax.Call, descending: Any, result: str, k: int = 0, dtype: str = ""
) -> relax.Expr:
    function = partial(_sorted, axis=int(call.attrs.axis), descending=bool(descending), k=k, result=result, dtype=dtype)
    return builder.call_te(function, call.args[0], primfunc_name_hint="sort")


def _scan(combine: Callable[[Any, Any], Any], first: int) -> Rule:
    def rule(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x, attrs = call.args[0], call.attrs
        axis, dtype = None if attrs.axis is None else int(attrs.axis), str(attrs.dtype or "")
        function = partial(_scanned, axis=axis, dtype=dtype, exclusive=bool(attrs.exclusive))
        return builder.call_te(partial(function, combine=combine, first=first), x, primfunc_name_hint="scan")

    return rule


def _bucketize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, boundaries = call.args
    dtype = "int32" if call.attrs.out_int32 else "int64"
    return builder.call_te(topi.searchsorted, boundaries, x, bool(call.attrs.right), dtype)


GPU_FORMS: Mapping[str, Rule] = {
    "relax.argsort": _argsort,
    "relax.bucketize": _bucketize,
    "relax.cumprod": _scan(lambda a, b: a * b, 1),
    "relax.cumsum": _scan(lambda a, b: a + b, 0),
    "relax.sort": _sort,
    "relax.topk": _topk,
}
"""How operators that TVM makes no independent loops of become such, as rules of `relax.transform.LegalizeOps`."""


def _sorted(x: te.Tensor, axis: int, descending: bool, k: int, result: str, dtype: str) -> Any:
    """The first `k` values, indices or both along an axis when it is sorted; all if `k` is less than 1."""
    rows, length, inner, shape = _rows(x, axis)
    count = length if k < 1 else min(k, length)
    shape[axis] = count
    kinds = {"values": [str(x.dtype)], "indices": [dtype], "both": [str(x.dtype), dtype]}[result]
    merges = max(0, math.ceil(math.log2(max(length, 1) / _RUN)))
    before = _before(str(x.dtype), descending)

    def generate(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        data, *written = map(T.buffer_proxy, (*inputs, *outputs))
        results, orders = written[: len(kinds)], written[len(kinds) :]

        def put(step: int, row: Any, place: Any, element: Any) -> None:
            """Writes which element of a row comes to a place: in the order of a step, or as the result of the last."""
            if step < merges:
                orders[step % 2][row * length + place] = T.cast(element, "int32")
                return
            with T.If(place < count), T.Then():
                for kind, output in zip(kinds, results, strict=True):
                    is_index = result == "indices" or (output is results[-1] and result == "both")
                    value = T.cast(element, kind) if is_index else data[_at(row, element, length, inner)]
                    output[_at(row, place, count, inner)] = value

        def of(row: Any, element: Any) -> Any:
            return data[_at(row, element, length, inner)]

        with IRBuilder() as builder:
            with T.seq_scope():
                with T.parallel(0, rows * length) as position:
                    row, element = position // length, position % length
                    run, place = element // _RUN * _RUN, _local("int32")
                    place[0] = T.int32(0)
                    with T.serial(0, min(_RUN, length)) as step:
                        other = run + step
                        with T.If(other < length), T.Then():
                            mine, its = of(row, element), of(row, other)
                            first = tirx.any(before(its, mine), tirx.all(tirx.Not(before(mine, its)), other < element))
                            with T.If(first), T.Then():
                                place[0] = place[0] + 1
                    put(0, row, run + place[0], element)
                for merge in range(merges):
                    order, width = orders[merge % 2], _RUN << merge
                    with T.parallel(0, rows * length) as position:
                        row, place = position // length, position % length
                        run, own = place // width, order[position]
                        other = (run + 1 - run % 2 * 2) * width
                        low, high = _local("int32"), _local("int32")
                        low[0] = T.cast(tirx.min(other, length), "int32")
                        high[0] = T.cast(tirx.min(other + width, length), "int32")
                        with T.While(low[0] < high[0]):
                            middle = (low[0] + high[0]) // 2
                            mine, its = of(row, own), of(row, order[row * length + middle])
                            # Of equal elements those of the first run come first.
                            first = tirx.Select(run % 2 == 0, before(its, mine), tirx.Not(before(mine, its)))
                            with T.If(first):
                                with T.Then():
                                    low[0] = middle + 1
                                with T.Else():
                                    high[0] = middle
                        passed = low[0] - tirx.min(other, length)
                        put(merge + 1, row, run // 2 * 2 * width + place % width + passed, own)
            return builder.get()

    shapes = [tuple(shape)] * len(kinds) + [(rows * length,)] * min(merges, 2)
    tensors = te.extern(shapes, [x], generate, "sort", [*kinds, *["int32"] * min(merges, 2)])
    tensors = tensors if isinstance(tensors, list) else [tensors]
    return tensors[0] if len(kinds) == 1 else tensors[: len(kinds)]


def _before(dtype: str, descending: bool) -> Compare:
    """Whether an element comes before another one in an order; NaN is larger than any number."""

    def key(x: Any) -> Any:
        """An integer that is ordered as the numbers are. Compilers may take it for granted that none is NaN."""
        if dtype not in _BITS:
            return x
        kind, infinity = _BITS[dtype]
        bits = tirx.reinterpret(kind, x)
        size = bits & tirx.const(np.iinfo(kind).max, kind)
        signed = tirx.Select(bits < 0, -size, size)
        return tirx.Select(size > tirx.const(infinity, kind), tirx.const(np.iinfo(kind).max, kind), signed)

    return (lambda a, b: key(b) < key(a)) if descending else (lambda a, b: key(a) < key(b))


_BITS = {
    "bfloat16": ("int16", 0x7F80),
    "float16": ("int16", 0x7C00),
    "float32": ("int32", 0x7F800000),
    "float64": ("int64", 0x7FF0000000000000),
}
"""The integers that have as many bits as a float, and the bits of infinity."""


def _scanned(
    x: te.Tensor, axis: int | None, dtype: str, exclusive: bool, combine: Callable[[Any, Any], Any], first: int
) -> te.Tensor:
    """What `combine` makes of all elements along an axis up to each one, or before each one."""
    rows, length, inner, shape = _rows(x, axis)
    dtype = dtype or str(x.dtype)
    piece = max(1, length if length <= _PIECE else math.isqrt(length - 1) + 1)
    pieces = -(-length // piece)

    def generate(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        data, output, *others = map(T.buffer_proxy, (*inputs, *outputs))

        def through_piece(position: Any, total: Any, write: bool) -> None:
            row, begin = position // pieces, position % pieces * piece
            with T.serial(0, piece) as step, T.If(begin + step < length), T.Then():
                place = _at(row, begin + step, length, inner)
                if write and exclusive:
                    output[place] = total[0]
                total[0] = combine(total[0], T.cast(data[place], dtype))
                if write and not exclusive:
                    output[place] = total[0]

        with IRBuilder() as builder:
            with T.seq_scope():
                for totals in others:
                    with T.parallel(0, rows * pieces) as position:
                        total = _local(dtype)
                        total[0] = tirx.const(first, dtype)
                        through_piece(position, total, write=False)
                        totals[position] = total[0]
                    with T.parallel(0, rows) as row:
                        total = _local(dtype)
                        total[0] = tirx.const(first, dtype)
                        with T.serial(0, pieces) as step:
                            of_piece = _local(dtype)
                            of_piece[0] = totals[row * pieces + step]
                            totals[row * pieces + step] = total[0]
                            total[0] = combine(total[0], of_piece[0])
                with T.parallel(0, rows * pieces) as position:
                    total = _local(dtype)
                    total[0] = others[0][position] if others else tirx.const(first, dtype)
                    through_piece(position, total, write=True)
            return builder.get()

    shapes = [tuple(shape), *[(rows * pieces,)] * (pieces > 1)]
    tensors = te.extern(shapes, [x], generate, "scan", [dtype] * len(shapes))
    return tensors[0] if isinstance(tensors, list) else tensors


def _rows(x: te.Tensor, axis: int | None) -> tuple[int, int, int, list[int]]:
    """How many rows a tensor has along an axis, their length, the distance of their elements, and the shape."""
    shape = [int(extent) for extent in x.shape]
    if axis is None:
        shape, axis = [math.prod(shape)], 0
    axis %= max(len(shape), 1)
    inner = math.prod(shape[axis + 1 :])
    return math.prod(shape[:axis]) * inner, shape[axis], inner, shape


def _at(row: Any, place: Any, length: int, inner: int) -> Any:
    """Where an element of a row lies in its tensor, whose rows have a length."""
    return (row // inner * length + place) * inner + row % inner


def _local(dtype: str) -> Any:
    """A variable of a thread."""
    return T.buffer_proxy(T.decl_buffer([1], dtype, scope="local"))
