"""torch as a contender for ONNX models: eager, and compiled by its inductor. onnx2torch makes a module of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata as packages
from typing import Any, ClassVar
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from ...model.importer.onnx_model import load_onnx
from ...model.messages import first_line
from ..turns import Unavailable

Array = NDArray[Any]


class Model:
    """Eager, images channels-last in memory."""

    compiled: ClassVar[bool] = False

    def __init__(self, model: bytes, inputs: Mapping[str, Array], threads: int) -> None:
        import onnx
        import torch

        # onnx2torch needs no operators of torchvision's: those for CUDA cannot load beside a torch for CPUs.
        with mock.patch("torch.library.register_fake", return_value=lambda function: function):
            import onnx2torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        # Constants are folded and dropouts gone: it knows more of what is left, and runs it faster.
        graph = load_onnx(onnx.load_from_string(model)).cleaned
        try:
            module = onnx2torch.convert(graph).eval()
        except Exception as error:
            # NotImplementedError for an operator that it does not know, and whatever its converters stumble over.
            raise Unavailable(f"onnx2torch does not convert the model: {first_line(error)}") from error
        weights = {tensor.name for tensor in graph.graph.initializer}
        names = [value.name for value in graph.graph.input if value.name not in weights]
        given = [torch.from_numpy(inputs[name]) for name in names]
        if any(tensor.ndim == 4 for tensor in given):
            module = module.to(memory_format=torch.channels_last)
            given = [
                tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor for tensor in given
            ]
        self._module, self._given = self._prepared(torch, module), given
        self.versions = {"torch": torch.__version__, "onnx2torch": packages.version("onnx2torch")}
        self.settings = {"threads": threads, "compiled": self.compiled}
        try:
            self.run()
        except Exception as error:
            # What the graph's operators, or the compiler, raise when they first run.
            raise Unavailable(f"torch does not run the model: {first_line(error)}") from error

    def _prepared(self, torch: Any, module: Any) -> Any:
        return module

    def run(self) -> object:
        return self._module(*self._given)

    def outputs(self) -> list[Array]:
        found = self._module(*self._given)
        values = list(found) if isinstance(found, tuple | list) else [found]
        return [np.ascontiguousarray(value.numpy()) for value in values]


class CompiledModel(Model):
    """Compiled, with weights frozen into the graph and packed."""

    compiled = True

    def _prepared(self, torch: Any, module: Any) -> Any:
        import torch._inductor.config as inductor

        inductor.freezing = True
        return torch.compile(module)
