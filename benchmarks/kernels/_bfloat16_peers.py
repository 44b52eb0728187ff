"""Contenders for layers in bfloat16: torch, eager and with weights that oneDNN has packed, and OpenVINO.

Data, weights and results are bfloat16, and the bias is, too, where the peer wants it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.bench.peers.graphs import operator_graph
from stormdrop.bench.peers.torch_operators import EagerOperator, PackedOperator, keep_freed_memory

Array = NDArray[Any]


class _TorchBfloat16:
    """Gives a contender of float32 tensors of bfloat16."""

    def __init__(self, operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array], threads: int) -> None:
        import torch

        keep_freed_memory()
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.bfloat16)  # of the results that operators are given to write to
        self.versions = {"torch": torch.__version__}
        self.settings: dict[str, Any] = {"threads": threads}
        self._to_workload_layout = lambda output: output
        tensors = [torch.from_numpy(array.astype("float32")).to(torch.bfloat16) for array in inputs]
        self._call = self._prepare(torch, operator, arguments, tensors)  # type: ignore[attr-defined]

    def outputs(self) -> list[Array]:
        output = self._to_workload_layout(self._call())
        return [np.ascontiguousarray(output.float().numpy())]


class EagerBfloat16(_TorchBfloat16, EagerOperator):
    """Eager torch."""


class PackedBfloat16(_TorchBfloat16, PackedOperator):
    """torch's oneDNN operators on weights that are packed ahead, with residual and activation fused."""


class OpenvinoBfloat16:
    """OpenVINO with the precision hint bf16, and bound tensors of bfloat16. Images are channels last."""

    def __init__(self, operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array], threads: int) -> None:
        import openvino

        floats = {**arguments, "dtype": "float32"}
        self._graph = operator_graph(operator, floats, [np.asarray(array, "float32") for array in inputs])
        model = openvino.Core().read_model(self._graph.model)
        self._last = self._graph.images
        steps = openvino.preprocess.PrePostProcessor(model)
        for port in (*(steps.input(name) for name in self._graph.feeds), steps.output("y")):
            port.tensor().set_element_type(openvino.Type.bf16)
            if self._last:
                port.tensor().set_layout(openvino.Layout("NHWC"))
                port.model().set_layout(openvino.Layout("NCHW"))
        hints = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "bf16", "PERFORMANCE_HINT": "LATENCY"}
        compiled = openvino.Core().compile_model(steps.build(), "CPU", hints)
        self._request = compiled.create_infer_request()
        self._arrays = {name: self._bits(array) for name, array in self._graph.feeds.items()}
        for name, array in self._arrays.items():
            self._request.set_tensor(name, openvino.Tensor(array, list(array.shape), openvino.Type.bf16))
        shape = tuple(compiled.output(0).shape)
        self._output = np.empty(shape, "uint16")
        self._request.set_output_tensor(openvino.Tensor(self._output, list(shape), openvino.Type.bf16))
        self.versions = {"openvino": openvino.__version__}
        self.settings = {"threads": threads, "precision": "bf16", "hint": "latency", "tensors": "bound, bfloat16"}

    def run(self) -> object:
        return self._request.infer(share_outputs=True)

    def outputs(self) -> list[Array]:
        self.run()
        result = self._output.view("bfloat16").astype("float32")
        return [self._graph.restored(np.moveaxis(result, -1, 1) if self._last else result)]

    def _bits(self, array: Array) -> Array:
        array = np.moveaxis(array, 1, -1) if self._last else array
        return np.ascontiguousarray(array).astype("bfloat16").view("uint16")
