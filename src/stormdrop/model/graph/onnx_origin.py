"""An ONNX model as the origin of a graph: onnxruntime computes it if it is installed, else onnx's own evaluator.

Other origins bring their own methods.
"""

from __future__ import annotations

import contextlib
import statistics
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata as packages
from typing import Any

import numpy as np
import onnx
from onnx import version_converter

from ...errors import LockTimeout, ModelError, one_line
from ...ir.relative_error import relative_error
from ..artifact.onnxruntime_parts import session_of, session_options, sums_saturate
from ..inputs.ranges import Ranges
from ..inputs.samples import Feeds
from ..onnx.contributed import OF_BYTES, is_contributed
from ..onnx.index_ranges import index_ranges
from ..onnx.standard import opset_of
from ..onnx.weights import FileState, large_tensors, moved_in
from ..program.memory import release_pages
from ..tensors import Array
from .origin import Origin, Outputs

_BYTES = {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}

_NUDGES = 8  # of the inputs

_SATURATING = ("LogSoftmax", "Sigmoid", "Softmax")
_RENAMING = ("DequantizeLinear", "Flatten", "Identity", "QuantizeLinear", "Reshape", "Squeeze", "Unsqueeze")

_EVALUATED_OPSET = 14
"""The first opset that onnx's evaluator is right for: older ones have another Softmax, and a BatchNormalization that it
takes for one that trains."""


def origin_of(source: onnx.ModelProto | Origin) -> Origin:
    """The origin of a graph.

    Args:
        source: `Graph.source`.
    """
    return OnnxOrigin(source) if isinstance(source, onnx.ModelProto) else source


def rounding_of_peer(origin: Origin, feeds: Feeds, name: str) -> float:
    """How far onnxruntime is from itself if it rounds otherwise: without its optimisations, or if the inputs do.

    All ways are float32, so each of them is about this far from the exact values, whatever the import did. The order of
    sums changes little where onnxruntime itself is coarse: it adds up the window of an LRN by adding a square and
    subtracting another one, and subtracts the square of the mean in MeanVarianceNormalization. What is lost there
    depends on the last bits of the inputs.

    Args:
        origin: The origin of a graph.
        feeds: The inputs by name.
        name: The output.

    Returns:
        The difference, relative to the largest value; 0 if the origin is no ONNX model, or if sums of bytes would
        saturate in it without the optimisations.
    """
    if not isinstance(origin, OnnxOrigin) or (sums_saturate() and _multiplies_bytes(origin.model)):
        return 0.0
    usual, *nudged = origin.outputs([feeds, *_nudged(feeds)], [name])[0]
    plain = origin.outputs([feeds], [name], optimised=False)[0]
    return max(relative_error(other[name], usual[name]) for other in (*plain, *nudged))


def by_standard(origin: Origin, feeds: Feeds, name: str) -> Array | None:
    """An output as onnx's own evaluator computes it, which is slow; None if it does not, or there is no ONNX model.

    It decides where onnxruntime is coarse by itself: its Sigmoid is cut off for large negative numbers, and its LRN
    subtracts squares from a sum that may be a million times as large as what is left.
    """
    if not isinstance(origin, OnnxOrigin):
        return None
    try:
        return origin.by_onnx(feeds, [name])[0][0][name]
    except ModelError:
        return None


def _nudged(feeds: Feeds) -> Iterator[Feeds]:
    """The inputs, some of whose numbers are the next larger or smaller ones."""
    for seed in range(_NUDGES):
        rng = np.random.default_rng(seed)
        yield {
            name: np.asarray(np.nextafter(value, rng.choice([-np.inf, np.inf], value.shape).astype(value.dtype)))
            if value.dtype.kind == "f"
            else value
            for name, value in feeds.items()
        }


def _multiplies_bytes(model: onnx.ModelProto) -> bool:
    return any(node.op_type in _BYTES or is_contributed(node, *OF_BYTES) for node in model.graph.node)


@dataclass(frozen=True, eq=False)
class OnnxOrigin(Origin):
    """An ONNX model, which onnxruntime computes, or onnx itself if that is not installed. See `Origin`.

    Attributes:
        model: The model.
        weights: The initializers that stand in files, by name; None if they are where the model says.
        files: The files that `weights` were mapped from.
    """

    model: onnx.ModelProto
    weights: Mapping[str, Array] | None = None
    files: Sequence[FileState] = ()

    def index_ranges(self) -> Ranges:
        return index_ranges(self.model)

    def before_saturation(self) -> Mapping[str, str]:
        """See `Origin`.

        A softmax turns an error of 1e-6 in logits of 1000 into one of 1e-3, and hides one of 10 where it has saturated.
        """
        producers = {name: node for node in self.model.graph.node for name in node.output}
        found = {}
        for output in self.model.graph.output:
            node = producers.get(output.name)
            while node is not None and node.op_type in _RENAMING:
                node = producers.get(node.input[0])
            if node is not None and node.op_type in _SATURATING and node.input[0] in producers:
                found[output.name] = node.input[0]
        return found

    def outputs(
        self, feeds: Sequence[Feeds], names: Sequence[str], *, optimised: bool = True
    ) -> tuple[list[Outputs], str]:
        """See `Origin`. onnx's evaluator takes seconds to minutes, so it runs the first of the `feeds` only.

        `optimised` says whether onnxruntime optimises the model, which changes the order in which it rounds.
        """
        self._check_files()
        weights = self._weights()
        with _with_outputs(self.model, names):
            try:
                import onnxruntime
            except ImportError:
                return self.by_onnx(feeds[0], names)
            options = session_options(0)
            if not optimised:
                options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            try:
                session = session_of(self.model.SerializeToString(), options, weights)
                runs = [dict(zip(names, session.run(list(names), dict(given)), strict=True)) for given in feeds]
            except Exception as error:
                # onnxruntime's exceptions have no base class of their own.
                if type(error).__name__ == "NotImplemented":  # it has no convolutions of float64, for example
                    return self.by_onnx(feeds[0], names)
                raise ModelError(f"onnxruntime does not run the model: {one_line(error)}") from error
            finally:
                release_pages()
        return runs, f"onnxruntime {onnxruntime.__version__}"

    def by_onnx(self, feeds: Feeds, names: Sequence[str]) -> tuple[list[Outputs], str]:
        """The outputs for one run, as onnx's evaluator computes them. Raises `ModelError` if it does not."""
        from onnx.reference import ReferenceEvaluator

        try:
            model = moved_in(self.model, self._weights())
            if opset_of(model, _EVALUATED_OPSET) < _EVALUATED_OPSET:
                model = version_converter.convert_version(model, _EVALUATED_OPSET)
            values = ReferenceEvaluator(model).run(list(names), dict(feeds))
        except Exception as error:
            # onnx.reference is Python and NumPy: an operator that it lacks or computes wrongly can raise anything.
            raise ModelError(f"onnx.reference does not run the model: {one_line(error)}") from error
        return [dict(zip(names, values, strict=True))], f"onnx.reference {packages.version('onnx')}"

    def seconds(
        self,
        feeds: Feeds,
        cores: int,
        within: float,
        alone: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> float | None:
        """See `Origin`. It has one thread per core and all of its optimisations."""
        try:
            import onnxruntime  # noqa: F401
        except ImportError:
            return None
        message = self.message()
        if message is None:
            return None
        try:
            session = session_of(message, session_options(cores))
            times: list[float] = []
            with alone():
                session.run(None, dict(feeds))  # loads code and memory
                end = clock.perf_counter() + within
                while not times or clock.perf_counter() + times[-1] < end:
                    begin = clock.perf_counter()
                    session.run(None, dict(feeds))
                    times.append(clock.perf_counter() - begin)
        except LockTimeout:
            raise
        except Exception as error:
            # onnxruntime's exceptions have no base class of their own.
            raise ModelError(f"onnxruntime does not run the model: {one_line(error)}") from error
        return statistics.median(times)

    def message(self) -> bytes | None:
        """The model with all of its weights, as onnxruntime takes it; None if one message cannot hold them.

        Raises:
            ModelError: A file with weights was changed after the import.
        """
        self._check_files()
        weights = self._weights()
        if self.model.ByteSize() + sum(value.nbytes for value in weights.values()) >= onnx.checker.MAXIMUM_PROTOBUF:
            return None
        return bytes(moved_in(self.model, weights).SerializeToString())

    def _weights(self) -> Mapping[str, Array]:
        return large_tensors(self.model) if self.weights is None else self.weights

    def _check_files(self) -> None:
        for file in self.files:
            file.check()


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
