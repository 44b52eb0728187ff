"""The DPAnsor paper's experiment on models, scaled down: exploring much, or exploring little and then descending.

    dpansor.py [--models squeezenet,resnet18] [--trials 1000] [--N 1,10,25,50,100,300] [--resume] [--show]

`evolutionary` (Ansor's search) with 1,000 trials over all kernels of a model, against `dpansor`, which explores with N
trials over all kernels by the same search and then descends from the best schedule of each kernel until it converges,
100 trials at most. Both search TVM MetaSchedule's own sketches, both tune from nothing, without a bound of time. Where
the N are fewer than the kernels, each kernel has one.

For each run: seconds of tuning and trials, and how many of these the descents took per layer (Figures 10, 17 and 18).
The models of all runs take turns in the end; the ratio is the time of `evolutionary`'s model over theirs (Figures 10 to
13). The paper has 20 models and 10,000 trials.

Each run is kept in benchmarks/out/models_dpansor.json. Both models take about two hours. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import OUT, kept, machine, save
from graphs import NAMES, graph
from race import artifacts, race

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.model.verify import random_feeds
from stormdrop.report.style import COLOURS
from stormdrop.report.style import save as save_figure

_NAME = "models_dpansor"
_KEPT = OUT / _NAME
ALONE = "evolutionary"


def main() -> None:
    options = _options()
    where = machine()
    entries = kept(_NAME, where, "models")
    runs = {ALONE: (ALONE, {}, options.trials)} | {f"N={n}": ("dpansor", {"N": n}, None) for n in options.N}
    for model in () if options.show else options.models:
        if not options.resume:
            entries.pop(model, None)
        entry = entries.setdefault(model, {"runs": {}})
        for run, (search, settings, trials) in runs.items():
            if run not in entry["runs"]:
                print(f"{model}: {run}", file=sys.stderr, flush=True)
                entry["runs"][run] = tuned(model, run, search, settings, trials, options.seed)
                save(_NAME, {"machine": where, "models": entries})
        feeds = random_feeds(sd.load(_KEPT / model / ALONE).inputs, options.seed)
        entry["race"] = race(artifacts(_KEPT / model, list(runs), feeds), ALONE, options.rounds)
        save(_NAME, {"machine": where, "models": entries})
    for model in options.models:
        show(model, entries[model])
    print(draw(entries, options.models))


def tuned(
    model: str, run: str, search: str, settings: Mapping[str, Any], trials: int | None, seed: int
) -> dict[str, Any]:
    """What one tuning took; its artifact stays."""
    artifact = _KEPT / model / run
    shutil.rmtree(artifact, ignore_errors=True)
    with sd.open_store("sqlite://") as store:
        found = sd.tune_model(
            graph(model),
            search=search,
            options=settings,
            trials=trials,
            time=None if trials else 24 * 3600.0,  # the descents end by themselves
            seed=seed,
            sketches="meta_schedule",
            store=store,
            fresh=True,
            out=artifact,
        )
    if found.interrupted:
        sys.exit(130)
    document = found.to_json()
    explored = settings.get("N")
    layers = [task for task in document["tasks"] if task["trials"]]
    return {
        "seconds": document["seconds"],
        "trials": document["trials"],
        "failed": document["failed"],
        "layers": len(layers),
        "exploited": None if explored is None else document["trials"] - max(explored, len(layers)),
        "converged": sum(task["converged"] for task in layers),
        "curve": document["curve"],
        "error": document["verified"]["max_error"],
    }


def show(model: str, entry: Mapping[str, Any]) -> None:
    """Prints a row per run."""
    rows = []
    for run, found in entry["runs"].items():
        raced = entry["race"][run]
        low, high = raced["speed_interval"]
        rows.append(
            [
                run,
                f"{1e3 * raced['seconds']:.2f} ms",
                f"{raced['speed']:.3f} ({low:.3f} to {high:.3f})",
                f"{found['seconds']:.0f} s",
                f"{entry['runs'][ALONE]['seconds'] / found['seconds']:.2f}",
                f"{found['trials']} ({found['failed']} failed)",
                "" if found["exploited"] is None else f"{found['exploited'] / found['layers']:.1f}",
                "" if found["exploited"] is None else f"{found['converged']} of {found['layers']}",
                f"{found['error']:.0e}",
            ]
        )
    headings = ["", "model", "speed", "tuning", "its speed", "trials", "descent, per layer", "converged", "error"]
    table(headings, rows, f"{model}: speed and tuning over those of {ALONE}")
    if entry["race"]["disturbed"]:
        print(f"{entry['race']['disturbed']} rounds of the race disturbed")


def draw(entries: Mapping[str, Any], models: Sequence[str]) -> Path:
    """Speed of the model and of its tuning, against N (Figures 10 and 12)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    speed, effort = figure.subplots(1, 2)
    for model, colour in zip(models, COLOURS, strict=False):
        entry = entries[model]
        runs = [run for run in entry["runs"] if run != ALONE]
        at = [int(run.partition("=")[2]) for run in runs]
        middles = [entry["race"][run]["speed"] for run in runs]
        lows, highs = zip(*(entry["race"][run]["speed_interval"] for run in runs), strict=True)
        speed.plot(at, middles, "o-", color=colour, label=model, markersize=4)
        speed.fill_between(at, lows, highs, color=colour, alpha=0.2, linewidth=0)
        alone = entry["runs"][ALONE]["seconds"]
        effort.plot(at, [alone / entry["runs"][run]["seconds"] for run in runs], "o-", color=colour, markersize=4)
    for axis, what in ((speed, "speed of the model"), (effort, "speed of the tuning")):
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("trials before the descents (N)", fontsize=9)
        axis.set_ylabel(f"{what} over that of {ALONE}", fontsize=9)
        axis.grid(alpha=0.25, linewidth=0.6)
    speed.legend(fontsize=8, frameon=False)
    path = OUT / f"{_NAME}.png"
    save_figure(figure, path)
    return path


def _options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--models", default="squeezenet,resnet18", help="%(default)s")
    asked.add_argument("--trials", type=int, default=1000, help=f"of {ALONE} (%(default)s)")
    asked.add_argument("--N", default="1,10,25,50,100,300", help="%(default)s")
    asked.add_argument("--rounds", type=int, default=15, help="of the race (%(default)s)")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--resume", action="store_true", help="leave out the runs that are there")
    asked.add_argument("--show", action="store_true", help="print and draw what is there, and measure nothing")
    options = asked.parse_args()
    options.models, options.N = options.models.split(","), [int(n) for n in options.N.split(",")]
    if unknown := [name for name in options.models if name not in NAMES]:
        sys.exit(f"there is no model {unknown[0]}: there is {', '.join(NAMES)}")
    return options


if __name__ == "__main__":
    main()
