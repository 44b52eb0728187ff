"""How fast a model is after how many seconds of tuning, beside TVM MetaSchedule.

    curve.py [--model resnet50] [--budgets 20,40,60,90,150,300] [--theirs 1800] [--show] [--fresh]

We tune the model from nothing once for each budget, which includes everything. MetaSchedule tunes the kernels of the
same graph for half an hour; its task scheduler shares out the time (benchmarks/_metaschedule_peer.py says how it is
run). Its final model is ours with its kernels. All these models, onnxruntime and OpenVINO then take turns.

MetaSchedule's curve is the sum of its own measurements of kernels, from the moment on at which it has one for every
kernel. The sum is scaled so that its end is the latency of the final model.

Every tuning is saved in benchmarks/out/models_curve.jsonl as soon as it is done, and is not done again unless `--fresh`
asks for it; there is also a PNG. It takes an hour. Run it on an idle machine.
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
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import _metaschedule_peer
from _common import OUT, Campaign, campaign_parser, machine
from _graphs import NAMES, graph
from _race import artifacts, race

import stormdrop as sd
from stand_ins.verifying import verify
from stormdrop.bench.contender import ContenderSpec
from stormdrop.bench.peers import MODEL_PEERS
from stormdrop.cli.output import table
from stormdrop.errors import UnsupportedFunction
from stormdrop.machine import threads
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.report.plots.style import COLOURS
from stormdrop.report.plots.style import save as save_figure

_NAME = "models_curve"
_FOLDER = OUT / _NAME
THEIRS = "metaschedule"
PEERS = ("onnxruntime", "openvino")


def main() -> None:
    options = _options()
    campaign = Campaign(OUT / f"{_NAME}.jsonl", machine(), options, document="models")
    key, setting = {"name": options.model}, {"theirs": options.theirs, "seed": options.seed}
    if options.show:
        entry = campaign.saved([options.model])[options.model]
    else:
        entry = campaign.known(key, setting) or {**key, **setting, "ours": {}}
    folder = _FOLDER / options.model
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "model.onnx"
    if not options.show:
        onnx.save(graph(options.model), source)
        for budget in options.budgets:
            if f"{budget:g}" not in entry["ours"]:
                print(f"{budget:g} s", file=sys.stderr, flush=True)
                entry["ours"][f"{budget:g}"] = tune(source, folder / f"{budget:g}", budget, options.seed)
                campaign.keep(entry)
        if THEIRS not in entry:
            print(THEIRS, file=sys.stderr, flush=True)
            entry[THEIRS] = tune_with_metaschedule(source, folder / THEIRS, options.theirs, options.seed)
            campaign.keep(entry)
        feeds = random_feeds(sd.load(folder / THEIRS).inputs, options.seed)
        arguments = {"model": source.read_bytes(), "inputs": feeds}
        specs = artifacts(folder, [*entry["ours"], THEIRS], feeds)
        specs += [ContenderSpec(name, MODEL_PEERS[name], arguments) for name in PEERS]
        entry["race"] = race(specs, PEERS[0], options.rounds)
        campaign.keep(entry)
    show(entry)
    print(draw(options.model, entry))


def tune(source: Path, artifact: Path, budget: float, seed: int) -> dict[str, Any]:
    """Tunes the model for so many seconds and returns the figures of the tuning. The artifact stays on disk."""
    shutil.rmtree(artifact, ignore_errors=True)
    with sd.open_store("sqlite://") as store:
        result = sd.tune_model(source, time=budget, seed=seed, store=store, fresh=True, out=artifact)
    if result.interrupted:
        sys.exit(130)
    return {"seconds": result.seconds, "trials": result.trials, "error": result.verified.max_error}


def tune_with_metaschedule(source: Path, artifact: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Tunes the kernels with MetaSchedule and returns its figures. A model of its kernels stays on disk."""
    threads.configure()
    from stormdrop.ir.workload import Workload
    from stormdrop.model.building.compile import build
    from stormdrop.model.importer.import_onnx import load_graph
    from stormdrop.sketches.meta_schedule import replay, tunable

    target, loaded = sd.Cpu.detect(), load_graph(source)
    workloads = {}
    for task in loaded.tasks:
        try:
            workloads[task.index] = Workload.create(task.name, task.function, task.constants)
        except UnsupportedFunction as reason:
            print(f"{task.name}: gets a plain schedule: {reason}", file=sys.stderr)
    weights = {index: loaded.tasks[index].weight for index in workloads}
    result = _metaschedule_peer.tune(
        [tunable(workload) for workload in workloads.values()], list(weights.values()), target, seed, seconds=seconds
    )
    functions = dict(zip(workloads, result.functions, strict=True))
    traces = {index: function.trace for index, function in functions.items()}
    variants = {index: replay(workloads[index], trace) for index, trace in traces.items() if trace}
    model = build(loaded, variants, target, provenance={"source": str(source.resolve())})
    verified = verify(model, loaded.source, seed)
    shutil.rmtree(artifact, ignore_errors=True)
    model.save(artifact)
    return {
        "seconds": result.seconds,
        "trials": result.measured,
        "failed": result.failed,
        "tasks": len(functions),
        "without": [loaded.tasks[index].name for index, trace in traces.items() if trace is None],
        "error": verified.max_error,
        "curve": summed([(weights[index], function.curve) for index, function in functions.items() if function.curve]),
    }


def summed(curves: Sequence[tuple[float, Sequence[tuple[float, float]]]]) -> list[tuple[float, float]]:
    """Pairs of seconds of tuning and the weighted sum of the best times, from when on every curve has a time."""
    points = sorted(moment for _, curve in curves for moment, _ in curve)
    begin = max(curve[0][0] for _, curve in curves)
    sums = []
    for moment in dict.fromkeys(point for point in points if point >= begin):
        total = sum(weight * [best for when, best in curve if when <= moment][-1] for weight, curve in curves)
        sums.append((moment, total))
    return sums


def show(entry: Mapping[str, Any]) -> None:
    """Prints a row per model."""
    efforts = {**entry["ours"], THEIRS: entry[THEIRS]}
    rows = []
    for name, figures in entry["race"].items():
        if name == "disturbed":
            continue
        low, high = figures["speed_interval"]
        effort = efforts.get(name)
        rows.append(
            [
                f"ours, {name} s" if name in entry["ours"] else name,
                f"{1e3 * figures['seconds']:.2f} ms",
                f"{figures['speed']:.3f} ({low:.3f} to {high:.3f})",
                f"{effort['seconds']:.0f} s, {effort['trials']} trials" if effort else "",
                f"{effort['error']:.0e}" if effort else "",
            ]
        )
    table(["", "model", f"speed over {PEERS[0]}'s", "tuning", "error"], rows)
    if entry["race"]["disturbed"]:
        print(f"{entry['race']['disturbed']} rounds disturbed")


def draw(model: str, entry: Mapping[str, Any]) -> Path:
    """Draws latency against seconds of tuning."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    raced, peer = entry["race"], entry[THEIRS]
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    runs = sorted(
        (tuning["seconds"], raced[name]["seconds"], raced[name]["interval"]) for name, tuning in entry["ours"].items()
    )
    budgets, latencies = [elapsed for elapsed, _, _ in runs], [1e3 * latency for _, latency, _ in runs]
    axis.plot(budgets, latencies, "o-", color=COLOURS[0], label="stormdrop")
    for elapsed, _, (low, high) in runs:
        axis.plot([elapsed, elapsed], [1e3 * low, 1e3 * high], color="black", linewidth=1.0)
    scale = raced[THEIRS]["seconds"] / peer["curve"][-1][1]
    theirs = [*peer["curve"], (peer["seconds"], peer["curve"][-1][1])]
    axis.step(
        [elapsed for elapsed, _ in theirs],
        [1e3 * scale * seconds for _, seconds in theirs],
        host="post",
        color=COLOURS[1],
        label=THEIRS,
    )
    for name, style in zip(PEERS, ("--", ":"), strict=True):
        if name not in raced:
            continue
        axis.axhline(1e3 * raced[name]["seconds"], color="0.3", linewidth=1.0, linestyle=style, label=name)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("seconds of tuning, with everything in them", fontsize=9)
    axis.set_ylabel("latency, ms", fontsize=9)
    axis.set_title(f"{model}, float32, batch 1", fontsize=10)
    axis.grid(alpha=0.25, linewidth=0.6, which="both")
    axis.legend(fontsize=8, frameon=False)
    path = OUT / f"{_NAME}_{model}.png"
    save_figure(figure, path)
    return path


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--model", default="resnet50", choices=NAMES, help="the model (%(default)s)")
    parser.add_argument(
        "--budgets", default="20,40,60,90,150,300", help="budgets of our tunings, in seconds (%(default)s)"
    )
    parser.add_argument(
        "--theirs", type=float, default=1800.0, help="seconds of tuning with MetaSchedule (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=15, help="rounds of the race (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    options = parser.parse_args()
    options.budgets = [float(budget) for budget in options.budgets.split(",")]
    return options


if __name__ == "__main__":
    main()
