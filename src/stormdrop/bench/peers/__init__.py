"""The contenders of a bench: what runs in each one's process. Peers are given their fastest reachable form.

    operators   torch           eager, channels-last where the workload is; results into place where that exists
                torch-packed    weights packed ahead by oneDNN, activation and residual fused
                onnxruntime     a graph of one operator, channels second, all graph optimisations, bound output
                openvino        the same graph, images mostly channels last, float32, latency hint, bound tensors
    models      onnxruntime     all graph optimisations, all cores
                openvino        float32, latency hint, all cores
                torch           eager, images channels-last; torch-compiled: by its inductor, weights frozen
    ours        TunedOperator, TunedModel

Each is made in the contender's process with the number of threads, and raises `Unavailable`, with the reason, where
it has no form for the operator. What is done ahead of the timing: weights laid out, inputs in the layout that the
peer likes best. No library is loaded with this package: a contender's process holds its own only.
"""

from __future__ import annotations

OPERATOR_PEERS = {
    "torch": "stormdrop.bench.peers.torch:Torch",
    "torch-packed": "stormdrop.bench.peers.torch:TorchPacked",
    "onnxruntime": "stormdrop.bench.peers.onnxruntime:Operator",
    "openvino": "stormdrop.bench.peers.openvino:Operator",
}
MODEL_PEERS = {
    "onnxruntime": "stormdrop.bench.peers.onnxruntime:Model",
    "openvino": "stormdrop.bench.peers.openvino:Model",
    "torch": "stormdrop.bench.peers.torch_models:Model",
    "torch-compiled": "stormdrop.bench.peers.torch_models:CompiledModel",
}
GROUPS = {"torch": ("torch", "torch-packed", "torch-compiled")}
"""Names that stand for several contenders."""
