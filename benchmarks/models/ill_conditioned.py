"""Shows that a ResNet-50 with logits in the thousands is tuned, verified and saved, and that faults in it are seen.

    python benchmarks/models/ill_conditioned.py --time 60

The weights are He-normal, and the statistics of the batch norms are those of a network that was never trained (mean 0,
variance 1), so that activations grow from block to block and the softmax saturates. Then faults are put into it:

- a weight that is permuted, and a bias that is dropped, by the import
- one convolution, and the classifier, whose sums are cut to bfloat16

Records are kept in `benchmarks/out/ill_conditioned.db`, so a second run answers from there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _graphs
import numpy as np
import onnx
from onnx import numpy_helper
from tvm import tirx
from tvm.tirx import BufferStore

import stormdrop as sd
from stormdrop.errors import ModelError
from stormdrop.ir.expressions import transform_statement
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.building.fallback import schedule_fallback
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.verification.verify import Reference
from stormdrop.sketches.contract import Variant

OUT = Path(__file__).parents[1] / "out"


def untrained_resnet50() -> onnx.ModelProto:
    """The zoo's ResNet-50 with He-normal weights and the batch norms of an untrained network."""
    model = _graphs.graph("resnet50")
    rng = np.random.default_rng(0)
    norms = {
        name: place
        for node in model.graph.node
        if node.op_type == "BatchNormalization"
        for place, name in enumerate(node.input)
    }
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name in norms:
            values = np.full_like(values, 1.0 if norms[tensor.name] in (1, 4) else 0.0)
        elif values.ndim >= 2:
            values = (rng.standard_normal(values.shape) * math.sqrt(2 / math.prod(values.shape[1:]))).astype("float32")
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model


def with_weight(model: onnx.ModelProto, name: str, change: Callable[[Any], Any]) -> onnx.ModelProto:
    """A copy of a model with one weight changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (tensor,) = [tensor for tensor in copy.graph.initializer if tensor.name == name]
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(change(numpy_helper.to_array(tensor))), name))
    return copy


def import_fault(graph: Graph, model: onnx.ModelProto, name: str, change: Callable[[Any], Any]) -> str:
    """What is said if the import changed a weight."""
    wrong = dataclasses.replace(load_graph(with_weight(model, name, change)), source=graph.source)
    try:
        Reference.compute(wrong)
    except ModelError as error:
        return str(error)
    return "NOT SEEN"


def kernel_fault(graph: Graph, reference: Reference, part: str, target: Cpu) -> str:
    """What is said if the sums of a kernel are cut to bfloat16."""

    def cut(node: Any) -> Any:
        if not isinstance(node, BufferStore) or str(node.value.ty.dtype) != "float32":
            return node
        bits = tirx.reinterpret("int32", node.value) & tirx.const(-(2**16), "int32")
        return BufferStore(node.buffer, tirx.reinterpret("float32", bits), node.indices)

    task = [task for task in graph.tasks if part in task.name][-1]
    function = schedule_fallback(task.function, target.lanes).function
    variant = Variant(function.with_body(transform_statement(function.body, cut)))
    fault = reference.check(build(graph, {task.index: variant}, target)).fault
    return "NOT SEEN" if fault is None else str(fault)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", default="60s", help="how long the model is tuned")
    given = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    model, target = untrained_resnet50(), Cpu.detect()
    graph = load_graph(model)
    reference = Reference.compute(graph)
    first = reference.expected[0].tensors
    logits = max(float(np.abs(value).max()) for name, value in first.items() if name.startswith("input"))
    conv = next(
        node.input[1] for node in model.graph.node if node.op_type == "Conv" and node is not model.graph.node[0]
    )
    bias = next(node.input[2] for node in model.graph.node if node.op_type == "Gemm")
    rows = {
        "largest logit": f"{logits:.0f}",
        "reference": reference.against,
        "a permuted weight": import_fault(graph, model, conv, lambda w: w[::-1]),
        "a dropped bias": import_fault(
            dataclasses.replace(graph, source=with_weight(model, bias, lambda b: b + logits)), model, bias, lambda b: b
        ),
        "a convolution in bfloat16": kernel_fault(graph, reference, "conv2d", target),
        "the classifier in bfloat16": kernel_fault(graph, reference, "matmul", target),
    }
    with sd.open_store(str(OUT / "ill_conditioned.db")) as store:
        result = sd.tune_model(model, time=given.time, store=store, out=OUT / "ill_conditioned.sd")
    rows["tuned"] = f"verified with an error of {result.verified.max_error:.1e}, saved, {result.latency.estimate:.4f} s"
    rows["replaced"] = ", ".join(entry.task for entry in result.replaced) or "nothing"
    rows["verification"] = f"{result.phases['verify']:.1f} s of {result.seconds:.1f} s"
    for name, text in rows.items():
        print(f"{name:28s} {text}")
    (OUT / "ill_conditioned.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
