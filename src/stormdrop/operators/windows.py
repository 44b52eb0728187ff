"""Operators that slide a window over an image or a sequence: convolutions and pools.

Channels are the last dimension (NLC, NHWC) or the second (NCL, NCHW), in images and in weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from ..errors import OperatorError
from ..ir.dtypes import BFLOAT16, is_float
from .declare import Definition, operator
from .epilogue import ACTIVATIONS, with_epilogue
from .quantized import BYTES, check_quantized, factor, is_bytes, second_dtype, with_quantized_epilogue
from .rows import averaged

_SEQUENCES, _IMAGES = ("NLC", "NCL"), ("NHWC", "NCHW")


@operator(
    "a convolution over one dimension", "n=1 l=64 ci=8 co=32 k=3 pad=1", act=tuple(ACTIVATIONS), layout=_SEQUENCES
)
def conv1d(
    n: int,
    l: int,
    ci: int,
    co: int,
    k: int,
    stride: int = 1,
    pad: int = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: int = 0,
    act: str = "none",
    layout: str = "NLC",
    dtype: str = "float32",
) -> Definition:
    """Convolution along a sequence, with constant weights and bias.

    The output has the length (l + 2 pad - dilation (k - 1) - 1) // stride + 1.

    Args:
        n: The number of sequences.
        l: Their length.
        ci: Input channels.
        co: Output channels.
        k: The length of the window.
        stride: Steps of the window.
        pad: Zeros before and after each sequence.
        dilation: The distance between the elements of the window.
        groups: Groups of channels, which must divide `ci` and `co`; each group has inputs and outputs of its own.
        bias: 1 adds a bias of shape [co], 0 does not.
        act: The activation, one of `ACTIVATIONS`.
        layout: "NLC" with weights [co, k, ci/groups], or "NCL" with weights [co, ci/groups, k].
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, the window does not fit into the padded sequence, or the
            tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.conv1d(1, 100, 16, 32, 3, pad=1)
        >>> [spec.shape for spec in workload.inputs], [spec.shape for spec in workload.outputs]
        ([(1, 100, 16), (32, 3, 16)], [(1, 100, 32)])
    """
    inputs, c = _convolution(n, (l,), ci, co, {"k": k}, stride, pad, dilation, groups, layout, dtype)
    return with_epilogue(inputs, c, layout.index("C"), bias, act)


@operator(
    "a convolution over images, dilated and grouped if wanted",
    "n=1 h=14 w=14 ci=16 co=32 kh=3 kw=3 pad=1 bias=1 act=relu",
    act=tuple(ACTIVATIONS),
    layout=_IMAGES,
    dtype=("float32", BFLOAT16, *BYTES),
)
def conv2d(
    n: int,
    h: int,
    w: int,
    ci: int,
    co: int,
    kh: int,
    kw: int,
    stride: int = 1,
    pad: int = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: int = 0,
    act: str = "none",
    layout: str = "NHWC",
    residual: int = 0,
    zero_point: int = 0,
    requantize: int = 0,
    dtype: str = "float32",
) -> Definition:
    """Convolution of images, with constant weights and bias.

    The output has the height (h + 2 pad - dilation (kh - 1) - 1) // stride + 1, and its width likewise. Products of
    bytes are summed up in int32, in which the bias is, too. The sums are the output, or with `requantize=1` it is
    clip(round(scale[co] act(...))) with one more constant input, scale.

    Args:
        n: The number of images.
        h: Their height.
        w: Their width.
        ci: Input channels.
        co: Output channels.
        kh: The height of the window.
        kw: The width of the window.
        stride: Steps of the window, along both dimensions.
        pad: Zeros on each side of an image; bytes are padded by their zero point.
        dilation: The distance between the elements of the window.
        groups: Groups of channels, which must divide `ci` and `co`; each group has inputs and outputs of its own.
        bias: 1 adds a bias of shape [co], 0 does not.
        act: The activation, one of `ACTIVATIONS`.
        layout: "NHWC" with weights [co, kh, kw, ci/groups], or "NCHW" with weights [co, ci/groups, kh, kw].
        residual: 1 adds an input of the output's shape before the activation, 0 does not.
        zero_point: What is subtracted from each element of the images; for bytes only.
        requantize: 1 makes the output int8, or uint8 after relu; 0 leaves it in int32. For bytes only.
        dtype: "float32"; "bfloat16", the type of images, weights, residual and output, with sums and a bias in float32;
            or "int8" or "uint8", the type of the images, with weights in int8. Bytes have no residual, and the
            activations none and relu.

    Raises:
        OperatorError: An argument is not as described above, the window does not fit into the padded image, or the
            tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.conv2d(1, 56, 56, 64, 128, 3, 3, pad=1, bias=1, act="relu")
        >>> [spec.shape for spec in workload.inputs], [spec.shape for spec in workload.outputs]
        ([(1, 56, 56, 64), (128, 3, 3, 64), (128,)], [(1, 56, 56, 128)])
    """
    check_quantized(dtype, act, residual, zero_point, requantize)
    window = {"kh": kh, "kw": kw}
    inputs, c = _convolution(n, (h, w), ci, co, window, stride, pad, dilation, groups, layout, dtype, zero_point)
    if is_bytes(dtype):
        return with_quantized_epilogue(inputs, c, layout.index("C"), bias, act, requantize)
    return with_epilogue(inputs, c, layout.index("C"), bias, act, residual, dtype)


@operator(
    "a convolution of each channel by itself",
    "n=1 h=14 w=14 ci=32 kh=3 kw=3 pad=1",
    act=tuple(ACTIVATIONS),
    layout=_IMAGES,
)
def depthwise_conv2d(
    n: int,
    h: int,
    w: int,
    ci: int,
    kh: int,
    kw: int,
    stride: int = 1,
    pad: int = 0,
    bias: int = 0,
    act: str = "none",
    layout: str = "NHWC",
    dilation: int = 1,
    dtype: str = "float32",
) -> Definition:
    """Convolution of each channel of images by itself, with constant weights and bias.

    The output has the height (h + 2 pad - dilation (kh - 1) - 1) // stride + 1, and its width likewise.

    Args:
        n: The number of images.
        h: Their height.
        w: Their width.
        ci: Channels of the input and of the output.
        kh: The height of the window.
        kw: The width of the window.
        stride: Steps of the window, along both dimensions.
        pad: Zeros on each side of an image.
        bias: 1 adds a bias of shape [ci], 0 does not.
        act: The activation, one of `ACTIVATIONS`.
        layout: "NHWC" with weights [kh, kw, ci], or "NCHW" with weights [ci, kh, kw].
        dilation: The distance between the elements of the window.
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, the window does not fit into the padded image, or the
            tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.depthwise_conv2d(1, 56, 56, 64, 3, 3, stride=2, pad=1)
        >>> [spec.shape for spec in workload.inputs], [spec.shape for spec in workload.outputs]
        ([(1, 56, 56, 64), (3, 3, 64)], [(1, 28, 28, 64)])
    """
    window = {"kh": kh, "kw": kw}
    extents = _output_extents((h, w), window, stride, pad, dilation)
    x = te.placeholder(_arranged(layout, n, ci, (h, w)), dtype, name="x")
    weight = te.placeholder(_arranged(layout, 1, ci, (kh, kw))[1:], dtype, name="w")
    padded, offsets = _pad(x, pad, layout, 0.0), _offsets(window)

    def value(*i: Any) -> Any:
        image, channel, place = _split_indices(layout, i)
        element = padded[_arranged(layout, image, channel, _read_at(place, offsets, stride, dilation))]
        return te.sum(element * weight[_arranged(layout, image, channel, offsets)[1:]], axis=offsets)

    c = te.compute(_arranged(layout, n, ci, extents), value, name="depthwise_conv2d")
    return with_epilogue([x, weight], c, layout.index("C"), bias, act)


@operator(
    "average or maximum over windows of images",
    "n=1 h=16 w=16 c=32 kh=2 kw=2 stride=2",
    kind=("max", "avg"),
    layout=_IMAGES,
)
def pool2d(
    n: int,
    h: int,
    w: int,
    c: int,
    kh: int,
    kw: int,
    stride: int = 1,
    pad: int = 0,
    kind: str = "max",
    layout: str = "NHWC",
    dtype: str = "float32",
) -> Definition:
    """Maximum or average over a window that slides over images.

    The output has the height (h + 2 pad - kh) // stride + 1, and its width likewise.

    Args:
        n: The number of images.
        h: Their height.
        w: Their width.
        c: Channels.
        kh: The height of the window.
        kw: The width of the window.
        stride: Steps of the window, along both dimensions.
        pad: Elements on each side of an image. An average counts them as zeros, a maximum ignores them.
        kind: "max" or "avg".
        layout: "NHWC" or "NCHW".
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, the window does not fit into the padded image, or the
            tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.pool2d(1, 56, 56, 64, 2, 2, stride=2)
        >>> [spec.shape for spec in workload.outputs]
        [(1, 28, 28, 64)]
    """
    window = {"kh": kh, "kw": kw}
    extents = _output_extents((h, w), window, stride, pad, 1)
    x = te.placeholder(_arranged(layout, n, c, (h, w)), dtype, name="x")
    padded = _pad(x, pad, layout, 0.0 if kind == "avg" else float(np.finfo(dtype).min))
    offsets, combine = _offsets(window), te.max if kind == "max" else te.sum

    def value(*i: Any) -> Any:
        image, channel, place = _split_indices(layout, i)
        return combine(padded[_arranged(layout, image, channel, _read_at(place, offsets, stride, 1))], axis=offsets)

    pooled = te.compute(_arranged(layout, n, c, extents), value, name="pool2d")
    return Definition([x], averaged(pooled, kh * kw) if kind == "avg" else pooled)


@operator("average or maximum over each whole image", "n=1 h=7 w=7 c=64", kind=("max", "avg"), layout=_IMAGES)
def global_pool2d(
    n: int, h: int, w: int, c: int, kind: str = "avg", layout: str = "NHWC", dtype: str = "float32"
) -> Definition:
    """Average or maximum over each whole image, which becomes one pixel.

    Args:
        n: The number of images.
        h: Their height.
        w: Their width.
        c: Channels.
        kind: "avg" or "max".
        layout: "NHWC" or "NCHW".
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.global_pool2d(1, 7, 7, 512)
        >>> [spec.shape for spec in workload.outputs]
        [(1, 1, 1, 512)]
    """
    x = te.placeholder(_arranged(layout, n, c, (h, w)), dtype, name="x")
    offsets, combine = _offsets({"kh": h, "kw": w}), te.max if kind == "max" else te.sum

    def value(*i: Any) -> Any:
        image, channel, _ = _split_indices(layout, i)
        return combine(x[_arranged(layout, image, channel, offsets)], axis=offsets)

    pooled = te.compute(_arranged(layout, n, c, (1, 1)), value, name="global_pool2d")
    return Definition([x], averaged(pooled, h * w) if kind == "avg" else pooled)


def _convolution(
    n: int,
    extents: Sequence[int],
    ci: int,
    co: int,
    window: Mapping[str, int],
    stride: int,
    pad: int,
    dilation: int,
    groups: int,
    layout: str,
    dtype: str,
    zero_point: int = 0,
) -> tuple[list[Any], Any]:
    """The inputs and the output of a convolution over any number of dimensions."""
    if ci % groups or co % groups:
        raise OperatorError(f"groups={groups} must divide ci={ci} and co={co}")
    output = _output_extents(extents, window, stride, pad, dilation)
    per_group, out_per_group = ci // groups, co // groups
    x = te.placeholder(_arranged(layout, n, ci, extents), dtype, name="x")
    weight_shape = _arranged(layout, co, per_group, tuple(window.values()))
    weight = te.placeholder(weight_shape, second_dtype(dtype), name="w")
    padded, offsets = _pad(x, pad, layout, float(zero_point)), _offsets(window)
    rc = te.reduce_axis((0, per_group), name="rc")

    def value(*i: Any) -> Any:
        image, channel, place = _split_indices(layout, i)
        channel_in = rc if groups == 1 else channel // out_per_group * per_group + rc
        element = padded[_arranged(layout, image, channel_in, _read_at(place, offsets, stride, dilation))]
        weight_indices = _arranged(layout, channel, rc, offsets)
        product = factor(element, dtype, zero_point) * factor(weight[weight_indices], dtype)
        return te.sum(product, axis=weight_indices[1:])

    return [x, weight], te.compute(_arranged(layout, n, co, output), value, name="convolution")


def _arranged(layout: str, first: Any, channel: Any, rest: Sequence[Any]) -> tuple[Any, ...]:
    """Extents or indices in the order of a layout; `rest` are those along the window's dimensions."""
    return (first, *rest, channel) if layout.endswith("C") else (first, channel, *rest)


def _split_indices(layout: str, i: Sequence[Any]) -> tuple[Any, Any, Sequence[Any]]:
    """The image, the channel and the rest of the indices in the order of a layout: the inverse of `_arranged`."""
    return (i[0], i[-1], i[1:-1]) if layout.endswith("C") else (i[0], i[1], i[2:])


def _offsets(window: Mapping[str, int]) -> list[Any]:
    """One reduction axis for each dimension of the window."""
    return [te.reduce_axis((0, extent), name=f"r{name}") for name, extent in window.items()]


def _read_at(place: Sequence[Any], offsets: Sequence[Any], stride: int, dilation: int) -> list[Any]:
    """The indices that the window of an output element reads."""
    return [index * stride + offset * dilation for index, offset in zip(place, offsets, strict=True)]


def _pad(x: Any, pad: int, layout: str, value: float) -> Any:
    """Images with `pad` elements of a value on each side."""
    if not pad:
        return x
    padded_axes = [dimension for dimension, letter in enumerate(layout) if letter not in "NC"]
    shape = [extent + 2 * pad if axis in padded_axes else extent for axis, extent in enumerate(x.shape)]

    def padded(*i: Any) -> Any:
        inside = [tirx.all(i[axis] >= pad, i[axis] < x.shape[axis] + pad) for axis in padded_axes]
        source = [index - pad if axis in padded_axes else index for axis, index in enumerate(i)]
        return tirx.if_then_else(
            tirx.all(*inside),
            x[tuple(source)],
            tirx.const(value if is_float(str(x.dtype)) else int(value), x.dtype),
        )

    return te.compute(shape, padded, name="pad")


def _output_extents(
    extents: Sequence[int], window: Mapping[str, int], stride: int, pad: int, dilation: int
) -> list[int]:
    """The extents of the output; raises `OperatorError` if the window does not fit."""
    outputs = []
    for extent, (name, size) in zip(extents, window.items(), strict=True):
        outputs.append((extent + 2 * pad - dilation * (size - 1) - 1) // stride + 1)
        if outputs[-1] < 1:
            raise OperatorError(f"{name}={size} does not fit into {extent} with pad={pad} and dilation={dilation}")
    return outputs
