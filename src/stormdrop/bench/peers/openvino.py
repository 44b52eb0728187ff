"""OpenVINO as a contender, for operators in float32, and for models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...measure.timing import Call
from ...tuning.options import BF16, FLOAT32
from .graphs import OperatorGraph, operator_graph

Array = NDArray[Any]

_HINTS = {FLOAT32: "f32", BF16: "bf16"}  # OpenVINO's names


class OpenvinoOperator:
    """A graph of one operator. Its tensors are bound to memory ahead, so no execution copies or allocates.

    Images are channels last at the graph's boundary, whatever layout the workload has, because OpenVINO's convolutions
    compute in that layout: with channels second they reorder before and after (a 3x3 convolution of 64 channels took
    1.08 times as long, a depthwise one 2.5 times). Pools with a window are an exception: with channels last they took
    3 to 9 times as long.
    """

    def __init__(self, operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array], threads: int) -> None:
        import openvino

        self._graph = operator_graph(operator, arguments, inputs)
        self._last = self._graph.images and operator != "pool2d"
        model = _channels_last(self._graph) if self._last else openvino.Core().read_model(self._graph.model)
        compiled = _compile(model, threads)
        self._request = compiled.create_infer_request()
        # The arrays are kept here, because the tensors do not keep them alive.
        self._inputs = {name: self._in_layout(array) for name, array in self._graph.feeds.items()}
        self._output = np.empty(tuple(compiled.output(0).shape), "float32")
        for name, array in self._inputs.items():
            self._request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        self._request.set_output_tensor(openvino.Tensor(self._output, shared_memory=True))
        self.versions = {"openvino": openvino.__version__}
        self.settings = {"threads": threads, "precision": "f32", "hint": "latency", "tensors": "bound"}
        if self._graph.images:
            self.settings["layout"] = f"channels {'last' if self._last else 'second'}, prepared ahead"

    def run(self) -> object:
        return self._request.infer(share_outputs=True)

    def outputs(self) -> list[Array]:
        self.run()
        return [self._graph.restored(np.moveaxis(self._output, -1, 1) if self._last else self._output)]

    def _in_layout(self, array: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1) if self._last else array)


class OpenvinoModel:
    """An ONNX model, given as a serialised file."""

    def __init__(self, model: bytes, inputs: Mapping[str, Array], threads: int, precision: str = FLOAT32) -> None:
        import openvino

        hint = _HINTS[precision]
        self._model, self._threads, self._precision = model, threads, hint
        self._compiled = _compile(openvino.Core().read_model(model), threads, hint)
        self._request = self._compiled.create_infer_request()
        self._inputs = dict(inputs)
        self.versions = {"openvino": openvino.__version__}
        self.settings = {"threads": threads, "precision": hint, "hint": "latency"}

    def run(self) -> object:
        return self._request.infer(self._inputs, share_inputs=True)

    def forms(self, at_a_time: int) -> Mapping[str, Sequence[Call]]:
        """A request for each call, with all cores in turns, or with as many streams as OpenVINO finds best."""
        import openvino

        streams = _compile(openvino.Core().read_model(self._model), self._threads, self._precision, at_a_time)
        return {
            f"hint {hint}, {at_a_time} requests": [
                partial(compiled.create_infer_request().infer, self._inputs, share_inputs=True)
                for _ in range(at_a_time)
            ]
            for hint, compiled in (("latency", self._compiled), ("throughput", streams))
        }

    def outputs(self) -> list[Array]:
        return [np.array(output) for output in self._request.infer(self._inputs).values()]


def _channels_last(graph: OperatorGraph) -> Any:
    """The graph as an OpenVINO model whose images are channels last, in its inputs and in its output."""
    import openvino

    model = openvino.Core().read_model(graph.model)
    steps = openvino.preprocess.PrePostProcessor(model)
    window_axes = "HW"[-(len(model.input(0).shape) - 2) :]
    for port in (*(steps.input(name) for name in graph.feeds), steps.output("y")):
        port.tensor().set_layout(openvino.Layout(f"N{window_axes}C"))
        port.model().set_layout(openvino.Layout(f"NC{window_axes}"))
    return steps.build()


def _compile(model: Any, threads: int, precision: str = "f32", at_a_time: int = 1) -> Any:
    import openvino

    config = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY" if at_a_time == 1 else "THROUGHPUT",
        **({"PERFORMANCE_HINT_NUM_REQUESTS": at_a_time} if at_a_time > 1 else {}),
    }
    return openvino.Core().compile_model(model, "CPU", config)
