"""How fast a model is after how much tuning, beside TVM MetaSchedule.

    curve.py [--model resnet50] [--budgets 20,40,60,90,150,300] [--theirs 1800] [--resume] [--show]

We tune the model from nothing for each of the budgets, with everything in them; MetaSchedule tunes the kernels of the
same graph for half an hour, its task scheduler sharing the time out (benchmarks/metaschedule_peer.py says how it is
run). Its final model is ours with its kernels. All of these models, onnxruntime and OpenVINO then take turns.

MetaSchedule's curve on the way is what its own measurements of kernels sum up to, from where on it has one for each
kernel, scaled by how its final model compares with that sum.

Kept in benchmarks/out/models_curve.json, with a PNG. An hour. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

import metaschedule_peer
from common import OUT, kept, machine, save
from graphs import NAMES, graph
from race import artifacts, race

import stormdrop as sd
from stormdrop.bench.contender import ContenderSpec
from stormdrop.bench.peers import MODEL_PEERS
from stormdrop.cli.output import table
from stormdrop.errors import UnsupportedFunction
from stormdrop.machine import threads
from stormdrop.model.verify import random_feeds, verify
from stormdrop.report.style import COLOURS
from stormdrop.report.style import save as save_figure

_NAME = "models_curve"
_KEPT = OUT / _NAME
THEIRS = "metaschedule"
PEERS = ("onnxruntime", "openvino")


def main() -> None:
    options = _options()
    where = machine()
    entries = kept(_NAME, where, "models")
    if not (options.resume or options.show):
        entries.pop(options.model, None)
    entry = entries.setdefault(options.model, {"ours": {}})
    folder = _KEPT / options.model
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "model.onnx"

    def keep() -> None:
        save(_NAME, {"machine": where, "models": entries})

    if not options.show:
        onnx.save(graph(options.model), source)
        for budget in options.budgets:
            if f"{budget:g}" not in entry["ours"]:
                print(f"{budget:g} s", file=sys.stderr, flush=True)
                entry["ours"][f"{budget:g}"] = tuned(source, folder / f"{budget:g}", budget, options.seed)
                keep()
        if THEIRS not in entry:
            print(THEIRS, file=sys.stderr, flush=True)
            entry[THEIRS] = theirs(source, folder / THEIRS, options.theirs, options.seed)
            keep()
        feeds = random_feeds(sd.load(folder / THEIRS).inputs, options.seed)
        given = {"model": source.read_bytes(), "inputs": feeds}
        players = artifacts(folder, [*entry["ours"], THEIRS], feeds)
        players += [ContenderSpec(name, MODEL_PEERS[name], given) for name in PEERS]
        entry["race"] = race(players, PEERS[0], options.rounds)
        keep()
    show(entry)
    print(draw(options.model, entry))


def tuned(source: Path, artifact: Path, budget: float, seed: int) -> dict[str, Any]:
    """What a tuning of so many seconds took; its artifact stays."""
    shutil.rmtree(artifact, ignore_errors=True)
    with sd.open_store("sqlite://") as store:
        found = sd.tune_model(source, time=budget, seed=seed, store=store, fresh=True, out=artifact)
    if found.interrupted:
        sys.exit(130)
    return {"seconds": found.seconds, "trials": found.trials, "error": found.verified.max_error}


def theirs(source: Path, artifact: Path, seconds: float, seed: int) -> dict[str, Any]:
    """What MetaSchedule found in so much time; a model of its kernels stays."""
    threads.configure()
    from stormdrop.ir.workload import Workload
    from stormdrop.model.compile import build
    from stormdrop.model.importer.graph import load_graph
    from stormdrop.sketches.meta_schedule import replay, tunable

    target, loaded = sd.Target.detect(), load_graph(source)
    workloads = {}
    for task in loaded.tasks:
        try:
            workloads[task.index] = Workload.create(task.name, task.function, task.constants)
        except UnsupportedFunction as reason:
            print(f"{task.name}: a plain schedule: {reason}", file=sys.stderr)
    weights = {index: loaded.tasks[index].weight for index in workloads}
    found = metaschedule_peer.tune(
        [tunable(each) for each in workloads.values()], list(weights.values()), target, seed, seconds=seconds
    )
    functions = dict(zip(workloads, found.functions, strict=True))
    variants = {index: replay(workloads[index], each.trace) for index, each in functions.items() if each.trace}
    model = build(loaded, variants, target, provenance={"source": str(source.resolve())})
    checked = verify(model, loaded.source, seed)
    shutil.rmtree(artifact, ignore_errors=True)
    model.save(artifact)
    return {
        "seconds": found.seconds,
        "trials": found.measured,
        "failed": found.failed,
        "tasks": len(functions),
        "without": [loaded.tasks[index].name for index, each in functions.items() if each.trace is None],
        "error": checked.max_error,
        "curve": summed([(weights[index], each.curve) for index, each in functions.items() if each.curve]),
    }


def summed(curves: Sequence[tuple[float, Sequence[tuple[float, float]]]]) -> list[tuple[float, float]]:
    """(seconds of tuning, weighted sum of the best of each), from where on each has one."""
    points = sorted(at for _, curve in curves for at, _ in curve)
    begin = max(curve[0][0] for _, curve in curves)
    found = []
    for at in dict.fromkeys(point for point in points if point >= begin):
        total = sum(weight * [best for when, best in curve if when <= at][-1] for weight, curve in curves)
        found.append((at, total))
    return found


def show(entry: Mapping[str, Any]) -> None:
    """Prints a row per model."""
    efforts = {**entry["ours"], THEIRS: entry[THEIRS]}
    rows = []
    for name, found in entry["race"].items():
        if name == "disturbed":
            continue
        low, high = found["speed_interval"]
        effort = efforts.get(name)
        rows.append(
            [
                f"ours, {name} s" if name in entry["ours"] else name,
                f"{1e3 * found['seconds']:.2f} ms",
                f"{found['speed']:.3f} ({low:.3f} to {high:.3f})",
                f"{effort['seconds']:.0f} s, {effort['trials']} trials" if effort else "",
                f"{effort['error']:.0e}" if effort else "",
            ]
        )
    table(["", "model", f"speed over {PEERS[0]}'s", "tuning", "error"], rows)
    if entry["race"]["disturbed"]:
        print(f"{entry['race']['disturbed']} rounds disturbed")


def draw(model: str, entry: Mapping[str, Any]) -> Path:
    """Latency against seconds of tuning."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    raced, peer = entry["race"], entry[THEIRS]
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    runs = sorted(
        (each["seconds"], raced[name]["seconds"], raced[name]["interval"]) for name, each in entry["ours"].items()
    )
    axis.plot([at for at, _, _ in runs], [1e3 * each for _, each, _ in runs], "o-", color=COLOURS[0], label="stormdrop")
    for at, _, (low, high) in runs:
        axis.plot([at, at], [1e3 * low, 1e3 * high], color="black", linewidth=1.0)
    scale = raced[THEIRS]["seconds"] / peer["curve"][-1][1]
    theirs = [*peer["curve"], (peer["seconds"], peer["curve"][-1][1])]
    axis.step(
        [at for at, _ in theirs],
        [1e3 * scale * each for _, each in theirs],
        where="post",
        color=COLOURS[1],
        label=THEIRS,
    )
    for name, style in zip(PEERS, ("--", ":"), strict=True):
        if name not in raced:
            continue
        axis.axhline(1e3 * raced[name]["seconds"], color="0.3", linewidth=1.0, linestyle=style, label=name)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("seconds of tuning, everything in them", fontsize=9)
    axis.set_ylabel("latency, ms", fontsize=9)
    axis.set_title(f"{model}, float32, batch 1", fontsize=10)
    axis.grid(alpha=0.25, linewidth=0.6, which="both")
    axis.legend(fontsize=8, frameon=False)
    path = OUT / f"{_NAME}_{model}.png"
    save_figure(figure, path)
    return path


def _options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--model", default="resnet50", choices=NAMES)
    asked.add_argument("--budgets", default="20,40,60,90,150,300", help="of ours, in seconds (%(default)s)")
    asked.add_argument("--theirs", type=float, default=1800.0, help="seconds of MetaSchedule (%(default)s)")
    asked.add_argument("--rounds", type=int, default=15, help="of the race (%(default)s)")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--resume", action="store_true", help="leave out what is there")
    asked.add_argument("--show", action="store_true", help="print and draw what is there, and measure nothing")
    options = asked.parse_args()
    options.budgets = [float(each) for each in options.budgets.split(",")]
    return options


if __name__ == "__main__":
    main()
