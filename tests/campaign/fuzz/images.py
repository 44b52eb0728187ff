"""Operators of images and signals: convolutions, pools, resizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.drawing import FLOATS, Drawing, Value
from fuzz.registry import operator
from fuzz.telling import Rejected

_SPATIAL = (3, 4, 4, 4, 5)


def image(d: Drawing, ranks: tuple[int, ...] = _SPATIAL) -> Value:
    """A value with a batch, channels and one to three further axes: one that is there, or a new input."""
    rank = d.choice(ranks)
    there = [
        v for v in d.values if v.dtype == "float32" and v.rank == rank and max(v.shape[2:]) > 1 and v.shape[1] <= 16
    ]
    if there and d.chance(0.8):
        return d.choice(there)
    most = {3: 23, 4: 11, 5: 5}[rank]
    sizes = [d.integer(3, most) for _ in range(rank - 2)]
    return d.given(d.array((d.choice([1, 1, 2]), d.choice([1, 2, 3, 4, 6, 8]), *sizes)))


def window(d: Drawing, x: Value, dilations: bool, most: int = 4) -> dict[str, Any]:
    """The attributes of something that slides over an image, with the padding that its size allows."""
    axes = x.rank - 2
    kernel = [d.integer(1, min(most, extent)) for extent in x.shape[2:]]
    given: dict[str, Any] = {"kernel_shape": kernel}
    if d.chance(0.6):
        given["strides"] = [d.integer(1, 3) for _ in range(axes)]
    steps = [1] * axes
    if dilations and d.chance(0.3):
        steps = [d.integer(1, 3) if (k - 1) * 2 < extent else 1 for k, extent in zip(kernel, x.shape[2:], strict=True)]
        given["dilations"] = steps
    form = d.choice(["pads", "pads", "none", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    if form in ("pads", "NOTSET"):
        reach = [(k - 1) * step for k, step in zip(kernel, steps, strict=True)]
        given["pads"] = [
            min(d.integer(0, 2), k - 1, r) for k, r in zip([*kernel, *kernel], [*reach, *reach], strict=True)
        ]
    if form not in ("pads", "none"):
        given["auto_pad"] = form
    return given


@operator("Conv", weight=4)
def convolution(d: Drawing, name: str) -> Value:
    x = image(d)
    channels = x.shape[1]
    groups = d.choice([g for g in (1, 1, 2, 3, channels) if channels % g == 0])
    filters = groups * d.choice([1, 2, 3, 4])
    given = window(d, x, dilations=True)
    weight = d.constant(d.array((filters, channels // groups, *given["kernel_shape"])))
    if d.chance(0.1):
        weight = d.given(weight.array)
    bias = [d.constant(d.array((filters,)))] if d.chance(0.6) else []
    if d.chance(0.3):
        del given["kernel_shape"]
    return d.add(name, x, weight, *bias, group=groups if groups > 1 else d.choice([None, 1]), **given)


@operator("ConvTranspose", weight=1.5)
def transposed_convolution(d: Drawing, name: str) -> Value:
    x = image(d, (3, 4, 4))
    channels = x.shape[1]
    groups = d.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    filters = d.choice([1, 2, 3])
    given = window(d, x, dilations=True, most=3)
    strides = given.get("strides", [1] * (x.rank - 2))
    if d.chance(0.3):
        given["output_padding"] = [d.integer(0, stride - 1) for stride in strides]
    weight = d.constant(d.array((channels, filters, *given["kernel_shape"])))
    bias = [d.constant(d.array((filters * groups,)))] if d.chance(0.6) else []
    return d.add(name, x, weight, *bias, group=groups, **given)


def _ceil_mode(d: Drawing, given: dict[str, Any]) -> int | None:
    """With `auto_pad`, onnxruntime infers another shape than its kernel makes."""
    return d.choice([None, 0] if "auto_pad" in given else [None, 0, 1])


@operator("MaxPool", weight=2)
def max_pool(d: Drawing, name: str) -> tuple[Value, ...]:
    x = image(d)
    given = window(d, x, dilations=d.opset >= 10)
    if d.opset >= 10:
        given["ceil_mode"] = _ceil_mode(d, given)
    return d.add_all(name, [x], d.choice([1, 1, 1, 2]), exact=True, **given)


@operator("AveragePool", weight=2)
def average_pool(d: Drawing, name: str) -> Value:
    given = window(d, x := image(d), dilations=d.opset >= 19)
    if d.opset >= 10:
        given["ceil_mode"] = _ceil_mode(d, given)
    return d.add(name, x, count_include_pad=d.choice([None, 0, 1]), **given)


@operator("LpPool")
def lp_pool(d: Drawing, name: str) -> Value:
    given = window(d, x := image(d, (3, 4)), dilations=d.opset >= 18)
    if d.opset >= 18:
        given["ceil_mode"] = _ceil_mode(d, given)
    return d.add(name, x, p=d.choice([None, 1, 2, 3]), **given)


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pools(d: Drawing, name: str) -> Value:
    return d.add(name, image(d), exact=name == "GlobalMaxPool")


@operator("MaxUnpool", since=9)
def unpool(d: Drawing, name: str) -> Value:
    x = image(d, (4,))
    if min(x.shape[2:]) < 2:
        raise Rejected("too small")
    strides: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    pooled, indices = d.add_all("MaxPool", [x], 2, exact=True, **strides)
    d.hide(indices)
    return d.add(name, pooled, indices, **strides)


@operator("Upsample")
def upsample(d: Drawing, name: str) -> Value:
    if d.opset > 9:
        raise Rejected("Resize took its place")
    x = image(d, (4,))
    scales = [1.0, 1.0, d.choice([1.0, 2.0, 3.0]), d.choice([1.0, 2.0, 1.5])]
    mode = d.choice(["nearest", "linear"])
    if d.opset < 9:
        return d.add(name, x, scales=scales, mode=mode)
    return d.add(name, x, d.constant(scales, "float32"), mode=mode)


@operator("Resize", since=10, weight=2.5)
def resize(d: Drawing, name: str) -> Value:
    x = image(d, (3, 4, 4, 4, 5))
    axes = x.rank - 2
    mode = d.choice(["nearest", "nearest", "linear", "linear", "cubic"])
    if mode == "cubic" and (x.rank != 4 or d.opset < 11):
        mode = "linear"
    scales = [1.0, 1.0, *(d.choice([1.0, 2.0, 0.5, 1.5, 3.0, 0.7]) for _ in range(axes))]
    if d.opset == 10:
        return d.add(name, x, d.constant(scales, "float32"), mode=mode)
    given: dict[str, Any] = {"mode": mode}
    forms = [None, "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    given["coordinate_transformation_mode"] = d.choice(forms + (["half_pixel_symmetric"] if d.opset >= 19 else []))
    if mode == "nearest":
        given["nearest_mode"] = d.choice([None, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic":
        given |= {"cubic_coeff_a": d.choice([None, -0.5]), "exclude_outside": d.choice([None, 0, 1])}
    if d.opset >= 18 and mode in ("linear", "cubic") and d.chance(0.3):
        given["antialias"] = 1
    sizes = [max(1, int(extent * scale)) for extent, scale in zip(x.shape, scales, strict=True)]
    if d.opset >= 18 and d.chance(0.3):
        given["axes"] = list(range(2, x.rank))
        scales, sizes = scales[2:], sizes[2:]
    empty = d.constant(np.zeros(0, np.float32)) if d.opset < 13 else None
    if d.chance(0.5):
        return d.add(name, x, empty, d.constant(scales, "float32"), **given)
    if d.opset >= 18 and d.chance(0.2):
        given["keep_aspect_ratio_policy"] = d.choice(["stretch", "not_larger", "not_smaller"])
    return d.add(name, x, empty, empty, d.constant(sizes, "int64"), **given)


@operator("GridSample", since=16)
def grid_sample(d: Drawing, name: str) -> Value:
    x = image(d, (4,))
    linear, cubic = ("bilinear", "bicubic") if d.opset < 20 else ("linear", "cubic")
    grid = d.rng.uniform(-1.2, 1.2, (x.shape[0], d.integer(1, 5), d.integer(1, 5), 2)).astype(np.float32)
    return d.add(
        name,
        x,
        d.constant(grid),
        mode=d.choice([linear, linear, "nearest", cubic]),
        padding_mode=d.choice([None, "zeros", "border", "reflection"]),
        align_corners=d.choice([None, 0, 1]),
    )


@operator("AffineGrid", since=20)
def affine_grid(d: Drawing, name: str) -> Value:
    theta = d.tensor(FLOATS, (3,), lambda value: value.shape[1:] == (2, 3))
    size = d.constant([theta.shape[0], d.integer(1, 3), d.integer(2, 5), d.integer(2, 5)], "int64")
    return d.add(name, theta, size, align_corners=d.choice([None, 0, 1]))


@operator("RoiAlign", since=10)
def roi_align(d: Drawing, name: str) -> Value:
    x = image(d, (4,))
    count = d.integer(1, 3)
    corners = d.rng.uniform(0, 4, (count, 2))
    boxes = np.concatenate([corners, corners + d.rng.uniform(1, 5, (count, 2))], 1).astype(np.float32)
    batch = d.constant(d.rng.integers(0, x.shape[0], count))
    return d.add(
        name,
        x,
        d.constant(boxes),
        batch,
        output_height=d.integer(1, 3),
        output_width=d.integer(1, 3),
        sampling_ratio=d.choice([1, 2, None]),
        spatial_scale=d.choice([None, 0.5]),
        coordinate_transformation_mode=d.choice([None, "half_pixel"]) if d.opset >= 16 else None,
    )


@operator("Col2Im", since=18)
def col2im(d: Drawing, name: str) -> Value:
    block, size = (d.integer(1, 2), d.integer(1, 3)), (d.integer(3, 6), d.integer(3, 6))
    count = (size[0] - block[0] + 1) * (size[1] - block[1] + 1)
    channels = d.integer(1, 3)
    x = d.given(d.array((d.choice([1, 2]), channels * block[0] * block[1], count)))
    return d.add(name, x, d.constant(size, "int64"), d.constant(block, "int64"))


@operator("DeformConv", since=19)
def deformable(d: Drawing, name: str) -> Value:
    x = image(d, (4,))
    kernel = (d.integer(1, 2), d.integer(1, 2))
    filters = d.integer(1, 3)
    size = [extent - k + 1 for extent, k in zip(x.shape[2:], kernel, strict=True)]
    offset = d.constant(0.3 * d.array((x.shape[0], 2 * kernel[0] * kernel[1], *size)))
    return d.add(name, x, d.constant(d.array((filters, x.shape[1], *kernel))), offset, kernel_shape=kernel)
