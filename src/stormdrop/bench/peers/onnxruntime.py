"""onnxruntime as a contender, for operators and for models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...measure.timing import Call
from .graphs import operator_graph

Array = NDArray[Any]


class OnnxruntimeOperator:
    """A graph of one operator. Its inputs and output are bound to memory ahead, so no execution copies or allocates.

    Images are channels second, the only layout that onnxruntime's float32 convolutions support. They compute on blocks
    of channels and reorder before and after. A single operator pays for both, as it does in a model that has no other
    convolution next to it.
    """

    def __init__(self, operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array], threads: int) -> None:
        import onnxruntime

        self._graph = operator_graph(operator, arguments, inputs)
        feeds = {name: np.ascontiguousarray(array) for name, array in self._graph.feeds.items()}
        self._session = _session(self._graph.model, threads, {})
        self._output = self._session.run(None, feeds)[0]
        self._binding = self._session.io_binding()
        self._bound = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(array)
            for name, array in {**feeds, "y": self._output}.items()
        }
        for name in feeds:
            self._binding.bind_ortvalue_input(name, self._bound[name])
        self._binding.bind_ortvalue_output("y", self._bound["y"])
        self.versions = {"onnxruntime": onnxruntime.__version__}
        self.settings = {"threads": threads, "optimisation": "all", "tensors": "bound"}
        if self._graph.images:
            self.settings["layout"] = "channels second, prepared ahead; reorders within"

    def run(self) -> object:
        return self._session.run_with_iobinding(self._binding)

    def outputs(self) -> list[Array]:
        self.run()
        return [self._graph.restored(self._bound["y"].numpy())]


class OnnxruntimeModel:
    """An ONNX model, given as a serialised file. `entries` are more options of its session, by their keys."""

    def __init__(
        self, model: bytes, inputs: Mapping[str, Array], threads: int, entries: Mapping[str, str] | None = None
    ) -> None:
        import onnxruntime

        self._model, self._threads, self._entries = model, threads, entries or {}
        self._session = _session(model, threads, self._entries)
        self._inputs = dict(inputs)
        self.versions = {"onnxruntime": onnxruntime.__version__}
        self.settings = {"threads": threads, "optimisation": "all", **(entries or {})}

    def run(self) -> object:
        return self._session.run(None, self._inputs)

    def forms(self, at_a_time: int) -> Mapping[str, Sequence[Call]]:
        """All cores for each call, in one session; or a part of the cores for each.

        A session with one thread has none of its own: it computes in the threads that call, and is shared, too.
        """
        part = max(1, self._threads // at_a_time)
        count = 1 if part == 1 else at_a_time
        sessions = [_session(self._model, part, self._entries) for _ in range(count)]
        divided = [partial(session.run, None, self._inputs) for session in sessions]
        what = "one session" if count == 1 else f"{count} sessions"
        return {
            f"one session, {self._threads} threads": [self.run] * at_a_time,
            f"{what}, 1 thread a call" if part == 1 else f"{what}, {part} threads each": divided * (at_a_time // count),
        }

    def outputs(self) -> list[Array]:
        return [np.asarray(output) for output in self._session.run(None, self._inputs)]


def _session(model: bytes, threads: int, entries: Mapping[str, str]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
