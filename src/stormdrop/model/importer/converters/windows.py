"""Completes the attributes of convolutions and pools, which TVM's importer then takes: where their windows stand.

TVM rounds down where ONNX rounds up (MaxPool with SAME_LOWER), forgets dilations (AveragePool), counts a last window
that begins behind the image (`ceil_mode`), and makes nothing of an image that is smaller than the window. Here
`auto_pad` and `ceil_mode` become pads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from .node import Node

_COUNTS_ASKED = 19  # the first opset of an AveragePool with dilations


def pads_of(node: Node, kernel: Sequence[int]) -> list[int]:
    """The padding before each spatial axis of the node's first input, and then that behind each.

    Args:
        node: A convolution or a pool.
        kernel: The extents of its window.
    """
    rank = len(kernel)
    mode = node.attribute("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return list(node.attribute("pads", (0,) * 2 * rank))
    if mode == "VALID":
        return [0] * 2 * rank
    return _on_both_sides(node, _totals(node, spans_of(node, kernel)))


def _on_both_sides(node: Node, totals: Sequence[int]) -> list[int]:
    """Padding before each axis, and behind each. Of an odd number, one more is behind with SAME_UPPER, else before."""
    small = [max(total, 0) // 2 for total in totals]
    large = [max(total, 0) - half for total, half in zip(totals, small, strict=True)]
    return small + large if node.attribute("auto_pad", "NOTSET") == "SAME_UPPER" else large + small


def spans_of(node: Node, kernel: Sequence[int]) -> list[int]:
    """How many elements of each axis lie between the ends of a window."""
    dilations = node.attribute("dilations", (1,) * len(kernel))
    return [(extent - 1) * dilation + 1 for extent, dilation in zip(kernel, dilations, strict=True)]


def _totals(node: Node, spans: Sequence[int]) -> list[int]:
    """The padding with which there is a window for each stride that begins; negative if windows leave elements out."""
    strides = node.attribute("strides", (1,) * len(spans))
    return [
        (-(-extent // stride) - 1) * stride + span - extent
        for extent, span, stride in zip(node.shape()[2:], spans, strides, strict=True)
    ]


def _convolution(node: Node) -> None:
    pads = pads_of(node, node.attribute("kernel_shape", node.shape(1)[2:]))
    node.replace_attributes({"pads": pads}, ("auto_pad",))


def _conv_transpose(node: Node) -> None:
    """Replaces the `output_shape` of a transposed convolution by the pads that follow from it; TVM ignores it."""
    wanted = node.attribute("output_shape")
    if wanted is None:
        return
    spans = spans_of(node, node.shape(1)[2:])
    strides = node.attribute("strides", (1,) * len(spans))
    extra = node.attribute("output_padding", (0,) * len(spans))
    axes = zip(strides, node.shape()[2:], extra, spans, list(wanted)[-len(spans) :], strict=True)
    totals = [stride * (extent - 1) + more + span - size for stride, extent, more, span, size in axes]
    # More elements than the windows reach are padding behind the result.
    extra = tuple(more - min(total, 0) for more, total in zip(extra, totals, strict=True))
    pads = tuple(_on_both_sides(node, totals))
    node.replace_attributes({"pads": pads, "output_padding": extra}, ("output_shape", "auto_pad"))


def _pool(node: Node) -> None:
    kernel = node.attribute("kernel_shape")
    node.replace_attributes({"pads": pads_of_pool(node, kernel)}, ("auto_pad", "ceil_mode"))


def _average_pool(node: Node) -> Any | None:
    """`count_include_pad` counts the padding that is asked for, and not what a last window needs beyond it.

    Before opset 19 and without `ceil_mode`, onnxruntime counts all elements of a window that is larger than the image.
    """
    kernel = node.attribute("kernel_shape")
    rank, asked, pads = len(kernel), pads_of(node, kernel), pads_of_pool(node, kernel)
    counts_asked = node.opset >= _COUNTS_ASKED or node.attribute("ceil_mode", 0)
    node.replace_attributes({"pads": pads}, ("auto_pad", "ceil_mode"))
    if pads == asked or not node.attribute("count_include_pad", 0) or not counts_asked:
        return None
    around = [0, 0, 0, 0, *(asked[side * rank + axis] for axis in range(rank) for side in (0, 1))]
    padded = node.emit(relax.op.nn.pad(node[0], around))
    pool = getattr(relax.op.nn, f"avg_pool{rank}d")
    strides, dilations = (node.attribute(name, (1,) * rank) for name in ("strides", "dilations"))
    beyond = [max(size - known, 0) for size, known in zip(pads, asked, strict=True)]
    return node.emit(pool(padded, kernel, strides, beyond, dilations, False, False))


def pads_of_pool(node: Node, kernel: Sequence[int]) -> list[int]:
    """The padding of a pool, with what its last window needs behind the image.

    Args:
        node: The pool.
        kernel: The extents of its window.

    Raises:
        ValueError: onnxruntime places the windows differently than the standard says.
    """
    rank, spans, pads = len(kernel), spans_of(node, kernel), pads_of(node, kernel)
    if node.attribute("auto_pad", "NOTSET").startswith("SAME") and (
        spans != list(kernel) or min(_totals(node, spans)) < 0
    ):
        raise ValueError("auto_pad with dilations or with strides beyond the window, where runtimes differ")
    strides, up = node.attribute("strides", (1,) * rank), bool(node.attribute("ceil_mode", 0))
    for d, (extent, span, stride) in enumerate(zip(node.shape()[2:], spans, strides, strict=True)):
        room = pads[d] + extent + pads[d + rank] - span
        if not up and room >= 0:
            continue
        last = -(-room // stride) * stride  # where the last window begins; the only one may be larger than the image
        if last >= pads[d] + extent:  # behind the image
            last -= stride
        pads[d + rank] = max(last + span - pads[d] - extent, 0)
    return pads


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "AveragePool": _average_pool,
    "Conv": _convolution,
    "ConvTranspose": _conv_transpose,
    "LpPool": _pool,
}
"""MaxPool, which may also give indices, is in `indexing`."""
