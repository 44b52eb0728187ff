"""Converters of operators that choose elements by an index, or accumulate along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from .extrema import is_extremum
from .node import Node, const, dtype_of, normalised, tuple_of
from .windows import pads_of_pool, spans_of


def _scatter_elements(node: Node) -> Any:
    axis = normalised(node.attribute("axis", 0), len(node.shape()))
    kind = node.attribute("reduction", "none")
    reduction = "update" if kind == "none" else kind
    indices, shape = _not_negative(node, node[1], node.shape()[axis]), node.shape(1)
    if all(extent == whole or d == axis for d, (extent, whole) in enumerate(zip(shape, node.shape(), strict=True))):
        return relax.op.scatter_elements(node[0], indices, node[2], axis=axis, reduction=reduction)
    # TVM takes the other axes for as long as those of the data: here the indices say all positions.
    places = [
        indices if d == axis else const(grid.astype(dtype_of(indices))) for d, grid in enumerate(np.indices(shape))
    ]
    return relax.op.scatter_nd(node[0], node.emit(relax.op.stack(places, axis=-1)), node[2], reduction)


def _not_negative(node: Node, indices: Any, extent: int) -> Any:
    """Indices counted from the first element."""
    dtype = dtype_of(indices)
    negative = relax.op.less(indices, relax.const(0, dtype))
    return node.emit(relax.op.where(negative, relax.op.add(indices, relax.const(extent, dtype)), indices))


def _cumulative(operator: Callable[..., Any]) -> Callable[[Node], Any]:
    """CumSum, CumProd along a constant axis, also from the end."""

    def convert(node: Node) -> Any:
        value = node.constant(1)
        assert value is not None
        axis = normalised(int(value.reshape(-1)[0]), len(node.shape()))
        x, reverse = node[0], bool(node.attribute("reverse", 0))
        if reverse:
            x = node.compute(topi.flip, x, axis, name="flip")
        result = node.emit(operator(x, axis, exclusive=bool(node.attribute("exclusive", 0))))
        return node.compute(topi.flip, result, axis, name="flip") if reverse else result

    return convert


def _reverse_sequence(node: Node) -> Any:
    """The first `sequence_lens[b]` elements of each sequence backwards, the others as they are."""
    time, batch = node.attribute("time_axis", 0), node.attribute("batch_axis", 1)

    def reversed_sequences(x: Any, lengths: Any) -> Any:
        def value(*indices: Any) -> Any:
            length = lengths(indices[batch]).astype("int32")
            place = indices[time]
            source = list(indices)
            source[time] = tirx.Select(place < length, length - 1 - place, place)
            return x(*source)

        return te.compute(x.shape, value, name="reverse_sequence")

    lengths = node.emit(relax.op.clip(node[1], 0, node.shape()[time]))
    return node.compute(reversed_sequences, node[0], lengths, name="reverse_sequence")


def _tensor_scatter(node: Node) -> Any:
    """A cache in which `update` replaces the elements from `write_indices[b]` on, along an axis."""
    shape, count = node.shape(), None
    axis = normalised(node.attribute("axis", -2), len(shape))
    count = node.shape(1)[axis]
    circular = node.attribute("mode", "linear") == "circular"
    first = node[2] if node.has(2) else const(np.zeros(shape[0], np.int64))
    extent = shape[axis]

    def scattered(cache: Any, update: Any, begin: Any) -> Any:
        def value(*indices: Any) -> Any:
            offset = indices[axis] - begin(indices[0]).astype("int32")
            if circular:
                offset = tirx.floormod(offset, extent)
            inside = tirx.all(offset >= 0, offset < count)
            source = list(indices)
            source[axis] = tirx.max(tirx.min(offset, count - 1), 0)
            return tirx.Select(inside, update(*source), cache(*indices))

        return te.compute(cache.shape, value, name="tensor_scatter")

    return node.compute(scattered, node[0], node[1], first, name="tensor_scatter")


def _col2im(node: Node) -> Any:
    """The sum of all patches at their places in an image."""
    image, block = (_constant_list(node, position) for position in (1, 2))
    rank = len(image)
    strides = list(node.attribute("strides", (1,) * rank))
    dilations = list(node.attribute("dilations", (1,) * rank))
    pads = list(node.attribute("pads", (0,) * 2 * rank))
    steps = [
        (image[d] + pads[d] + pads[d + rank] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1 for d in range(rank)
    ]
    batch, rows, _ = node.shape()
    channels = rows // math.prod(block)
    patches = node.emit(relax.op.reshape(node[0], (batch, channels, *block, *steps)))

    def assembled(source: Any) -> Any:
        axes = [te.reduce_axis((0, extent), name=f"k{d}") for d, extent in enumerate(block)]
        taps = [axis.var for axis in axes]

        def value(n: Any, c: Any, *place: Any) -> Any:
            positions, conditions = [], []
            for d in range(rank):
                distance = place[d] + pads[d] - taps[d] * dilations[d]
                step = tirx.floordiv(distance, strides[d])
                conditions += [step >= 0, step < steps[d], tirx.floormod(distance, strides[d]) == 0]
                positions.append(tirx.max(tirx.min(step, steps[d] - 1), 0))
            element = source(n, c, *taps, *positions)
            return te.sum(tirx.Select(tirx.all(*conditions), element, tirx.const(0, source.dtype)), axis=axes)

        return te.compute((batch, channels, *image), value, name="col2im")

    return node.compute(assembled, patches, name="col2im")


def _constant_list(node: Node, position: int) -> list[int]:
    value = node.constant(position)
    assert value is not None
    return [int(number) for number in value.reshape(-1)]


def _max_pool(node: Node) -> Any | None:
    """The indices of the largest elements: of equal ones, the first. TVM makes the values alone."""
    shape, kernel = node.shape(), list(node.attribute("kernel_shape"))
    pads = pads_of_pool(node, kernel)
    if node.outputs == 1:
        node.replace_attributes({"pads": pads}, ("auto_pad", "ceil_mode"))
        return None
    rank = len(kernel)
    strides = list(node.attribute("strides", (1,) * rank))
    dilations = list(node.attribute("dilations", (1,) * rank))
    spans = spans_of(node, kernel)
    room = [shape[d + 2] + pads[d] + pads[d + rank] - spans[d] for d in range(rank)]
    sizes = [room[d] // strides[d] + 1 for d in range(rank)]
    column_major = bool(node.attribute("storage_order", 0))
    dtype = node.dtype()

    def window(x: Any, indices: Sequence[Any]) -> tuple[list[Any], Any, Any, Any]:
        taps = [te.reduce_axis((0, extent), name=f"k{d}") for d, extent in enumerate(kernel)]
        positions = [indices[d + 2] * strides[d] + taps[d] * dilations[d] - pads[d] for d in range(rank)]
        inside = tirx.all(*(tirx.all(p >= 0, p < shape[d + 2]) for d, p in enumerate(positions)))
        clipped = [tirx.max(tirx.min(p, shape[d + 2] - 1), 0) for d, p in enumerate(positions)]
        return taps, inside, x(*indices[:2], *clipped), clipped

    def largest(x: Any) -> Any:
        def value(*indices: Any) -> Any:
            taps, inside, element, _ = window(x, indices)
            return te.max(tirx.Select(inside, element, tirx.min_value(dtype)), axis=taps)

        return te.compute((*shape[:2], *sizes), value, name="max_pool")

    def place(x: Any, maxima: Any) -> Any:
        def value(*indices: Any) -> Any:
            taps, inside, element, clipped = window(x, indices)
            order = list(range(rank))[::-1] if column_major else list(range(rank))
            flat = tirx.const(0, "int64")
            for axis in order:
                flat = flat * shape[axis + 2] + clipped[axis].astype("int64")
            image = indices[0] * shape[1] + indices[1]
            flat = flat + image.astype("int64") * math.prod(shape[2:])
            found = tirx.all(inside, is_extremum(element, maxima(*indices)))
            return te.min(tirx.Select(found, flat, tirx.max_value("int64")), axis=taps)

        return te.compute((*shape[:2], *sizes), value, name="max_pool_indices")

    maxima = node.compute(largest, node[0], name="max_pool")
    return tuple_of(maxima, node.compute(place, node[0], maxima, name="max_pool_indices"))


def _space_to_depth(node: Node) -> Any:
    """Reshape, transpose, reshape; TVM knows the order DCR only."""
    batch, channels, height, width = node.shape()
    size, column_first = node.attribute("blocksize"), node.attribute("mode", "DCR") == "CRD"
    parts = node.emit(relax.op.reshape(node[0], (batch, channels, height // size, size, width // size, size)))
    moved = node.emit(relax.op.permute_dims(parts, [0, 1, 3, 5, 2, 4] if column_first else [0, 3, 5, 1, 2, 4]))
    return relax.op.reshape(moved, (batch, channels * size**2, height // size, width // size))


def _squeeze(node: Node) -> Any | None:
    """Negative axes are counted from the first one: with some of them TVM runs out of memory."""
    axes = node.attribute("axes")
    if axes is None and node.has(1):
        values = node.constant(1)
        axes = None if values is None else values.tolist()
    if axes is None or all(axis >= 0 for axis in axes):
        return None
    return relax.op.squeeze(node[0], sorted(normalised(int(axis), len(node.shape())) for axis in axes))


def _one_hot(node: Node) -> Any:
    """TVM makes numbers of 64 bits, whatever the type of both values is."""
    depth, values = node.constant(1), node.constant(2)
    if depth is None or values is None:
        raise ValueError("no depth, or no values")
    extent = int(depth.reshape(-1)[0])
    off, on = (relax.prim_value(tirx.const(value, str(values.dtype))) for value in values.tolist())
    indices = node[0] if node.dtype() in ("int32", "int64") else node.emit(relax.op.astype(node[0], "int64"))
    return relax.op.one_hot(_not_negative(node, indices, extent), on, off, extent, node.attribute("axis", -1))


def _split_to_sequence(node: Node) -> Any | None:
    """A scalar is the length of all parts but the last, which may be shorter: TVM makes parts of equal lengths."""
    lengths = node.constant(1)
    if lengths is None:
        return None
    axis = normalised(node.attribute("axis", 0), len(node.shape()))
    step, extent = lengths.reshape(-1), node.shape()[axis]
    cuts = list(range(int(step[0]), extent, int(step[0]))) if lengths.ndim == 0 else np.cumsum(step)[:-1].tolist()
    return relax.op.split(node[0], cuts, axis) if cuts else relax.Tuple([node[0]])


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "Col2Im": _col2im,
    "CumProd": _cumulative(relax.op.cumprod),
    "CumSum": _cumulative(relax.op.cumsum),
    "MaxPool": _max_pool,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _scatter_elements,
    "SpaceToDepth": _space_to_depth,
    "SplitToSequence": _split_to_sequence,
    "Squeeze": _squeeze,
    "TensorScatter": _tensor_scatter,
}
