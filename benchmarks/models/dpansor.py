"""The experiment of the DPAnsor paper on models, scaled down: explore much, or explore little and then descend.

    dpansor.py [--models squeezenet,resnet18] [--trials 1000] [--N 1,10,25,50,100,300] [--resume] [--show]

`evolutionary` (Ansor's search) has 1,000 trials over all kernels of a model. `dpansor` explores with N trials over all
kernels by the same search, and then descends from the best schedule of every kernel until it converges, with 100 trials
at most. Both search TVM MetaSchedule's own sketches; both tune from nothing, without a bound of time. If N is less than
the number of kernels, every kernel gets one trial.

The figures of a run are: seconds of tuning, trials, and the trials of the descents per layer (Figures 10, 17 and 18).
In the end the models of all runs take turns; the speed is the time of `evolutionary`'s model over theirs (Figures 10 to
13). The paper has 20 models and 10,000 trials.

Every run is saved in benchmarks/out/models_dpansor.json. Both models take about two hours. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import OUT, earlier_entries, machine, save
from graphs import NAMES, graph
from race import artifacts, race

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.model.verify import random_feeds
from stormdrop.report.style import COLOURS
from stormdrop.report.style import save as save_figure

_NAME = "models_dpansor"
_FOLDER = OUT / _NAME
BASELINE = "evolutionary"


def main() -> None:
    options = _options()
    host = machine()
    entries = earlier_entries(_NAME, host, "models")
    runs: dict[str, Any] = {BASELINE: (BASELINE, {}, options.trials)} | {
        f"N={n}": ("dpansor", {"N": n}, None) for n in options.N
    }
    for model in () if options.show else options.models:
        if not options.resume:
            entries.pop(model, None)
        entry = entries.setdefault(model, {"runs": {}})
        for run, (search, settings, trials) in runs.items():
            if run not in entry["runs"]:
                print(f"{model}: {run}", file=sys.stderr, flush=True)
                entry["runs"][run] = tune(model, run, search, settings, trials, options.seed)
                save(_NAME, {"machine": host, "models": entries})
        feeds = random_feeds(sd.load(_FOLDER / model / BASELINE).inputs, options.seed)
        entry["race"] = race(artifacts(_FOLDER / model, list(runs), feeds), BASELINE, options.rounds)
        save(_NAME, {"machine": host, "models": entries})
    for model in options.models:
        show(model, entries[model])
    print(draw(entries, options.models))


def tune(
    model: str, run: str, search: str, settings: Mapping[str, Any], trials: int | None, seed: int
) -> dict[str, Any]:
    """Tunes one model and returns the figures of the tuning. The artifact stays on disk."""
    artifact = _FOLDER / model / run
    shutil.rmtree(artifact, ignore_errors=True)
    with sd.open_store("sqlite://") as store:
        result = sd.tune_model(
            graph(model),
            search=search,
            options=settings,
            trials=trials,
            time=None if trials else 24 * 3600.0,  # more than enough: the descents end by themselves
            seed=seed,
            sketches="meta_schedule",
            store=store,
            fresh=True,
            out=artifact,
        )
    if result.interrupted:
        sys.exit(130)
    document = result.to_json()
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
    for run, figures in entry["runs"].items():
        raced = entry["race"][run]
        low, high = raced["speed_interval"]
        rows.append(
            [
                run,
                f"{1e3 * raced['seconds']:.2f} ms",
                f"{raced['speed']:.3f} ({low:.3f} to {high:.3f})",
                f"{figures['seconds']:.0f} s",
                f"{entry['runs'][BASELINE]['seconds'] / figures['seconds']:.2f}",
                f"{figures['trials']} ({figures['failed']} failed)",
                "" if figures["exploited"] is None else f"{figures['exploited'] / figures['layers']:.1f}",
                "" if figures["exploited"] is None else f"{figures['converged']} of {figures['layers']}",
                f"{figures['error']:.0e}",
            ]
        )
    headings = ["", "model", "speed", "tuning", "its speed", "trials", "descent, per layer", "converged", "error"]
    table(headings, rows, f"{model}: speed and tuning over those of {BASELINE}")
    if entry["race"]["disturbed"]:
        print(f"{entry['race']['disturbed']} rounds of the race disturbed")


def draw(entries: Mapping[str, Any], models: Sequence[str]) -> Path:
    """Draws the speed of the model and of its tuning against N (Figures 10 and 12)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    speed, effort = figure.subplots(1, 2)
    for model, colour in zip(models, COLOURS, strict=False):
        entry = entries[model]
        runs = [run for run in entry["runs"] if run != BASELINE]
        budgets = [int(run.partition("=")[2]) for run in runs]
        middles = [entry["race"][run]["speed"] for run in runs]
        lows, highs = zip(*(entry["race"][run]["speed_interval"] for run in runs), strict=True)
        speed.plot(budgets, middles, "o-", color=colour, label=model, markersize=4)
        speed.fill_between(budgets, lows, highs, color=colour, alpha=0.2, linewidth=0)
        baseline = entry["runs"][BASELINE]["seconds"]
        effort.plot(
            budgets, [baseline / entry["runs"][run]["seconds"] for run in runs], "o-", color=colour, markersize=4
        )
    for axis, what in ((speed, "speed of the model"), (effort, "speed of the tuning")):
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("trials before the descents (N)", fontsize=9)
        axis.set_ylabel(f"{what} over that of {BASELINE}", fontsize=9)
        axis.grid(alpha=0.25, linewidth=0.6)
    speed.legend(fontsize=8, frameon=False)
    path = OUT / f"{_NAME}.png"
    save_figure(figure, path)
    return path


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="squeezenet,resnet18", help="models, separated by commas (%(default)s)")
    parser.add_argument("--trials", type=int, default=1000, help=f"trials of {BASELINE} (%(default)s)")
    parser.add_argument("--N", default="1,10,25,50,100,300", help="trials of exploration (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of the race (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="skip the runs that are saved already")
    parser.add_argument("--show", action="store_true", help="print and draw what is saved, and measure nothing")
    options = parser.parse_args()
    options.models, options.N = options.models.split(","), [int(n) for n in options.N.split(",")]
    if unknown := [name for name in options.models if name not in NAMES]:
        sys.exit(f"there is no model {unknown[0]}; the models are {', '.join(NAMES)}")
    return options


if __name__ == "__main__":
    main()
