"""Tunes all 23 distinct convolutions of ResNet-50 with bias and ReLU, one after the other, from nothing."""

from __future__ import annotations

import time
from typing import Any

from _common import bars, machine, save

import stormdrop as sd
from stormdrop.measure.pool.pool import WorkerPool

# (input channels, height, width, output channels, window, stride, padding), and how often the network has it
LAYERS = [
    ((3, 224, 224, 64, 7, 2, 3), 1),
    ((64, 56, 56, 256, 1, 1, 0), 4),
    ((64, 56, 56, 64, 1, 1, 0), 1),
    ((64, 56, 56, 64, 3, 1, 1), 3),
    ((256, 56, 56, 64, 1, 1, 0), 2),
    ((256, 56, 56, 512, 1, 2, 0), 1),
    ((256, 56, 56, 128, 1, 1, 0), 1),
    ((128, 56, 56, 128, 3, 2, 1), 1),
    ((128, 28, 28, 512, 1, 1, 0), 4),
    ((512, 28, 28, 128, 1, 1, 0), 3),
    ((128, 28, 28, 128, 3, 1, 1), 3),
    ((512, 28, 28, 1024, 1, 2, 0), 1),
    ((512, 28, 28, 256, 1, 1, 0), 1),
    ((256, 28, 28, 256, 3, 2, 1), 1),
    ((256, 14, 14, 1024, 1, 1, 0), 6),
    ((1024, 14, 14, 256, 1, 1, 0), 5),
    ((256, 14, 14, 256, 3, 1, 1), 5),
    ((1024, 14, 14, 2048, 1, 2, 0), 1),
    ((1024, 14, 14, 512, 1, 1, 0), 1),
    ((512, 14, 14, 512, 3, 2, 1), 1),
    ((512, 7, 7, 2048, 1, 1, 0), 3),
    ((2048, 7, 7, 512, 1, 1, 0), 2),
    ((512, 7, 7, 512, 3, 1, 1), 2),
]


def main() -> None:
    host = machine()
    print(f"{host['cpu']}, {host['cores']} cores, peak {host['peak_gflops']:.0f} GFLOP/s")
    begin = time.perf_counter()
    rows: list[dict[str, Any]] = []
    phases: dict[str, float] = {}
    with sd.open_store("sqlite://") as store, WorkerPool(host["cores"]) as pool:
        for (ci, h, w, co, k, stride, pad), count in LAYERS:
            workload = sd.operators.conv2d(1, h, w, ci, co, k, k, stride, pad, bias=1, act="relu")
            start = time.perf_counter()
            result = sd.tune(workload, search="droplet", fresh=True, store=store, pool=pool, started=start)
            assert result.best is not None
            document = result.to_json()
            row = {
                "name": f"{ci}->{co} {k}x{k}/{stride} {h}",
                "count": count,
                # The convolution only: bias and ReLU are part of the kernel, but are not counted.
                "flops": 2.0 * ci * co * k * k * workload.outputs[0].shape[1] * workload.outputs[0].shape[2],
                "seconds": result.best.seconds,
                "tuning_seconds": result.seconds,
                "trials": result.trials,
                "suspect": result.suspect,
                "converged": result.converged,
                "default_seconds": result.baseline,
                "config": document["best"]["config"],
            }
            rows.append(row)
            for phase, seconds in result.phases.items():
                phases[phase] = phases.get(phase, 0.0) + seconds
            rate = row["flops"] / row["seconds"] / 1e9
            default = row["flops"] / row["default_seconds"] / 1e9
            effort = f"{row['trials']} trials, {row['tuning_seconds']:.1f} s, {row['suspect']} suspect"
            speed = f"{rate:6.0f} GFLOP/s (default {default:.0f}), {1e3 * row['seconds']:.3f} ms"
            print(f"{row['name']:<22} x{count} {speed}, {effort} {row['config']}", flush=True)
    total = time.perf_counter() - begin
    flops = sum(row["count"] * row["flops"] for row in rows)
    seconds = sum(row["count"] * row["seconds"] for row in rows)
    default = sum(row["count"] * row["default_seconds"] for row in rows)
    average, share = flops / seconds / 1e9, flops / seconds / 1e9 / host["peak_gflops"]
    trials = sum(row["trials"] for row in rows)
    print(
        f"\n{average:.0f} GFLOP/s on average, {100 * share:.0f}% of peak (default schedules "
        f"{flops / default / 1e9:.0f}); {1e3 * seconds:.2f} ms for all; {total:.1f} s of tuning, {trials} trials"
    )
    print(", ".join(f"{phase} {spent:.1f} s" for phase, spent in phases.items()))
    document = {"machine": host, "gflops": average, "share": share, "seconds": total, "phases": phases, "layers": rows}
    print(save("resnet50_layers", document))
    rates = {
        "tuned": [row["flops"] / row["seconds"] / 1e9 for row in rows],
        "default schedule": [row["flops"] / row["default_seconds"] / 1e9 for row in rows],
    }
    title = f"ResNet-50's convolutions, {total:.0f} s of tuning, on {host['cpu']}"
    print(bars("resnet50_layers", title, "GFLOP/s", [row["name"] for row in rows], rates))


if __name__ == "__main__":
    main()
