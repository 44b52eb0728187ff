"""Models on an OpenCL device: tuned, verified, saved, and run in a process of their own without TVM.

PoCL executes OpenCL on this machine's cores, so that all of it is tried where no GPU is. Its times say nothing about
GPUs. The networks are those of the papers and of their kind, small enough for it:

    python benchmarks/gpu/opencl_models.py [--models squeezenet,bert] [--time 90]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from _common import RECORDED, Campaign, campaign_parser, chosen, machine
from gpu._networks import NETWORKS, SHAPES

from stormdrop.cli.output import seconds, table
from stormdrop.errors import one_line

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
    campaign = Campaign(RECORDED / "opencl_models.jsonl", machine(), options, several=True, retries=True)
    names = chosen(options.models, NETWORKS, "model")
    show(campaign.collect(names, lambda name: tried(name, options.time), {"time": options.time}))


def tried(name: str, time: float) -> dict[str, Any]:
    """What `measure` returns; what went wrong, if it fails."""
    try:
        return measure(name, time)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        return {"failed": one_line(error)}


def measure(name: str, time: float) -> dict[str, Any]:
    """Tunes a model by the command line, and runs what it has saved."""
    with tempfile.TemporaryDirectory() as folder:
        source, artifact = Path(folder) / f"{name}.onnx", Path(folder) / f"{name}.sd"
        onnx.save(NETWORKS[name](), source)
        shapes = [f"--shape={key}={'x'.join(map(str, shape))}" for key, shape in SHAPES.get(name, {}).items()]
        how = ("--target", "opencl", "--time", f"{time:g}s", "--fresh", "--out", artifact)
        tuned = _json("tune", source, *how, *shapes)
        ran = _output([sys.executable, "-c", RUN, str(artifact)])
    kernels = tuned["tasks"]
    return {
        "target": tuned["target"],
        "trials": tuned["trials"],
        "failed_trials": tuned["failed"],
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


def show(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints what is known."""
    rows = [
        [
            name,
            str(each["kernels"]),
            str(len(each["fallbacks"])),
            f"{each['trials']} ({each['failed_trials']})",
            seconds(each["latency"]),
            seconds(each["untuned"]),
            f"{each['verified']['max_error']:.1e}",
            "no" if each["tvm"] or not each["finite"] else seconds(each["first_answer"]),
        ]
        for name, each in entries.items()
        if "failed" not in each
    ]
    headings = ["model", "kernels", "plain", "trials (failed)", "tuned", "untuned", "error", "first answer without TVM"]
    table(headings, rows)
    for name, each in entries.items():
        if "failed" in each:
            print(f"{name}: {each['failed']}")


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default=",".join(NETWORKS), help="which ones; by default all")
    parser.add_argument("--time", type=float, default=90.0, help="seconds of tuning for each")
    return parser.parse_args()


if __name__ == "__main__":
    main()
