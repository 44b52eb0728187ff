"""Completes the attributes of transposed convolutions, which TVM's importer then takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .node import Node


def _conv_transpose(node: Node) -> None:
    """Replaces `output_shape` by the pads that follow from it; TVM's importer ignores it."""
    wanted = node.attribute("output_shape")
    if wanted is None:
        return
    spatial = len(node.shape()) - 2
    wanted = list(wanted)[-spatial:]
    strides = node.attribute("strides", (1,) * spatial)
    dilations = node.attribute("dilations", (1,) * spatial)
    extra = list(node.attribute("output_padding", (0,) * spatial))
    begins, ends = [], []
    for d, size in enumerate(wanted):
        span = (node.shape(1)[d + 2] - 1) * dilations[d] + 1
        total = strides[d] * (node.shape()[d + 2] - 1) + extra[d] + span - size
        if total < 0:  # more elements than the windows reach: they are padding behind the result
            extra[d] -= total
            total = 0
        small, large = total // 2, total - total // 2
        upper = node.attribute("auto_pad", "NOTSET") == "SAME_UPPER"
        begins.append(small if upper else large)
        ends.append(large if upper else small)
    node.replace_attributes({"pads": (*begins, *ends), "output_padding": tuple(extra)}, ("output_shape", "auto_pad"))


CONVERTERS: dict[str, Callable[[Node], Any]] = {"ConvTranspose": _conv_transpose}
