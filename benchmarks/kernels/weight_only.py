"""Tunes products with coded weights, and times them beside the peers, the peak, and the rate of reading the codes.

    weight_only.py [--layers gpt2,llama | --shapes 768x768,4096x4096] [--bits 4] [--rows 1,4,16] [--zero-points 0,1]
                   [--time 20] [--rounds 15] [--show] [--fresh]

A shape is K x N. By default they are layers of BERT, of a language model of seven thousand million parameters, and the
last layer of one; `--layers` names those of other models. Weights have 4 or 8 bits, with a scale for each 32 or 128 of
them, or for each row. The peers are torch, onnxruntime (MatMulNBits) and OpenVINO; data and sums are float32 in all of
them, but in "onnxruntime 4", which rounds data to bytes.

With one row of data, reading the weights is all that takes time. Inside a model they come from memory. So a second
kernel of ours has so many copies of its weights that no call finds them in a cache, and its share is the time of
reading as many bytes over its own, taken in turns. With many rows multiply-adds take the time, and the share is that
of the peak of float32, which sums of bytes may exceed.

Every layer is saved in benchmarks/out/weight_only.jsonl as soon as it is done, and is not done again. A layer takes
half a minute. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from _beside_peers import time_beside_peers
from _common import OUT, Campaign, add_to_import_path, campaign_parser, chosen, machine

import stormdrop as sd
from stormdrop.bench.contender import ContenderSpec
from stormdrop.cli.output import table

SHAPES = ("768x768", "768x3072", "3072x768", "4096x1024", "4096x4096", "4096x11008", "11008x4096", "4096x32000")
"""K x N. The last ones are larger than most caches."""

LAYERS = {
    "gpt2": ("768x2304", "768x768", "768x3072", "3072x768", "768x50257"),
    "llama": ("896x896", "896x128", "896x4864", "4864x896", "896x151936"),
}
"""The matrices of language models: GPT-2 small, and a decoder of 0.5 thousand million parameters like Llama."""

CODES = {4: (32, 128), 8: (32, 128, 0)}
"""The groups of each number of bits; 0 is one scale for each row."""

PEERS = {
    "torch": "_weight_only_peers:TorchCodes",
    "onnxruntime": "_weight_only_peers:OnnxruntimeCodes",
    "onnxruntime 4": "_weight_only_peers:OnnxruntimeBytes",
    "openvino": "_weight_only_peers:OpenvinoCodes",
}
_TOLERANCE = 1e-3  # float32, with sums in any order
_MANY_ROWS = 16  # of which the share is that of the peak
_BEYOND = 2  # times the bytes of all caches that the copies of the weights take


def main() -> None:
    options = _options()
    host = machine()
    campaign = Campaign(OUT / "weight_only.jsonl", host, options, document="kernels")
    add_to_import_path(Path(__file__).parent)
    layers = dict(_layers(options))
    print(f"{host['cpu']}, {host['cores']} cores, {host['peak_gflops']:.0f} GFLOP/s in float32")
    setting = {"time": options.time, "search": options.search}
    show(campaign.collect(layers, lambda name: measure(layers[name], options), setting), host)


def _layers(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, int]]]:
    """The layers by name, with the arguments of the operator."""
    for bits, rows, zeros in itertools.product(options.bits, options.rows, options.zero_points):
        for group in options.groups or CODES[bits]:
            for shape in options.shapes:
                k, n = map(int, shape.split("x"))
                if k % (group or k):
                    continue
                end = f"{bits} bits, groups of {group or k}" + ", zero points" * zeros
                sizes = {"m": rows, "n": n, "k": k}
                yield f"{rows}x{shape}, {end}", {**sizes, "bits": bits, "group": group or k, "zero_points": zeros}


def measure(arguments: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Tunes one layer and times it beside the peers, and from memory beside reading."""
    workload, cpu = sd.operators.weight_only_dense(**arguments), sd.Cpu.detect()
    result = sd.tune(workload, search=options.search, time=options.time, fresh=True)
    assert result.best is not None
    inputs = numbers(workload)
    size = sum(array.nbytes for array in inputs[1:])
    copies = 1 + _BEYOND * cpu.caches // size
    kernel = {"workload": workload, "sketch": result.best.sketch, "config": dict(result.best.config)}
    ours, reading = (f"_weight_only_peers:{name}" for name in ("FromMemory", "Reading"))
    bench = time_beside_peers(
        workload,
        result.best.sketch,
        result.best.config,
        list(PEERS),
        threads=cpu.cores,
        seconds=8.0,
        rounds=options.rounds,
        inputs=inputs,
        makers=PEERS,
        tolerance=_TOLERANCE,
        timed=[
            ContenderSpec("from memory", ours, {**kernel, "inputs": inputs, "copies": copies}),
            ContenderSpec("reading", reading, {"size": size, "copies": copies}),
        ],
    )
    flops = 2 * arguments["m"] * arguments["n"] * arguments["k"]
    found = {"sketch": result.best.sketch, "config": dict(result.best.config), "trials": result.trials}
    return {"workload": workload.name, **found, "bytes": size, "flops": flops, "bench": bench}


def numbers(workload: Any) -> list[Any]:
    """Data around 0, codes and zero points of the whole range, and scales of about the same size."""
    rng = np.random.default_rng(0)
    data, codes, *zeros, scale = workload.inputs
    return [
        rng.normal(0, 1, data.shape).astype("float32"),
        rng.integers(0, 256, codes.shape, "uint8"),
        *(rng.integers(0, 1 << workload.arguments["bits"], zero.shape, "uint8") for zero in zeros),
        rng.uniform(0.5, 1.5, scale.shape).astype("float32"),
    ]


def show(entries: Mapping[str, Any], host: Mapping[str, Any]) -> None:
    """Prints the times and shares, and the geometric mean of the ratios to the fastest peer that is right."""
    rows, ratios = [], []
    for name, entry in entries.items():
        ours, *peers = entry["bench"]["contenders"]
        right = [each for each in peers if each["agrees"]]
        row = [name, entry["sketch"], f"{ours['seconds'] * 1e6:.0f}", *_rates(entry, ours["seconds"], host)]
        fastest = min(right, key=lambda each: each["seconds"], default=None)
        row.append("")
        if fastest is not None:
            low, high = fastest["ratio_interval"]
            ratios.append(fastest["ratio"])
            row[-1] = f"{fastest['name']} {fastest['ratio']:.2f} ({low:.2f} to {high:.2f})"
        others = [
            f"{each['name']} {each['ratio']:.2f}" + f" (error {each['max_error']:.0e})" * (not each["agrees"])
            for each in peers
            if each is not fastest
        ]
        others += [f"{peer}: {reason[:40]}" for peer, reason in entry["bench"]["skipped"].items()]
        others += [f"OURS IS WRONG: {ours['max_error']:.0e}"] * (not ours["agrees"])
        rows.append([*row, ", ".join(others)])
    table(["rows x K x N", "sketch", "us", "rate", "share", "best peer, its time / ours", "others"], rows)
    if ratios:
        print(f"geometric mean of the best peer's time over ours: {statistics.geometric_mean(ratios):.2f}")


def _rates(entry: Mapping[str, Any], seconds: float, host: Mapping[str, Any]) -> tuple[str, str]:
    """A rate and its share: with few rows that of reading weights from memory, with many that of multiply-adds."""
    name = entry["name"]
    if int(name.split("x")[0]) >= _MANY_ROWS:
        rate = entry["flops"] / seconds / 1e9
        return f"{rate:.0f} GFLOP/s", f"{rate / host['peak_gflops']:.0%} of the peak"
    memory, reading = (entry["bench"]["timed"][each]["seconds"] for each in ("from memory", "reading"))
    return f"{entry['bytes'] / memory / 1e9:.1f} GB/s", f"{reading / memory:.0%} of reading"


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="K x N, separated by commas (%(default)s)")
    parser.add_argument("--layers", help=f"layers of models in the place of shapes, of {', '.join(LAYERS)}")
    parser.add_argument("--bits", default="4,8", help="bits of a weight, separated by commas (%(default)s)")
    parser.add_argument("--groups", help="weights of a group, 0 for a row; by default 32, 128 and with 8 bits 0")
    parser.add_argument("--rows", default="1", help="rows of the data, separated by commas (%(default)s)")
    parser.add_argument(
        "--zero-points", default="0", help="1 for zero points of each group; 0,1 for both (%(default)s)"
    )
    parser.add_argument("--time", type=float, default=20.0, help="seconds of tuning per layer (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds with the peers (%(default)s)")
    parser.add_argument("--search", default="storm", help="the search to tune with (%(default)s)")
    options = parser.parse_args()
    options.shapes = options.shapes.split(",")
    if options.layers is not None:
        options.shapes = [shape for model in chosen(options.layers, LAYERS, "model") for shape in LAYERS[model]]
    for name in ("bits", "rows", "zero_points", "groups"):
        given = getattr(options, name)
        setattr(options, name, [] if given is None else [int(number) for number in given.split(",")])
    if unknown := [bits for bits in options.bits if bits not in CODES]:
        sys.exit(f"--bits {unknown[0]}: must be 4 or 8")
    return options


if __name__ == "__main__":
    main()
