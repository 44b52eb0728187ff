"""The process in which a model is deployed: it imports NumPy and one runtime, loads the model, calls it, and waits.

    python deployment_worker.py STARTED RUNTIME MODEL THREADS SECONDS OUTPUTS NAME=ARRAY.npy ...

`deployment.py` starts it. STARTED is what the monotonic clock showed then. The model is called once, and then for so
many SECONDS, at least ten times. The outputs of the first call are written into the folder OUTPUTS. The seconds of
everything are printed as JSON. Then the process waits for the end of its input, so that its memory can be looked at.
"""

from __future__ import annotations

import time

begun = time.monotonic()

import importlib  # noqa: E402  the interpreter's own start is over here
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

Call = Callable[[dict[str, Any]], list[Any]]

LEAST = 10
"""Calls after the first one, however few seconds there are."""


def main() -> None:
    started, runtime, model, threads, seconds, outputs, *inputs = sys.argv[1:]
    with_numpy = time.monotonic()
    package = importlib.import_module(runtime)
    imported = time.monotonic()
    call = LOADERS[runtime](package, model, int(threads))
    loaded = time.monotonic()
    feeds = {name: np.load(path) for name, _, path in (each.rpartition("=") for each in inputs)}
    ready = time.monotonic()
    results = call(feeds)
    answered = time.monotonic()
    for index, value in enumerate(results):
        np.save(f"{outputs}/{index}.npy", value)
    report = {
        "answer": answered - float(started),
        "python": begun - float(started),
        "numpy": with_numpy - begun,
        "import": imported - with_numpy,
        "load": loaded - imported,
        "first": answered - ready,
        "call": median_call(call, feeds, float(seconds)),
    }
    import json

    print(json.dumps(report), flush=True)
    sys.stdin.read()


def median_call(call: Call, feeds: dict[str, Any], seconds: float) -> float:
    """The median of the seconds of calls back to back."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < LEAST or time.perf_counter() < end:
        begin = time.perf_counter()
        call(feeds)
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))


def load_stormdrop(package: Any, model: str, threads: int) -> Call:
    loaded = package.load(model, threads=threads)
    return lambda feeds: list(loaded.run(feeds).values())


def load_onnxruntime(package: Any, model: str, threads: int) -> Call:
    """A session with all optimisations, or with those that an "ahead.onnx" went through before it was saved."""
    options = package.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if model.endswith("ahead.onnx"):
        options.graph_optimization_level = package.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = package.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda feeds: list(session.run(None, feeds))


def load_openvino(package: Any, model: str, threads: int) -> Call:
    """A request of a model that is compiled, or, if it is in OpenVINO's own format, comes out of a cache beside it."""
    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # by default it rounds activations where weights have 8 bits: error 1e-2
        "INFERENCE_NUM_THREADS": threads,
        **({"CACHE_DIR": f"{model}.cache"} if model.endswith(".xml") else {}),
    }
    request = package.Core().compile_model(model, "CPU", config).create_infer_request()
    return lambda feeds: list(request.infer(feeds, share_inputs=True).values())


LOADERS: dict[str, Callable[[Any, str, int], Call]] = {
    "stormdrop_runtime": load_stormdrop,
    "stormdrop.runtime": load_stormdrop,
    "stormdrop": load_stormdrop,
    "onnxruntime": load_onnxruntime,
    "openvino": load_openvino,
}
"""What loads a model, by the package that the process imports."""

if __name__ == "__main__":
    main()
