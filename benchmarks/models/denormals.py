"""A network whose activations underflow: latency with and without denormals, beside the other runtimes.

    python benchmarks/models/denormals.py

The weights of its first convolutions are scaled down, so that their activations leave the range of normal numbers.
Those of the others are He-normal, so that the activations stay where they are, at 1e-40. A second branch reads the
input, so that the output depends on it. All weights are seeded.

onnxruntime computes with denormals by default, and flushes them with `session.set_denormal_as_zero`. OpenVINO flushes
them by default. All contenders take turns.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import stormdrop as sd
from stormdrop.ir.relative_error import relative_error
from stormdrop.model.inputs.samples import random_feeds

sys.path.insert(0, str(Path(__file__).parents[1]))
from _common import OUT, machine, save

CHANNELS, SIZE, CLASSES = 64, 28, 10
SHRINKING, STAYING = 4, 8  # convolutions
SCALE = 1e-10  # of the weights of each shrinking one

Call = Callable[[], tuple[float, Any]]
"""Runs the network once. Returns the wall seconds and the output."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", default="40s", help="how long the model is tuned; the second one reuses the records")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    model, calls = underflowing(), dict[str, Call]()
    for name, keep in (("stormdrop", False), ("stormdrop, denormals kept", True)):
        with sd.open_store(str(OUT / "denormals.db")) as store:
            tuned = sd.tune_model(model, time=given.time, store=store, keep_denormals=keep)
        print(f"{name}: verified with an error of {tuned.verified.max_error:.1e}", flush=True)
        feeds = random_feeds(tuned.model.inputs, 0)
        calls[name] = partial(timed, partial(output, tuned.model, feeds))
    calls |= onnxruntime_calls(model, feeds)
    calls |= openvino_calls(model, feeds)
    _, right = calls["stormdrop, denormals kept"]()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(given.rounds):
        for name in list(calls) if turn % 2 else list(calls)[::-1]:
            calls[name]()
            seconds[name].append(calls[name]()[0])
    rows = {
        name: {
            "seconds": statistics.median(samples),
            "fastest": min(samples),
            "error": relative_error(np.asarray(calls[name]()[1]), right),
        }
        for name, samples in seconds.items()
    }
    for name, row in rows.items():
        median, fastest = 1e3 * row["seconds"], 1e3 * row["fastest"]
        print(f"{name:36}median {median:8.2f} ms   fastest {fastest:8.2f} ms   error {row['error']:.1e}")
    print(save("denormals", {"machine": machine(), "contenders": rows}))


def underflowing() -> onnx.ModelProto:
    """The network: x -> convolutions -> mean -> dense, plus x -> mean -> dense."""
    rng, nodes, weights = np.random.default_rng(0), [], []

    def weight(name: str, *shape: int, scale: float = 1.0) -> str:
        values = rng.standard_normal(shape) * scale * math.sqrt(2 / math.prod(shape[1:]))
        weights.append(numpy_helper.from_array(values.astype("float32"), name))
        return name

    value = "x"
    for index in range(SHRINKING + STAYING):
        scale = SCALE if index < SHRINKING else 1.0
        name = weight(f"w{index}", CHANNELS, CHANNELS, 3, 3, scale=scale)
        nodes.append(helper.make_node("Conv", [value, name], [f"c{index}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"]))
        value = f"r{index}"
    for branch, source in (("deep", value), ("shallow", "x")):
        nodes.append(helper.make_node("GlobalAveragePool", [source], [f"{branch}_mean"]))
        nodes.append(helper.make_node("Flatten", [f"{branch}_mean"], [f"{branch}_flat"]))
        dense = weight(f"{branch}_w", CLASSES, CHANNELS)
        nodes.append(helper.make_node("Gemm", [f"{branch}_flat", dense], [f"{branch}_out"], transB=1))
    nodes.append(helper.make_node("Add", ["deep_out", "shallow_out"], ["y"]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, CHANNELS, SIZE, SIZE])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])]
    graph = helper.make_graph(nodes, "underflowing", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def output(model: sd.CompiledModel, feeds: dict[str, Any]) -> Any:
    return model.run(feeds)["y"]


def onnxruntime_calls(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Call]:
    """With and without denormals, each in a process of its own: only a process's first session sets the mode."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return {}
    calls: dict[str, Call] = {}
    for name, flush in (("onnxruntime", "0"), ("onnxruntime, denormals as zero", "1")):
        arguments = (model.SerializeToString(), feeds, flush, sd.Cpu.detect().cores)
        pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=open_session, initargs=arguments)
        calls[name] = partial(answer, pool)
    return calls


def answer(pool: ProcessPoolExecutor) -> tuple[float, Any]:
    return pool.submit(run_session).result()


_run: Callable[[], Any]
"""What a process runs, once `open_session` has made it."""


def open_session(model: bytes, feeds: dict[str, Any], flush: str, cores: int) -> None:
    import onnxruntime

    global _run
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    options.add_session_config_entry("session.set_denormal_as_zero", flush)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    _run = lambda: session.run(None, feeds)[0]  # noqa: E731


def run_session() -> tuple[float, Any]:
    return timed(_run)


def openvino_calls(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Call]:
    try:
        import openvino
    except ImportError:
        return {}
    path = OUT / "denormals.onnx"
    onnx.save(model, path)
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return {"openvino": lambda: timed(lambda: compiled(feeds)[0])}


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    output = call()
    return time.perf_counter() - begin, output


if __name__ == "__main__":
    main()
