"""Times the import and the compilation of models with many nodes, phase by phase.

    import_and_compile.py [--models detector,densenet121] [--rounds 3] [--save NAME] [--profile FILE]

`detector` is a synthetic graph of 1,500 nodes, as Paddle exports its small object detectors (PP-PicoDet): many small
convolutions, batch norms that are still there or are a multiplication and an addition, hard swishes of four nodes,
channel shuffles, squeeze-and-excitation, resizes and concatenations. `densenet121` is the model of the ONNX zoo. All
weights are seeded.

The phases inside the import are timed in this process. "child process" is what the import in a process of its own takes
beyond them: to start it, to load its libraries, and to bring the graph back. The model is compiled with the default
schedule of each kernel. The table shows the median of the rounds. `--profile` writes a profile of one import and one
compilation by cProfile, and times nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import machine, save
from _graphs import graph as zoo_graph

from stormdrop import Cpu
from stormdrop.cli.output import table
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.workload import Workload
from stormdrop.model.building.builder import ModelBuilder
from stormdrop.model.building.tuned_task import TunedTask
from stormdrop.model.graph.graph import Graph
from stormdrop.model.random_weights import seed_weights
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions

NODES = 1500
_REST = 380  # nodes of the neck and the heads


def main() -> None:
    options = _options()
    document: dict[str, Any] = {"machine": machine(), "models": {}}
    for name in options.models:
        model = detector() if name == "detector" else zoo_graph(name)
        print(f"{name}: {len(model.graph.node)} nodes", file=sys.stderr)
        if options.profile:
            with cProfile.Profile() as profile:
                _round(model)
            profile.dump_stats(options.profile)
            return
        rounds = [_round(model) for _ in range(options.rounds)]
        document["models"][name] = {
            phase: statistics.median(seconds.get(phase, 0.0) for seconds in rounds) for phase in rounds[0]
        }
    phases = dict.fromkeys(phase for entry in document["models"].values() for phase in entry)
    rows = [[phase, *(f"{entry.get(phase, 0.0):.2f}" for entry in document["models"].values())] for phase in phases]
    table(["seconds", *document["models"]], rows)
    print(save(options.save, document))


def detector(nodes: int = NODES, seed: int = 0) -> onnx.ModelProto:
    """A graph like that of a small object detector, with seeded weights.

    Args:
        nodes: how many nodes it has at least.
        seed: the seed of the weights.
    """
    return seed_weights(_Detector(nodes).model(), seed=seed)


def _round(model: onnx.ModelProto) -> dict[str, float]:
    """Seconds by phase of one import in this process, one in a child process, and one compilation."""
    from stormdrop.model.importer.import_onnx import load_graph
    from stormdrop.model.importer.isolated import import_graph

    clock = _Clock()
    with _watched(clock), clock("import in this process"):
        load_graph(model)
    begin = time.perf_counter()
    graph = import_graph(model)
    clock.add("import", time.perf_counter() - begin)
    clock.add("child process", clock.seconds["import"] - clock.seconds["import in this process"])
    with clock("default schedules"):
        builder = _builder(graph)
    with clock("compile"):
        built = builder.build(builder.defaults)
    with clock("compile once more"):  # as for another combination of schedules
        builder.build(builder.defaults)
    feeds = {info.name: np.zeros(info.shape, info.dtype) for info in built.inputs}
    with clock("first run"):
        built.run(feeds)
    clock.seconds["tasks"] = float(len(graph.tasks))
    return clock.seconds


def _builder(graph: Graph) -> ModelBuilder:
    target, options, tasks = Cpu.detect(), TuneOptions(), []
    for task in graph.tasks:
        try:
            workload = Workload.create(task.name, task.function, task.constants)
            kernel = KernelTask.create(workload, target, options)
        except UnsupportedFunction:
            kernel = None
        tasks.append(TunedTask(task, kernel, None))
    return ModelBuilder(graph, tasks, target, options, {})


class _Clock:
    """Adds up seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        self.seconds.setdefault(phase, 0.0)
        yield
        self.add(phase, time.perf_counter() - begin)

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls are counted under a phase."""

        def call(*arguments: Any, **named: Any) -> Any:
            with self(phase):
                return function(*arguments, **named)

        return call


_OURS = {
    "onnx_model": ("read_source", "clean"),
    "import_onnx": (
        "_imported",
        "clip_indices",
        "expand_powers",
        "fold_layouts",
        "fold_constants",
        "legalize",
        "expand_constants",
        "simplify_views",
        "simplify_functions",
        "extract_tasks",
    ),
}
"""Functions of the importer that are phases, by module."""


@contextlib.contextmanager
def _watched(clock: _Clock) -> Iterator[None]:
    """Times the functions of the importer and TVM's passes, which it looks up in these modules when it calls them."""
    from tvm.relax import transform

    from stormdrop.model.importer import import_onnx, onnx_model

    with contextlib.ExitStack() as stack:
        for module in (onnx_model, import_onnx):
            for name in _OURS[module.__name__.rpartition(".")[2]]:
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, clock.timed(name, getattr(module, name))))
        for name in vars(transform):
            made = getattr(transform, name)
            if name[0].isupper() and callable(made) and not isinstance(made, type):
                stack.enter_context(mock.patch.object(transform, name, _timed_pass(clock, name, made)))
        yield


def _timed_pass(clock: _Clock, name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **named: clock.timed(name, made(*arguments, **named))


class _Detector:
    """Builds the graph node by node, as an exporter does."""

    def __init__(self, nodes: int) -> None:
        self._wanted = nodes
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._convolutions = 0

    def model(self) -> onnx.ModelProto:
        features = self._backbone("image")
        features = self._neck(features)
        outputs = [self._head(feature) for feature in features]
        scores, boxes = (self._node("Concat", *parts, axis=1) for parts in zip(*outputs, strict=True))
        self._node("Identity", scores, output="scores")
        self._node("Identity", boxes, output="boxes")
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self._nodes,
            "detector",
            [value("image", TensorProto.FLOAT, [1, 3, 320, 320])],
            [value(name, TensorProto.FLOAT, None) for name in ("scores", "boxes")],
            self._weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)

    def _backbone(self, image: str) -> list[str]:
        value = self._conv(image, 3, 24, 3, stride=2)
        value = self._node("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        channels, features = 24, []
        for width, size, repeats in ((96, 40, 4), (192, 20, 9), (384, 10, 5)):
            value = self._downsampled(value, channels, width)
            for _ in range(repeats):
                value = self._shuffle_block(value, width, size)
            channels = width
            features.append(value)
        while len(self._nodes) < self._wanted - _REST:
            features[-1] = self._shuffle_block(features[-1], 384, 10)
        return [self._conv(feature, width, 96, 1) for feature, width in zip(features, (96, 192, 384), strict=True)]

    def _downsampled(self, value: str, before: int, after: int) -> str:
        left = self._separable(value, before, after // 2, stride=2, act=False)
        right = self._conv(value, before, after // 2, 1)
        right = self._separable(right, after // 2, after // 2, stride=2)
        return self._conv(self._node("Concat", left, right, axis=1), after, after, 1)

    def _shuffle_block(self, value: str, width: int, size: int) -> str:
        half = width // 2
        ends = [self._integers(position) for position in (0, half, width)]
        kept = self._node("Slice", value, ends[0], ends[1], self._integers(1))
        used = self._node("Slice", value, ends[1], ends[2], self._integers(1))
        used = self._conv(used, half, half, 1)
        used = self._conv(used, half, half, 3, groups=half, act=False)
        used = self._excited(used, half)
        used = self._conv(used, half, half, 1)
        joined = self._node("Concat", kept, used, axis=1)
        split = self._node("Reshape", joined, self._integers(1, 2, half, size, size))
        moved = self._node("Transpose", split, perm=[0, 2, 1, 3, 4])
        return self._node("Reshape", moved, self._integers(1, width, size, size))

    def _excited(self, value: str, width: int) -> str:
        pooled = self._node("GlobalAveragePool", value)
        squeezed = self._node("Relu", self._plain_conv(pooled, width, width // 4, 1, bias=True))
        gate = self._node("HardSigmoid", self._plain_conv(squeezed, width // 4, width, 1, bias=True), alpha=1 / 6)
        return self._node("Mul", value, gate)

    def _neck(self, features: list[str]) -> list[str]:
        small, middle, large = features[2], features[1], features[0]
        middle = self._merged(self._resized(small), middle)
        large = self._merged(self._resized(middle), large)
        middle = self._merged(self._separable(large, 96, 96, stride=2, kernel=5), middle)
        small = self._merged(self._separable(middle, 96, 96, stride=2, kernel=5), small)
        smallest = self._separable(small, 96, 96, stride=2, kernel=5)
        return [large, middle, small, smallest]

    def _merged(self, one: str, other: str) -> str:
        joined = self._node("Concat", one, other, axis=1)
        left, right = self._conv(joined, 192, 48, 1), self._conv(joined, 192, 48, 1)
        left = self._separable(self._conv(left, 48, 48, 1), 48, 48, kernel=5)
        return self._conv(self._node("Concat", left, right, axis=1), 96, 96, 1)

    def _resized(self, value: str) -> str:
        scales = self._constant(np.array([1, 1, 2, 2], np.float32))
        modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self._node("Resize", value, "", scales, **modes)

    def _head(self, value: str) -> tuple[str, str]:
        for _ in range(2):
            value = self._separable(value, 96, 96, kernel=5)
        merged = self._plain_conv(value, 96, 80 + 32, 1, bias=True)
        ends = [self._integers(position) for position in (0, 80, 112)]
        scores = self._node("Sigmoid", self._node("Slice", merged, ends[0], ends[1], self._integers(1)))
        boxes = self._node("Slice", merged, ends[1], ends[2], self._integers(1))
        rows = [self._node("Transpose", part, perm=[0, 2, 3, 1]) for part in (scores, boxes)]
        boxes = self._node("Softmax", self._node("Reshape", rows[1], self._integers(1, -1, 4, 8)), axis=3)
        bins = self._constant(np.arange(8, dtype=np.float32).reshape(8, 1))
        distances = self._node("Reshape", self._node("MatMul", boxes, bins), self._integers(1, -1, 4))
        return self._node("Reshape", rows[0], self._integers(1, -1, 80)), distances

    def _separable(
        self, value: str, before: int, after: int, stride: int = 1, kernel: int = 3, act: bool = True
    ) -> str:
        value = self._conv(value, before, before, kernel, stride=stride, groups=before, act=act)
        return self._conv(value, before, after, 1)

    def _conv(
        self, value: str, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True
    ) -> str:
        """A convolution with a batch norm, and a hard swish of four nodes."""
        value = self._plain_conv(value, before, after, kernel, stride, groups)
        if self._convolutions % 2:
            statistics = [self._ones(after) for _ in range(4)]
            value = self._node("BatchNormalization", value, *statistics)
        else:
            value = self._node("Mul", value, self._ones(1, after, 1, 1))
            value = self._node("Add", value, self._ones(1, after, 1, 1))
        if not act:
            return value
        shifted = self._node("Add", value, self._constant(np.array(3, np.float32)))
        bounds = [self._constant(np.array(bound, np.float32)) for bound in (0, 6)]
        product = self._node("Mul", value, self._node("Clip", shifted, *bounds))
        return self._node("Div", product, self._constant(np.array(6, np.float32)))

    def _plain_conv(
        self, value: str, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> str:
        self._convolutions += 1
        weights = [self._ones(after, before // groups, kernel, kernel), *([self._ones(after)] if bias else [])]
        window: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return self._node("Conv", value, *weights, group=groups, **window)

    def _node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"value_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], f"node_{len(self._nodes)}", **attributes))
        return name

    def _constant(self, value: np.ndarray[Any, Any]) -> str:
        name = f"constant_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def _ones(self, *shape: int) -> str:
        return self._constant(np.ones(shape, np.float32))

    def _integers(self, *values: int) -> str:
        return self._constant(np.array(values, np.int64))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), default=["detector", "densenet121"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", default="import_and_compile", help="the name of the JSON file")
    parser.add_argument("--profile", type=Path, help="write a profile of the first model to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
