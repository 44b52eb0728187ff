"""An ONNX model as the origin of a graph. Other origins bring their own methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ...ir.relative_error import relative_error
from ..artifact.onnxruntime_parts import sums_saturate
from ..inputs.ranges import Ranges
from ..inputs.samples import Feeds
from ..onnx.contributed import OF_BYTES, is_contributed
from ..onnx.index_ranges import index_ranges
from ..onnx.weights import FileState, large_tensors, moved_in
from .origin import Origin, Outputs
from .peer import before_saturation, peer_outputs

_BYTES = {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}

_NUDGES = 8  # of the inputs


def origin_of(source: onnx.ModelProto | Origin) -> Origin:
    """The origin of a graph.

    Args:
        source: `Graph.source`.
    """
    return OnnxOrigin(source) if isinstance(source, onnx.ModelProto) else source


def rounding_of_peer(origin: Origin, feeds: Feeds, name: str) -> float:
    """How far onnxruntime is from itself if it rounds otherwise: without its optimisations, or if the inputs do.

    All ways are float32, so each of them is about this far from the exact values, whatever the import did. The order of
    sums changes little where onnxruntime itself is coarse: it adds up the window of an LRN by adding a square and
    subtracting another one, and subtracts the square of the mean in MeanVarianceNormalization. What is lost there
    depends on the last bits of the inputs.

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
    usual, *nudged = origin.outputs([feeds, *_nudged(feeds)], [name])[0]
    plain = origin.outputs([feeds], [name], optimised=False)[0]
    return max(relative_error(other[name], usual[name]) for other in (*plain, *nudged))


def _nudged(feeds: Feeds) -> Iterator[Feeds]:
    """The inputs, some of whose numbers are the next larger or smaller ones."""
    for seed in range(_NUDGES):
        rng = np.random.default_rng(seed)
        yield {
            name: np.asarray(np.nextafter(value, rng.choice([-np.inf, np.inf], value.shape).astype(value.dtype)))
            if value.dtype.kind == "f"
            else value
            for name, value in feeds.items()
        }


def _multiplies_bytes(model: onnx.ModelProto) -> bool:
    return any(node.op_type in _BYTES or is_contributed(node, *OF_BYTES) for node in model.graph.node)


@dataclass(frozen=True, eq=False)
class OnnxOrigin:
    """An ONNX model, which onnxruntime computes, or onnx itself if that is not installed. See `Origin`.

    Attributes:
        model: The model.
        weights: The initializers that stand in files, by name; None if they are where the model says.
        files: The files that `weights` were mapped from.
    """

    model: onnx.ModelProto
    weights: Mapping[str, NDArray[Any]] | None = None
    files: Sequence[FileState] = ()

    def index_ranges(self) -> Ranges:
        return index_ranges(self.model)

    def before_saturation(self) -> Mapping[str, str]:
        return before_saturation(self.model)

    def outputs(
        self, feeds: Sequence[Feeds], names: Sequence[str], *, optimised: bool = True
    ) -> tuple[list[Outputs], str]:
        """See `Origin`. `optimised` says whether onnxruntime optimises the model."""
        self._check_files()
        return peer_outputs(self.model, feeds, names, optimised, self.weights)

    def exact(self, feeds: Feeds) -> Outputs | None:
        return None  # no runtime computes an ONNX model of float32 in float64

    def message(self) -> bytes | None:
        """The model with all of its weights, as onnxruntime takes it; None if one message cannot hold them.

        Raises:
            ModelError: A file with weights was changed after the import.
        """
        self._check_files()
        weights = large_tensors(self.model) if self.weights is None else self.weights
        if self.model.ByteSize() + sum(value.nbytes for value in weights.values()) >= onnx.checker.MAXIMUM_PROTOBUF:
            return None
        return bytes(moved_in(self.model, weights).SerializeToString())

    def _check_files(self) -> None:
        for file in self.files:
            file.check()
