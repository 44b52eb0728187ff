"""The contenders of a bench. Each peer runs in the fastest form that its users can reach.

    operators   torch           eager; channels-last if the workload is; into a given output if torch can do that
                torch-packed    weights packed ahead by oneDNN, activation and residual fused
                onnxruntime     a graph of one operator, channels second, all graph optimisations, bound output
                openvino        the same graph, images mostly channels last, float32, latency hint, bound tensors
                tensorflow      a tf.function of one operator, images channels-last, weights as constants
                tensorflow-xla  the same, compiled by XLA
    models      onnxruntime     all graph optimisations, all cores; twice for models in bytes on CPUs where its sums
                                saturate: as it is, and with exact sums (onnxruntime-exact)
                openvino        float32 or bfloat16, latency hint, all cores
                torch           eager, float32 or bfloat16, images channels-last
                torch-compiled  compiled by torch's inductor, weights frozen
                litert          with XNNPACK's kernels, images channels last, all cores
    on CUDA     torch           eager, kernels of cuDNN chosen by measuring, images channels-last, in a CUDA graph
                torch-compiled  max-autotune, weights frozen, in a CUDA graph
                onnxruntime     its CUDA provider, bound memory of the GPU, in a CUDA graph if it can be captured
                tensorrt        onnxruntime's TensorRT provider, likewise
    ours        TunedOperator, OperatorOnDevice, TunedModel, ModelOnGpu

A contender is made in its own process with the number of threads. It raises `Unavailable`, with the reason, if it does
not support the operator. Before the timing, weights are packed, and inputs get the layout that is fastest for the peer.
On a GPU all compute in float32 without TF32, or torch and TensorRT in 16 bits or TF32 beside such a model. Importing
this package loads no peer's library, because a contender's process holds only its own.

torch_operators.py, torch_models.py  torch
litert.py                            LiteRT
onnxruntime.py                       onnxruntime
onnxruntime_cuda.py, torch_cuda.py   both on NVIDIA GPUs
openvino.py                          OpenVINO
tensorflow_operators.py              TensorFlow, for operators: nothing converts ONNX for its present version
graphs.py                            the ONNX graph of an operator, for the two of them
ours.py                              stormdrop
"""

from __future__ import annotations

from ...machine.contract import CPU, CUDA
from ...plugins import plugins

OPERATOR_PEERS = {
    "torch": "stormdrop.bench.peers.torch_operators:EagerOperator",
    "torch-packed": "stormdrop.bench.peers.torch_operators:PackedOperator",
    "onnxruntime": "stormdrop.bench.peers.onnxruntime:OnnxruntimeOperator",
    "openvino": "stormdrop.bench.peers.openvino:OpenvinoOperator",
    "tensorflow": "stormdrop.bench.peers.tensorflow_operators:TensorflowOperator",
    "tensorflow-xla": "stormdrop.bench.peers.tensorflow_operators:XlaOperator",
}
"""The peers of operators: the maker of each contender, by name. See `ContenderSpec.maker`."""

CUDA_OPERATOR_PEERS = {"torch": "stormdrop.bench.peers.torch_cuda:CapturedOperator"}
"""The peers of operators on NVIDIA GPUs: what makes each contender, by name."""

MODEL_PEERS = {
    "onnxruntime": "stormdrop.bench.peers.onnxruntime:OnnxruntimeModel",
    "openvino": "stormdrop.bench.peers.openvino:OpenvinoModel",
    "torch": "stormdrop.bench.peers.torch_models:EagerModel",
    "torch-compiled": "stormdrop.bench.peers.torch_models:InductorModel",
    "litert": "stormdrop.bench.peers.litert:LitertModel",
}
"""The peers of ONNX models: what makes each contender, by name."""

CUDA_PEERS = {
    "torch": "stormdrop.bench.peers.torch_cuda:CapturedModel",
    "torch-compiled": "stormdrop.bench.peers.torch_cuda:CapturedInductorModel",
    "onnxruntime": "stormdrop.bench.peers.onnxruntime_cuda:CudaModel",
    "tensorrt": "stormdrop.bench.peers.onnxruntime_cuda:TensorrtModel",
}
"""The peers of ONNX models on NVIDIA GPUs: what makes each contender, by name."""

WITHOUT_ONNX = ("jax",)
"""Libraries that are fast on GPUs, and for which nothing converts ONNX models."""

PACKAGES = {"litert": "litert_torch", "tensorrt": "onnxruntime"}
"""The package that a peer needs, if it is not named after it."""

TAKE_PRECISION = ("openvino", "torch", "torch-compiled", "tensorrt")
"""The peers of ONNX models that take `precision="bf16"`; those on GPUs also "fp16" and "tf32"."""

ONNXRUNTIME_EXACT = "onnxruntime-exact"
"""onnxruntime with exact sums of bytes. It takes part beside onnxruntime on CPUs where the sums of that saturate."""

GROUPS = {"torch": ("torch", "torch-packed", "torch-compiled"), "tensorflow": ("tensorflow", "tensorflow-xla")}
"""Names that stand for several contenders."""


def operator_peers() -> dict[str, str]:
    """`OPERATOR_PEERS`, and what plug-ins add. The latter are not loaded here: their contenders do it."""
    return {**{name: plugin.value for name, plugin in plugins("operator_peers").items()}, **OPERATOR_PEERS}


def model_peers(device: str = CPU) -> dict[str, str]:
    """The peers of models.

    Args:
        device: What executes them. On a CPU they are `MODEL_PEERS`, and what plug-ins add. The latter are not loaded
            here: their contenders do it. There are none on other devices of OpenCL.
    """
    if device != CPU:
        return dict(CUDA_PEERS) if device == CUDA else {}
    return {**{name: plugin.value for name, plugin in plugins("model_peers").items()}, **MODEL_PEERS}
