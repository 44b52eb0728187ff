"""Checks the GPU schedules of every operator without a GPU: `nvcc` compiles them, and they run as serial loops.

    operators.py [--devices a100,h100] [--schedules 8] [--seed 0] [--space builtin]

The default schedule and some random schedules of every sketch of every operator are lowered to CUDA source, and
compiled for every device. They also run on the CPU, with serial loops for blocks and threads, and with plain loops in
place of tensor cores; there they have to compute what NumPy does. `stormdrop/codegen/serial_loops.py` says what this
does not prove. It needs `nvcc`, and takes minutes. `--space rules` checks the sketches that rules derive instead, and
writes a file of its own.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import chosen, save

from stormdrop import operators
from stormdrop.cli.output import table
from stormdrop.codegen.gpu_check import cross_check
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.registry import sketches_for

_NAME = "gpu_operators"
CASES = {
    "matmul": ("m=96 n=128 k=64", "m=64 n=64 k=64 dtype=float16"),
    "dense": ("m=8 n=64 k=96 bias=1 act=relu", "m=32 n=64 k=32 act=gelu residual=1"),
    "batch_matmul": ("b=3 m=32 n=32 k=16", "b=2 m=32 n=48 k=64 transpose_b=1 dtype=float16"),
    "attention": (
        "b=2 m=32 n=32 k=16 v=8 mask=1",
        "b=2 m=35 n=70 k=32 v=48 mask=1 dtype=float16",
        "b=3 m=1 n=200 k=64 v=64 dtype=bfloat16",
    ),
    "attention_scores": ("b=2 m=32 n=32 k=16", "b=2 m=32 n=32 k=16 mask=1"),
    "conv1d": ("n=1 l=64 ci=8 co=32 k=3 pad=1",),
    "conv2d": (
        "n=1 h=14 w=14 ci=16 co=32 kh=3 kw=3 pad=1 bias=1 act=relu",
        "n=1 h=14 w=14 ci=16 co=32 kh=3 kw=3 stride=2 pad=1 layout=NCHW residual=1",
        "n=1 h=14 w=14 ci=16 co=32 kh=3 kw=3 pad=2 dilation=2",
        "n=1 h=14 w=14 ci=16 co=32 kh=3 kw=3 pad=1 groups=4",
    ),
    "depthwise_conv2d": (
        "n=1 h=14 w=14 ci=32 kh=3 kw=3 pad=1",
        "n=1 h=14 w=14 ci=32 kh=5 kw=5 stride=2 pad=2 act=silu",
    ),
    "pool2d": ("n=1 h=16 w=16 c=32 kh=2 kw=2 stride=2", "n=1 h=16 w=16 c=32 kh=3 kw=3 pad=1 kind=avg"),
    "global_pool2d": ("n=1 h=7 w=7 c=64",),
    "reduce": ("shape=64x96 axis=1", "shape=32x8x96 axis=0x2 kind=mean"),
    "softmax": ("m=32 n=50",),
    "layer_norm": ("m=32 n=50",),
    "rms_norm": ("m=32 n=50",),
    "elementwise": ("shape=64x33 kind=sigmoid", "shape=64x33 kind=bias_add"),
    "transpose": ("shape=32x48 perm=1x0",),
    "concatenate": ("shape=32x20 shape2=32x30 axis=1",),
}


def main() -> None:
    options = _options()
    if missing := set(operators.names()) - set(CASES):
        sys.exit(f"no case for operator {', '.join(sorted(missing))}")
    rows, document, wrong = [], [], False
    for operator, cases in CASES.items():
        for arguments in cases:
            workload = operators.create(operator, dict(word.split("=") for word in arguments.split()))
            for device in (GPUS[name] for name in options.devices):
                check = cross_check(workload, device, options.schedules, options.seed, options.space)
                wrong |= not check.passed
                names = [sketch.name for sketch, _ in sketches_for(workload, device, options.space)]
                counts = {"schedules": check.schedules, "accepted": check.accepted, "right": check.right}
                for complaint, number in check.errors.items():
                    print(f"{workload.name}: {complaint} ({number} times)", file=sys.stderr)
                document.append({"workload": workload.name, "device": device.name, "sketches": names, **counts})
                rows.append([workload.name, device.arch, ", ".join(names), *map(str, counts.values())])
            print(workload.name, file=sys.stderr)
    table(["", "for", "sketches", "schedules", "compiled", "right as loops"], rows)
    name = _NAME if options.space == "builtin" else f"{_NAME}_{options.space}"
    print(save(name, {"seed": options.seed, "results": document}))
    sys.exit(wrong)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="a100,h100", help="GPUs to compile for, separated by commas (%(default)s)")
    parser.add_argument("--schedules", type=int, default=8, help="random schedules of each sketch (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the random schedules (%(default)s)")
    parser.add_argument("--space", default="builtin", choices=("builtin", "rules"), help="(%(default)s)")
    options = parser.parse_args()
    options.devices = chosen(options.devices, GPUS, "GPU")
    if shutil.which("nvcc") is None:
        sys.exit("nvcc is not on the PATH, so nothing can be compiled")
    return options


if __name__ == "__main__":
    main()
