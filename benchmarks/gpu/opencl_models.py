"""Models on an OpenCL device: tuned, verified, saved, and run in a process of their own without TVM.

PoCL executes OpenCL on this machine's cores, so that all of it is tried where no GPU is. Its times say nothing about
GPUs. The networks are those of the papers and of their kind, small enough for it:

    python benchmarks/gpu/opencl_models.py [--models squeezenet,bert_2] [--time 90]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from _common import RECORDED, Campaign, campaign_parser, chosen, machine
from _graphs import _image, _of_tokens, graph, onnx_of
from _torch_modules import torchvision_models
from wild import MODELS as WILD
from wild import fetch

from stormdrop.cli.output import seconds, table
from stormdrop.model.random_weights import seed_weights

RUN = """
import json, sys, time
begin = time.perf_counter()
import numpy as np
from stormdrop import runtime
model = runtime.load(sys.argv[1])
rng = np.random.default_rng(0)
feeds = {i.name: rng.integers(0, 2, i.shape).astype(i.dtype) if "int" in i.dtype
         else rng.standard_normal(i.shape).astype(i.dtype) for i in model.inputs}
outputs = model.run(feeds)
print(json.dumps({"first_answer": time.perf_counter() - begin, "tvm": "tvm" in sys.modules,
                  "finite": bool(all(np.isfinite(v).all() for v in outputs.values() if v.dtype.kind == "f"))}))
"""


def main() -> None:
    options = _options()
    campaign = Campaign(RECORDED / "opencl_models.jsonl", machine(), options, several=True)
    names = chosen(options.models, MADE, "model")
    show(campaign.collect(names, lambda name: measure(name, options.time), {"time": options.time}))


def measure(name: str, time: float) -> dict[str, Any]:
    """Tunes a model by the command line, and runs what it has saved."""
    with tempfile.TemporaryDirectory() as folder:
        source, artifact = Path(folder) / f"{name}.onnx", Path(folder) / f"{name}.sd"
        onnx.save(MADE[name](), source)
        shapes = [f"--shape={key}={'x'.join(map(str, shape))}" for key, shape in SHAPES.get(name, {}).items()]
        how = ("--target", "opencl", "--time", f"{time:g}s", "--fresh", "--out", artifact)
        tuned = _json("tune", source, *how, *shapes)
        ran = _output([sys.executable, "-c", RUN, str(artifact)])
    kernels = tuned["tasks"]
    return {
        "target": tuned["target"],
        "trials": tuned["trials"],
        "failed": tuned["failed"],
        "seconds": tuned["seconds"],
        "latency": tuned["latency"]["seconds"],
        "untuned": tuned["untuned"] and tuned["untuned"]["seconds"],
        "verified": tuned["verified"],
        "kernels": len(kernels),
        "sketches": sorted({each["sketch"] for each in kernels if each["sketch"]}),
        "fallbacks": tuned["fallbacks"],
        **ran,
    }


def _json(*arguments: object) -> dict[str, Any]:
    return _output([sys.executable, "-m", "stormdrop", *map(str, arguments), "--json"])


def _output(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _inception_at_75() -> onnx.ModelProto:
    network = torchvision_models().inception_v3(weights=None, init_weights=False, aux_logits=False)
    return seed_weights(onnx_of(network, _image(75)), seed=0)


def _bert_2() -> onnx.ModelProto:
    torchvision_models()  # transformers imports it if it is installed
    from transformers import BertConfig, BertModel

    config = BertConfig(attn_implementation="eager", num_hidden_layers=2)
    return seed_weights(onnx_of(*_of_tokens(BertModel(config), ("last_hidden_state", "pooler_output"))), seed=0)


def _vit_2() -> onnx.ModelProto:
    small = {"patch_size": 16, "num_layers": 2, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536}
    return seed_weights(onnx_of(torchvision_models().VisionTransformer(224, **small), _image(224)), seed=0)


MADE: dict[str, Callable[[], onnx.ModelProto]] = {
    "squeezenet": lambda: graph("squeezenet"),
    "resnet18": lambda: graph("resnet18"),
    "mobilenet_v2": lambda: graph("mobilenet_v2"),
    "inception_v3_75": _inception_at_75,
    "bert_2": _bert_2,
    "vit_2": _vit_2,
    "yolov8n": lambda: onnx.load(fetch(WILD["nudenet"])),
}
"""The models: of two layers where the name says so, and Inception v3 at 75 x 75."""

SHAPES = {"yolov8n": WILD["nudenet"].shapes}
"""The shapes of inputs that a model leaves open."""


def show(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints what is known."""
    rows = [
        [
            name,
            str(each["kernels"]),
            str(len(each["fallbacks"])),
            f"{each['trials']} ({each['failed']})",
            seconds(each["latency"]),
            seconds(each["untuned"]),
            f"{each['verified']['max_error']:.1e}",
            "no" if each["tvm"] or not each["finite"] else seconds(each["first_answer"]),
        ]
        for name, each in entries.items()
        if "error" not in each
    ]
    headings = ["model", "kernels", "plain", "trials (failed)", "tuned", "untuned", "error", "first answer without TVM"]
    table(headings, rows)
    for name, each in entries.items():
        if "error" in each:
            print(f"{name}: {each['error']}")


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default=",".join(MADE), help="which ones; by default all")
    parser.add_argument("--time", type=float, default=90.0, help="seconds of tuning for each")
    return parser.parse_args()


if __name__ == "__main__":
    main()
