"""Models that round to bytes while they run, and models of which onnxruntime runs a part: ours beside onnxruntime.

    dynamically_quantised.py [--models recogniser,embedder] [--time 60s] [--rounds 15] [--show] [--fresh]

The networks have seeded weights. onnxruntime's `quantize_dynamic` makes them what people ship:

    recogniser   convolutions of a line of text, as ConvInteger behind DynamicQuantizeLinear, and a classifier
    embedder     six layers of a transformer, as MatMulInteger behind DynamicQuantizeLinear
    fused        the embedder as onnxruntime's tools fuse it: QAttention and DynamicQuantizeMatMul
    recurrent    two bidirectional LSTMs, as DynamicQuantizeLSTM
    mixed        the embedder with an operator in its middle that only onnxruntime has
    float        the same in float32, so that the crossing from and to onnxruntime is most of the difference

Without `--time` the models are compiled with default schedules. All contenders take turns, each in a process of its
own. Every model is saved in benchmarks/out/dynamically_quantised.jsonl as soon as it is done, and is not done again
with the same `--time` unless `--fresh` asks for it.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen, machine

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.errors import StormdropError
from stormdrop.tuning.duration import seconds_of

_NAME = "dynamically_quantised"
_FOLDER = OUT / _NAME
_OWN = "com.microsoft"


class Network:
    """Collects the nodes and the seeded weights of a network whose input is `x`."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def constant(self, value: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.weights)}"))
        return self.weights[-1].name

    def normal(self, *shape: int, deviation: float) -> str:
        return self.constant(self._rng.normal(0, deviation, shape).astype("float32"))

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        node = helper.make_node(operator, inputs, [name], f"{operator}_{name}", domain=domain, **attributes)
        self.nodes.append(node)
        return name

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        product = self.add("MatMul", x, self.normal(inputs, outputs, deviation=inputs**-0.5))
        return self.add("Add", product, self.normal(outputs, deviation=0.1))

    def codes(self, inputs: int, outputs: int) -> list[str]:
        """Weights as int8, their scales and their zero point."""
        weights = self._rng.normal(0, inputs**-0.5, (inputs, outputs))
        scales = np.abs(weights).max(axis=0) / 127
        codes = np.round(weights / scales).astype("int8")
        return [self.constant(codes), self.constant(scales.astype("float32")), self.constant(np.int8(0))]

    def model(self, *shape: int) -> onnx.ModelProto:
        """The network; what its last node computes is its output `y`."""
        self.nodes[-1].output[0] = "y"
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "network", [x], [y], self.weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_OWN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def recogniser(channels: tuple[int, ...] = (16, 32, 64, 128, 192), size: tuple[int, int] = (48, 320)) -> Network:
    """Residual blocks as in readers of text: the height shrinks faster than the width, and each column is a letter."""
    net, x, before = Network(), "x", 3

    def conv(x: str, inputs: int, outputs: int, extent: int, strides: tuple[int, int] = (1, 1)) -> str:
        w = net.normal(outputs, inputs, extent, extent, deviation=(2 / (inputs * extent * extent)) ** 0.5)
        pads = [extent // 2] * 4
        return net.add("Conv", x, w, net.normal(outputs, deviation=0.1), strides=strides, pads=pads)

    for index, outputs in enumerate(channels):
        x = net.add("Relu", conv(x, before, outputs, 3, (2, 2 if index < 2 else 1)))
        y = net.add("Relu", conv(x, outputs, outputs, 3))
        x, before = net.add("Relu", net.add("Add", x, conv(y, outputs, outputs, 3))), outputs
    x = net.add("ReduceMean", x, axes=[2], keepdims=0)
    net.linear(net.add("Transpose", x, perm=[0, 2, 1]), before, 512)
    return net


def embedder(
    layers: int = 6, rows: int = 128, width: int = 384, heads: int = 12, inside: tuple[str, str] = ("", "")
) -> Network:
    """Layers of a transformer on embedded tokens. `inside` is an operator, and its domain, in their middle."""
    net, x = Network(), "x"

    def split(x: str, perm: list[int]) -> str:
        shape = net.constant(np.array([1, rows, heads, width // heads]))
        return net.add("Transpose", net.add("Reshape", x, shape), perm=perm)

    def normalised(x: str) -> str:
        scale, bias = net.constant(np.ones(width, "float32")), net.normal(width, deviation=0.1)
        return net.add("LayerNormalization", x, scale, bias, axis=-1)

    for layer in range(layers):
        query, key, value = (net.linear(x, width, width) for _ in range(3))
        scores = net.add("MatMul", split(query, [0, 2, 1, 3]), split(key, [0, 2, 3, 1]))
        scores = net.add("Mul", scores, net.constant(np.float32((width // heads) ** -0.5)))
        mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), split(value, [0, 2, 1, 3]))
        flat = net.constant(np.array([1, rows, width]))
        joined = net.add("Reshape", net.add("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
        x = normalised(net.add("Add", x, net.linear(joined, width, width)))
        hidden = net.linear(x, width, 4 * width)
        half, root = net.constant(np.float32(0.5)), net.constant(np.float32(2**0.5))
        bent = net.add("Add", net.add("Erf", net.add("Div", hidden, root)), net.constant(np.float32(1)))
        hidden = net.add("Mul", net.add("Mul", hidden, bent), half)
        x = normalised(net.add("Add", x, net.linear(hidden, 4 * width, width)))
        if inside[0] and layer == layers // 2 - 1:
            x = net.add(inside[0], x, domain=inside[1])
    net.add("ReduceMean", x, axes=[1], keepdims=0)
    return net


def fused(layers: int = 6, rows: int = 128, width: int = 384, heads: int = 12) -> Network:
    """The embedder, whose products and attention round their data to bytes in nodes of onnxruntime's own."""
    net, x = Network(), "x"

    def linear(x: str, inputs: int, outputs: int) -> str:
        bias = net.normal(outputs, deviation=0.1)
        return net.add("DynamicQuantizeMatMul", x, *net.codes(inputs, outputs), bias, domain=_OWN)

    def normalised(x: str) -> str:
        scale, bias = net.constant(np.ones(width, "float32")), net.normal(width, deviation=0.1)
        return net.add("LayerNormalization", x, scale, bias, axis=-1)

    for layer in range(layers):
        data = [f"x{layer}", f"scale{layer}", f"zero{layer}"]
        net.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], data))
        weights, scales, zero = net.codes(width, 3 * width)
        given = [weights, net.normal(3 * width, deviation=0.1), data[1], scales, "", data[2], zero]
        mixed = net.add("QAttention", data[0], *given, domain=_OWN, num_heads=heads)
        x = normalised(net.add("Add", x, linear(mixed, width, width)))
        hidden = linear(x, width, 4 * width)
        hidden = net.add("Mul", hidden, net.add("Sigmoid", hidden))
        x = normalised(net.add("Add", x, linear(hidden, 4 * width, width)))
    net.add("ReduceMean", x, axes=[1], keepdims=0)
    return net


def recurrent(length: int = 100, inputs: int = 128, hidden: int = 128) -> Network:
    """Two bidirectional LSTMs on a sequence, and a classifier of each step."""
    net, x = Network(), "x"
    for _ in range(2):
        w = net.normal(2, 4 * hidden, inputs, deviation=inputs**-0.5)
        r = net.normal(2, 4 * hidden, hidden, deviation=hidden**-0.5)
        bias = net.normal(2, 8 * hidden, deviation=0.1)
        y = net.add("LSTM", x, w, r, bias, hidden_size=hidden, direction="bidirectional")
        flat = net.constant(np.array([length, 1, 2 * hidden]))
        x, inputs = net.add("Reshape", net.add("Transpose", y, perm=[0, 2, 1, 3]), flat), 2 * hidden
    net.linear(x, inputs, 64)
    return net


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """What onnxruntime's `quantize_dynamic` makes of a model, with weights of int8, or of uint8 for convolutions."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    convolves = any(node.op_type == "Conv" for node in model.graph.node)  # its ConvInteger takes uint8 only
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "quantised.onnx"
        weights = QuantType.QUInt8 if convolves else QuantType.QInt8
        # The type of what onnx has no shapes for: the results of onnxruntime's own operators.
        default = {"DefaultTensorType": TensorProto.FLOAT}
        quantize_dynamic(model, out, weight_type=weights, extra_options=default)
        return onnx.load(out)


_GELU = ("QuickGelu", _OWN)
MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "recogniser": lambda: quantised(recogniser().model(1, 3, 48, 320)),
    "embedder": lambda: quantised(embedder().model(1, 128, 384)),
    "fused": lambda: fused().model(1, 128, 384),
    "recurrent": lambda: quantised(recurrent().model(100, 1, 128)),
    "mixed": lambda: quantised(embedder(inside=_GELU).model(1, 128, 384)),
    "float": lambda: embedder(inside=_GELU).model(1, 128, 384),
}


def main() -> None:
    options = _options()
    host = machine()
    campaign = Campaign(OUT / f"{_NAME}.jsonl", host, options, retries=True, document="models")
    print(f"{host['cpu']}, {host['cores']} cores, {host['versions']}")
    setting = {"time": options.time, "seed": options.seed}
    entries = campaign.collect(options.models, lambda name: measure(name, options), setting)
    headings = ["", "ours", "onnxruntime over ours", "error", "by onnxruntime", "status"]
    table(headings, [[name, *_row(entry)] for name, entry in entries.items()])


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Makes, compiles or tunes, and times one model; returns its entry."""
    folder = _FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source, artifact = folder / "model.onnx", folder / "model.sd"
    onnx.save(MODELS[name](), source)
    try:
        with sd.open_store(f"sqlite:///{folder / 'records.sqlite'}") as store:
            if options.time:
                tuned = sd.tune_model(source, time=options.time, seed=options.seed, out=artifact, store=store)
                model, error = tuned.model, tuned.verified.max_error
            else:
                model, error = sd.compile_model(source, out=artifact, store=store), None
            foreign = [dict(part.operators) for part in model.metadata.foreign]
            bench = sd.bench(artifact, ["onnxruntime"], rounds=options.rounds, store=store).to_json()
    except (StormdropError, OSError) as failure:
        return {"failed": str(failure)}
    return {"error": error, "foreign": foreign, "bench": bench}


def _row(entry: Mapping[str, Any]) -> list[str]:
    if "failed" in entry:
        return ["", "", "", "", entry["failed"]]
    ours, *peers = entry["bench"]["contenders"]
    versus = [
        f"{peer['ratio']:.3f} ({peer['ratio_interval'][0]:.3f} to {peer['ratio_interval'][1]:.3f})" for peer in peers
    ]
    status = [f"differs by {peer['max_error']:.0e}" for peer in peers if not peer["agrees"]]
    if entry["bench"]["disturbed"]:
        status.append(f"{entry['bench']['disturbed']} rounds disturbed")
    return [
        f"{1e3 * ours['seconds']:.3f} ms",
        ", ".join(versus),
        "" if entry["error"] is None else f"{entry['error']:.1e}",
        "; ".join(", ".join(part) for part in entry["foreign"]) or "nothing",
        "; ".join(status) or "right",
    ]


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="models, separated by commas (%(default)s)")
    parser.add_argument("--time", default="", help="the tuning of each model, such as 60s; none by default")
    parser.add_argument("--rounds", type=int, default=15, help="rounds with onnxruntime (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    options = parser.parse_args()
    options.time = options.time and seconds_of(options.time)
    options.models = chosen(options.models, MODELS, "model")
    return options


if __name__ == "__main__":
    main()
