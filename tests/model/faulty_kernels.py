"""Kernels that are wrong on purpose, and models in which it is hard to see."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tiny_models import residual_model
from tvm import tirx
from tvm.tirx import BufferStore

from stormdrop.ir.expressions import transform_statement
from stormdrop.model.random_weights import seed_weights
from stormdrop.sketches.contract import Variant


def coarse(variant: Variant) -> Variant:
    """The same schedule with everything that it stores cut to bfloat16: its sums lose all that is below 2**-8."""

    def cut(node: Any) -> Any:
        if not isinstance(node, BufferStore) or str(node.value.ty.dtype) != "float32":
            return node
        bits = tirx.reinterpret("int32", node.value) & tirx.const(-(2**16), "int32")
        return BufferStore(node.buffer, tirx.reinterpret("float32", bits), node.indices)

    main = variant.main
    return Variant(main.with_body(transform_statement(main.body, cut)), variant.transforms)


def saturated_model(logits: float = 3000.0) -> onnx.ModelProto:
    """The residual model with a softmax behind logits in the thousands, as a deep network of random weights has."""
    model = seed_weights(residual_model(), seed=1)
    (weight,) = [tensor for tensor in model.graph.initializer if tensor.name == "w3"]
    weight.CopyFrom(numpy_helper.from_array(np.float32(logits) * numpy_helper.to_array(weight), "w3"))
    model.graph.node.append(helper.make_node("Softmax", ["y"], ["probabilities"], axis=1))
    model.graph.output[0].name = "probabilities"
    return model


def changed(model: onnx.ModelProto, weight: str, change: Any) -> onnx.ModelProto:
    """A copy of a model in which one weight is another."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (tensor,) = [tensor for tensor in copy.graph.initializer if tensor.name == weight]
    values = np.ascontiguousarray(change(numpy_helper.to_array(tensor)))
    tensor.CopyFrom(numpy_helper.from_array(values, weight))
    return copy
