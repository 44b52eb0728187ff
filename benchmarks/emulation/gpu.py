"""Executes schedules for GPUs on a CPU: by PoCL, by Oclgrind, and as CUDA source on the host.

    python benchmarks/emulation/gpu.py                 every sketch of every operator: 50 points and the corners
    python benchmarks/emulation/gpu.py --points 5 --only softmax
    python benchmarks/emulation/gpu.py --sources rules the sketches that rules derive, in place of ours
    python benchmarks/emulation/gpu.py --how host      the CUDA source instead, compiled by g++ with sanitizers
    python benchmarks/emulation/gpu.py --show          only the table of what was done so far

Each execution is a line of benchmarks/out/gpu_emulation.jsonl, written when it is known: a run that is ended goes on
where it was. The table says how many points were executed, and how many were wrong, raced or left their buffers. Exit
code 1 if any did.

PoCL and Oclgrind need the extra `opencl` and the packages pocl-opencl-icd and oclgrind; the host needs g++.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, markdown

from stand_ins.cuda_on_host import SANITIZERS, execute_on_host
from stand_ins.opencl_execution import EMULATED, Execution, Job, execute
from stormdrop import operators
from stormdrop.codegen.opencl import build_opencl
from stormdrop.errors import SpaceError, one_line
from stormdrop.ir.mixed_precision import in_tf32
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.relative_error import relative_error
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS, Gpu
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Space

CASES = (
    "matmul m=24 n=32 k=16",
    "matmul m=7 n=13 k=5",
    "dense m=4 n=32 k=24 bias=1 act=relu",
    "weight_only_dense m=4 n=24 k=64 group=32 bias=1",
    "batch_matmul b=3 m=8 n=12 k=8",
    "attention_scores b=2 m=8 n=12 k=8",
    "attention b=2 m=8 n=12 k=8 v=8",
    "attention b=2 m=19 n=41 k=24 v=40",
    "conv1d n=1 l=16 ci=4 co=8 k=3 pad=1",
    "conv2d n=1 h=7 w=7 ci=8 co=16 kh=3 kw=3 pad=1 bias=1 act=relu",
    "conv2d n=2 h=13 w=9 ci=3 co=5 kh=3 kw=3 residual=1",
    "conv2d n=1 h=6 w=6 ci=8 co=8 kh=3 kw=3 pad=1 groups=2",
    "conv2d n=1 h=5 w=5 ci=12 co=24 kh=1 kw=1 groups=3 bias=1 layout=NCHW",
    "depthwise_conv2d n=1 h=7 w=7 ci=8 kh=3 kw=3 pad=1",
    "pool2d n=1 h=8 w=8 c=12 kh=3 kw=3 pad=1 kind=avg",
    "pool2d n=1 h=8 w=8 c=12 kh=2 kw=2 stride=2",
    "global_pool2d n=1 h=5 w=5 c=12",
    "dense m=1 n=20 k=72 bias=1",
    "matmul m=1 n=20 k=37",
    "reduce shape=50x24 axis=1",
    "reduce shape=6x50x5 axis=1 kind=max",
    "softmax m=6 n=50",
    "softmax m=5 n=264",
    "layer_norm m=6 n=50",
    "rms_norm m=6 n=50",
    "elementwise shape=7x33 kind=sigmoid",
    "elementwise shape=6x42 kind=sigmoid",
    "transpose shape=7x12 perm=1x0",
    "transpose shape=2x3x5x20 perm=0x3x1x2",
    "transpose shape=3x22x5 perm=2x1x0",
    "concatenate shape=5x7 shape2=5x10 axis=1",
)
"""Small cases, since Oclgrind interprets: each operator, with extents that do not divide."""

HALVES = (
    "matmul m=32 n=48 k=32 dtype=float16",
    "matmul m=24 n=40 k=72 dtype=float16",
    "matmul m=64 n=64 k=96 dtype=bfloat16",
    "matmul m=24 n=40 k=72 dtype=int8",
    "dense m=24 n=40 k=72 bias=1 act=relu dtype=uint8 requantize=1",
    "batch_matmul b=2 m=19 n=23 k=45 dtype=bfloat16",
    "batch_matmul b=2 m=35 n=34 k=66 transpose_b=1 dtype=float16",
    "conv2d n=1 h=7 w=7 ci=8 co=16 kh=3 kw=3 pad=1 bias=1 act=relu dtype=bfloat16",
    "conv2d n=2 h=9 w=9 ci=3 co=10 kh=3 kw=3 stride=2 pad=1 residual=1 dtype=bfloat16",
    "conv2d n=1 h=6 w=6 ci=32 co=48 kh=3 kw=3 pad=1 groups=2 dtype=bfloat16",
    "conv2d n=1 h=5 w=5 ci=64 co=64 kh=1 kw=1 groups=2 dtype=int8",
    "dense m=24 n=40 k=72 bias=1 dtype=uint8 zero_point=119",
    "attention b=2 m=19 n=41 k=16 v=32 dtype=float16",
    "attention b=2 m=33 n=70 k=32 v=16 dtype=bfloat16",
    "dense m=1 n=13 k=88 dtype=bfloat16",
    "dense m=1 n=13 k=96 dtype=int8",
    "matmul m=1 n=40 k=13 dtype=bfloat16",
)
"""For tensor cores, which only the CUDA source has, and of types that PoCL lacks."""

TF32 = (
    "matmul m=24 n=40 k=72",
    "batch_matmul b=2 m=35 n=34 k=66 transpose_b=1",
    "conv2d n=1 h=7 w=7 ci=8 co=16 kh=3 kw=3 pad=1 bias=1 act=relu",
)
"""The same, in TF32."""

_HOW = ("pocl", "oclgrind", "host")
_TOLERANCE = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2, "int32": 0.0, "int8": 0.0, "uint8": 0.0}
_IN_TF32 = "tf32 "  # begins the name of a case
_BATCH = 8  # executions of a process, after which they are written down


def main() -> None:
    parser = campaign_parser(__doc__)
    parser.add_argument("--points", type=int, default=50, help="random points of each space")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only cases that begin so")
    parser.add_argument("--sources", default="builtin", help="of builtin, rules (%(default)s)")
    parser.add_argument("--how", default="pocl,oclgrind", help=f"of {', '.join(_HOW)}")
    options = parser.parse_args()
    campaign = Campaign(OUT / "gpu_emulation.jsonl", options=options)
    done = {key(line): line for line in (campaign.entries if options.show else campaign.usable())}
    if not options.show:
        for how in options.how.split(","):
            if how not in _HOW:
                parser.error(f"--how {how}: it is one of {', '.join(_HOW)}")
            cases = (*CASES, *HALVES, *(f"{_IN_TF32}{case}" for case in TF32)) if how == "host" else CASES
            for case in (case for case in cases if case.startswith(options.only)):
                for line in check(case, how, options.points, options.seed, done, options.sources.split(",")):
                    done[key(line)] = campaign.keep(line)
    sys.exit(summary(done.values()))


def key(line: dict[str, Any]) -> str:
    return json.dumps([line["case"], line["sketch"], line["point"], line["how"]])


def points_of(space: Space, count: int, seed: int) -> list[tuple[int, ...]]:
    """The default, random points, and the corners: the default with one knob at its first or last value."""
    rng, corners = np.random.default_rng(seed), []
    for knob in space.knobs:
        values = list(knob)
        for coordinates in (values[0], values[-1]):
            try:
                corners.append(space.point({**space.config(space.origin), knob.name: knob.value(coordinates)}))
            except SpaceError:  # a constraint excludes it
                continue
    return list(dict.fromkeys([space.origin, *corners, *(space.sample(rng) for _ in range(count))]))


def check(
    case: str, how: str, count: int, seed: int, done: dict[str, Any], sources: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Executes what was not executed before. Yields a line for each point."""
    name, *words = case.removeprefix(_IN_TF32).split()
    work = operators.create(name, dict(word.split("=") for word in words))
    if case.startswith(_IN_TF32):
        work = Workload.create(name, in_tf32(work.graph).function(), work.constants)
    inputs = work.random_inputs(seed)
    expected = evaluate_graph(work.graph, inputs)
    device: Gpu = GPUS["a100"] if how == "host" else EMULATED
    for sketch, space in (found for source in sources for found in sketches_for(work, device, source)):
        lines = [
            {"case": case, "sketch": sketch.name, "point": list(point), "how": how}
            for point in points_of(space, count, seed)
        ]
        lines = [line for line in lines if key(line) not in done]
        for start in range(0, len(lines), _BATCH):
            yield from executed(work, sketch, space, device, how, lines[start : start + _BATCH], inputs, expected)


def executed(
    work: Workload,
    sketch: Any,
    space: Space,
    device: Gpu,
    how: str,
    lines: Sequence[dict[str, Any]],
    inputs: Sequence[Any],
    expected: Sequence[Any],
) -> Iterator[dict[str, Any]]:
    jobs, scheduled = [], []
    shapes = [(spec.shape, spec.dtype) for spec in work.outputs]
    for line in lines:
        try:
            variant = sketch.apply(work, device, space.config(tuple(line["point"])))
            arrays = variant.arguments(inputs)
            if how == "host":
                yield verdict(line, execute_on_host(variant.main, device, arrays, SANITIZERS), expected)
                continue
            jobs.append(Job(build_opencl(variant.main, device.tvm()), arrays, shapes))
            scheduled.append(line)
        except Exception as error:  # noqa: BLE001  whatever is raised is what the check is to find
            yield {**line, "failed": one_line(error)}
    for line, execution in zip(scheduled, execute(jobs, how == "oclgrind"), strict=True):
        yield verdict(line, [execution], expected)


def verdict(line: dict[str, Any], executions: Sequence[Execution], expected: Sequence[Any]) -> dict[str, Any]:
    """The line with what went wrong: `failed`, `wrong`, and `complaints`."""
    failed = next((execution.error for execution in executions if execution.error), "")
    wrong = any(
        relative_error(output, wanted) > _TOLERANCE[str(output.dtype)]
        for execution in executions
        for output, wanted in zip(execution.outputs, expected, strict=False)
    )
    complaints = sorted({complaint for execution in executions for complaint in execution.complaints})
    return {**line, "failed": failed, "wrong": wrong, "complaints": complaints}


def summary(lines: Any) -> int:
    """Prints a table. Returns 1 if anything went wrong, or if nothing was executed."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    bad = []
    for line in lines:
        count = counts[line["how"], line["sketch"]]
        complaints = " ".join(line.get("complaints", []))
        count["points"] += 1
        for word, found in (
            ("failed", bool(line.get("failed"))),
            ("wrong", bool(line.get("wrong"))),
            ("races", "race" in complaints),
            ("out of bounds", "Invalid" in complaints or "overflow" in complaints),
            ("barriers", "divergence" in complaints or "fault" in complaints),
        ):
            count[word] += found
        if line.get("failed") or line.get("wrong") or complaints:
            bad.append(line)
    columns = ("points", "failed", "wrong", "races", "out of bounds", "barriers")
    rows = [[*names, *(str(count[column]) for column in columns)] for names, count in sorted(counts.items())]
    print(markdown(["how", "sketch", *columns], rows))
    for line in bad[:20]:
        print(json.dumps(line))
    return 1 if bad or not counts else 0


if __name__ == "__main__":
    main()
