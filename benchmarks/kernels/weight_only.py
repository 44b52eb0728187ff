"""Tunes products of one row with coded weights, and times them beside the peers and the rate of reading the codes.

    weight_only.py [--shapes 768x768,4096x4096] [--bits 4] [--rows 1] [--time 20] [--rounds 15] [--show] [--fresh]

A shape is K x N: layers of BERT, of a language model of seven thousand million parameters, and the last layer of one.
Weights have 4 or 8 bits, with a scale for each 32 or 128 of them, or for each row (8 bits). The peers are torch,
onnxruntime (MatMulNBits) and OpenVINO; data and sums are float32 in all of them.

With one row of data, reading the weights is all that takes time. So the share is the rate at which codes and scales are
read over the rate at which this machine reads arrays of that size again and again (`stormdrop doctor`).

Every layer is saved in benchmarks/out/weight_only.jsonl as soon as it is done, and is not done again. A layer takes
half a minute. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from _beside_peers import time_beside_peers
from _common import OUT, Campaign, add_to_import_path, campaign_parser, machine

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.machine.limits.memory_rates import MemoryRates, memory_rates

SHAPES = ("768x768", "768x3072", "3072x768", "4096x1024", "4096x4096", "4096x11008", "11008x4096", "4096x32000")
"""K x N. The last ones are larger than most caches."""

CODES = {4: (32, 128), 8: (128, 0)}
"""The groups of each number of bits; 0 is one scale for each row."""

PEERS = {
    "torch": "_weight_only_peers:TorchCodes",
    "onnxruntime": "_weight_only_peers:OnnxruntimeCodes",
    "openvino": "_weight_only_peers:OpenvinoCodes",
}
_TOLERANCE = 1e-3  # float32, with sums in any order


def main() -> None:
    options = _options()
    host = machine()
    rates = memory_rates(sd.Cpu.detect())
    campaign = Campaign(OUT / "weight_only.jsonl", host, options, document="kernels")
    add_to_import_path(Path(__file__).parent)
    layers = dict(_layers(options))
    print(f"{host['cpu']}, {host['cores']} cores, {rates.read[-1] / 1e9:.1f} GB/s from memory")
    setting = {"time": options.time, "search": options.search}
    show(campaign.collect(layers, lambda name: measure(layers[name], rates, options), setting))


def _layers(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, int]]]:
    """The layers by name, with the arguments of the operator."""
    for bits in options.bits:
        for group in CODES[bits]:
            for shape in options.shapes:
                k, n = map(int, shape.split("x"))
                end = f"{bits} bits, groups of {group or k}"
                yield (
                    f"{options.rows}x{shape}, {end}",
                    {"m": options.rows, "n": n, "k": k, "bits": bits, "group": group or k, "zero_points": 0},
                )


def measure(arguments: Mapping[str, Any], rates: MemoryRates, options: argparse.Namespace) -> dict[str, Any]:
    """Tunes one layer and times it beside the peers."""
    workload = sd.operators.weight_only_dense(**arguments)
    result = sd.tune(workload, search=options.search, time=options.time, fresh=True)
    assert result.best is not None
    inputs = numbers(workload)
    bench = time_beside_peers(
        workload,
        result.best.sketch,
        result.best.config,
        list(PEERS),
        threads=sd.Cpu.detect().cores,
        seconds=6.0,
        rounds=options.rounds,
        inputs=inputs,
        makers=PEERS,
        tolerance=_TOLERANCE,
    )
    size = sum(array.nbytes for array in inputs[1:])
    rate = float(np.interp(np.log(size), np.log(rates.sizes), rates.read))
    return {"workload": workload.name, "trials": result.trials, "bytes": size, "rate": rate, "bench": bench}


def numbers(workload: Any) -> list[Any]:
    """Data around 0, codes of the whole range, and scales of about the same size."""
    rng = np.random.default_rng(0)
    data, codes, scale = workload.inputs
    return [
        rng.normal(0, 1, data.shape).astype("float32"),
        rng.integers(0, 256, codes.shape, "uint8"),
        rng.uniform(0.5, 1.5, scale.shape).astype("float32"),
    ]


def show(entries: Mapping[str, Any]) -> None:
    """Prints the times and shares, and the geometric mean of the ratios to the fastest peer."""
    rows, ratios = [], []
    for name, entry in entries.items():
        ours, *peers = entry["bench"]["contenders"]
        rate = entry["bytes"] / ours["seconds"]
        row = [name, f"{ours['seconds'] * 1e6:.0f}", f"{rate / 1e9:.1f}", f"{rate / entry['rate']:.0%}"]
        fastest = min(peers, key=lambda each: each["seconds"], default=None)
        if fastest is not None:
            low, high = fastest["ratio_interval"]
            ratios.append(fastest["ratio"])
            row.append(f"{fastest['name']} {fastest['ratio']:.2f} ({low:.2f} to {high:.2f})")
        others = [f"{each['name']} {each['ratio']:.2f}" for each in peers if each is not fastest]
        others += [f"{peer}: {reason[:40]}" for peer, reason in entry["bench"]["skipped"].items()]
        others += [f"WRONG: {each['name']} {each['max_error']:.0e}" for each in (ours, *peers) if not each["agrees"]]
        rows.append([*row, *[""] * (5 - len(row)), ", ".join(others)])
    table(["K x N", "ours (us)", "GB/s", "share", "best peer, its time / ours", "others"], rows)
    if ratios:
        print(f"geometric mean of the best peer's time over ours: {statistics.geometric_mean(ratios):.2f}")


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="K x N, separated by commas (%(default)s)")
    parser.add_argument("--bits", default="4,8", help="bits of a weight, separated by commas (%(default)s)")
    parser.add_argument("--rows", type=int, default=1, help="rows of the data (%(default)s)")
    parser.add_argument("--time", type=float, default=20.0, help="seconds of tuning per layer (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds with the peers (%(default)s)")
    parser.add_argument("--search", default="storm", help="the search to tune with (%(default)s)")
    options = parser.parse_args()
    options.shapes, options.bits = options.shapes.split(","), [int(bits) for bits in options.bits.split(",")]
    if unknown := [bits for bits in options.bits if bits not in CODES]:
        sys.exit(f"--bits {unknown[0]}: must be 4 or 8")
    return options


if __name__ == "__main__":
    main()
