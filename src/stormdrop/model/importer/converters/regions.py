"""The converter of RoiAlign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from .node import Node, scalar

_MODES = {"half_pixel": True, "output_half_pixel": False}
_HALF_PIXEL = 16  # the first opset whose regions lie half a pixel further by default


def _roi_align(node: Node) -> Any:
    """TVM moves the regions by half a pixel before it scales them, ONNX after it.

    As their maximum TVM takes that of interpolated samples, ONNX that of the products before they are summed.
    """
    if node.attribute("mode", "avg") == "max":
        raise ValueError("mode max")
    mode = node.attribute("coordinate_transformation_mode", "half_pixel")
    aligned = node.opset >= _HALF_PIXEL and _MODES[mode]
    scale = node.attribute("spatial_scale", 1.0)
    regions = relax.op.subtract(node[1], scalar(0.5 / scale, node[1])) if aligned else node[1]
    of_batch = node.emit(relax.op.astype(relax.op.expand_dims(node[2], axis=1), node.dtype(1)))
    return relax.op.vision.roi_align(
        node[0],
        relax.op.concat([of_batch, node.emit(regions)], axis=1),
        pooled_size=(node.attribute("output_height", 1), node.attribute("output_width", 1)),
        spatial_scale=scale,
        sample_ratio=node.attribute("sampling_ratio", 0),
        aligned=aligned,
        layout="NCHW",
        mode="avg",
    )


CONVERTERS: dict[str, Callable[[Node], Any]] = {"RoiAlign": _roi_align}
