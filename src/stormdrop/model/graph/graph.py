"""A model as calls to a few distinct kernels, the tasks: what importers make, and what all that follows works on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.ir import GenericConst

from ...runtime.program import State
from ...runtime.sizes import TensorInfo
from ..artifact.onnxruntime_parts import OnnxruntimeParts
from .layers import Layers
from .origin import Origin
from .tasks import Task, extract_tasks


@dataclass(frozen=True)
class Graph:
    """A model as kernel calls, at one size.

    If the model is compiled for several sizes, there is a graph for each. All of them have the same tasks, whose
    weights are sums over all sizes, and the same onnxruntime parts.

    Attributes:
        name: The name of the model.
        mod: The Relax function `main` and the TensorIR functions that it calls.
        tasks: The distinct TensorIR functions.
        inputs: The inputs, in the order in which `main` takes them.
        outputs: The outputs, in the order in which `main` returns them.
        source: The ONNX model as it was read, or another origin, to verify the compiled model against.
        converted: Whether the source was converted from an old opset.
        ignored: The names of the inputs that the model does not use. `inputs` and `main` are without them.
        foreign: The parts that onnxruntime runs; `main` calls them as packed functions.
        others: The graphs of the other sizes, if this is the one of the main size.
        layers: The computing nodes of the model, and which of them each call of `main` computes.
        between: The graphs of sizes that are not compiled, at which ranges are checked.
        states: The outputs that are inputs of the next step of a decoder.
    """

    name: str
    mod: tvm.IRModule
    tasks: tuple[Task, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    source: onnx.ModelProto | Origin
    converted: bool = False
    ignored: tuple[str, ...] = ()
    foreign: OnnxruntimeParts = field(default_factory=OnnxruntimeParts)
    others: tuple[Graph, ...] = ()
    layers: Layers = field(default_factory=Layers)
    between: tuple[Graph, ...] = ()
    states: tuple[State, ...] = ()

    @property
    def sizes(self) -> tuple[Graph, ...]:
        """The graphs of all sizes, this one first."""
        return (self, *self.others)

    def at(self, feeds: Mapping[str, Any]) -> Graph:
        """The graph of the size that these inputs have.

        Args:
            feeds: An array for each input, by name.
        """
        if not self.others:
            return self
        shapes = {name: tuple(value.shape) for name, value in feeds.items()}
        return next(graph for graph in self.sizes if all(shapes[info.name] == info.shape for info in graph.inputs))

    def rewritten(self, mods: Sequence[tvm.IRModule]) -> Graph:
        """The graph with another module for each of its sizes, and with the tasks of these.

        Args:
            mods: The modules, in the order of `sizes`. No two of them have different functions of one name.
        """
        layers = [each.layers.rewritten(each.mod, mod) for each, mod in zip(self.sizes, mods, strict=True)]
        tasks = extract_tasks(mods, layers)
        first, *others = (
            replace(each, mod=mod, tasks=tasks, others=(), layers=found)
            for each, mod, found in zip(self.sizes, mods, layers, strict=True)
        )
        return replace(first, others=tuple(others))

    @property
    def called(self) -> frozenset[int]:
        """The indices of the tasks that this size calls."""
        functions = {variable.name_hint for variable in self.mod.functions}
        return frozenset(task.index for task in self.tasks if functions.intersection(task.callees))

    @property
    def constant_bytes(self) -> int:
        """The size of all weights together, in bytes."""
        sizes: list[int] = []

        def visit(node: Any) -> None:
            if isinstance(node, GenericConst):
                sizes.append(math.prod(node.value.shape) * node.value.dtype.itemsize)

        relax.analysis.post_order_visit(self.mod["main"], visit)
        return sum(sizes)
