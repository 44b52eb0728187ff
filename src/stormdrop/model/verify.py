"""Checks a compiled model: compares its outputs with those of another runtime on seeded random inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata as packages
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ..errors import ModelError, one_line
from ..ir.relative_error import relative_error
from .artifact import CompiledModel
from .metadata import TensorInfo

_SOFTMAX_OVER_ONE_AXIS = 13
"""The first ONNX opset whose Softmax normalises along one axis instead of all axes from it on."""

Feeds = Mapping[str, NDArray[Any]]
"""Arrays by the name of an input or output."""


@dataclass(frozen=True)
class Verification:
    """How exact a compiled model is.

    Attributes:
        max_error: The largest `relative_error` of an output.
        against: The name and version of the runtime that computed the reference.
    """

    max_error: float
    against: str


@dataclass(frozen=True, eq=False)
class Reference:
    """The outputs that another runtime computes for a model.

    Attributes:
        feeds: The inputs by name.
        outputs: The outputs by name.
        against: The name and version of the runtime.
    """

    feeds: Feeds
    outputs: Feeds
    against: str

    @classmethod
    def compute(
        cls, source: onnx.ModelProto, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], seed: int = 0
    ) -> Reference:
        """Run an ONNX model on random inputs, with onnxruntime if it is installed, else with onnx itself.

        Args:
            source: The model.
            inputs: The inputs of the model.
            outputs: The outputs to compute.
            seed: Seeds the random inputs; see `random_feeds`.

        Raises:
            ModelError: The runtime cannot run the model.
        """
        feeds = random_feeds(inputs, seed)
        return cls(feeds, *reference_outputs(source, feeds, [info.name for info in outputs]))

    def check(self, model: CompiledModel) -> Verification:
        """Run a compiled model on the same inputs and compare its outputs with these.

        The error is infinite if shapes differ, or if a value is finite on one side only.
        """
        outputs = model.run(self.feeds)
        error = max(relative_error(outputs[name], expected) for name, expected in self.outputs.items())
        return Verification(error, self.against)


def verify(model: CompiledModel, source: onnx.ModelProto, seed: int = 0) -> Verification:
    """Compare a compiled model with the ONNX model that it was made from.

    Args:
        model: The compiled model.
        source: The ONNX model.
        seed: Seeds the random inputs.

    Raises:
        ModelError: The other runtime cannot run the ONNX model.
    """
    return Reference.compute(source, model.inputs, model.outputs, seed).check(model)


def random_feeds(inputs: Sequence[TensorInfo], seed: int = 0) -> dict[str, NDArray[Any]]:
    """Make inputs for a model: standard normal values, or 0 and 1 for integers and booleans.

    Args:
        inputs: The inputs of the model.
        seed: The same seed gives the same values.

    Returns:
        The arrays by input name, with the shapes and types of `inputs`.
    """
    rng = np.random.default_rng(seed)
    feeds: dict[str, NDArray[Any]] = {}
    for info in inputs:
        floating = np.issubdtype(np.dtype(info.dtype), np.floating)
        values = rng.standard_normal(info.shape) if floating else rng.integers(0, 2, info.shape)
        feeds[info.name] = np.asarray(values, dtype=info.dtype)
    return feeds


def reference_outputs(
    source: onnx.ModelProto, feeds: Feeds, names: Sequence[str]
) -> tuple[dict[str, NDArray[Any]], str]:
    """Run an ONNX model with onnxruntime if it is installed, else with onnx itself.

    Args:
        source: The model.
        feeds: The inputs by name.
        names: The outputs to compute.

    Returns:
        The outputs by name, and the name and version of the runtime.

    Raises:
        ModelError: The runtime cannot run the model.
    """
    try:
        import onnxruntime
    except ImportError:
        return _run_by_onnx(source, feeds, names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only, because it warns about every unused initialiser
    try:
        session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
        values = session.run(list(names), dict(feeds))
    except Exception as error:
        # onnxruntime's exceptions have no base class of their own.
        raise ModelError(f"onnxruntime does not run the model: {one_line(error)}") from error
    return dict(zip(names, values, strict=True)), f"onnxruntime {onnxruntime.__version__}"


def _run_by_onnx(source: onnx.ModelProto, feeds: Feeds, names: Sequence[str]) -> tuple[dict[str, NDArray[Any]], str]:
    from onnx.reference import ReferenceEvaluator

    opset = next(
        (entry.version for entry in source.opset_import if entry.domain in ("", "ai.onnx")), _SOFTMAX_OVER_ONE_AXIS
    )
    try:
        values = ReferenceEvaluator(source, new_ops=_corrected_operators(opset)).run(list(names), dict(feeds))
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
            axis = next((attribute.i for attribute in self.onnx_node.attribute if attribute.name == "axis"), 1)
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
