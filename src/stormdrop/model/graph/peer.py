"""What another runtime computes for an ONNX model: onnxruntime if it is installed, else onnx's own evaluator."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata as packages
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ...errors import ModelError, one_line
from ..artifact.onnxruntime_parts import session_of
from ..inputs.samples import Feeds
from ..onnx.nodes import attribute_of
from ..onnx.standard import opset_of
from ..onnx.weights import large_tensors, moved_in
from ..tensors import release_pages

_SOFTMAX_OVER_ONE_AXIS = 13
"""The first ONNX opset whose Softmax normalises along one axis instead of all axes from it on."""

_SATURATING = ("LogSoftmax", "Sigmoid", "Softmax")
_RENAMING = ("DequantizeLinear", "Flatten", "Identity", "QuantizeLinear", "Reshape", "Squeeze", "Unsqueeze")

Outputs = dict[str, NDArray[Any]]


def before_saturation(model: onnx.ModelProto) -> dict[str, str]:
    """Finds what the last function of an output takes, if that function saturates.

    A softmax turns an error of 1e-6 in logits of 1000 into one of 1e-3, and hides one of 10 where it has saturated.

    Returns:
        The name of the softmax's or sigmoid's input, by the name of the output.
    """
    producers = {name: node for node in model.graph.node for name in node.output}
    found = {}
    for output in model.graph.output:
        node = producers.get(output.name)
        while node is not None and node.op_type in _RENAMING:
            node = producers.get(node.input[0])
        if node is not None and node.op_type in _SATURATING and node.input[0] in producers:
            found[output.name] = node.input[0]
    return found


def peer_outputs(
    source: onnx.ModelProto,
    feeds: Sequence[Feeds],
    names: Sequence[str],
    optimised: bool = True,
    weights: Mapping[str, NDArray[Any]] | None = None,
) -> tuple[list[Outputs], str]:
    """Runs an ONNX model with onnxruntime if it is installed, else with onnx itself.

    Args:
        source: The model.
        feeds: The inputs by name, for each run. onnx's evaluator takes seconds to minutes, so it runs the first only.
        names: The tensors to compute: outputs, and any others.
        optimised: Whether onnxruntime optimises the model, which changes the order in which it rounds.
        weights: The initializers that stand in files, by name; by default they are mapped now.

    Returns:
        The tensors by name for each run, and the name and version of the runtime.

    Raises:
        ModelError: The runtime cannot run the model.
    """
    weights = large_tensors(source) if weights is None else weights
    with _with_outputs(source, names):
        try:
            import onnxruntime
        except ImportError:
            values, against = _run_by_onnx(source, feeds[0], names, weights)
            return [values], against
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only, because it warns about every unused initialiser
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = session_of(source.SerializeToString(), options, weights)
            runs = [dict(zip(names, session.run(list(names), dict(given)), strict=True)) for given in feeds]
        except Exception as error:
            # onnxruntime's exceptions have no base class of their own.
            if type(error).__name__ == "NotImplemented":  # it has no convolutions of float64, for example
                values, against = _run_by_onnx(source, feeds[0], names, weights)
                return [values], against
            raise ModelError(f"onnxruntime does not run the model: {one_line(error)}") from error
        finally:
            release_pages()
    return runs, f"onnxruntime {onnxruntime.__version__}"


@contextlib.contextmanager
def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> Iterator[None]:
    """Makes these tensors outputs of the model for a while, because a copy of the model would copy its weights."""
    before = len(model.graph.output)
    present = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    try:
        yield
    finally:
        del model.graph.output[before:]


def _run_by_onnx(
    source: onnx.ModelProto, feeds: Feeds, names: Sequence[str], weights: Mapping[str, NDArray[Any]]
) -> tuple[Outputs, str]:
    from onnx.reference import ReferenceEvaluator

    opset = opset_of(source, _SOFTMAX_OVER_ONE_AXIS)
    try:
        values = ReferenceEvaluator(moved_in(source, weights), new_ops=_corrected_operators(opset)).run(
            list(names), dict(feeds)
        )
    except Exception as error:
        # onnx.reference is Python and NumPy: an operator that it lacks or computes wrongly can raise anything.
        raise ModelError(f"onnx.reference does not run the model: {one_line(error)}") from error
    return dict(zip(names, values, strict=True)), f"onnx.reference {packages.version('onnx')}"


def _corrected_operators(opset: int) -> list[Any]:
    """Implementations for `onnx.reference` of the operators that it computes wrongly for this opset."""
    from onnx.reference.op_run import OpRun

    class BatchNormalization(OpRun):
        """For inference. onnx's own takes the operator of opsets 9 to 13 for training, and fails for older ones."""

        op_domain = ""

        def _run(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, **attributes: Any) -> tuple[Any, ...]:
            shape = (1, -1) + (1,) * (x.ndim - 2)
            factor = scale / np.sqrt(var + (attributes.get("epsilon") or 0.0))
            return (x * factor.reshape(shape) + (bias - mean * factor).reshape(shape),)

    class Softmax(OpRun):
        """For opsets before 13: over all axes from `axis` on. onnx's own computes the later operator."""

        op_domain = ""

        def _run(self, x: Any, **attributes: Any) -> tuple[Any, ...]:
            # If the node does not name an axis, `attributes` has the default of the later operator.
            axis = attribute_of(self.onnx_node, "axis", 1)
            rows = x.reshape(math.prod(x.shape[: axis % x.ndim]), -1)
            shifted = rows - rows.max(axis=1, keepdims=True)
            logarithm = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            return (self.from_logarithm(logarithm).reshape(x.shape),)

        def from_logarithm(self, value: Any) -> Any:
            """The operator's output, given the logarithm of the softmax."""
            return np.exp(value)

    class LogSoftmax(Softmax):
        """As `Softmax`, but the logarithm is the output."""

        def from_logarithm(self, value: Any) -> Any:
            return value

    older = [Softmax, LogSoftmax] if opset < _SOFTMAX_OVER_ONE_AXIS else []
    return [BatchNormalization, *older]
