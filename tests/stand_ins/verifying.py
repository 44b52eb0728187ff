"""The outputs of a compiled model beside those of another runtime, for models of which no `Reference` is wanted."""

from __future__ import annotations

import onnx

from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.graph.onnx_origin import origin_of
from stormdrop.model.graph.origin import Origin
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.verification.arrays import error_of
from stormdrop.model.verification.verify import Verification


def verify(model: CompiledModel, source: onnx.ModelProto | Origin, seed: int = 0) -> Verification:
    """Compares the outputs of a compiled model with those of another runtime on standard normal inputs.

    Args:
        model: The compiled model.
        source: The model that it was made from: `Graph.source`.
        seed: Seeds the random inputs.

    Raises:
        ModelError: The other runtime cannot run the model.
    """
    origin = origin_of(source)
    feeds = random_feeds(model.inputs, seed, origin.index_ranges())
    (expected,), against = origin.outputs([feeds], [info.name for info in model.outputs])
    outputs = model.run(feeds)
    return Verification(max(error_of(outputs[name], right) for name, right in expected.items()), against)
