"""The contenders of a bench: what runs in each one's process. Peers are given their fastest reachable form.

    operators   torch           eager, channels-last where the workload is NHWC; results into place where that exists
                torch-packed    weights packed ahead by oneDNN, activation fused (convolution, dense)
    models      onnxruntime     all graph optimisations, all cores
                openvino        float32, latency hint, all cores
    ours        TunedOperator, TunedModel

Each is made in the contender's process with the number of threads, and raises `Unavailable`, with the reason, where
it has no form for the operator. No library is loaded with this module: a contender's process holds its own only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .contest import Unavailable

if TYPE_CHECKING:
    from .kernel.workload import Workload

Array = NDArray[Any]

OPERATOR_PEERS = {
    "torch": "stormdrop.peers:Torch",
    "torch-packed": "stormdrop.peers:TorchPacked",
}
MODEL_PEERS = {
    "onnxruntime": "stormdrop.peers:OnnxRuntime",
    "openvino": "stormdrop.peers:OpenVino",
}
GROUPS = {"torch": ("torch", "torch-packed")}
"""Names that stand for several contenders."""


class _TorchOperator:
    """Shared by both torch contenders: inputs, threads, and turning an output into the workload's layout."""

    def __init__(self, operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.versions = {"torch": torch.__version__}
        self.settings: dict[str, Any] = {"threads": threads}
        self._back: Callable[[Any], Any] = lambda output: output
        self._call = self._prepare(torch, operator, arguments, [torch.from_numpy(array) for array in inputs])

    def run(self) -> object:
        return self._call()

    def outputs(self) -> list[Array]:
        output = self._back(self._call())
        return [np.ascontiguousarray(output.numpy())]

    def _prepare(
        self, torch: Any, operator: str, arguments: Mapping[str, Any], tensors: list[Any]
    ) -> Callable[[], Any]:
        raise NotImplementedError

    def _images(self, torch: Any, arguments: Mapping[str, Any], x: Any) -> Any:
        """The input as torch wants it: logically NCHW, physically as the workload has it."""
        if arguments["layout"] == "NHWC":
            self._back = lambda output: output.permute(0, 2, 3, 1)
            self.settings["layout"] = "channels-last"
            return x.permute(0, 3, 1, 2)  # a view: channels-last in memory
        self.settings["layout"] = "NCHW"
        return x


class Torch(_TorchOperator):
    """Eager torch."""

    def _prepare(
        self, torch: Any, operator: str, arguments: Mapping[str, Any], tensors: list[Any]
    ) -> Callable[[], Any]:
        x = tensors[0]
        if operator == "matmul":
            out = torch.empty(x.shape[0], tensors[1].shape[1])
            return lambda: torch.mm(x, tensors[1], out=out)
        if operator == "batch_matmul":
            y = tensors[1].transpose(1, 2) if arguments["transpose_b"] else tensors[1]
            product = torch.empty(x.shape[0], x.shape[1], y.shape[2])
            return lambda: torch.bmm(x, y, out=product)
        if operator == "dense":
            bias = tensors[2] if arguments["bias"] else None
            linear = torch.nn.functional.linear
            return _activated(torch, arguments["act"], lambda: linear(x, tensors[1], bias))
        if operator in ("conv2d", "depthwise_conv2d"):
            images = self._images(torch, arguments, x)
            weight = _torch_weight(torch, operator, arguments, tensors[1])
            bias = tensors[2] if arguments["bias"] else None
            place = _placement(operator, arguments)
            convolve = torch.nn.functional.conv2d
            return _activated(torch, arguments["act"], lambda: convolve(images, weight, bias, *place))
        if operator == "pool2d":
            return self._pool(torch, arguments, x)
        if operator == "reduce":
            kinds = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}
            reduction, axis = kinds[arguments["kind"]], arguments["axis"]
            return lambda: reduction(x, axis)
        if operator == "softmax":
            return lambda: torch.softmax(x, 1)
        if operator == "elementwise":
            result = torch.empty_like(x)
            if arguments["kind"] == "relu":
                return lambda: torch.clamp(x, min=0, out=result)
            function = getattr(torch, arguments["kind"])
            return lambda: function(*tensors, out=result)
        raise Unavailable(f"torch has no form of {operator} here")

    def _pool(self, torch: Any, arguments: Mapping[str, Any], x: Any) -> Callable[[], Any]:
        images = self._images(torch, arguments, x)
        window, stride, pad = (arguments["kh"], arguments["kw"]), arguments["stride"], arguments["pad"]
        if 2 * pad > min(window):
            raise Unavailable("torch pads a pooling window by half its size at most")
        if arguments["kind"] == "max":
            return lambda: torch.nn.functional.max_pool2d(images, window, stride, pad)
        return lambda: torch.nn.functional.avg_pool2d(images, window, stride, pad)


class TorchPacked(_TorchOperator):
    """torch's oneDNN operators on weights that are packed ahead, with the activation fused."""

    def _prepare(
        self, torch: Any, operator: str, arguments: Mapping[str, Any], tensors: list[Any]
    ) -> Callable[[], Any]:
        if operator not in ("conv2d", "depthwise_conv2d", "dense"):
            raise Unavailable(f"{operator} has no constant weights to pack")
        if not torch.backends.mkldnn.is_available():
            raise Unavailable("this torch has no oneDNN")
        self.settings["weights"] = "packed by oneDNN"
        x, bias = tensors[0], tensors[2] if arguments["bias"] else None
        act = arguments["act"]
        ops = torch.ops.mkldnn
        if operator == "dense":
            packed = ops._reorder_linear_weight(tensors[1], x.shape[0])
            # The fused form takes no output to write into; neither does eager linear.
            return lambda: ops._linear_pointwise(x, packed, bias, act, [], "")
        images = self._images(torch, arguments, x)
        stride, pad, dilation, groups = _placement(operator, arguments)
        place = ([pad, pad], [stride, stride], [dilation, dilation], groups)
        weight = _torch_weight(torch, operator, arguments, tensors[1]).contiguous()
        packed = torch._C._nn.mkldnn_reorder_conv2d_weight(weight.to_mkldnn(), *place, list(images.shape))
        return lambda: ops._convolution_pointwise(images, packed, bias, *place, act, [], "")


def _activated(torch: Any, act: str, call: Callable[[], Any]) -> Callable[[], Any]:
    if act == "none":
        return call
    if act == "relu":
        return lambda: torch.relu_(call())
    raise Unavailable(f"no form of activation {act} here")


def _placement(operator: str, arguments: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Stride, padding, dilation, groups."""
    if operator == "depthwise_conv2d":
        return arguments["stride"], arguments["pad"], 1, arguments["ci"]
    return arguments["stride"], arguments["pad"], arguments["dilation"], arguments["groups"]


def _torch_weight(torch: Any, operator: str, arguments: Mapping[str, Any], weight: Any) -> Any:
    """[co, ci/groups, kh, kw], channels-last in memory where the workload is."""
    last = arguments["layout"] == "NHWC"
    if operator == "depthwise_conv2d":
        weight = (weight.permute(2, 0, 1) if last else weight).unsqueeze(1)
    elif last:
        weight = weight.permute(0, 3, 1, 2)
    form = torch.channels_last if last else torch.contiguous_format
    return weight.contiguous(memory_format=form)


class OnnxRuntime:
    """An ONNX model in onnxruntime."""

    def __init__(self, model: bytes, inputs: Mapping[str, Array], threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = dict(inputs)
        self.versions = {"onnxruntime": onnxruntime.__version__}
        self.settings = {"threads": threads, "optimisation": "all"}

    def run(self) -> object:
        return self._session.run(None, self._inputs)

    def outputs(self) -> list[Array]:
        return [np.asarray(output) for output in self._session.run(None, self._inputs)]


class OpenVino:
    """An ONNX model in OpenVINO, in float32."""

    def __init__(self, model: bytes, inputs: Mapping[str, Array], threads: int) -> None:
        import openvino

        core = openvino.Core()
        config = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._request = core.compile_model(core.read_model(model), "CPU", config).create_infer_request()
        self._inputs = dict(inputs)
        self.versions = {"openvino": openvino.__version__}
        self.settings = {"threads": threads, "precision": "f32", "hint": "latency"}

    def run(self) -> object:
        return self._request.infer(self._inputs, share_inputs=True)

    def outputs(self) -> list[Array]:
        return [np.array(output) for output in self._request.infer(self._inputs).values()]


class TunedOperator:
    """Our kernel of an operator: one schedule, its constants transformed ahead, compiled in this process."""

    def __init__(
        self, workload: Workload, sketch: str, config: Mapping[str, Any], inputs: Sequence[Array], threads: int
    ) -> None:
        import tvm

        from .kernel.compile import compile_kernel
        from .kernel.reference import evaluate
        from .kernel.registry import SKETCHES
        from .kernel.target import Target

        target = Target.detect()
        (found,) = [each for each in SKETCHES if each.name == sketch]
        variant = found.apply(workload, target, config)
        arrays = list(inputs)
        for index, transform in variant.transforms.items():
            arrays[index] = evaluate(transform, [arrays[index]])[0]
        self._kernel = compile_kernel(variant.main, target.tvm())
        self._outputs = [tvm.runtime.empty(spec.shape, spec.dtype) for spec in workload.outputs]
        self._arguments = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arrays] + self._outputs
        self.versions = {"tvm": tvm.__version__}
        self.settings = {"threads": threads, "sketch": sketch, "config": dict(config)}

    def run(self) -> object:
        return self._kernel.call(*self._arguments)

    def outputs(self) -> list[Array]:
        self.run()
        return [output.numpy() for output in self._outputs]


class TunedModel:
    """A saved tuned model."""

    def __init__(self, artifact: str, inputs: Mapping[str, Array], threads: int) -> None:
        from .model import load

        self._model = load(artifact)
        self._inputs = dict(inputs)
        self.versions = {"tvm": self._model.metadata.tvm, "stormdrop": self._model.metadata.stormdrop}
        self.settings = {"threads": threads}

    def run(self) -> object:
        return self._model.run(self._inputs)

    def outputs(self) -> list[Array]:
        return list(self._model.run(self._inputs).values())
