"""The references of a model at all sizes. If its import is wrong, it is imported in another way, if there is one.

TVM's importer of exported programs translates some operators of torch wrongly. The same program, exported as an ONNX
model by torch, may be right.
"""

from __future__ import annotations

import logging

from ...errors import ModelError
from ..importer.graph import Graph
from ..verify import Reference, WrongImport

_logger = logging.getLogger(__name__)


def with_references(graph: Graph, seed: int) -> tuple[Graph, list[Reference]]:
    """What a model should compute at each of its sizes.

    Args:
        graph: The model as it was imported.
        seed: Seeds the random inputs.

    Returns:
        The graph, or what another import made of the same model, and a reference for each of its sizes.

    Raises:
        ModelError: As `Reference.compute`.
    """
    try:
        return graph, [Reference.compute(size, seed) for size in graph.sizes]
    except WrongImport as error:
        other = getattr(graph.source, "other_import", None)
        if other is None or graph.others:
            raise
        _logger.warning("%s; it is imported as an ONNX model instead", error)
        try:
            examples, graph = graph.foreign.examples, other()
            graph.foreign.examples = None if examples is None else {}
            return graph, [Reference.compute(graph, seed)]
        except ModelError as second:
            raise ModelError(f"{error}; imported as an ONNX model: {second}") from second
