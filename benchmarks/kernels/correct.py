"""Checks every sketch of every operator against NumPy, at random points and corners, also on awkward shapes.

    correct.py [--operators conv2d,softmax] [--types bfloat16,uint8,int8] [--points 50]
               [--sources builtin,rules,meta_schedule]

A point is right if it schedules, compiles, writes every element, and is within the sketch's bound of NumPy's float64
result. Corners are the points at which every knob has its first or its last value: 64 at most, drawn at random if the
space has more. MetaSchedule's own sampling may refuse a point; refused points are counted separately. `error` is the
largest max|difference| / max|reference|; it is infinite if an element was not written. Nothing is timed, so the machine
may be busy. It takes an hour on two cores, half of it for MetaSchedule's sketches. With `--sources` the results go into
a separate file. Layers of bfloat16 and of bytes have built-in sketches only; `--types` chooses among the types.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import chosen, machine, save

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.errors import SpaceError
from stormdrop.ir.relative_error import relative_error
from stormdrop.sketches.registry import BUILTIN, SOURCES, sketches_for
from stormdrop.testing.sketches import run

KERNELS = """
matmul m=64 n=64 k=64
matmul m=37 n=149 k=17
matmul m=1 n=1000 k=35
matmul m=100 n=7 k=12
matmul m=3 n=1500 k=17
dense m=17 n=100 k=35 bias=1 act=gelu
dense m=1 n=1000 k=64
weight_only_dense m=3 n=35 k=96 group=32 bias=1
weight_only_dense m=1 n=149 k=64 bits=8 group=64 zero_points=1
batch_matmul b=3 m=17 n=35 k=8
batch_matmul b=2 m=17 n=35 k=7 transpose_b=1
attention_scores b=2 m=17 n=35 k=8 mask=1
attention b=2 m=17 n=35 k=8 v=19 mask=1
conv1d n=1 l=35 ci=17 co=24 k=3 pad=1 bias=1 act=relu
conv2d n=1 h=17 w=17 ci=24 co=48 kh=1 kw=1 residual=1
conv2d n=1 h=14 w=14 ci=16 co=32 kh=3 kw=3 pad=1 bias=1 act=relu
conv2d n=1 h=13 w=17 ci=7 co=35 kh=3 kw=3 pad=1 bias=1
conv2d n=1 h=15 w=13 ci=3 co=27 kh=7 kw=7 stride=2 pad=3
conv2d n=2 h=9 w=11 ci=8 co=20 kh=3 kw=3 pad=2 dilation=2
conv2d n=1 h=9 w=9 ci=16 co=24 kh=3 kw=3 pad=1 groups=4
conv2d n=1 h=14 w=14 ci=16 co=32 kh=3 kw=3 pad=1 bias=1 layout=NCHW
depthwise_conv2d n=1 h=13 w=13 ci=40 kh=3 kw=3 pad=1 bias=1 act=relu6
depthwise_conv2d n=1 h=17 w=7 ci=7 kh=5 kw=5 stride=2 pad=2
pool2d n=1 h=15 w=15 c=20 kh=3 kw=3 stride=2 pad=1
pool2d n=1 h=17 w=17 c=35 kh=3 kw=3 stride=1 kind=avg
global_pool2d n=1 h=7 w=7 c=1000
reduce shape=6x35x100 axis=2
reduce shape=149x35 axis=0 kind=max
reduce shape=7x17x35 axis=0x2 kind=mean
softmax m=17 n=149
softmax m=3 n=7
layer_norm m=17 n=149
rms_norm m=7 n=1000
elementwise shape=17x149 kind=gelu
elementwise shape=4x3x2 kind=add
transpose shape=17x35 perm=1x0
transpose shape=7x17x64 perm=1x0x2
concatenate shape=7x17x35 shape2=7x17x24 axis=2
concatenate shape=17x35 shape2=7x35 axis=0
dense m=37 n=49 k=64 bias=1 act=relu residual=1 dtype=bfloat16
dense m=20 n=17 k=1 dtype=bfloat16
dense m=1 n=33 k=31 bias=1 dtype=bfloat16
dense m=70 n=1 k=33 dtype=bfloat16
dense m=65 n=65 k=65 bias=1 act=gelu dtype=bfloat16
dense m=100 n=80 k=512 bias=1 dtype=bfloat16
matmul m=33 n=48 k=65 dtype=bfloat16
batch_matmul b=3 m=17 n=35 k=33 dtype=bfloat16
batch_matmul b=2 m=17 n=35 k=34 transpose_b=1 dtype=bfloat16
conv2d n=1 h=15 w=13 ci=3 co=27 kh=7 kw=7 stride=2 pad=3 bias=1 act=relu dtype=bfloat16
conv2d n=1 h=7 w=7 ci=64 co=48 kh=3 kw=3 pad=1 bias=1 dtype=bfloat16
conv2d n=2 h=9 w=11 ci=8 co=20 kh=3 kw=3 pad=2 dilation=2 dtype=bfloat16
conv2d n=1 h=9 w=9 ci=32 co=64 kh=3 kw=3 pad=1 groups=2 dtype=bfloat16
conv2d n=1 h=17 w=17 ci=24 co=48 kh=1 kw=1 residual=1 dtype=bfloat16
conv2d n=1 h=9 w=9 ci=16 co=24 kh=3 kw=3 pad=1 layout=NCHW dtype=bfloat16
dense m=20 n=17 k=1 dtype=uint8
dense m=1 n=33 k=31 bias=1 dtype=uint8 zero_point=7
dense m=70 n=1 k=33 dtype=int8
dense m=65 n=65 k=65 bias=1 act=relu requantize=1 dtype=uint8 zero_point=128
dense m=100 n=80 k=512 dtype=int8 zero_point=-5
matmul m=33 n=48 k=65 dtype=int8
batch_matmul b=3 m=17 n=35 k=33 dtype=uint8
conv2d n=1 h=15 w=13 ci=3 co=27 kh=7 kw=7 stride=2 pad=3 dtype=uint8 zero_point=114
conv2d n=1 h=7 w=7 ci=64 co=48 kh=3 kw=3 pad=1 bias=1 act=relu requantize=1 dtype=uint8 zero_point=3
conv2d n=2 h=9 w=11 ci=8 co=20 kh=3 kw=3 pad=2 dilation=2 dtype=int8
conv2d n=1 h=9 w=9 ci=32 co=64 kh=3 kw=3 pad=1 groups=2 dtype=uint8 zero_point=9
conv2d n=1 h=14 w=14 ci=16 co=32 kh=3 kw=3 pad=1 dtype=int8 zero_point=2
""".strip().splitlines()

FLOAT32 = "float32"
TYPES = [FLOAT32, "bfloat16", "uint8", "int8"]
_CORNERS = 64
_TRIED = 1 << 14  # the most combinations of ends that are tried as corners


def main() -> None:
    options = _options()
    jobs = [
        (text, source, options.points)
        for text in options.kernels
        for source in options.sources
        if source == BUILTIN or _type(text) == FLOAT32
    ]
    with ProcessPoolExecutor() as pool:
        rows = []
        for rows_of_job in pool.map(_checked, jobs):
            rows += rows_of_job
            for row in rows_of_job:
                print(f"{row['kernel']}: {row['sketch']}: {_verdict(row)}", file=sys.stderr, flush=True)
    headings = ["operator", "source", "sketches", "points", "refused", "wrong", "error"]
    table(headings, [_summed(rows, *key) for key in dict.fromkeys((_operator(row), row["source"]) for row in rows)])
    wrong = [row for row in rows if row["wrong"]]
    print(f"{sum(row['points'] for row in rows)} points of {len(rows)} spaces, {len(wrong)} spaces with a wrong one")
    setting = {"points": options.points, "sources": options.sources}
    chosen = [*options.sources, *([] if options.types == TYPES else options.types)]
    name = "correct" if chosen == list(SOURCES) else f"correct_{'_'.join(chosen)}"
    print(save(name, {"machine": machine(), **setting, "kernels": rows}))
    sys.exit(bool(wrong))


def _checked(job: tuple[str, str, int]) -> list[dict[str, Any]]:
    """Checks one kernel with the sketches of one source; returns a row per sketch."""
    text, source, count = job
    operator, *arguments = text.split()
    workload = sd.operators.create(operator, dict(argument.split("=") for argument in arguments))
    target = sd.Cpu.detect()
    inputs = workload.random_inputs(1)
    expected = workload.reference(inputs)
    rows = []
    for sketch, space in sketches_for(workload, target, source):
        bound = workload.tolerance_of(sketch.max_error, workload.tolerance(expected))
        row: dict[str, Any] = {
            "kernel": text,
            "source": source,
            "sketch": sketch.name,
            "size": space.bound,
            "points": 0,
        }
        row.update(refused=0, wrong=[], error=0.0, bound=bound)
        for point in dict.fromkeys([space.origin, *_corners(space), *_random(space, count)]):
            config = space.config(point)
            row["points"] += 1
            try:
                variant = sketch.apply(workload, target, config)
            except SpaceError as reason:
                # By the contract no other sketch may refuse a point of its space.
                row["refused"] += 1
                if source != "meta_schedule":
                    row["wrong"].append({"config": config, "why": str(reason)})
                continue
            outputs = run(variant, workload, target, inputs)
            error = max(relative_error(ours, theirs) for ours, theirs in zip(outputs, expected, strict=True))
            row["error"] = max(row["error"], error)
            if error > bound:
                row["wrong"].append({"config": config, "why": f"error {error:.1e}"})
        rows.append(row)
    return rows


def _random(space: Any, count: int) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    return (space.sample(rng) for _ in range(count))


def _corners(space: Any) -> list[Any]:
    ends = [sorted({0, size - 1}) for knob in space.knobs for size in knob.sizes]
    rng = np.random.default_rng(0)
    if math.prod(map(len, ends)) <= _TRIED:
        every = list(itertools.product(*ends))
    else:
        every = [tuple(int(rng.choice(ends_of_size)) for ends_of_size in ends) for _ in range(_TRIED)]
    corners = [point for point in dict.fromkeys(every) if space.contains(point)]
    return [corners[index] for index in rng.permutation(len(corners))[:_CORNERS]]


def _type(text: str) -> str:
    """The type of the data of a kernel."""
    return dict(argument.split("=") for argument in text.split()[1:]).get("dtype", FLOAT32)


def _operator(row: dict[str, Any]) -> str:
    name: str = row["kernel"].split()[0]
    return name


def _summed(rows: list[dict[str, Any]], operator: str, source: str) -> list[str]:
    group = [row for row in rows if (_operator(row), row["source"]) == (operator, source)]
    names = sorted({row["sketch"].rstrip("0123456789") for row in group})
    counts = [
        sum(row["points"] for row in group),
        sum(row["refused"] for row in group),
        sum(len(row["wrong"]) for row in group),
    ]
    return [operator, source, ", ".join(names), *map(str, counts), f"{max(row['error'] for row in group):.1e}"]


def _verdict(row: dict[str, Any]) -> str:
    if row["wrong"]:
        return f"WRONG: {row['wrong'][0]['why']} at {row['wrong'][0]['config']}"
    return f"{row['points']} points, {row['refused']} refused, error {row['error']:.1e} of {row['bound']:.0e}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(text.split()[0] for text in KERNELS))
    parser.add_argument("--operators", default=",".join(names), help="operators, separated by commas (%(default)s)")
    parser.add_argument("--points", type=int, default=50, help="random points of each space (%(default)s)")
    parser.add_argument(
        "--sources", default=",".join(SOURCES), help="sources of sketches, separated by commas (%(default)s)"
    )
    parser.add_argument("--types", default=",".join(TYPES), help="types of the data, separated by commas (%(default)s)")
    options = parser.parse_args()
    options.types = chosen(options.types, TYPES, "type")
    wanted, options.sources = chosen(options.operators, names, "operator"), chosen(options.sources, SOURCES, "source")
    options.kernels = [text for text in KERNELS if text.split()[0] in wanted and _type(text) in options.types]
    return options


if __name__ == "__main__":
    main()
