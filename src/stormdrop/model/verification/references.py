"""The references of a model at all sizes. If its import is wrong, it is imported in another way, if there is one.

TVM's importer of exported programs translates some operators of torch wrongly. The same program, exported as an ONNX
model by torch, may be right.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...errors import InputError, ModelError
from ..graph.graph import Graph
from ..inputs.given import Data, split
from ..inputs.samples import Feeds
from .expected import WrongImport
from .verify import Reference

_logger = logging.getLogger(__name__)


def with_references(
    graph: Graph, seed: int, data: Data | None = None, seconds: float | None = None
) -> tuple[Graph, list[Reference]]:
    """What a model should compute at each of its sizes.

    Args:
        graph: The model as it was imported.
        seed: Seeds the random inputs.
        data: The samples that the user gives. Each size has those that fit it.
        seconds: The wall seconds that are left for all that has to be done; None is no bound.

    Returns:
        The graph, or what another import made of the same model, and a reference for each of its sizes.

    Raises:
        ModelError: As `Reference.compute`.
        InputError: The samples that the user gives fit no size.
    """
    given = _given(graph, data or {})
    try:
        return graph, [
            Reference.compute(size, seed, own, seconds) for size, own in zip(graph.sizes, given, strict=True)
        ]
    except WrongImport as error:
        other = getattr(graph.source, "other_import", None)
        if other is None or graph.others:
            raise
        _logger.warning("%s; it is imported as an ONNX model instead", error)
        try:
            examples, graph = graph.foreign.examples, other()
            graph.foreign.examples = None if examples is None else {}
            return graph, [Reference.compute(graph, seed, given[0], seconds)]
        except ModelError as second:
            raise ModelError(f"{error}; imported as an ONNX model: {second}") from second


def _given(graph: Graph, data: Data) -> list[Sequence[Feeds]]:
    """The user's samples for each size of a model."""
    used = {name: array for name, array in data.items() if name not in graph.ignored}
    given: list[Sequence[Feeds]] = []
    unfit: InputError | None = None
    for size in graph.sizes:
        try:
            given.append(split({info.name: (info.shape, info.dtype) for info in size.inputs}, used))
        except InputError as error:
            unfit = unfit or error
            given.append(())
    if unfit is not None and not any(given):
        raise unfit
    return given
