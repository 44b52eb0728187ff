"""Tunes layers of bytes, and times each beside int8 layers of torch, onnxruntime and OpenVINO in interleaved rounds.

    bytes.py [--shapes D512,C3] [--time 20] [--rounds 15] [--against torch,onnxruntime] [--show]

Every layer has uint8 data, int8 weights, a bias, ReLU and a requantised result. The share is that of the measured rate
of the unit for bytes (`stormdrop doctor` shows it). Every shape is saved in benchmarks/out/kernels_bytes.json as soon
as it is done. Eight shapes take five minutes. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from beside_peers import time_beside_peers
from common import add_to_import_path, earlier_entries, machine, save

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.errors import InputError
from stormdrop.machine.unit_rates import unit_rates

_NAME = "kernels_bytes"
_ONE_STEP = 1.5 / 255  # of the results, which are at most 255: floats round in another order than ours

PEERS = {
    "torch": "byte_peers:TorchBytes",
    "onnxruntime": "byte_peers:OnnxruntimeBytes",
    "openvino": "byte_peers:OpenvinoBytes",
}

_LAYER = {"bias": 1, "act": "relu", "requantize": 1, "dtype": "uint8"}
SHAPES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "D512": ("dense", {"m": 512, "n": 512, "k": 512}),
    "BERT": ("dense", {"m": 128, "n": 3072, "k": 768}),
    "HEAD": ("dense", {"m": 1, "n": 1000, "k": 2048}),
    "C3": ("conv2d", {"n": 1, "h": 56, "w": 56, "ci": 64, "co": 64, "kh": 3, "kw": 3, "pad": 1}),
    "C3S": ("conv2d", {"n": 1, "h": 28, "w": 28, "ci": 128, "co": 256, "kh": 3, "kw": 3, "stride": 2, "pad": 1}),
    "C1": ("conv2d", {"n": 1, "h": 14, "w": 14, "ci": 1024, "co": 256, "kh": 1, "kw": 1}),
    "C1W": ("conv2d", {"n": 1, "h": 56, "w": 56, "ci": 64, "co": 256, "kh": 1, "kw": 1}),
    "STEM": ("conv2d", {"n": 1, "h": 224, "w": 224, "ci": 3, "co": 64, "kh": 7, "kw": 7, "stride": 2, "pad": 3}),
}
"""By name: a layer of bytes and its sizes."""


def main() -> None:
    options = _options()
    host = machine()
    target = sd.Target.detect()
    rates = {rate.unit.name: rate.rate for rate in unit_rates(target) if rate.unit.sums == "int32" and rate.offered}
    host["bytes_gops"] = max(rates.values(), default=0.0) / 1e9
    entries = earlier_entries(_NAME, host)
    add_to_import_path(Path(__file__).parent)
    print(f"{host['cpu']}, {host['cores']} cores, {host['bytes_gops']:.0f} Gop/s of bytes, {host['versions']}")
    for name in options.shapes:
        if not options.show:
            entries[name] = measure(name, options)
            save(_NAME, {"machine": host, "kernels": entries})
    show({name: entries[name] for name in options.shapes if name in entries}, host["bytes_gops"])


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Tunes one layer and times it beside the peers."""
    operator, sizes = SHAPES[name]
    workload = getattr(sd.operators, operator)(**sizes, **_LAYER)
    result = sd.tune(workload, search=options.search, time=options.time, fresh=True)
    best = result.best
    bench = time_beside_peers(
        workload,
        best.sketch,
        best.config,
        options.against,
        threads=sd.Target.detect().cores,
        seconds=6.0,
        rounds=options.rounds,
        inputs=inputs_of(workload),
        makers=PEERS,
    )
    return {"workload": workload.name, "flops": workload.flops, "trials": result.trials, "bench": bench}


def inputs_of(workload: Any) -> list[Any]:
    """Bytes of the whole range, and scales that clip few of the results."""
    rng = np.random.default_rng(0)
    data, weights, bias, scale = workload.inputs
    steps = int(np.prod(weights.shape[1:]))
    # A sum of products of uniform bytes deviates by about this much; ReLU cuts half of the results.
    scales = rng.uniform(0.5, 1.0, scale.shape) * 128 / (np.sqrt(steps) * 147 * 74)
    return [
        rng.integers(0, 256, data.shape, "uint8"),
        rng.integers(-127, 128, weights.shape, "int8"),
        rng.integers(-1000, 1000, bias.shape).astype("int32"),
        scales.astype("float32"),
    ]


def show(entries: Mapping[str, Any], gops: float) -> None:
    """Prints the times, and the geometric mean of the ratios to the fastest peer."""
    rows, ratios = [], []
    for name, entry in entries.items():
        ours, *peers = entry["bench"]["contenders"]
        wrong = [each["name"] for each in (ours, *peers) if each["max_error"] > _ONE_STEP]
        rate = entry["flops"] / ours["seconds"] / 1e9
        share = f"{rate / gops:.0%}" if gops else "-"
        row = [name, f"{ours['seconds'] * 1e6:.0f}", f"{rate:.0f}", share]
        if peers:
            fastest = min(peers, key=lambda each: each["seconds"])
            low, high = fastest["ratio_interval"]
            ratios.append(fastest["ratio"])
            row += [fastest["name"], f"{fastest['ratio']:.2f} ({low:.2f} to {high:.2f})"]
        rows.append([*row, *[""] * (6 - len(row)), f"WRONG: {', '.join(wrong)}" if wrong else ""])
        for peer, reason in entry["bench"]["skipped"].items():
            print(f"{name}: {peer} skipped: {reason}")
    if rows:
        table(["", "ours (us)", "Gop/s", "share", "best peer", "its time / ours", ""], rows, "layers of bytes")
    if ratios:
        print(f"geometric mean of the best peer's time over ours: {statistics.geometric_mean(ratios):.2f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda text: _names(text, SHAPES), default=list(SHAPES))
    parser.add_argument("--against", type=lambda text: _names(text, PEERS), default=list(PEERS))
    parser.add_argument("--time", type=float, default=20.0, help="seconds of tuning per shape")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--search", default="storm")
    parser.add_argument("--show", action="store_true", help="print what is saved, and measure nothing")
    return parser.parse_args()


def _names(text: str, known: Mapping[str, Any]) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise InputError(f"unknown name {name!r}: use {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
