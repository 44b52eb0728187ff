"""What a tiling is predicted to take on a GPU, beside what the compiler gives it; no GPU is needed, `nvcc` is.

    static.py [--points 200] [--device a100] [--shapes M1,R2]

For random points of the space of each shape: blocks, threads and shared memory as predicted (`kernel/gpu/tiling.py`)
beside those of the lowered and compiled kernel, which have to be equal; registers as predicted beside those of
`ptxas -v`, of which the rank correlation counts. Those that compile and keep the limits are the valid share of this
space. Beside it stand that of its tiles without constraints, which is counted, and that of TVM MetaSchedule's space for
CUDA, whose own check (`VerifyGPUCode`) is asked. Compiles on all cores; a minute or two per shape.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from common import OUT, machine, save
from shapes import SHAPES, chosen

from stormdrop.cli.output import table
from stormdrop.codegen.cuda import cuda_source, launches, resources
from stormdrop.errors import SpaceError, one_line
from stormdrop.machine.gpu import GPUS, REGISTERS_PER_THREAD
from stormdrop.sketches.gpu.contraction import GpuContraction, find_fused_contraction
from stormdrop.sketches.gpu.tiling import Tilings
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Space

_NAME = "gpu_static"
_DRAWN = 20_000  # points without constraints
_THEIRS = 300


def main() -> None:
    options = _options()
    rows, document = [], []
    for name in options.shapes:
        with ProcessPoolExecutor() as pool:
            found = list(pool.map(compiled, [(name, options.device, seed) for seed in range(options.points)]))
        valid, theirs = share(name, options.device), share_of_metaschedule(name, options.device)
        failed = [each["failed"] for each in found if "failed" in each]
        good = [each for each in found if "failed" not in each]
        same = {
            what: sum(each[what] == each[f"predicted_{what}"] for each in good)
            for what in ("blocks", "threads", "shared")
        }
        rank = spearmanr([each["predicted_registers"] for each in good], [each["registers"] for each in good]).statistic
        spilled = sum(each["spilled"] > 0 for each in good)
        document.append({"shape": name, "points": found, "rank": float(rank), "valid": valid, "meta_schedule": theirs})
        rows.append(
            [
                name,
                str(len(good)),
                str(len(failed)),
                *(f"{same[what]}" for what in ("blocks", "threads", "shared")),
                f"{rank:.3f}",
                str(spilled),
                f"{valid:.2%}",
                f"{theirs:.1%}",
            ]
        )
        for why in sorted(set(failed))[:3]:
            print(f"{name}: {why}", file=sys.stderr)
    headings = ["", "compiled", "failed", "blocks equal", "threads", "shared", "registers, rank", "spilling"]
    table([*headings, "valid without constraints", "of MetaSchedule's"], rows)
    print(drawn(document, options.device))
    print(save(_NAME, {"machine": machine(), "device": options.device, "shapes": document}))
    sys.exit(any("failed" in each for entry in document for each in entry["points"]))


def drawn(document: Sequence[dict[str, Any]], device: str) -> Path:
    """Registers as predicted beside those that `ptxas` gives."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(document), figsize=(4.6 * len(document), 4.4), squeeze=False)
    for axes, entry in zip(every[0], document, strict=True):
        good = [each for each in entry["points"] if "failed" not in each]
        predicted, given = ([each[what] for each in good] for what in ("predicted_registers", "registers"))
        axes.scatter(predicted, given, s=10)
        axes.plot([0, REGISTERS_PER_THREAD], [0, REGISTERS_PER_THREAD], color="gray", linewidth=0.8)
        axes.set_xlabel("registers of a thread, predicted")
        axes.set_ylabel("given by ptxas")
        axes.set_title(f"{entry['shape']}, {device}: rank correlation {entry['rank']:.2f}")
        axes.grid(alpha=0.3)
    path = OUT / f"{_NAME}.png"
    OUT.mkdir(exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
    return path


def compiled(job: tuple[str, str, int]) -> dict[str, Any]:
    """A random point of a shape's space: predicted, and compiled."""
    name, device_name, seed = job
    workload, device, sketch = SHAPES[name].workload(), GPUS[device_name], GpuContraction()
    space = sketch.space(workload, device)
    assert space is not None
    config = space.config(space.sample(np.random.default_rng(seed)))
    contraction = find_fused_contraction(workload).axes
    axes = [axis for axis, _ in (*contraction.spatial, *contraction.reductions)]
    tiling = Tilings(contraction, {axis: np.array([config[axis]]) for axis in axes})
    found = {"config": config}
    for what, values in (
        ("blocks", tiling.blocks),
        ("threads", tiling.threads),
        ("shared", tiling.shared_bytes),
        ("registers", np.minimum(tiling.registers, device.registers_per_thread(tiling.threads))),
    ):
        found[f"predicted_{what}"] = int(values[0])
    try:
        function = sketch.apply(workload, device, config).main
        (launch,) = launches(function, device)
        (taken,) = resources(cuda_source(function, device), device)
    except Exception as error:  # noqa: BLE001  whatever a sketch or TVM raises is what is to be found out
        return {**found, "failed": one_line(error)}
    return {
        **found,
        "blocks": launch.blocks,
        "threads": launch.threads,
        "shared": taken.shared,
        "registers": taken.registers,
        "spilled": taken.spilled,
    }


def share(name: str, device_name: str) -> float:
    """How many random points without the constraints keep them."""
    workload, device = SHAPES[name].workload(), GPUS[device_name]
    space = GpuContraction().space(workload, device)
    assert space is not None
    free = Space(space.name, space.knobs)
    rng = np.random.default_rng(0)
    return float(np.mean([space.contains(free.sample(rng)) for _ in range(_DRAWN)]))


def share_of_metaschedule(name: str, device_name: str) -> float:
    """How many random points of TVM's space its own check accepts."""
    workload, device = SHAPES[name].workload(), GPUS[device_name]
    rng = np.random.default_rng(0)
    accepted = []
    for sketch, space in sketches_for(workload, device, "meta_schedule"):
        for _ in range(_THEIRS):
            try:
                sketch.apply(workload, device, space.config(space.sample(rng)))
                accepted.append(True)
            except SpaceError:
                accepted.append(False)
    return float(np.mean(accepted))


def _options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--points", type=int, default=200, help="(%(default)s)")
    asked.add_argument("--device", default="a100", choices=list(GPUS))
    asked.add_argument("--shapes", default="M1,R2", help="of the kernel benchmark (%(default)s)")
    options = asked.parse_args()
    options.shapes = chosen(options.shapes)
    return options


if __name__ == "__main__":
    main()
