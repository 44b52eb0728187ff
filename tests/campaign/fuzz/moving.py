"""Operators that move elements, copy them, or make shapes and positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.drawing import FLOATS, INTEGERS, Drawing, Value
from fuzz.registry import operator
from fuzz.telling import Rejected

_ANY = (*FLOATS, *INTEGERS, "bool", "uint8", "int8")
_RANKS = (1, 2, 3, 4)


def axis_of(d: Drawing, x: Value) -> int:
    """An axis, counted from the front or from the back."""
    axis = d.integer(0, x.rank - 1)
    return axis - x.rank if d.chance(0.3) else axis


def axis_before(d: Drawing, x: Value, version: int) -> int:
    """An axis; counted from the back only from this version of the operator on."""
    return axis_of(d, x) % x.rank if d.opset < version else axis_of(d, x)


def integers(d: Drawing, value: Any, dtype: str = "int64") -> Value:
    return d.constant(np.asarray(value, dtype))


@operator("Transpose", weight=2)
def transpose(d: Drawing, name: str) -> Value:
    x = d.tensor(_ANY, (2, 3, 4, 5))
    order = [int(axis) for axis in d.rng.permutation(x.rank)]
    return d.add(name, x, exact=True, perm=order if d.chance(0.8) else None)


@operator("Reshape", weight=1.5)
def reshape(d: Drawing, name: str) -> Value:
    x = d.tensor(_ANY, _RANKS)
    shape = d.factors(x.array.size, d.choice([1, 2, 3, 4]))
    if d.chance(0.4):
        shape[d.integer(0, len(shape) - 1)] = -1
    elif shape[0] == x.shape[0] and d.chance(0.5):
        shape[0] = 0
    zero = 0 if d.opset >= 14 and d.chance(0.2) else None
    return d.add(name, x, integers(d, shape), exact=True, allowzero=zero)


@operator("Flatten")
def flatten(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS if d.opset < 9 else _ANY, _RANKS)
    axis = d.integer(0 if d.opset < 11 else -x.rank, x.rank)
    return d.add(name, x, exact=True, axis=d.choice([None, axis]))


@operator("Squeeze")
def squeeze(d: Drawing, name: str) -> Value:
    x = d.tensor(_ANY, (2, 3, 4), lambda value: 1 in value.shape)
    ones = [axis for axis, extent in enumerate(x.shape) if extent == 1]
    axes = None if d.chance(0.2) else [d.choice(ones) - (x.rank if d.opset >= 11 and d.chance(0.5) else 0)]
    return _with_axes(d, name, x, axes, 13)


@operator("Unsqueeze")
def unsqueeze(d: Drawing, name: str) -> Value:
    x = d.tensor(_ANY, (0, 1, 2, 3))
    axes = sorted({d.integer(0, x.rank) for _ in range(d.choice([1, 1, 2]))})
    return _with_axes(d, name, x, axes, 13)


def _with_axes(d: Drawing, name: str, x: Value, axes: list[int] | None, version: int) -> Value:
    if d.opset < version or axes is None:
        return d.add(name, x, exact=True, axes=axes)
    return d.add(name, x, integers(d, axes), exact=True)


@operator("Slice", weight=2)
def slices(d: Drawing, name: str) -> Value:
    x = d.tensor(_ANY, _RANKS)
    axes = [int(axis) for axis in d.rng.permutation(x.rank)[: d.integer(1, x.rank)]]
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = x.shape[axis]
        step = d.choice([1, 1, 1, 2, 3, -1, -2]) if d.opset >= 10 else 1
        low = d.integer(0, extent - 1)
        high = d.integer(low + 1, extent)
        start, end = (low, high) if step > 0 else (high - 1, low - 1)
        if end < 0 or (step < 0 and d.chance(0.2)):
            end = -(2**31)
        elif step > 0 and high == extent and d.chance(0.5):
            end = d.choice([2**31 - 1, 2**63 - 1, extent + 3])
        elif d.chance(0.3):
            start, end = start - extent, end - extent or extent
        starts.append(start)
        ends.append(end)
        steps.append(step)
    given_axes = None if sorted(axes) == axes == list(range(len(axes))) and d.chance(0.3) else axes
    if d.opset < 10:
        return d.add(name, x, exact=True, starts=starts, ends=ends, axes=given_axes)
    if given_axes is not None and d.chance(0.3):
        given_axes = [axis - x.rank for axis in given_axes]
    dtype = "int64" if max(map(abs, ends)) > 2**31 else d.choice(["int32", "int64"])
    inputs = [integers(d, part, dtype) for part in (starts, ends)]
    step_input = None if set(steps) == {1} and d.chance(0.6) else integers(d, steps, dtype)
    return d.add(
        name, x, *inputs, None if given_axes is None else integers(d, given_axes, dtype), step_input, exact=True
    )


@operator("Concat", weight=2)
def concat(d: Drawing, name: str) -> Value:
    x = d.tensor(_ANY, _RANKS)
    axis = axis_before(d, x, 11)
    others = []
    for _ in range(d.choice([0, 1, 1, 2])):
        like = [v for v in d.values if v.dtype == x.dtype and v.rank == x.rank and _alike(v, x, axis)]
        shape = list(x.shape)
        shape[axis] = d.choice((1, 2, 3, 5))
        others.append(d.choice(like) if d.chance(0.6) else d.constant(d.array(shape, x.dtype)))
    parts = [x, *others]
    return d.add(name, *(parts[int(i)] for i in d.rng.permutation(len(parts))), exact=True, axis=axis)


def _alike(one: Value, other: Value, axis: int) -> bool:
    axis %= one.rank
    return all(a == b for i, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)) if i != axis)


@operator("Split", weight=1.5)
def split(d: Drawing, name: str) -> tuple[Value, ...]:
    x = d.tensor(_ANY, _RANKS, lambda value: max(value.shape) > 1)
    axis = d.choice([axis for axis, extent in enumerate(x.shape) if extent > 1])
    extent = x.shape[axis]
    count = d.integer(2, min(4, extent))
    written = axis - x.rank if d.chance(0.3) and d.opset >= 11 else axis
    if d.opset >= 18 and d.chance(0.5):
        return d.add_all(name, [x], count, exact=True, axis=written, num_outputs=count)
    if extent % count == 0 and d.chance(0.4) and d.opset < 18:
        return d.add_all(name, [x], count, exact=True, axis=written)
    cuts = sorted(int(cut) for cut in d.rng.permutation(np.arange(1, extent))[: count - 1])
    sizes = [int(size) for size in np.diff([0, *cuts, extent])]
    if d.opset < 13:
        return d.add_all(name, [x], count, exact=True, axis=written, split=sizes)
    return d.add_all(name, [x, integers(d, sizes)], count, exact=True, axis=written)


def _indices(d: Drawing, shape: tuple[int, ...], extent: int, negative: bool, dtype: str | None = None) -> Value:
    low = -extent if negative and d.chance(0.4) else 0
    return integers(d, d.rng.integers(low, extent, shape), dtype or d.choice(INTEGERS))


@operator("Gather", weight=2)
def gather(d: Drawing, name: str) -> Value:
    x = d.tensor(_ANY, _RANKS)
    axis = axis_of(d, x)
    indices = _indices(d, d.shape(d.choice([0, 1, 1, 2]), 12), x.shape[axis], d.opset >= 11)
    if d.chance(0.2) and x.shape[axis] > 1:  # the product verifies a model on indices of 0 and 1
        indices = d.given(np.abs(indices.array) % 2)
    return d.add(name, x, indices, exact=True, axis=axis)


@operator("GatherElements", since=11)
def gather_elements(d: Drawing, name: str) -> Value:
    x = d.tensor(_ANY, _RANKS)
    axis = axis_of(d, x)
    shape = tuple(d.integer(1, extent + (i == axis % x.rank)) for i, extent in enumerate(x.shape))
    return d.add(name, x, _indices(d, shape, x.shape[axis], True), exact=True, axis=axis)


@operator("GatherND", since=11)
def gather_nd(d: Drawing, name: str) -> Value:
    x = d.tensor(_ANY, _RANKS)
    batch = d.integer(0, min(1, x.rank - 1)) if d.opset >= 12 else 0
    depth = d.integer(1, x.rank - batch)
    shape = (*x.shape[:batch], d.integer(1, 4))
    columns = [
        d.rng.integers(-extent if d.chance(0.3) else 0, extent, shape) for extent in x.shape[batch : batch + depth]
    ]
    return d.add(name, x, integers(d, np.stack(columns, -1)), exact=True, batch_dims=batch or None)


def _reduction(d: Drawing, name: str, x: Value) -> str | None:
    """How values that meet are combined."""
    if d.opset < 16 or d.chance(0.5):
        return None
    known = ["none", "add", "mul"] + (["max", "min"] if d.opset >= 18 else [])
    return str(d.choice(known if x.dtype != "bool" else ["none"]))


@operator("ScatterElements", since=11)
def scatter_elements(d: Drawing, name: str) -> Value:
    x = d.tensor((*FLOATS, *INTEGERS), _RANKS)
    axis = axis_of(d, x)
    reduction = _reduction(d, name, x)
    shape = tuple(d.integer(1, extent) for extent in x.shape)
    if reduction in (None, "none"):  # of two values at one place either may stay
        order = np.argsort(d.rng.random((*x.shape,)), axis=axis)
        indices = integers(d, order[tuple(slice(extent) for extent in shape)])
    else:
        indices = _indices(d, shape, x.shape[axis], True)
    updates = d.constant(d.array(shape, x.dtype))
    return d.add(name, x, indices, updates, exact=True, axis=axis, reduction=reduction)


@operator("ScatterND", since=11)
def scatter_nd(d: Drawing, name: str) -> Value:
    x = d.tensor((*FLOATS, *INTEGERS), _RANKS)
    depth = d.integer(1, x.rank)
    reduction = _reduction(d, name, x)
    places = int(np.prod(x.shape[:depth]))
    count = d.integer(1, min(places, 6))
    flat = d.rng.permutation(places)[:count] if reduction in (None, "none") else d.rng.integers(0, places, count)
    indices = np.stack(np.unravel_index(flat, x.shape[:depth]), -1)
    updates = d.constant(d.array((count, *x.shape[depth:]), x.dtype))
    return d.add(name, x, integers(d, indices), updates, exact=True, reduction=reduction)


@operator("Pad", weight=2)
def pad(d: Drawing, name: str) -> Value:
    x = d.tensor((*FLOATS, *INTEGERS) if d.opset >= 11 else FLOATS, _RANKS)
    mode = d.choice(["constant", "constant", "reflect", "edge"] + (["wrap"] if d.opset >= 19 else []))
    axes = list(range(x.rank))
    if d.opset >= 18 and d.chance(0.5):
        axes = [int(axis) for axis in d.rng.permutation(x.rank)[: d.integer(1, x.rank)]]
    most = [3 if mode in ("constant", "edge") else min(3, x.shape[axis] - 1) for axis in axes]
    pads = [d.integer(0, top) if d.chance(0.6) else 0 for top in (*most, *most)]
    if mode == "constant" and d.chance(0.3):
        place = d.integer(0, len(axes) - 1)
        pads[place] = -d.integer(0, x.shape[axes[place]] - 1) if pads[place + len(axes)] == 0 else pads[place]
    if d.opset < 11:
        return d.add(name, x, exact=True, mode=mode, pads=pads, value=d.choice([None, 0.5]))
    value = d.constant(np.asarray(2, x.dtype)) if mode == "constant" and d.chance(0.6) else None
    given = (
        [integers(d, [axis - x.rank * d.chance(0.3) for axis in axes])] if len(axes) < x.rank or d.opset >= 18 else []
    )
    return d.add(name, x, integers(d, pads), value, *(given if d.opset >= 18 else []), exact=True, mode=mode)


@operator("Tile")
def tile(d: Drawing, name: str) -> Value:
    x = d.tensor(_ANY, _RANKS)
    return d.add(name, x, integers(d, [d.choice([1, 1, 2, 3]) for _ in x.shape]), exact=True)


@operator("Expand", since=8)
def expand(d: Drawing, name: str) -> Value:
    x = d.tensor(_ANY, (0, 1, 2, 3))
    shape = [d.choice([1, extent]) if extent > 1 else d.choice([1, 2, 3]) for extent in x.shape]
    shape = [d.choice([1, 2])] * d.choice([0, 0, 1]) + shape
    return d.add(name, x, integers(d, shape), exact=True)


@operator("DepthToSpace", "SpaceToDepth")
def blocks(d: Drawing, name: str) -> Value:
    size = d.choice([2, 2, 3])
    depth = name == "DepthToSpace"

    def fits(x: Value) -> bool:
        _, channels, height, width = x.shape
        return channels % size**2 == 0 if depth else height % size == width % size == 0

    x = d.tensor(ranks=(4,), where=fits)
    mode = d.choice([None, "DCR", "CRD"]) if depth and d.opset >= 11 else None
    return d.add(name, x, exact=True, blocksize=size, mode=mode)


@operator("OneHot", since=9)
def one_hot(d: Drawing, name: str) -> Value:
    depth = d.integer(2, 6)
    indices = d.given(
        d.rng.integers(-depth if d.opset >= 11 and d.chance(0.4) else 0, depth, d.shape(d.choice([1, 2]), 20))
    )
    axis = d.choice([None, -1, 0, indices.rank])
    depth_value = d.constant(np.asarray(depth if d.chance(0.5) else [depth], d.choice(["int64", "int32", "float32"])))
    values = d.constant(np.asarray([-0.5, 2], d.choice(["float32", "int32", "int64"])))
    return d.add(name, indices, depth_value, values, axis=axis)


@operator("Trilu", since=14)
def trilu(d: Drawing, name: str) -> Value:
    x = d.tensor((*FLOATS, *INTEGERS, "bool"), (2, 3, 4))
    k = [d.constant(np.asarray(d.integer(-3, 3), "int64"))] if d.chance(0.6) else []
    return d.add(name, x, *k, exact=True, upper=d.choice([None, 0, 1]))


@operator("ReverseSequence", since=10)
def reverse(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (2, 3, 4))
    time = d.integer(0, 1)
    lengths = d.rng.integers(1, x.shape[time] + 1, x.shape[1 - time])
    return d.add(name, x, integers(d, lengths), exact=True, time_axis=time, batch_axis=1 - time)


@operator("Compress", since=9)
def compress(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, _RANKS)
    axis = d.choice([None, axis_before(d, x, 11)])
    extent = x.array.size if axis is None else x.shape[axis]
    keep = d.rng.random(extent) < 0.6
    if not keep.any():
        raise Rejected("nothing is kept")
    return d.add(name, x, d.constant(keep), exact=True, axis=axis)


@operator("CenterCropPad", since=18)
def center_crop_pad(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (2, 3, 4))
    axes = sorted({d.integer(0, x.rank - 1) for _ in range(2)})
    return d.add(name, x, integers(d, [d.integer(1, 9) for _ in axes]), exact=True, axes=axes)


@operator("Shape")
def shape_of(d: Drawing, name: str) -> Value:
    """A shape to which something is expanded, or that something is computed with."""
    x = d.tensor(FLOATS, (1, 2, 3))
    with d.anything():
        found = d.add(name, x, start=d.choice([None, 0, 1, -1]) if d.opset >= 15 else None)
        d.hide(found)
        if d.opset < 9 or d.chance(0.4):
            number = d.add("Cast", found, to=1)
            d.hide(number)
            return d.add("Mul", number, d.tensor(ranks=(0, 1), where=lambda v: v.array.size in (1, number.array.size)))
        filled = d.add("ConstantOfShape", found)
        d.hide(filled)
    return d.add("Add", filled, d.partner(filled))


@operator("Size")
def size_of(d: Drawing, name: str) -> Value:
    """The number of elements, by which something is divided."""
    x = d.tensor(FLOATS, (2, 3, 4))
    number = d.add("Cast", count := d.add(name, x), to=1)
    d.hide(count, number)
    return d.add("Div", x, number)


@operator("Range", since=11)
def ranges(d: Drawing, name: str) -> Value:
    dtype = d.choice(["float32", "int32", "int64"])
    start, step, count = d.integer(-3, 3), d.choice([1, 2, -1, 3]), d.integer(2, 8)
    parts = [d.constant(np.asarray(part, dtype)) for part in (start, start + step * count, step)]
    made = d.add(name, *parts)
    return d.add("Add", made, d.tensor((dtype,), (1, 2), lambda v: v.shape[-1] in (1, count)))


@operator("EyeLike", since=9)
def eye(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (2,))
    return d.add("Mul", x, d.add(name, x, k=d.choice([None, 1, -1]), dtype=d.choice([None, 1])))
