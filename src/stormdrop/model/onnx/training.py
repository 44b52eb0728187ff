"""Refuses nodes for training whose results differ from run to run, so that nothing could be verified.

They draw random numbers, or they are norms of old opsets, of which onnxruntime keeps the statistics from run to run. A
BatchNormalization with `training_mode` is right: it takes the statistics of its batch.
"""

from __future__ import annotations

from collections.abc import Set

import onnx

from ...errors import ModelError
from .nodes import attribute_of, constants_of
from .rewrites.functions import all_nodes
from .source import described
from .standard import is_standard, opset_of
from .weights import array_of

_DRAWS = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")

_INFERENCE_BY_DEFAULT = 7
"""The first opset in which a Dropout is one for inference unless something says otherwise."""

_TRAINING_MODE = 14
"""The first opset in which an attribute says that a BatchNormalization trains. Before, outputs behind the first do."""


def refuse_training(model: onnx.ModelProto, name: str) -> None:
    """Raises an error for the first node whose results differ from run to run.

    Args:
        model: A model, without the nodes that its outputs do not need and with its constants folded.
        name: The name of the model.

    Raises:
        ModelError: There is such a node. The message names it.
    """
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    false, opset = _false_constants(model), opset_of(model, _INFERENCE_BY_DEFAULT)
    for node in all_nodes(nodes):
        what = None
        if is_standard(node, *_DRAWS):
            what = "draws random numbers, which is not supported"
        elif is_standard(node, "Dropout") and not _is_for_inference(node, opset, false):
            wanted = (
                "training_mode must be a constant, false" if opset >= _INFERENCE_BY_DEFAULT else "is_test must be 1"
            )
            what = f"draws random numbers, which is not supported; its {wanted}"
        elif is_standard(node, "BatchNormalization") and opset < _TRAINING_MODE and any(node.output[1:]):
            what = "trains, which is not supported before opset 14; it must have one output"
        if what:
            raise ModelError(f"{name}: {described(node)} {what}")


def _is_for_inference(dropout: onnx.NodeProto, opset: int, false: Set[str]) -> bool:
    if opset >= _INFERENCE_BY_DEFAULT:
        return all(name in false for name in dropout.input[2:])
    return bool(attribute_of(dropout, "is_test", 0))


def _false_constants(model: onnx.ModelProto) -> Set[str]:
    """The names of the constants that are false, and that of an input that is left out."""
    constants = constants_of(model.graph).items()
    booleans = ((name, tensor) for name, tensor in constants if tensor.data_type == onnx.TensorProto.BOOL)
    return {"", *(name for name, tensor in booleans if not array_of(tensor).any())}
