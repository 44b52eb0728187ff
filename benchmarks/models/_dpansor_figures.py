"""The tables and plots of `dpansor.py`: Figures 10 to 13 and 15 to 18 of the DPAnsor paper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from scipy.stats import mannwhitneyu

from stormdrop.cli.output import table
from stormdrop.report.plots.style import COLOURS, panels, save

BASELINE = "evolutionary"
EXPLORED = 300
"""The trials before another search takes the place of the descents (section 3.4 of the paper)."""
CERTAIN = 0.01
"""Below this p of Wilcoxon's rank-sum test a difference counts (section 3 of the paper)."""


@dataclass
class Experiment:
    """What is known of one model.

    Attributes:
        model: Its name.
        runs: The figures of the tunings, by run.
        race: What `race.race` returned for the models of all runs.
        parts: The seconds of runs that are not finished, in the calls that have ended.
    """

    model: str
    runs: dict[str, Any] = field(default_factory=dict)
    race: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def descents(self) -> dict[int, str]:
        """By N the name of the run that descends after N trials."""
        names = [run for run in self.runs if run.startswith("N=") and " " not in run]
        return dict(sorted((int(name.removeprefix("N=")), name) for name in names))

    @property
    def layers(self) -> int:
        """The number of its kernels."""
        return len(self.runs[BASELINE]["layers"])

    def speed(self, run: str) -> float:
        """The speed of a run's model over that of `evolutionary` (Figure 10, upper half)."""
        return float(self.race[run]["speed"])

    def tuning_speed(self, run: str) -> float:
        """The tuning time of `evolutionary` over that of a run (Figure 10, lower half)."""
        return float(self.runs[BASELINE]["seconds"] / self.runs[run]["seconds"])


def show(experiment: Experiment) -> None:
    """Prints a row per run (Figures 10 and 17), and for other exploiters the layers (Figure 16)."""
    lines = []
    for run, figures in experiment.runs.items():
        raced = experiment.race[run]
        low, high = raced["speed_interval"]
        descends = figures["exploited"] is not None
        lines.append(
            [
                run,
                f"{1e3 * raced['seconds']:.2f} ms",
                f"{raced['speed']:.3f} ({low:.3f} to {high:.3f})",
                "" if run == BASELINE else _verdict(raced, experiment.race[BASELINE]),
                f"{figures['seconds']:.0f} s",
                f"{experiment.tuning_speed(run):.2f}",
                f"{figures['trials']} ({figures['failed']} failed)",
                f"{figures['exploited'] / len(figures['layers']):.1f}" if descends else "",
                f"{figures['converged']} of {len(figures['layers'])}" if descends else "",
                f"{figures['error']:.0e}",
            ]
        )
    headings = [
        "",
        "model",
        "speed",
        f"rank sum, p < {CERTAIN}",
        "tuning",
        "its speed",
        "trials",
        "exploitation, per layer",
        "converged",
        "error",
    ]
    table(headings, lines, f"{experiment.model}: speed and tuning over those of {BASELINE}")
    if experiment.race["disturbed"]:
        print(f"{experiment.race['disturbed']} rounds of the race disturbed")
    _show_exploiters(experiment)


def show_means(experiments: Sequence[Experiment]) -> None:
    """Prints by N the means of all models: speeds (Figure 11), and the trials of the descents (Figure 18)."""
    by_budget: defaultdict[int, list[tuple[Experiment, str]]] = defaultdict(list)
    for experiment in experiments:
        for budget, run in experiment.descents.items():
            by_budget[budget].append((experiment, run))
    lines = []
    for budget, of_models in sorted(by_budget.items()):
        trials = sum(experiment.runs[run]["exploited"] for experiment, run in of_models)
        layers = sum(len(experiment.runs[run]["layers"]) for experiment, run in of_models)
        lines.append(
            [
                str(budget),
                str(len(of_models)),
                f"{geometric_mean(experiment.speed(run) for experiment, run in of_models):.3f}",
                f"{geometric_mean(experiment.tuning_speed(run) for experiment, run in of_models):.2f}",
                f"{trials / len(of_models):.0f}",
                f"{trials / layers:.1f}",
            ]
        )
    headings = ["N", "models", "speed", "speed of tuning", "exploitation, per model", "per layer"]
    table(headings, lines, f"Means of the models, over {BASELINE} (geometric), and trials of the descents")


def _verdict(raced: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
    """What Wilcoxon's rank-sum test says about a run's model."""
    p = float(mannwhitneyu(raced["samples"], baseline["samples"]).pvalue)
    if p >= CERTAIN:
        return f"no difference (p = {p:.2g})"
    return f"{'faster' if raced['speed'] > 1 else 'slower'} (p = {p:.1g})"


def _show_exploiters(experiment: Experiment) -> None:
    """Prints the times of other exploiters over those of the descents, layer by layer (Figures 15, 16) and in all."""
    droplet = f"N={EXPLORED}"
    others = [run for run in experiment.runs if run.startswith(f"{droplet} ")]
    if not others:
        return
    by_name = {run: {layer["name"]: layer for layer in experiment.runs[run]["layers"]} for run in (droplet, *others)}
    ratios: dict[tuple[str, str], list[float]] = {}
    lines = []
    for name, layer in by_name[droplet].items():
        line = [name]
        for key in ("seconds", "tuning_seconds"):
            for run in others:
                other = by_name[run].get(name)
                if other is None or None in (other[key], layer[key]):
                    line.append("")
                    continue
                ratios.setdefault((key, run), []).append(other[key] / layer[key])
                line.append(f"{other[key] / layer[key]:.2f}")
        lines.append(line)
    means = [ratios.get((key, run)) for key in ("seconds", "tuning_seconds") for run in others]
    lines.append(["geometric mean", *(f"{geometric_mean(each):.2f}" if each else "" for each in means)])
    searches = [run.removeprefix(f"{droplet} ") for run in others]
    headings = ["layer", *(f"{search}: kernel" for search in searches), *(f"{search}: tuning" for search in searches)]
    table(headings, lines, f"{experiment.model}: time of other exploiters over that of droplet, by layer")


def draw(experiments: Sequence[Experiment], folder: Path) -> list[Path]:
    """Draws the figures of all models, and returns the paths of the PNG files."""
    return [_budgets(experiments, folder), _sizes(experiments, folder)]


def _budgets(experiments: Sequence[Experiment], folder: Path) -> Path:
    """Speed, tuning speed and the length of the descents against N (Figures 10, 11, 17 and 18)."""
    figure, (speed, effort, length) = panels(["speed of the model", "speed of the tuning", "trials of a descent"])
    for experiment, colour in zip(experiments, COLOURS, strict=False):
        budgets, runs = list(experiment.descents), list(experiment.descents.values())
        lows, highs = zip(*(experiment.race[run]["speed_interval"] for run in runs), strict=True)
        style: dict[str, Any] = {"color": colour, "markersize": 4, "label": experiment.model}
        speed.plot(budgets, [experiment.speed(run) for run in runs], "o-", **style)
        speed.fill_between(budgets, lows, highs, color=colour, alpha=0.2, linewidth=0)
        effort.plot(budgets, [experiment.tuning_speed(run) for run in runs], "o-", **style)
        trials = [experiment.runs[run]["exploited"] / len(experiment.runs[run]["layers"]) for run in runs]
        length.plot(budgets, trials, "o-", **style)
    for axis, what in ((speed, f"over {BASELINE}"), (effort, f"over {BASELINE}"), (length, "per layer")):
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("trials before the descents (N)", fontsize=9)
        axis.set_ylabel(what, fontsize=9)
        axis.grid(alpha=0.25, linewidth=0.6)
    for axis in (speed, effort):
        axis.axhline(1.0, color="black", linewidth=0.8)
    speed.legend(fontsize=8, frameon=False)
    path = folder / "dpansor_budgets.png"
    save(figure, path)
    return path


def _sizes(experiments: Sequence[Experiment], folder: Path) -> Path:
    """Speed against tuning speed, a line per model (Figure 12), and both against the number of layers (Figure 13)."""
    figure, (line, speed, effort) = panels(["quality and search time", "quality by size", "search time by size"])
    for experiment, colour in zip(experiments, COLOURS, strict=False):
        budgets, runs = list(experiment.descents), list(experiment.descents.values())
        speeds = [experiment.speed(run) for run in runs]
        efforts = [experiment.tuning_speed(run) for run in runs]
        line.plot(efforts, speeds, "o-", color=colour, markersize=4, label=experiment.model)
        for end in {0, len(budgets) - 1}:
            line.annotate(f"{budgets[end]}", (efforts[end], speeds[end]), fontsize=7)
        speed.scatter([experiment.layers] * len(runs), speeds, color=colour, s=14)
        effort.scatter([experiment.layers] * len(runs), efforts, color=colour, s=14)
    line.set_xlabel(f"speed of the tuning over {BASELINE}", fontsize=9)
    line.set_xscale("log")
    line.set_ylabel(f"speed of the model over {BASELINE}", fontsize=9)
    line.legend(fontsize=8, frameon=False)
    for axis, what in ((speed, "speed of the model"), (effort, "speed of the tuning")):
        axis.set_xlabel("kernels of the model", fontsize=9)
        axis.set_ylabel(what, fontsize=9)
    for axis in (line, speed, effort):
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.grid(alpha=0.25, linewidth=0.6)
    path = folder / "dpansor_sizes.png"
    save(figure, path)
    return path
