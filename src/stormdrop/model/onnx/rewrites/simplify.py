"""Rewrites an ONNX model to a simpler one before the import, as far as this is easier in ONNX than later in Relax.

First some operators are replaced by the bodies of the standard (`functions`), and loops are unrolled (`loops`).
onnxscript's optimizer does the generic part: constant folding, dead code, identities, and batch norms that are folded
into the convolution before them. The rules here add what it leaves:

    BatchNormalization * c + d      ->  BatchNormalization with another scale and bias
    Dropout without training_mode   ->  Identity
    Gather of one constant index    ->  Slice and Squeeze, because a gather is not fused with anything
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper
from onnx_ir.passes import common as passes
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ...program.memory import mapped
from ..nodes import with_nodes
from ..standard import is_standard
from .functions import inline_functions
from .loops import unroll_loops
from .optimize import fold_constants, optimize, rule_set

_AXES_ARE_AN_INPUT = 13
"""The first opset in which the axes of a Squeeze are an input."""


def clean(model: onnx.ModelProto) -> onnx.ModelProto:
    """Makes an equivalent model with fewer kinds of nodes.

    Args:
        model: The model; it is not changed.

    Returns:
        The new model, whose inputs and outputs have the same names.
    """
    graph = ir.from_proto(_without_dropouts(unroll_loops(inline_functions(model))))
    _map_tensors(graph)
    with _silenced("onnx_ir", "onnxscript"):
        passes.RemoveInitializersFromInputsPass()(graph)
        passes.InlinePass()(graph)
        passes.ShapeInferencePass()(graph)
        fold_constants(graph)
        # Folding leaves its results as Constant nodes, but the rules recognise only initialisers as constants.
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(graph)
        passes.ShapeInferencePass()(graph)
        _FOLD_INTO_BATCH_NORM.apply_to_model(graph)
        optimize(graph)
        version = graph.opset_imports.get("", graph.opset_imports.get("ai.onnx", 0))
        if version >= _AXES_ARE_AN_INPUT:
            _GATHERS.apply_to_model(graph)
        optimize(graph)
    cleaned: onnx.ModelProto = ir.to_proto(graph)
    cleaned.ir_version = max(cleaned.ir_version, 4)
    return cleaned


def _map_tensors(model: ir.Model) -> None:
    """Makes a model map no more of a file for a tensor than the tensor takes."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            value.const_value = _MappedTensor(
                tensor.location, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=tensor.name
            )


class _MappedTensor(ir.ExternalTensor):
    """onnx_ir's own maps the whole file for each tensor, which an address space that is bounded does not hold."""

    def numpy(self) -> NDArray[Any]:
        return mapped(Path(self.path), self.dtype.numpy(), self.offset or 0, tuple(self.shape.numpy()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.numpy(), dtype, copy=copy)

    def tobytes(self) -> bytes:
        return self.numpy().tobytes()


@contextlib.contextmanager
def _silenced(*loggers: str) -> Iterator[None]:
    """Drops the warnings of these loggers. They are about nodes that the passes leave as they are."""
    levels = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _constant(value: ir.Value | None) -> NDArray[Any] | None:
    """The array of a constant; None for any other value."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def _per_channel(value: ir.Value | None, channels: int, rank: int) -> NDArray[Any] | None:
    """A constant as a vector over axis 1 of a tensor of this rank; None if it varies along another axis."""
    array = _constant(value)
    if array is None or array.ndim > rank:
        return None
    aligned = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if any(aligned.shape[axis] != 1 for axis in range(rank) if axis != 1):
        return None
    return np.broadcast_to(aligned.reshape(-1), (channels,)) if aligned.size in (1, channels) else None


class _AffineIntoBatchNorm(RewriteRuleClassBase):
    """op(BatchNormalization(x, scale, bias, mean, var), c) -> BatchNormalization(x, scale', bias', mean, var)."""

    def __init__(self, operator: str) -> None:
        super().__init__(f"{operator}IntoBatchNorm")
        self.operator = operator

    def pattern(self, op: Any, x: Any, c: Any) -> Any:
        norm = op.BatchNormalization(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["norm"])
        return getattr(op, self.operator)(norm, c)

    def check(self, context: Any, x: ir.Value, c: ir.Value, norm: ir.Value, **_: Any) -> MatchResult:
        result = MatchResult()
        node = norm.producer()
        assert node is not None
        scale = _constant(node.inputs[1])
        if scale is None or any(_constant(value) is None for value in node.inputs[2:5]):
            return result.fail("a statistic of the batch norm is no constant")
        if x.shape is None or _per_channel(c, scale.size, len(x.shape)) is None:
            return result.fail("the operand is no constant per channel")
        return result

    def rewrite(self, op: Any, x: ir.Value, c: ir.Value, norm: ir.Value, **_: Any) -> Any:
        node = norm.producer()
        assert node is not None and x.shape is not None
        scale, bias = _constant(node.inputs[1]), _constant(node.inputs[2])
        assert scale is not None and bias is not None
        factor = _per_channel(c, scale.size, len(x.shape))
        assert factor is not None
        if self.operator == "Mul":
            scale, bias = scale * factor, bias * factor
        else:
            bias = bias + factor
        name = node.outputs[0].name
        return op.BatchNormalization(
            x,
            op.initializer(ir.tensor(scale), f"{name}_{self.operator}_scale"),
            op.initializer(ir.tensor(bias), f"{name}_{self.operator}_bias"),
            node.inputs[3],
            node.inputs[4],
            **node.attributes,
        )


class _GatherToSlice(RewriteRuleClassBase):
    """Gather(x, i) -> Squeeze(Slice(x, i, i + 1)) for one constant i; for opset 13 and later."""

    def pattern(self, op: Any, x: Any, index: Any) -> Any:
        return op.Gather(x, index, _allow_other_attributes=True, _outputs=["gathered"])

    def check(self, context: Any, x: ir.Value, index: ir.Value, gathered: ir.Value, **_: Any) -> MatchResult:
        result = MatchResult()
        node, position = gathered.producer(), _constant(index)
        assert node is not None
        if position is None or position.ndim != 0:
            return result.fail("the index is not one constant")
        if x.shape is None or _constant(x) is not None:
            return result.fail("the tensor is of unknown rank, or a constant")
        return result

    def rewrite(self, op: Any, x: ir.Value, index: ir.Value, gathered: ir.Value, **_: Any) -> Any:
        node, position = gathered.producer(), _constant(index)
        assert node is not None and position is not None and x.shape is not None
        first = int(position)
        # An end of 0 would be the beginning of the axis: after index -1, the slice goes as far as there are elements.
        end = first + 1 if first != -1 else np.iinfo(np.int64).max

        def vector(value: int, name: str) -> Any:
            return op.initializer(ir.tensor(np.array([value], np.int64)), f"{gathered.name}_{name}")

        axis = vector(node.attributes.get_int("axis", 0) % len(x.shape), "axis")
        return op.Squeeze(op.Slice(x, vector(first, "start"), vector(end, "end"), axis), axis)


def _without_dropouts(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which a dropout that nothing tells to train is an identity."""
    used = {name for node in model.graph.node for name in node.input}
    used |= {output.name for output in model.graph.output}

    def simpler(node: onnx.NodeProto) -> onnx.NodeProto:
        if is_standard(node, "Dropout") and not any(node.input[2:]) and used.isdisjoint(node.output[1:]):
            return helper.make_node("Identity", [node.input[0]], [node.output[0]], node.name)
        return node

    return with_nodes(model, map(simpler, model.graph.node))


_FOLD_INTO_BATCH_NORM = rule_set(
    commuted for name in ("Mul", "Add") for commuted in _AffineIntoBatchNorm.rule(name).commute()
)
_GATHERS = rule_set([_GatherToSlice.rule()])
