"""What onnxruntime computes without optimisations, and how far from it another runtime may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from stormdrop.ir.relative_error import relative_error
from stormdrop.model.artifact.onnxruntime_parts import ask_for_exact_sums
from stormdrop.model.onnx.rewrites.halves import has_halves

Array = NDArray[Any]

LEVEL = 1e-4
"""The relative error that reordered sums may make."""

_LEVEL_OF_HALVES = 5e-3  # the product computes in float32 what a model stores as halves

_NUDGE = 1e-6
_OF_NUDGE = 20.0
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
            if not error <= self.allowed[name]:
                return f"{name}: an error of {error:.1e}, allowed is {self.allowed[name]:.1e}"
        return ""


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
