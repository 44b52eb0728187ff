"""torch on an NVIDIA GPU as a contender: captured in a CUDA graph, and timed by CUDA events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...tuning.options import FLOAT32, TF32
from ..contender import Unavailable
from .torch_models import EagerModel, InductorModel
from .torch_operators import Arguments, Call, EagerOperator

T = TypeVar("T")

_WARM_UPS = 3  # torch chooses and compiles kernels at the first calls, which it cannot do in a capture


class CapturedModel(EagerModel):
    """Eager, with the fastest kernels of cuDNN, images channels-last, with TF32 only if that is the precision."""

    def __init__(
        self, model: bytes, inputs: Mapping[str, NDArray[Any]], threads: int, precision: str = FLOAT32
    ) -> None:
        import torch

        settings = _ready(torch, precision == TF32)
        super().__init__(model, inputs, threads, precision)
        self.settings |= settings

    def _prepare(self, torch: Any, module: Any, tensors: list[Any]) -> None:
        super()._prepare(torch, module.cuda(), [tensor.cuda() for tensor in tensors])
        self._given = [tensor.cpu() for tensor in self._inputs]
        self._graph, self._results = captured(torch, lambda: self._module(*self._inputs))

    def run(self) -> object:
        for given, on_gpu in zip(self._given, self._inputs, strict=True):
            on_gpu.copy_(given)
        self._graph.replay()
        results = self._results if isinstance(self._results, tuple | list) else [self._results]
        return [result.cpu() for result in results]

    def seconds(self, executions: int) -> float:
        import torch

        return event_seconds(torch, self._graph.replay, executions)


class CapturedInductorModel(CapturedModel, InductorModel):
    """Compiled by torch's inductor, which tries its kernels, in the same graph in place of the inductor's own ones."""

    mode = "max-autotune-no-cudagraphs"


class CapturedOperator(EagerOperator):
    """An eager operator, with the fastest kernel of cuDNN, in float32 without TF32."""

    def _prepare(self, torch: Any, operator: str, arguments: Arguments, tensors: list[Any]) -> Call:
        self.settings |= _ready(torch)
        torch.set_default_device("cuda")  # also for the tensors that results are written to
        call = super()._prepare(torch, operator, arguments, [tensor.cuda() for tensor in tensors])
        self._graph, self._result = captured(torch, call)
        return call

    def seconds(self, executions: int) -> float:
        import torch

        return event_seconds(torch, self._graph.replay, executions)

    def outputs(self) -> list[NDArray[Any]]:
        self._graph.replay()
        return [np.ascontiguousarray(self._to_workload_layout(self._result).cpu().numpy())]


def _ready(torch: Any, tf32: bool = False) -> dict[str, Any]:
    """Has torch multiply as float32 or as TF32, by the fastest kernels, and returns what a contender says of that.

    Raises:
        Unavailable: torch finds no GPU.
    """
    if not torch.cuda.is_available():
        raise Unavailable("torch finds no GPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    return {"device": torch.cuda.get_device_name(), "tf32": tf32, "cuda_graph": True}


def captured(torch: Any, work: Callable[[], T]) -> tuple[Any, T]:
    """Captures work in a CUDA graph, after it has run on a stream of its own.

    Args:
        torch: The module.
        work: Launches kernels.

    Returns:
        The graph, whose `replay` launches all of them, and what the work has returned while it was captured.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()
    return graph, results


def event_seconds(torch: Any, work: Callable[[], object], number: int) -> float:
    """The mean seconds of work that is done a number of times, by CUDA events, after it was done once.

    Args:
        torch: The module.
        work: Launches kernels.
        number: How often.
    """
    work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(number):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / number
