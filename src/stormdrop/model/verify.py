"""Is a compiled model right? Its outputs beside those of another runtime, on seeded inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata as packages
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ..errors import ModelError
from .artifact import CompiledModel
from .messages import first_line
from .metadata import TensorInfo

_SOFTMAX_ALONG = 13  # the opset from which on a softmax is along one axis

Feeds = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Verification:
    """`max_error` is the largest max|difference| / max|reference| of an output; `against` names the other runtime."""

    max_error: float
    against: str


@dataclass(frozen=True, eq=False)
class Reference:
    """What another runtime says that a model's outputs are for these inputs."""

    feeds: Feeds
    outputs: Feeds
    against: str

    @classmethod
    def of(
        cls, source: onnx.ModelProto, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], seed: int = 0
    ) -> Reference:
        """By onnxruntime where it is installed, else by onnx itself; seeded random inputs.

        Raises `ModelError` where that does not take the model.
        """
        feeds = random_feeds(inputs, seed)
        return cls(feeds, *reference_outputs(source, feeds, [info.name for info in outputs]))

    def check(self, model: CompiledModel) -> Verification:
        """A model beside it.

        A value that is not finite on one side only, or outputs of another shape, count as an infinite error.
        """
        found = model.run(self.feeds)
        return Verification(max(relative_error(found[name], self.outputs[name]) for name in self.outputs), self.against)


def verify(model: CompiledModel, source: onnx.ModelProto, seed: int = 0) -> Verification:
    """Compare a compiled model with its ONNX source. Raises as `Reference.of` does."""
    return Reference.of(source, model.inputs, model.outputs, seed).check(model)


def random_feeds(inputs: Sequence[TensorInfo], seed: int = 0) -> dict[str, NDArray[Any]]:
    """Standard normal values for floating-point inputs, 0 and 1 for integers and booleans; the same for a seed."""
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
    """The outputs of an ONNX model by name, and the runtime that computed them."""
    try:
        import onnxruntime
    except ImportError:
        return _by_onnx(source, feeds, names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only: it warns about every unused initialiser
    try:
        session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
        values = session.run(list(names), dict(feeds))
    except Exception as error:
        # onnxruntime's exceptions have no common base class of its own.
        raise ModelError(f"onnxruntime does not run the model: {first_line(error)}") from error
    return dict(zip(names, values, strict=True)), f"onnxruntime {onnxruntime.__version__}"


def _by_onnx(source: onnx.ModelProto, feeds: Feeds, names: Sequence[str]) -> tuple[dict[str, NDArray[Any]], str]:
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class BatchNormalization(OpRun):
        """Inference. onnx's own takes the operator of opsets 9 to 13 for training, and fails for older ones."""

        op_domain = ""

        def _run(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, **attributes: Any) -> tuple[Any, ...]:
            shape = (1, -1) + (1,) * (x.ndim - 2)
            factor = scale / np.sqrt(var + (attributes.get("epsilon") or 0.0))
            return (x * factor.reshape(shape) + (bias - mean * factor).reshape(shape),)

    class Softmax(OpRun):
        """Of opsets before 13: over all dimensions from the axis on. onnx's own takes it for the later one."""

        op_domain = ""

        def _run(self, x: Any, **attributes: Any) -> tuple[Any, ...]:
            # `attributes` has the later one's default for what the node does not say.
            axis = next((each.i for each in self.onnx_node.attribute if each.name == "axis"), 1)
            rows = x.reshape(math.prod(x.shape[: axis % x.ndim]), -1)
            below = rows - rows.max(axis=1, keepdims=True)
            return (self.logged(below - np.log(np.exp(below).sum(axis=1, keepdims=True))).reshape(x.shape),)

        def logged(self, value: Any) -> Any:
            """The output, of its logarithm."""
            return np.exp(value)

    class LogSoftmax(Softmax):
        """As above."""

        def logged(self, value: Any) -> Any:
            return value

    version = next((each.version for each in source.opset_import if each.domain in ("", "ai.onnx")), _SOFTMAX_ALONG)
    ours = [BatchNormalization, *([Softmax, LogSoftmax] if version < _SOFTMAX_ALONG else [])]
    try:
        values = ReferenceEvaluator(source, new_ops=ours).run(list(names), dict(feeds))
    except Exception as error:
        # It is Python and NumPy: an operator that it lacks or has wrong can raise anything.
        raise ModelError(f"onnx.reference does not run the model: {first_line(error)}") from error
    return dict(zip(names, values, strict=True)), f"onnx.reference {packages.version('onnx')}"


def relative_error(value: NDArray[Any], reference: NDArray[Any]) -> float:
    """max|value - reference| / max|reference|, in float64; infinite where shapes or non-finite values differ."""
    if value.shape != reference.shape:
        return float("inf")
    ours, theirs = np.asarray(value, np.float64), np.asarray(reference, np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True) or not np.isfinite(ours[finite]).all():
        return float("inf")
    difference = float(np.abs(ours[finite] - theirs[finite]).max(initial=0.0))
    scale = float(np.abs(theirs[finite]).max(initial=0.0))
    return difference / scale if scale > 0 else (0.0 if difference == 0 else float("inf"))
