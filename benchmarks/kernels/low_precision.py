"""Tunes layers in bfloat16 or in bytes, and times each beside layers of the peers in the same type, in turns.

    low_precision.py --type bfloat16 [--shapes M0,Y3] [--time 20] [--rounds 15] [--against torch,openvino] [--show]
                     [--fresh]

The layers are the 30 of Table 1 and the 20 of networks (`_shapes.py`), as far as they multiply matrices or slide a
window over all channels.

    bfloat16    data, weights and results in bfloat16, a bias in float32. Peers: torch, eager and with weights that
                oneDNN has packed; OpenVINO, with bfloat16 at both ends.
    uint8       uint8 data, int8 weights, a bias, ReLU and a requantised result in uint8. A product of two matrices has
                constant weights on the right. Peers: torch's int8 layers, onnxruntime and OpenVINO.

The share is that of the measured rate of the unit (`stormdrop doctor` shows it). Every shape is saved in
benchmarks/out/kernels_TYPE.jsonl as soon as it is done, and is not done again. A shape takes half a minute. Run it on
an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from _beside_peers import time_beside_peers
from _common import OUT, Campaign, add_to_import_path, campaign_parser, chosen, machine
from _shapes import MICRO, SHAPES, SKINNY, Shape

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.errors import InputError
from stormdrop.machine.limits.unit_rates import unit_rates

_PRODUCTS = ("matmul", "dense", "batch_matmul", "conv2d")
_CLOSE = 0.95  # the least ratio that counts as no slower than the peer


@dataclass(frozen=True)
class Kind:
    """A type that layers are computed in.

    Args:
        workload: the layer of a shape; None if there is none in this type.
        inputs: inputs of a layer.
        peers: what makes each peer, by name.
        error: the largest error of a right result.
        sums: the type in which the unit adds up.
    """

    workload: Callable[[Shape], Any | None]
    inputs: Callable[[Any], list[Any]]
    peers: Mapping[str, str]
    error: float
    sums: str


def main() -> None:
    options = _options()
    kind = KINDS[options.type]
    host = machine()
    target = sd.Cpu.detect()
    rates = {rate.unit.name: rate.rate for rate in unit_rates(target) if rate.offered and rate.unit.sums == kind.sums}
    host["gops"] = max(rates.values(), default=0.0) / 1e9
    campaign = Campaign(OUT / f"kernels_{options.type}.jsonl", host, options, document="kernels")
    add_to_import_path(Path(__file__).parent)
    print(f"{host['cpu']}, {host['cores']} cores, {host['gops']:.0f} G operations/s of {options.type}")
    workloads = {shape: kind.workload(SHAPES[shape]) for shape in options.shapes}
    setting = {"time": options.time, "search": options.search, "against": options.against}
    entries = campaign.collect(
        (shape for shape, workload in workloads.items() if workload is not None),
        lambda shape: measure(workloads[shape], kind, options),
        setting,
    )
    show(entries, kind, host["gops"])


def measure(workload: Any, kind: Kind, options: argparse.Namespace) -> dict[str, Any]:
    """Tunes one layer and times it beside the peers."""
    result = sd.tune(workload, search=options.search, time=options.time, fresh=True)
    best = result.best
    assert best is not None
    bench = time_beside_peers(
        workload,
        best.sketch,
        best.config,
        [name for name in options.against or kind.peers if name in kind.peers],
        threads=sd.Cpu.detect().cores,
        seconds=6.0,
        rounds=options.rounds,
        inputs=kind.inputs(workload),
        makers=kind.peers,
        tolerance=kind.error,
    )
    return {"workload": workload.name, "flops": workload.flops, "trials": result.trials, "bench": bench}


def show(entries: Mapping[str, Any], kind: Kind, gops: float) -> None:
    """Prints the times, and the geometric mean of the ratios to the fastest peer."""
    rows, ratios = [], dict[str, float]()
    for name, entry in entries.items():
        ours, *peers = entry["bench"]["contenders"]
        wrong = [each["name"] for each in (ours, *peers) if each["max_error"] > kind.error]
        rate = entry["flops"] / ours["seconds"] / 1e9
        share = f"{rate / gops:.0%}" if gops else "-"
        row = [name, f"{ours['seconds'] * 1e6:.0f}", f"{rate:.0f}", share]
        if peers:
            fastest = min(peers, key=lambda each: each["seconds"])
            low, high = fastest["ratio_interval"]
            ratios[name] = fastest["ratio"]
            row += [fastest["name"], f"{fastest['ratio']:.2f} ({low:.2f} to {high:.2f})"]
        rows.append([*row, *[""] * (6 - len(row)), f"WRONG: {', '.join(wrong)}" if wrong else ""])
        for peer, reason in entry["bench"]["skipped"].items():
            print(f"{name}: {peer} skipped: {reason}")
    if rows:
        table(["", "ours (us)", "G op/s", "share", "best peer", "its time / ours", ""], rows)
    if ratios:
        print(f"geometric mean of the best peer's time over ours: {statistics.geometric_mean(ratios.values()):.2f}")
        slower = [name for name, ratio in ratios.items() if ratio < _CLOSE]
        print(f"below {_CLOSE}: {', '.join(slower) or 'none'}")


def in_bfloat16(shape: Shape) -> Any | None:
    """The layer of a shape in bfloat16."""
    if shape.operator not in _PRODUCTS:
        return None
    return getattr(sd.operators, shape.operator)(**shape.arguments, dtype="bfloat16")


def in_bytes(shape: Shape) -> Any | None:
    """The layer of a shape in bytes, with a bias and ReLU."""
    if shape.operator not in _PRODUCTS or shape.operator == "batch_matmul":
        return None
    operator = "dense" if shape.operator == "matmul" else shape.operator
    end = {"bias": 1, "act": "relu", "requantize": 1, "dtype": "uint8"}
    return getattr(sd.operators, operator)(**{**shape.arguments, **end})


def numbers(workload: Any) -> list[Any]:
    """Numbers around 0, so that sums of many products stay small."""
    rng = np.random.default_rng(0)
    return [rng.normal(0, 0.5, spec.shape).astype(spec.dtype) for spec in workload.inputs]


def whole_bytes(workload: Any) -> list[Any]:
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


KINDS = {
    "bfloat16": Kind(
        in_bfloat16,
        numbers,
        {
            "torch": "_bfloat16_peers:EagerBfloat16",
            "torch-packed": "_bfloat16_peers:PackedBfloat16",
            "openvino": "_bfloat16_peers:OpenvinoBfloat16",
        },
        2**-7,  # a step of bfloat16; peers round in another order
        "float32",
    ),
    "uint8": Kind(
        in_bytes,
        whole_bytes,
        {
            "torch": "_byte_peers:TorchBytes",
            "onnxruntime": "_byte_peers:OnnxruntimeBytes",
            "openvino": "_byte_peers:OpenvinoBytes",
        },
        1.5 / 255,  # a step of the results, which are at most 255
        "int32",
    ),
}
"""What layers are computed in, by the name of the type of their data."""


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--type", choices=list(KINDS), required=True)
    every = [name for name, shape in SHAPES.items() if shape.origin not in (MICRO, SKINNY)]
    parser.add_argument("--shapes", type=partial(chosen, among=SHAPES, what="shape"), default=every)
    parser.add_argument("--against", type=_peers, default=[])
    parser.add_argument("--time", type=float, default=20.0, help="seconds of tuning per shape")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--search", default="storm")
    return parser.parse_args()


def _peers(text: str) -> list[str]:
    known = {name for kind in KINDS.values() for name in kind.peers}
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise InputError(f"unknown name {name!r}: use {', '.join(sorted(known))}")
    return names


if __name__ == "__main__":
    main()
