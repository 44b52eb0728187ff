"""Contenders for layers of bytes: uint8 data, int8 weights, a bias in int32, ReLU, and a result in uint8.

    onnxruntime, openvino    one ONNX graph: dequantised, computed and quantised again, which both fuse into int8
    torch                    oneDNN's int8 layers with weights packed ahead, and the activation fused

onnxruntime adds up exactly: without that option, its sums saturate on x86 CPUs that have no dot products of bytes.
The scale per channel is that of the weights. Data and result have the scale 1 and the zero point 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.bench.contender import Unavailable
from stormdrop.model.artifact.onnxruntime_parts import EXACT_SUMS, ask_for_exact_sums, sums_saturate

Array = NDArray[Any]

_OPSET, _IR_VERSION = 20, 9


def quantised_graph(operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array]) -> bytes:
    """An ONNX model of a layer, with one input `x` and one output `y`. Images are channels second.

    Raises:
        Unavailable: there is no graph of this operator here.
    """
    from onnx import TensorProto, helper, numpy_helper

    x, weight, bias, scale = inputs
    if operator not in ("dense", "conv2d"):
        raise Unavailable(f"there is no quantised graph of {operator} here")
    images = operator == "conv2d"
    weight = np.ascontiguousarray(np.moveaxis(weight, -1, 1) if images else weight.T)
    zero = np.array(0, "uint8")
    constants = {"w": weight, "ws": scale, "wz": np.zeros(len(scale), "int8"), "b": bias, "bz": np.zeros_like(bias)}
    constants |= {"one": np.array(1.0, "float32"), "xz": zero}
    axis = 0 if images else 1
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=axis),
        helper.make_node("DequantizeLinear", ["b", "ws", "bz"], ["bf"], axis=0),
    ]
    if images:
        pads, strides = [arguments["pad"]] * 4, [arguments["stride"]] * 2
        nodes.append(helper.make_node("Conv", ["xf", "wf", "bf"], ["sum"], pads=pads, strides=strides))
    else:
        nodes.append(helper.make_node("Gemm", ["xf", "wf", "bf"], ["sum"]))
    nodes.append(helper.make_node("Relu", ["sum"], ["act"]))
    nodes.append(helper.make_node("QuantizeLinear", ["act", "one", "xz"], ["y"]))
    shape = np.moveaxis(x, -1, 1).shape if images else x.shape
    graph = helper.make_graph(
        nodes,
        operator,
        [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    serialised: bytes = model.SerializeToString()
    return serialised


class OnnxruntimeBytes:
    """onnxruntime with all graph optimisations and bound tensors. Images are channels second at the boundary."""

    def __init__(self, operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array], threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        ask_for_exact_sums(options)
        model = quantised_graph(operator, arguments, inputs)
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._last = operator == "conv2d"
        x = np.ascontiguousarray(np.moveaxis(inputs[0], -1, 1) if self._last else inputs[0])
        self._session, self._binding = session, session.io_binding()
        self._x = onnxruntime.OrtValue.ortvalue_from_numpy(x)
        self._y = onnxruntime.OrtValue.ortvalue_from_numpy(session.run(None, {"x": x})[0])
        self._binding.bind_ortvalue_input("x", self._x)
        self._binding.bind_ortvalue_output("y", self._y)
        self.versions: Mapping[str, str] = {"onnxruntime": onnxruntime.__version__}
        self.settings: Mapping[str, Any] = {"threads": threads, "optimisation": "all", "tensors": "bound"}
        self.settings |= {EXACT_SUMS: "1"} if sums_saturate() else {}

    def run(self) -> object:
        return self._session.run_with_iobinding(self._binding)

    def outputs(self) -> list[Array]:
        self.run()
        y = self._y.numpy()
        return [np.ascontiguousarray(np.moveaxis(y, 1, -1)) if self._last else y]


class OpenvinoBytes:
    """OpenVINO with the latency hint and bound tensors. Images are channels last at the graph's boundary."""

    def __init__(self, operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array], threads: int) -> None:
        import openvino

        core = openvino.Core()
        model = core.read_model(quantised_graph(operator, arguments, inputs))
        if operator == "conv2d":
            steps = openvino.preprocess.PrePostProcessor(model)
            for port in (steps.input(), steps.output()):
                port.tensor().set_layout(openvino.Layout("NHWC"))
                port.model().set_layout(openvino.Layout("NCHW"))
            model = steps.build()
        hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        compiled = core.compile_model(model, "CPU", hints)
        self._request = compiled.create_infer_request()
        self._input = np.ascontiguousarray(inputs[0])
        self._output = np.empty(tuple(compiled.output(0).shape), "uint8")
        self._request.set_input_tensor(openvino.Tensor(self._input, shared_memory=True))
        self._request.set_output_tensor(openvino.Tensor(self._output, shared_memory=True))
        self.versions: Mapping[str, str] = {"openvino": openvino.__version__}
        self.settings: Mapping[str, Any] = {"threads": threads, "hint": "latency", "tensors": "bound"}

    def run(self) -> object:
        return self._request.infer(share_outputs=True)

    def outputs(self) -> list[Array]:
        self.run()
        return [self._output.copy()]


class TorchBytes:
    """torch's int8 layers of oneDNN, with packed weights and a fused ReLU; images are channels last."""

    def __init__(self, operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        x, weight, bias, scale = (torch.from_numpy(array) for array in inputs)
        onednn, zeros = torch.ops.onednn, torch.zeros(len(scale), dtype=torch.int32)
        wide_bias = bias * scale  # in units of the result
        end: tuple[Any, ...] = (1.0, 0, torch.uint8, "relu", [])
        self._last = operator == "conv2d"
        if operator == "dense":
            packed = onednn.qlinear_prepack(weight, list(x.shape))
            self._call = lambda: onednn.qlinear_pointwise(x, 1.0, 0, packed, scale, zeros, wide_bias, *end, "")
        elif operator == "conv2d":
            images, kernel = x.movedim(-1, 1), weight.movedim(-1, 1).contiguous()
            at = ([arguments["stride"]] * 2, [arguments["pad"]] * 2, [1, 1], 1)
            packed = onednn.qconv_prepack(kernel, scale, 1.0, 0, *at, list(images.shape))
            self._call = lambda: onednn.qconv_pointwise(
                images, 1.0, 0, packed, scale, zeros, wide_bias, *at, *end, None
            )
        else:
            raise Unavailable(f"there is no int8 layer of {operator} here")
        self.versions: Mapping[str, str] = {"torch": torch.__version__}
        self.settings: Mapping[str, Any] = {"threads": threads, "weights": "packed ahead", "relu": "fused"}

    def run(self) -> object:
        return self._call()

    def outputs(self) -> list[Array]:
        y = self._call()
        return [np.ascontiguousarray((y.movedim(1, -1) if self._last else y).numpy())]
