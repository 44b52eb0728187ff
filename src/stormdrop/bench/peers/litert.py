"""LiteRT, which was TensorFlow Lite, as a contender for ONNX models: its kernels for CPUs are those of XNNPACK.

litert-torch makes its model of the module that onnx2torch makes of the graph.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib import metadata as packages
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from ...tuning.options import FLOAT32
from .torch_models import EagerModel

Array = NDArray[Any]


class LitertModel(EagerModel):
    """An ONNX model that LiteRT runs. Images are channels-last at its inputs, because its kernels read them so."""

    library: ClassVar[str] = "LiteRT"

    def _prepare(self, torch: Any, module: Any, tensors: list[Any]) -> None:
        import litert_torch
        from ai_edge_litert.interpreter import Interpreter

        images = [index for index, tensor in enumerate(tensors) if tensor.ndim == 4]
        if images:
            module = litert_torch.to_channel_last_io(module, args=images)
            tensors = [tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor for tensor in tensors]
        tensors = [tensor.contiguous() for tensor in tensors]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.tflite")
            litert_torch.convert(module, tuple(tensors)).export(str(path))
            model = path.read_bytes()
        self._interpreter = Interpreter(model_content=model, num_threads=self.settings["threads"])
        self._interpreter.allocate_tensors()
        (names,) = self._interpreter.get_signature_list().values()
        runner = self._interpreter.get_signature_runner()
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        for name, tensor in zip(_by_number(names["inputs"]), tensors, strict=True):
            values = tensor.numpy().astype(inputs[name]["dtype"])  # int64 became int32
            self._interpreter.set_tensor(inputs[name]["index"], values)
        self._places = [outputs[name]["index"] for name in _by_number(names["outputs"])]
        self.settings = {"threads": self.settings["threads"], "precision": FLOAT32}
        if images:
            self.settings["layout"] = "channels last, prepared ahead"
        used = ("ai-edge-litert", "litert-torch", "onnx2torch", "torch")
        self.versions = {name: packages.version(name) for name in used}

    def run(self) -> object:
        return self._interpreter.invoke()

    def outputs(self) -> list[Array]:
        self.run()
        return [self._interpreter.get_tensor(place) for place in self._places]


def _by_number(names: Sequence[str]) -> list[str]:
    """Names such as args_0 and output_10 in the order of their numbers, not of the alphabet."""
    return sorted(names, key=lambda name: int(name.rpartition("_")[2]))
