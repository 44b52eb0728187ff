"""Quantises models to bytes by onnxruntime's quantiser, tunes each, and times it beside onnxruntime and OpenVINO.

    quantized.py [--models resnet50,nudenet] [--time 150] [--rounds 15] [--show] [--fresh]

Three have seeded weights (`_graphs.py`), three are trained models out of packages (`wild.py`): a YOLOv8n, and the text
detection and recognition of PP-OCR. `stormdrop.model.quantize` calls `quantize_static` with scales per channel, on
random samples. What the accuracy on real data would be, it does not tell; how close a quantised model is to its float32
form on these samples stands in the table. All contenders read the same file, and run it with their own optimisations.
On a CPU without dot products of bytes, onnxruntime takes part twice: with its default, whose sums saturate, and with
exact sums ("onnxruntime-exact"). The best peer is the fastest of those with right sums: of "onnxruntime-exact" and of
peers whose outputs agree with ours.

Each model is one line of benchmarks/recorded/quantized_models.jsonl as soon as it is done, and is not done again on the
same CPU with the same budget unless `--fresh` asks for it. `--show` prints what is kept as Markdown. Six models take
half an hour with 150 s of tuning each. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import wild

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, RECORDED, Campaign, campaign_parser, chosen, machine, markdown
from _graphs import graph

import stormdrop as sd
from stormdrop.bench.peers import ONNXRUNTIME_EXACT
from stormdrop.errors import StormdropError
from stormdrop.model.importer.any_model import import_model
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.onnx.index_ranges import index_ranges
from stormdrop.model.quantize import quantize_model
from stormdrop.tuning.duration import seconds_of

PEERS = ("onnxruntime", "openvino")
SAMPLES = 8
_FOLDER = OUT / "quantized"


@dataclass(frozen=True)
class Source:
    """A model before it is quantised.

    Attributes:
        made: Makes the model.
        shapes: The sizes that it leaves open.
    """

    made: Callable[[], onnx.ModelProto]
    shapes: Mapping[str, tuple[int, ...]]


def _seeded(name: str) -> Source:
    return Source(lambda: graph(name), {})


def _trained(name: str) -> Source:
    model = wild.MODELS[name]
    return Source(lambda: onnx.load(wild.fetch(model)), model.shapes)


MODELS = {name: _seeded(name) for name in ("resnet50", "mobilenet_v2", "bert_base")}
MODELS |= {name: _trained(name) for name in ("nudenet", "ocr-detection", "ocr-recognition")}


def main() -> None:
    options = _options()
    host = machine()
    campaign = Campaign(RECORDED / "quantized_models.jsonl", host, options, several=True)
    setting = {"time": options.time, "cpu": host["cpu"]}
    entries = campaign.collect(options.models, lambda name: measure(name, options), setting, key="model")
    print(table(list(entries.values())))


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Quantises, tunes and times one model; returns its figures, or what went wrong as "failed"."""
    folder = _FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source, quantized, artifact = folder / "model.onnx", folder / "model.int8.onnx", folder / "model.sd"
    shapes = MODELS[name].shapes
    try:
        onnx.save(MODELS[name].made(), source)
        made = quantize_model(source, samples(source, shapes, options.seed), quantized, per_channel=True)
        with sd.open_store(f"sqlite:///{folder / 'records.sqlite'}") as store:
            tuned = sd.tune_model(
                quantized, time=options.time, seed=options.seed, shapes=shapes, out=artifact, store=store, fresh=True
            ).to_json()
            bench = sd.bench(artifact, options.against, rounds=options.rounds, store=store).to_json()
    except (StormdropError, OSError, subprocess.CalledProcessError) as error:
        return {"failed": str(error)}
    del bench["what"]  # a path of this machine
    for contender in bench["contenders"]:
        del contender["samples"]
    return {
        "layers": made.layers,
        "quantized": made.quantized,
        "error": made.error,
        "agreement": made.agreement,
        "tuning": tuned["seconds"],
        "trials": tuned["trials"],
        "plain": tuned["fallbacks"],
        "elsewhere": [part["operators"] for part in tuned["foreign"]],
        "verified": tuned["verified"],
        "bench": bench,
    }


def samples(source: Path, shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Random samples of all inputs of a model, one after the other along the first axis."""
    ranges = index_ranges(onnx.load(source))
    inputs = import_model(source, shapes).inputs
    feeds = [random_feeds(inputs, seed + index, ranges) for index in range(SAMPLES)]
    return {info.name: np.concatenate([each[info.name] for each in feeds]) for info in inputs}


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """The entries as a table in Markdown: a row per model."""
    headings = ["model", "CPU", "layers in bytes", "error, top-1", "tuning", "latency", "best peer over ours", "others"]
    return markdown(headings, map(_row, entries))


def _row(entry: Mapping[str, Any]) -> list[str]:
    if "failed" in entry:
        return [entry["model"], entry["cpu"], "failed: " + entry["failed"].replace("|", "/")[:160], *[""] * 5]
    ours, *peers = entry["bench"]["contenders"]
    right = [peer for peer in peers if peer["agrees"] or peer["name"] == ONNXRUNTIME_EXACT]
    best = min(right or peers, key=lambda peer: peer["ratio"], default=None)
    others = [f"{peer['name']} {peer['ratio']:.2f}" for peer in peers if peer is not best]
    others += [f"{peer['name']} differs by {peer['max_error']:.0e}" for peer in peers if not peer["agrees"]]
    others += [f"{peer} does not run it" for peer in entry["bench"]["skipped"]]
    others += [f"onnxruntime runs {', '.join(part)}" for part in entry["elsewhere"]]
    if entry["bench"]["disturbed"]:
        others.append(f"{entry['bench']['disturbed']} rounds disturbed")
    agreement = "" if entry["agreement"] is None else f", {entry['agreement']:.0%}"
    versus = "no peer"
    if best is not None:
        low, high = best["ratio_interval"]
        versus = f"{best['name']} {best['ratio']:.3f} ({low:.3f} to {high:.3f})"
    return [
        entry["model"],
        entry["cpu"],
        f"{entry['quantized']} of {entry['layers']}",
        "not known" if entry["error"] is None else f"{entry['error']:.1e}{agreement}",
        f"{entry['tuning']:.0f} s, {entry['trials']} trials",
        f"{1e3 * ours['seconds']:.2f} ms",
        versus,
        ", ".join(others),
    ]


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="models, separated by commas (%(default)s)")
    parser.add_argument("--time", default="150", help="the tuning of each model, such as 150s (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds with the peers (%(default)s)")
    parser.add_argument("--against", default=",".join(PEERS), help="peers, separated by commas (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    options = parser.parse_args()
    options.time = seconds_of(options.time)
    options.models = chosen(options.models, MODELS, "model")
    options.against = options.against.split(",")
    return options


if __name__ == "__main__":
    main()
