"""Converters of Resize and Upsample in all modes.

Shapes are fixed, so the elements that an output element reads, and their weights, are known at import. They are tables,
one for each axis:

    y[o] = sum of weights[o, k] * x[places[o, k]] over k
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te

from .node import Node, const, dtype_of, is_float, normalised, shape_of

_TABLE = 8  # taps that are written as a sum of products; more of them are a reduction


@dataclass(frozen=True)
class _Axis:
    """How one axis is resized: from `extent` to `size` elements, `scale` times as many."""

    axis: int
    extent: int
    size: int
    scale: float
    roi: tuple[float, float]


@dataclass(frozen=True)
class _Mode:
    """The attributes of a node, by their names in ONNX."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


def _resize(node: Node) -> Any | None:
    mode = _Mode(
        node.attribute("mode", "nearest"),
        node.attribute("coordinate_transformation_mode", "half_pixel"),
        node.attribute("nearest_mode", "round_prefer_floor"),
        node.attribute("cubic_coeff_a", -0.75),
        bool(node.attribute("exclude_outside", 0)),
        bool(node.attribute("antialias", 0)),
        node.attribute("extrapolation_value", 0.0),
    )
    if node.opset < 11:  # scales are the second input
        mode = replace(mode, coordinates="asymmetric", nearest="of_opset_10")
        return _resized(node, _from_scales(node, _values(node, 1), list(range(len(node.shape()))), None), mode)
    axes = _axes(node)
    if _is_plain(node, axes, mode):
        return None
    return _resized(node, axes, mode)


def _upsample(node: Node) -> Any:
    scales = node.attribute("scales")
    values = _values(node, 1) if scales is None else list(scales)
    kind = node.attribute("mode", "nearest")
    mode = _Mode("linear" if kind in ("linear", "bilinear") else kind, "asymmetric", "floor", -0.75, False, False, 0.0)
    return _resized(node, _from_scales(node, values, list(range(len(node.shape()))), None), mode)


def _values(node: Node, position: int) -> list[float]:
    """The values of a constant input; none if it is left out or empty."""
    value = node.constant(position) if node.has(position) else None
    return [] if value is None else [float(number) for number in value.reshape(-1)]


def _axes(node: Node) -> list[_Axis]:
    """The axes that change, with their sizes."""
    shape = node.shape()
    given = node.attribute("axes")
    axes = list(range(len(shape))) if given is None else [normalised(int(axis), len(shape)) for axis in given]
    roi, scales, sizes = (_values(node, position) for position in (1, 2, 3))
    if node.attribute("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize":
        roi = []
    if scales:
        return _from_scales(node, scales, axes, roi)
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    ratios = [size / shape[axis] for size, axis in zip(sizes, axes, strict=True)]
    wanted = [int(size) for size in sizes]
    if policy != "stretch":
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [ratio] * len(axes)
        wanted = [math.floor(ratio * shape[axis] + 0.5) for axis in axes]
    return _listed(shape, axes, wanted, ratios, roi)


def _from_scales(node: Node, scales: Sequence[float], axes: Sequence[int], roi: Sequence[float] | None) -> list[_Axis]:
    shape = node.shape()
    sizes = [math.floor(shape[axis] * np.float32(scale)) for axis, scale in zip(axes, scales, strict=True)]
    return _listed(shape, axes, sizes, scales, roi or [])


def _listed(
    shape: Sequence[int], axes: Sequence[int], sizes: Sequence[int], scales: Sequence[float], roi: Sequence[float]
) -> list[_Axis]:
    count = len(axes)
    regions = [(roi[index], roi[index + count]) if roi else (0.0, 1.0) for index in range(count)]
    listed = [
        _Axis(axis, shape[axis], size, scale, region)
        for axis, size, scale, region in zip(axes, sizes, scales, regions, strict=True)
    ]
    whole = (0.0, 1.0)
    return [entry for entry in listed if entry.size != entry.extent or entry.scale != 1.0 or entry.roi != whole]


def _is_plain(node: Node, axes: Sequence[_Axis], mode: _Mode) -> bool:
    """Whether TVM's own operator is right: it resizes images, with a scale that is the quotient of the sizes."""
    shape = node.shape()
    if len(shape) != 4 or node.attribute("axes") is not None or not axes or any(entry.axis < 2 for entry in axes):
        return False
    exact = all(abs(entry.size - entry.extent * entry.scale) < 1e-9 for entry in axes)
    if not exact or mode.exclude_outside or mode.antialias or node.dtype() != "float32":
        return False
    if mode.mode == "nearest":
        enlarged = all(entry.size % entry.extent == 0 for entry in axes)
        kinds = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
        return enlarged and (mode.coordinates, mode.nearest) in kinds
    return mode.mode == "linear" and mode.coordinates in ("half_pixel", "asymmetric", "align_corners")


def _resized(node: Node, axes: Sequence[_Axis], mode: _Mode) -> Any:
    x, dtype = node[0], node.dtype()
    if mode.mode != "nearest" and dtype != "float64":
        x = node.emit(relax.op.astype(x, "float32")) if dtype != "float32" else x
    outside = None
    for entry in axes:
        positions = _positions(entry, mode)
        places, weights = _taps(entry, mode, positions)
        x = _along(node, x, entry.axis, places, weights)
        if mode.coordinates == "tf_crop_and_resize":
            beyond = (positions < 0) | (positions > entry.extent - 1)
            beyond = beyond.reshape((-1,) + (1,) * (len(node.shape()) - 1 - entry.axis))
            outside = beyond if outside is None else outside | beyond
    if outside is not None and outside.any():
        mask = const(np.broadcast_to(outside, shape_of(x)))
        x = node.emit(relax.op.where(mask, relax.const(mode.extrapolation, dtype_of(x)), x))
    if dtype_of(x) == dtype:
        return x
    return relax.op.astype(x if is_float(dtype) else relax.op.round(x), dtype)


def _along(node: Node, x: Any, axis: int, places: NDArray[Any], weights: NDArray[Any]) -> Any:
    """The sums of weighted elements along one axis."""
    shape = list(shape_of(x))
    size, taps = places.shape
    shape[axis] = size
    copied = taps == 1 and (weights == 1).all()

    def element(source: Any, indices: Sequence[Any], place: Any) -> Any:
        return source(*indices[:axis], place, *indices[axis + 1 :])

    def compute(source: Any, table: Any, factors: Any | None = None) -> Any:
        def value(*indices: Any) -> Any:
            o = indices[axis]
            if factors is None:
                return element(source, indices, table[o, 0])
            products = [element(source, indices, table[o, k]) * factors[o, k] for k in range(taps)]
            return sum(products[1:], products[0])

        return te.compute(shape, value, name="resize")

    def compute_sum(source: Any, table: Any, factors: Any) -> Any:
        k = te.reduce_axis((0, taps), name="k")

        def value(*indices: Any) -> Any:
            o = indices[axis]
            return te.sum(element(source, indices, table[o, k]) * factors[o, k], axis=k)

        return te.compute(shape, value, name="resize")

    table = const(places.astype("int32"))
    if copied:
        return node.compute(compute, x, table, name="resize")
    factors = const(weights.astype(dtype_of(x)))
    return node.compute(compute if taps <= _TABLE else compute_sum, x, table, factors, name="resize")


def _positions(entry: _Axis, mode: _Mode) -> NDArray[Any]:
    """Where in the input each output element lies.

    The nearest element is found in float32 and in the order of onnxruntime: there the last bit of a position that lies
    on an element, or in the middle between two, decides.
    """
    coordinates, number = mode.coordinates, np.float32 if mode.mode == "nearest" else np.float64
    o = np.arange(entry.size, dtype=number)
    n, m, scale = number(entry.extent), number(entry.size), number(entry.scale)
    half: NDArray[Any] = (o + number(0.5)) / scale - number(0.5)
    if coordinates == "half_pixel":
        return half
    if coordinates == "half_pixel_symmetric":
        offset = n / number(2) * (number(1) - m / (scale * n))
        return np.asarray(offset + (o + number(0.5)) / scale - number(0.5))
    if coordinates == "pytorch_half_pixel":
        return half if m > 1 else np.zeros_like(o)
    if coordinates == "align_corners":
        return np.asarray(o * (n - 1) / (m - 1)) if m > 1 else np.zeros_like(o)
    if coordinates == "asymmetric":
        return np.asarray(o / scale)
    if coordinates == "tf_half_pixel_for_nn":
        return np.asarray((o + number(0.5)) / scale)
    if coordinates == "tf_crop_and_resize":
        first, last = entry.roi
        if m > 1:
            return np.asarray(number(first) * (n - 1) + o * number(last - first) * (n - 1) / (m - 1))
        return np.full_like(o, 0.5 * (first + last) * float(n - 1))
    raise ValueError(f"coordinate_transformation_mode {coordinates}")


def _taps(entry: _Axis, mode: _Mode, positions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The input elements that each output element reads, and their weights: two arrays (size, taps)."""
    if mode.mode == "nearest":
        # As opset 10 has it, which names no way to round: up along an axis that becomes smaller.
        rounding = ("ceil" if entry.scale < 1 else "floor") if mode.nearest == "of_opset_10" else mode.nearest
        places = _nearest(positions, rounding)[:, None]
        return np.clip(places, 0, entry.extent - 1), np.ones_like(places, np.float64)
    reach = 1 if mode.mode == "linear" else 2
    kernel = _triangle if mode.mode == "linear" else (lambda distance: _cubic(distance, mode.cubic))
    shrink = min(float(entry.scale), 1.0) if mode.antialias else 1.0
    begin = math.floor(-reach / shrink) + 1
    offsets = np.arange(begin, 2 - begin if mode.antialias else reach + 1)
    base = np.floor(positions)
    places = base[:, None] + offsets
    weights = kernel((places - positions[:, None]) * shrink)
    if mode.exclude_outside:
        weights = np.where((places < 0) | (places >= entry.extent), 0.0, weights)
    if mode.exclude_outside or mode.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(places, 0, entry.extent - 1).astype(np.int64), weights


def _nearest(positions: NDArray[Any], rounding: str) -> NDArray[Any]:
    functions: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
        "round_prefer_floor": lambda x: np.ceil(x - x.dtype.type(0.5)),
        "round_prefer_ceil": lambda x: np.floor(x + x.dtype.type(0.5)),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    places: NDArray[Any] = functions[rounding](positions).astype(np.int64)
    return places


def _triangle(distance: NDArray[Any]) -> NDArray[Any]:
    weights: NDArray[Any] = np.clip(1 - np.abs(distance), 0, 1)
    return weights


def _cubic(distance: NDArray[Any], a: float) -> NDArray[Any]:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


CONVERTERS: dict[str, Callable[[Node], Any]] = {"Resize": _resize, "Upsample": _upsample}
