"""A model of which onnxruntime runs everything, because it has to run most of it anyway; see `whole_part`."""

from __future__ import annotations

from dataclasses import replace

from ..artifact.onnxruntime_parts import OnnxruntimeParts
from ..graph.graph import Graph
from ..graph.onnx_origin import OnnxOrigin, origin_of
from .whole_part import whole_part


def run_by_onnxruntime(graph: Graph, reason: str) -> Graph | None:
    """The graph of a model of which onnxruntime runs everything.

    Args:
        graph: The model as it was imported.
        reason: Why it is foreign, in one line.

    Returns:
        The graph, with one part for each size and no tasks; None if the model does not come from ONNX, or has more
            weights than onnxruntime takes in one message.

    Raises:
        ModelError: A file with weights of the model was changed after the import.
    """
    wholes = []
    for index, size in enumerate(graph.sizes):
        origin = origin_of(size.source)
        whole = whole_part(origin, size.inputs, size.outputs, reason, index) if isinstance(origin, OnnxOrigin) else None
        if whole is None:
            return None
        wholes.append(whole)
    foreign = OnnxruntimeParts([whole.report for whole in wholes], [whole.model for whole in wholes])
    first, *others = (
        replace(size, mod=whole.mod, tasks=(), foreign=foreign, others=())
        for size, whole in zip(graph.sizes, wholes, strict=True)
    )
    return replace(first, others=tuple(others))
