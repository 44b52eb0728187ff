"""The resources that a tiling is predicted to take on a GPU, beside those that the compiler reports.

    static.py [--points 200] [--device a100] [--shapes M1,R2]
    static.py --defaults [--device rtx3080] [--shapes M0,M1]

For random points of the space of every shape, the blocks, threads and shared memory that
`stormdrop/sketches/gpu/tiling.py` predicts have to be equal to those of the compiled kernel. The predicted registers
are compared with those of `ptxas -v` by their rank correlation. Two shares of valid points are printed: of random
points of the space without its constraints, and of random points of TVM MetaSchedule's space for CUDA, by its own check
(`VerifyGPUCode`). It needs `nvcc` but no GPU, compiles on all cores, and takes a minute or two per shape.

`--defaults` compiles the default schedule of each shape instead, by default of all of Table 1, in a minute. The table
has registers, shared memory and the warps of a multiprocessor, each as predicted and as `ptxas` says, and spills.
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
from tvm.tirx import PrimFunc

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from _common import OUT, chosen, machine, save
from _shapes import SHAPES, TABLE_1

from stormdrop.cli.output import table
from stormdrop.codegen.cuda import cuda_source, launches, resources, resources_of
from stormdrop.errors import SpaceError, one_line
from stormdrop.machine.gpu import GPUS, REGISTERS_PER_THREAD, WARP, Gpu
from stormdrop.sketches.gpu.contraction import GpuContraction, find_fused_contraction
from stormdrop.sketches.gpu.tiling import Tilings
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Space

_NAME = "gpu_static"
_UNCONSTRAINED_POINTS = 20_000
_METASCHEDULE_POINTS = 300  # per sketch


def main() -> None:
    options = _options()
    if options.defaults:
        of_defaults(options.shapes, options.device)
        return
    rows, document = [], []
    for name in options.shapes:
        with ProcessPoolExecutor() as pool:
            points = list(pool.map(compile_point, [(name, options.device, seed) for seed in range(options.points)]))
        valid, theirs = valid_share(name, options.device), share_of_metaschedule(name, options.device)
        failed = [point["failed"] for point in points if "failed" in point]
        good = [point for point in points if "failed" not in point]
        same = {
            what: sum(point[what] == point[f"predicted_{what}"] for point in good)
            for what in ("blocks", "threads", "shared")
        }
        registers = ([point[what] for point in good] for what in ("predicted_registers", "registers"))
        rank = spearmanr(*registers).statistic
        spilled = sum(point["spilled"] > 0 for point in good)
        document.append({"shape": name, "points": points, "rank": float(rank), "valid": valid, "meta_schedule": theirs})
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
    print(draw(document, options.device))
    print(save(_NAME, {"machine": machine(), "device": options.device, "shapes": document}))
    sys.exit(any("failed" in point for entry in document for point in entry["points"]))


def of_defaults(shapes: Sequence[str], device_name: str) -> None:
    """Prints and saves what default tilings are predicted to need, beside what `ptxas` reports."""
    device, entries = GPUS[device_name], []
    for name in shapes:
        predicted = _predicted(name, device, None)
        entries.append({"shape": name, **predicted, "source": cuda_source(_function(name, device, predicted), device)})
    compiled = resources_of([entry.pop("source") for entry in entries], device)
    rows = []
    for entry, (taken,) in zip(entries, compiled, strict=True):
        threads = entry["predicted_threads"]
        entry |= {"registers": taken.registers, "shared": taken.shared, "spilled": taken.spilled}
        for kind in ("predicted_", ""):
            resident = device.blocks_per_multiprocessor(threads, entry[f"{kind}registers"], entry[f"{kind}shared"])
            entry[f"{kind}warps"] = int(resident) * -(-threads // WARP)
        pairs = [f"{entry[f'predicted_{what}']}, {entry[what]}" for what in ("registers", "shared", "warps")]
        rows.append([entry["shape"], str(entry["predicted_blocks"]), str(threads), *pairs, str(taken.spilled)])
    headings = ["", "blocks", "threads", "registers", "shared bytes", f"warps of {device.warps}", "spilled bytes"]
    table(headings, rows)
    print(save(f"{_NAME}_defaults_{device_name}", {"machine": machine(), "device": device_name, "shapes": entries}))


def draw(document: Sequence[dict[str, Any]], device: str) -> Path:
    """Draws the predicted registers beside those that `ptxas` reports."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(document), figsize=(4.6 * len(document), 4.4), squeeze=False)
    for axes, entry in zip(every[0], document, strict=True):
        good = [point for point in entry["points"] if "failed" not in point]
        predicted, actual = ([point[what] for point in good] for what in ("predicted_registers", "registers"))
        axes.scatter(predicted, actual, s=10)
        axes.plot([0, REGISTERS_PER_THREAD], [0, REGISTERS_PER_THREAD], color="gray", linewidth=0.8)
        axes.set_xlabel("registers of a thread, predicted")
        axes.set_ylabel("reported by ptxas")
        axes.set_title(f"{entry['shape']}, {device}: rank correlation {entry['rank']:.2f}")
        axes.grid(alpha=0.3)
    path = OUT / f"{_NAME}.png"
    OUT.mkdir(exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
    return path


def compile_point(job: tuple[str, str, int]) -> dict[str, Any]:
    """Predicts the resources of a random point of a shape's space, and compiles it."""
    name, device_name, seed = job
    device = GPUS[device_name]
    results = _predicted(name, device, seed)
    try:
        function = _function(name, device, results)
        (launch,) = launches(function, device)
        (taken,) = resources(cuda_source(function, device), device)
    except Exception as error:  # noqa: BLE001  this script is to find out whatever a sketch or TVM raises
        return {**results, "failed": one_line(error)}
    return {
        **results,
        "blocks": launch.blocks,
        "threads": launch.threads,
        "shared": taken.shared,
        "registers": taken.registers,
        "spilled": taken.spilled,
    }


def _predicted(name: str, device: Gpu, seed: int | None) -> dict[str, Any]:
    """The configuration of a random point, or of the default, and what it is predicted to need."""
    workload, sketch = SHAPES[name].workload(), GpuContraction(listing_1=True)
    space = sketch.space(workload, device)
    assert space is not None
    config = space.config(space.origin if seed is None else space.sample(np.random.default_rng(seed)))
    contraction = find_fused_contraction(workload).axes
    axes = [axis for axis, _ in (*contraction.spatial, *contraction.reductions)]
    tiling = Tilings(contraction, {axis: np.array([config[axis]]) for axis in axes})
    values = {
        "blocks": tiling.blocks,
        "threads": tiling.threads,
        "shared": tiling.shared_bytes,
        "registers": np.minimum(tiling.registers, device.registers_per_thread(tiling.threads)),
    }
    predicted = {f"predicted_{what}": int(value[0]) for what, value in values.items()}
    return {"config": config, **predicted}


def _function(name: str, device: Gpu, predicted: dict[str, Any]) -> PrimFunc:
    return GpuContraction(listing_1=True).apply(SHAPES[name].workload(), device, predicted["config"]).main


def valid_share(name: str, device_name: str) -> float:
    """The share of random points of the unconstrained space that keep the constraints."""
    workload, device = SHAPES[name].workload(), GPUS[device_name]
    space = GpuContraction(listing_1=True).space(workload, device)
    assert space is not None
    free = Space(space.name, space.knobs)
    rng = np.random.default_rng(0)
    return float(np.mean([space.contains(free.sample(rng)) for _ in range(_UNCONSTRAINED_POINTS)]))


def share_of_metaschedule(name: str, device_name: str) -> float:
    """The share of random points of TVM's space that its own check accepts."""
    workload, device = SHAPES[name].workload(), GPUS[device_name]
    rng = np.random.default_rng(0)
    accepted = []
    for sketch, space in sketches_for(workload, device, "meta_schedule"):
        for _ in range(_METASCHEDULE_POINTS):
            try:
                sketch.apply(workload, device, space.config(space.sample(rng)))
                accepted.append(True)
            except SpaceError:
                accepted.append(False)
    return float(np.mean(accepted))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=200, help="random points of each shape (%(default)s)")
    parser.add_argument("--device", default="a100", choices=list(GPUS), help="the GPU to compile for (%(default)s)")
    parser.add_argument("--shapes", help="shapes of the kernel benchmark (M1,R2, or Table 1 with --defaults)")
    parser.add_argument("--defaults", action="store_true", help="compile the default schedules, and nothing else")
    options = parser.parse_args()
    options.shapes = chosen(options.shapes or (",".join(TABLE_1) if options.defaults else "M1,R2"), SHAPES, "shape")
    return options


if __name__ == "__main__":
    main()
