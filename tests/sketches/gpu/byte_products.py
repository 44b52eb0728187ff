"""Products of bytes less their zero points, and what they are fed with, for tests of several sketches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te, tirx

from stormdrop.ir.workload import Workload


def wide(value: Any, zero_point: int) -> Any:
    value = value.astype("int32")
    return value - zero_point if zero_point else value


def product(
    shape: tuple[int, int, int],
    first: tuple[str, int] = ("uint8", 3),
    second: tuple[str, int] = ("int8", 0),
    transposed: bool = False,
    batch: int = 0,
    constant: bool = False,
) -> Workload:
    """A product of matrices of bytes, whose types stand with their zero points. `shape` is rows, columns and depth."""
    (rows, columns, depth), leading = shape, (batch,) if batch else ()
    sides = (columns, depth) if transposed else (depth, columns)
    a = te.placeholder((*leading, rows, depth), first[0], name="a")
    b = te.placeholder((*leading, *sides), second[0], name="b")
    k = te.reduce_axis((0, depth), name="k")

    def term(*at: Any) -> Any:
        *of, i, j = at
        other = b(*of, *((j, k) if transposed else (k, j)))
        return te.sum(wide(a(*of, i, k), first[1]) * wide(other, second[1]), axis=k)

    y = te.compute((*leading, rows, columns), term, name="y")
    return Workload.create("product", te.create_prim_func([a, b, y]), (1,) if constant else ())


def convolution(zero_point: int, constant: bool = True) -> Workload:
    """A convolution of bytes, 3 x 3, with a padding of their zero point and weights as OHWI."""
    x, w = te.placeholder((1, 6, 5, 8), "uint8", name="x"), te.placeholder((20, 3, 3, 8), "int8", name="w")
    bias = te.placeholder((20,), "int32", name="bias")
    u, v, c = (te.reduce_axis((0, extent)) for extent in (3, 3, 8))

    def padded(n: Any, i: Any, j: Any, k: Any) -> Any:
        inside = tirx.all(i >= 1, i < 7, j >= 1, j < 6)
        return tirx.if_then_else(inside, x[n, i - 1, j - 1, k], tirx.const(zero_point, "uint8"))

    data = te.compute((1, 8, 7, 8), padded, name="data")

    def term(n: Any, i: Any, j: Any, o: Any) -> Any:
        return te.sum(wide(data[n, i + u, j + v, c], zero_point) * wide(w[o, u, v, c], 0), axis=[u, v, c])

    sums = te.compute((1, 6, 5, 20), term, name="sums")
    y = te.compute((1, 6, 5, 20), lambda n, i, j, o: te.max(sums[n, i, j, o] + bias[o], 0), name="y")
    return Workload.create("convolution", te.create_prim_func([x, w, bias, y]), (1, 2) if constant else ())


def inputs_of(workload: Workload, kind: str = "random") -> list[NDArray[Any]]:
    """Inputs of a workload: random ones, or all bytes the least or the largest of their types."""
    inputs = workload.random_inputs(0)
    if kind == "random":
        return inputs
    bytes_of = [array.dtype.kind in "iu" and array.dtype.itemsize == 1 for array in inputs]
    return [
        np.full_like(array, getattr(np.iinfo(array.dtype), kind)) if is_byte else array
        for array, is_byte in zip(inputs, bytes_of, strict=True)
    ]
