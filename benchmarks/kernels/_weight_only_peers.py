"""Contenders for products of float32 data with coded weights, as `stormdrop.operators.weight_only_dense` has them.

    torch            its kernel for int4 codes in groups, or for int8 codes with a scale for each row
    onnxruntime      MatMulNBits, with sums in float32
    onnxruntime 4    the same with data rounded to bytes (`accuracy_level` 4)
    openvino         a MatMul whose weights are decompressed from u4 or u8, with float32 data

onnxruntime alone takes zero points of the codes' own. For the others 8 and 128 stand for 0. Two more are no peers:

    from memory      our kernel with so many copies of its weights, in turns, that none of them is in a cache
    reading          reads as many bytes of them as the weights have, in as many turns
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.bench.contender import Unavailable
from stormdrop.bench.peers.ours import TunedOperator
from stormdrop.ir.workload import Workload

Array = NDArray[Any]

_OPSET, _IR_VERSION = 20, 9


class TorchCodes:
    """torch's products with codes, which are packed ahead."""

    def __init__(self, operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        _refuse_zero_points(arguments, "torch")
        data, codes, scale = inputs
        bits, group, k = arguments["bits"], arguments["group"], arguments["k"]
        self._x = torch.from_numpy(data)
        if bits == 4:
            wide = torch.from_numpy(_unpacked(codes).astype("int32"))
            packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(wide, 1)
            factors = torch.from_numpy(np.stack([scale.T, np.zeros_like(scale.T)], axis=-1).copy())
            self._call = lambda: torch.ops.aten._weight_int4pack_mm_for_cpu(self._x, packed, group, factors)
        elif group == k:
            signed = torch.from_numpy((codes.astype("int16") - 128).astype("int8"))
            factors = torch.from_numpy(np.ascontiguousarray(scale[:, 0]))
            self._call = lambda: torch.ops.aten._weight_int8pack_mm(self._x, signed, factors)
        else:
            raise Unavailable("torch has no kernel for 8 bits in groups")
        self.versions: Mapping[str, str] = {"torch": torch.__version__}
        self.settings: Mapping[str, Any] = {"threads": threads, "weights": "packed ahead"}

    def run(self) -> object:
        return self._call()

    def outputs(self) -> list[Array]:
        return [self._call().numpy()]


class OnnxruntimeCodes:
    """onnxruntime's MatMulNBits, with bound tensors."""

    level = 1  # of accuracy: sums in float32

    def __init__(self, operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array], threads: int) -> None:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper

        data, codes, *zeros, scale = inputs
        bits, group, (m, k) = arguments["bits"], arguments["group"], data.shape
        if group & (group - 1) or group < 16:
            raise Unavailable(f"MatMulNBits takes groups of powers of two, not of {group}")
        n, groups = scale.shape
        blocks = codes.reshape(n, groups, group * bits // 8)
        settings = {"K": k, "N": n, "bits": bits, "block_size": group, "accuracy_level": self.level}
        constants = {"b": blocks, "s": scale, **({"z": _packed(zeros[0], bits)} if zeros else {})}
        node = helper.make_node("MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft", **settings)
        graph = helper.make_graph(
            [node],
            "codes",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, data.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (m, n))],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._binding = self._session.io_binding()
        self._x = onnxruntime.OrtValue.ortvalue_from_numpy(data)
        self._y = onnxruntime.OrtValue.ortvalue_from_numpy(self._session.run(None, {"x": data})[0])
        self._binding.bind_ortvalue_input("x", self._x)
        self._binding.bind_ortvalue_output("y", self._y)
        self.versions: Mapping[str, str] = {"onnxruntime": onnxruntime.__version__}
        self.settings: Mapping[str, Any] = {"threads": threads, "accuracy_level": self.level, "tensors": "bound"}

    def run(self) -> object:
        return self._session.run_with_iobinding(self._binding)

    def outputs(self) -> list[Array]:
        self.run()
        return [self._y.numpy().copy()]


class OnnxruntimeBytes(OnnxruntimeCodes):
    """The same with data rounded to bytes in groups."""

    level = 4


class OpenvinoCodes:
    """OpenVINO's product with compressed weights, with the latency hint and bound tensors."""

    def __init__(self, operator: str, arguments: Mapping[str, Any], inputs: Sequence[Array], threads: int) -> None:
        import openvino
        from openvino import opset13 as ops

        _refuse_zero_points(arguments, "OpenVINO")
        data, codes, scale = inputs
        bits, group = arguments["bits"], arguments["group"]
        n, groups = scale.shape
        kind = openvino.Type.u4 if bits == 4 else openvino.Type.u8
        weights = ops.constant(openvino.Tensor(codes, [n, groups, group], kind))
        zero = ops.constant(np.full((1, 1, 1), 2 ** (bits - 1), "uint8"))
        centred = ops.subtract(ops.convert(weights, "f32"), ops.convert(zero, "f32"))
        scaled = ops.multiply(centred, ops.constant(scale[:, :, None]))
        matrix = ops.reshape(scaled, ops.constant(np.array([n, groups * group])), special_zero=False)
        x = ops.parameter(list(data.shape), openvino.Type.f32)
        model = openvino.Model([ops.matmul(x, matrix, transpose_a=False, transpose_b=True)], [x])
        hints = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # the data stay float32
        }
        compiled = openvino.Core().compile_model(model, "CPU", hints)
        self._request = compiled.create_infer_request()
        self._input, self._output = np.ascontiguousarray(data), np.empty((len(data), n), "float32")
        self._request.set_input_tensor(openvino.Tensor(self._input, shared_memory=True))
        self._request.set_output_tensor(openvino.Tensor(self._output, shared_memory=True))
        self.versions: Mapping[str, str] = {"openvino": openvino.__version__}
        self.settings: Mapping[str, Any] = {"threads": threads, "data": "float32", "hint": "latency"}

    def run(self) -> object:
        return self._request.infer(share_outputs=True)

    def outputs(self) -> list[Array]:
        self.run()
        return [self._output.copy()]


class FromMemory(TunedOperator):
    """Our kernel, each call of which reads other copies of the weights than the calls before it."""

    def __init__(
        self,
        workload: Workload,
        sketch: str,
        config: Mapping[str, Any],
        inputs: Sequence[Array],
        copies: int,
        threads: int,
    ) -> None:
        import tvm

        super().__init__(workload, sketch, config, inputs, threads)
        data, *weights = self._arguments[: len(inputs)]
        others = [[tvm.runtime.tensor(each.numpy()) for each in weights] for _ in range(copies - 1)]
        self._calls = [[data, *each, *self._outputs] for each in (weights, *others)]
        self._next = 0

    def run(self) -> object:
        self._next = (self._next + 1) % len(self._calls)
        return self._kernel.call(*self._calls[self._next])


class Reading:
    """Reads some bytes of an array, and other ones in each call."""

    def __init__(self, size: int, copies: int, threads: int) -> None:
        import tvm

        from stormdrop.machine.cpu import Cpu
        from stormdrop.machine.limits.measuring import compile_function
        from stormdrop.machine.limits.memory_loops import read_function

        lanes, mcpu = Cpu.detect().lanes, Cpu.detect().mcpu
        block = 8 * lanes  # what `read_function` reads at a time
        blocks = max(1, size // (4 * block * threads))
        self._read = compile_function(read_function(threads, blocks * block, lanes), mcpu, threads).jit()["main"]
        ones = np.ones((threads, blocks * block), "float32")
        self._arrays = [tvm.runtime.tensor(ones) for _ in range(copies)]
        self._sums = tvm.runtime.tensor(np.zeros((threads, block), "float32"))
        self._work = tvm.runtime.tensor(np.array([blocks, 1], "int32"))
        self._next = 0
        self.versions: Mapping[str, str] = {"tvm": tvm.__version__}
        self.settings: Mapping[str, Any] = {"threads": threads}

    def run(self) -> object:
        self._next = (self._next + 1) % len(self._arrays)
        return self._read(self._arrays[self._next], self._sums, self._work)

    def outputs(self) -> list[Array]:
        self.run()
        return [self._sums.numpy()]


def _refuse_zero_points(arguments: Mapping[str, Any], peer: str) -> None:
    if arguments["zero_points"]:
        raise Unavailable(f"{peer} is not asked to take zero points")


def _packed(zeros: Array, bits: int) -> Array:
    """Zero points as MatMulNBits takes them: two of 4 bits share a byte, and each row has bytes of its own."""
    if bits == 8:
        return zeros
    even = np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2)))
    return np.ascontiguousarray(even[:, ::2] | even[:, 1::2] << 4)


def _unpacked(codes: Array) -> Array:
    """Codes of 4 bits, one to a byte: the lower half of a byte comes first."""
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
