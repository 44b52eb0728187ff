"""An ONNX model as the origin of a graph. Other origins bring their own methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from ...ir.relative_error import relative_error
from ..foreign import sums_saturate
from ..importer.origin import Feeds, Origin, Outputs
from .peer import before_saturation, peer_outputs
from .samples import index_ranges

_BYTES = {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}


def origin_of(source: onnx.ModelProto | Origin) -> Origin:
    """The origin of a graph.

    Args:
        source: `Graph.source`.
    """
    return OnnxOrigin(source) if isinstance(source, onnx.ModelProto) else source


def rounding_of_peer(origin: Origin, feeds: Feeds, name: str) -> float:
    """How far onnxruntime is from itself if it computes an output in another order: without its optimisations.

    Both ways are float32, so each of them is about this far from the exact values, whatever the import did.

    Args:
        origin: The origin of a graph.
        feeds: The inputs by name.
        name: The output.

    Returns:
        The difference, relative to the largest value; 0 if the origin is no ONNX model, or if sums of bytes would
        saturate in it without the optimisations.
    """
    if not isinstance(origin, OnnxOrigin) or (sums_saturate() and _multiplies_bytes(origin.model)):
        return 0.0
    ((usual,), _), ((plain,), _) = (
        peer_outputs(origin.model, [feeds], [name], optimised=optimised) for optimised in (True, False)
    )
    return relative_error(plain[name], usual[name])


def _multiplies_bytes(model: onnx.ModelProto) -> bool:
    return any(node.op_type in _BYTES for node in model.graph.node)


@dataclass(frozen=True, eq=False)
class OnnxOrigin:
    """An ONNX model, which onnxruntime computes, or onnx itself if that is not installed. See `Origin`."""

    model: onnx.ModelProto

    def index_ranges(self) -> Mapping[str, int | tuple[int, int]]:
        return index_ranges(self.model)

    def before_saturation(self) -> Mapping[str, str]:
        return before_saturation(self.model)

    def outputs(self, feeds: Sequence[Feeds], names: Sequence[str]) -> tuple[list[Outputs], str]:
        return peer_outputs(self.model, feeds, names)

    def exact(self, feeds: Feeds) -> Outputs | None:
        return None  # no runtime computes an ONNX model of float32 in float64
