"""Translates an ONNX graph to Relax: TVM's importer, with our own converters for what it lacks or mistakes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from ..graph.expressions import bindings_of
from ..graph.layers import numbered
from ..graph.open_blocks import ended_blocks
from ..onnx.standard import opset_of, qualified_name
from ..onnx.weights import array_of, in_file
from ..passes.views import static_shape
from ..tensors import tensor_of
from .converters import CONVERTERS
from .converters.node import Node


def from_onnx(model: onnx.ModelProto) -> tuple[tvm.IRModule, dict[Hashable, frozenset[str]]]:
    """The model as a Relax module, whose weights are constants.

    Args:
        model: A checked model; see `onnx_model.load_onnx`. It is not checked again.

    Returns:
        The module, and for its variables the names of the model's values that they are, by `key_of`.
    """
    importer = _Importer({}, "float32")
    with ended_blocks(importer.bb):
        imported = importer.from_onnx(model.graph, opset_of(model))
    return numbered(imported, importer.names(imported))


class _Importer(ONNXGraphImporter):
    """TVM's importer. What a converter of ours takes, TVM's converters do not see."""

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Does nothing: `onnx_model` has checked the operators, and its message names the node."""

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        """Translates nodes whose operators are called with their domain, as those of onnxruntime may be others."""
        super()._construct_nodes(helper.make_graph(map(_qualified, graph.node), graph.name, [], []))

    def _convert_subgraph(self, bb: Any, graph: onnx.GraphProto) -> Any:
        """The same for a branch."""
        branch = onnx.GraphProto()
        branch.CopyFrom(graph)
        del branch.node[:]
        branch.node.extend(map(_qualified, graph.node))
        return super()._convert_subgraph(bb, branch)

    def names(self, mod: tvm.IRModule) -> list[frozenset[str]]:
        """The names of the model's values that the variable of each binding of `main` is."""
        names: dict[Any, set[str]] = defaultdict(set)
        for name, value in self._nodes.items():
            names[value].add(name)  # a variable, or a call that is bound where it is used first
        return [frozenset(names[binding.var] | names[binding.value]) for binding in bindings_of(mod["main"])]

    def _parse_array(self, tensor_proto: onnx.TensorProto) -> Any:
        """The tensor of an initializer: one that stands in a file is mapped."""
        return tensor_of(array_of(tensor_proto)) if in_file(tensor_proto) else super()._parse_array(tensor_proto)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
        converter = CONVERTERS.get(op_name)
        if converter is not None:
            converted = converter(Node(self.bb, op_name, list(inputs), attrs, opset))
            if converted is not None:
                return _without_empty(self.bb.normalize(converted))
        return _without_empty(super()._convert_operator(op_name, inputs, attrs, opset))


def _qualified(node: onnx.NodeProto) -> onnx.NodeProto:
    """A node whose operator has its domain in its name; the node itself if that is the standard's."""
    if node.op_type == (name := qualified_name(node)):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.op_type = name
    return copy


def _without_empty(value: Any) -> Any:
    """The value; a constant in its place if it is a tensor without elements, which no kernel can compute."""
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_without_empty(field) for field in value.fields])
    shape = static_shape(getattr(value, "ty", None))
    if shape is None or all(shape) or isinstance(value, relax.ShapeExpr):
        return value
    return relax.const(np.zeros(shape), str(value.ty.dtype))
