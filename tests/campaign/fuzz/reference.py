"""What onnxruntime computes without optimisations, and how far from it another runtime may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from stormdrop.ir.relative_error import relative_error
from stormdrop.model.artifact.onnxruntime_parts import ask_for_exact_sums
from stormdrop.model.onnx.rewrites.halves import has_halves

Array = NDArray[Any]

LEVEL = 1e-4
"""The relative error that reordered sums may make."""

_LEVEL_OF_HALVES = 5e-3  # the product computes in float32 what a model stores as halves

_NUDGE = 1e-6
_OF_NUDGE = 20.0
_OF_PEER = 5.0
_MOST = 5e-3

onnxruntime.set_default_logger_severity(4)


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session that computes the nodes one by one, as they stand, with exact sums of bytes.

    Args:
        model: The model.

    Raises:
        Exception: Whatever onnxruntime raises for a model that it does not take.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    ask_for_exact_sums(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Expected:
    """What a graph should compute.

    Args:
        model: The graph.
        feeds: Its inputs by name.

    Attributes:
        outputs: The outputs by name.
        allowed: The relative error that each may have: `LEVEL`, or 20 times what a millionth of the inputs makes. It is
            infinite if the graph jumps there.
        varies: Whether an output holds several values, or changes with the inputs.

    Raises:
        Exception: Whatever onnxruntime raises for a model that it does not take.
    """

    def __init__(self, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
        self._model, self._feeds = model, feeds
        running = session(model)
        names = [output.name for output in model.graph.output]
        self.outputs: dict[str, Array] = _run(running, names, feeds)
        self.allowed = dict.fromkeys(names, _LEVEL_OF_HALVES if has_halves(model) else LEVEL)
        larger = {name: value * 1.01 if value.dtype.kind == "f" else value for name, value in feeds.items()}
        moved = _run(running, names, {name: np.asarray(value, feeds[name].dtype) for name, value in larger.items()})
        self.varies = any(
            np.unique(value).size > 1 or not np.array_equal(moved[name], value) for name, value in self.outputs.items()
        )
        for seed in range(2):
            nudged = _run(running, names, _nudged(feeds, np.random.default_rng(seed)))
            for name, value in self.outputs.items():
                if value.dtype.kind == "f" and nudged[name].shape == value.shape:
                    error = _OF_NUDGE * relative_error(nudged[name], value)
                    self.allowed[name] = max(self.allowed[name], error)

    @property
    def is_stable(self) -> bool:
        """Whether the outputs say something, and little becomes of rounding.

        A graph that makes much of rounding, that jumps at its inputs, or whose outputs hold one value, says nothing.
        """
        finite = all(np.isfinite(value).all() for value in self.outputs.values())
        return self.varies and finite and max(self.allowed.values()) <= _MOST

    def difference(self, outputs: Mapping[str, Array]) -> str:
        """What is wrong with these outputs, in one line; empty if nothing is."""
        for name, right in self.outputs.items():
            if name not in outputs:
                return f"there is no output {name}"
            value = outputs[name]
            if (value.dtype, value.shape) != (right.dtype, right.shape):
                return f"{name} is {value.dtype} {value.shape}, should be {right.dtype} {right.shape}"
            if right.dtype.kind != "f":
                if not np.array_equal(value, right):
                    return f"{name}: {np.mean(value != right):.1%} of {right.dtype} differ"
                continue
            error = relative_error(value, right)
            if not error <= self.allowed[name] and not self._explains(name, value):
                return f"{name}: an error of {error:.1e}, allowed is {self.allowed[name]:.1e}"
        return ""

    def _explains(self, name: str, value: Array) -> bool:
        """Whether an output is about as near to the exact one as onnxruntime's.

        A graph may subtract what is nearly equal, as `x - LRN(x)` does; nudging x says nothing about what is left then.
        """
        exact = _in_float64(self._model, self._feeds, name)
        if exact is None:
            return False
        return relative_error(value, exact) <= _OF_PEER * relative_error(self.outputs[name], exact)


class LRN(OpRun):
    """onnx's own takes as many channels as there are images."""

    op_domain = ""

    def _run(self, x: Any, alpha: float, beta: float, bias: float, size: int) -> tuple[Array]:
        before = (size - 1) // 2
        squares = np.pad(x * x, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
        total = sum(squares[:, shift : shift + x.shape[1]] for shift in range(size))
        return (x / (bias + alpha / size * total) ** beta,)


def _in_float64(model: onnx.ModelProto, feeds: Mapping[str, Array], name: str) -> Array | None:
    """An output as onnx's evaluator computes it in float64; None if it does not."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.node[:], wide.graph.output[:]
    wide.graph.node.extend(_nodes_of(model.graph, name))
    wide.graph.output.extend(output for output in model.graph.output if output.name == name)
    for node in wide.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.DOUBLE
    for tensor in wide.graph.initializer:
        _widen(tensor)
    given = {key: value.astype("float64") if value.dtype == "float32" else value for key, value in feeds.items()}
    try:
        (value,) = ReferenceEvaluator(wide, new_ops=[LRN]).run([name], given)
    except Exception:  # noqa: BLE001  it is Python and NumPy, and may raise anything
        return None
    return np.asarray(value) if value.dtype == "float64" else None


def _nodes_of(graph: onnx.GraphProto, name: str) -> list[onnx.NodeProto]:
    """The nodes that compute an output, because the evaluator refuses a graph with any node that it does not know."""
    needed, nodes = {name}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            inner = (attribute.g for attribute in node.attribute if attribute.HasField("g"))
            needed |= {*node.input, *(read for part in inner for each in part.node for read in each.input)}
    return nodes[::-1]


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == onnx.TensorProto.FLOAT:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype("float64"), tensor.name))


def _run(running: onnxruntime.InferenceSession, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.asarray(value) for name, value in zip(names, running.run(list(names), dict(feeds)), strict=True)}


def _nudged(feeds: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Inputs that differ by a millionth; halves of integers, which are there for their ties, do not."""

    def nudged(value: Array) -> Array:
        if value.dtype.kind != "f":
            return value
        moved = (value * (1 + _NUDGE * rng.standard_normal(value.shape))).astype(value.dtype)
        return np.where(2 * value == np.round(2 * value), value, moved)

    return {name: nudged(value) for name, value in feeds.items()}
