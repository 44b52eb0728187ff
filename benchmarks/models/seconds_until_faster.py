"""After how many seconds of tuning a model is faster than its best peer, by what run.py has saved.

    seconds_until_faster.py [--models resnet50,bert_base]

A point of a curve is what the best kernels so far add up to, from the moment on at which each kernel has been measured.
The curve is scaled so that its end is the latency of the tuned model in its bench. So it says what a tuning that ended
there would have made, apart from the last choice between kernels inside of the model. Seconds have everything in them:
import, verification, compilation. What default schedules reach is the latency before the tuning, measured in turns with
the tuned model. Its dot stands where import and verification end.

The plot is benchmarks/out/models_seconds.png, with a panel for each model. No model is run here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, machine
from _ratios import best_peer

from stormdrop.bench.peers import MODEL_PEERS
from stormdrop.cli.output import table
from stormdrop.report.plots.style import COLOURS, legend, panels, save

_NAME = "models"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="models, separated by commas (default: all that are saved)")
    names = parser.parse_args().models
    campaign = Campaign(OUT / f"{_NAME}.jsonl", machine(), document="models")
    entries = {entry["name"]: entry for entry in campaign.entries if "bench" in entry}
    if not entries:
        sys.exit(f"no model is saved in {campaign.file}: run.py makes it")
    chosen = list(entries) if names is None else names.split(",")
    if unknown := [name for name in chosen if name not in entries]:
        sys.exit(f"{unknown[0]} is not saved in {campaign.file}; there are {', '.join(entries)}")
    table(
        ["", "best peer", "its time over that of default schedules", "all kernels measured", "faster", "tuned"],
        [_row(name, entries[name]) for name in chosen],
    )
    print(draw({name: entries[name] for name in chosen}))


def latencies(entry: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Pairs of seconds of tuning, and the latency of the model with the kernels of that moment."""
    curve, ours = entry["tuned"]["curve"], entry["bench"]["contenders"][0]["seconds"]
    return [(elapsed, ours * total / curve[-1][1]) for elapsed, total in curve]


def untuned(entry: Mapping[str, Any]) -> float | None:
    """The latency with default schedules, in the seconds of the bench; None if there was no time to measure it."""
    if entry["tuned"]["untuned"] is None:
        return None
    slower = entry["tuned"]["untuned"]["seconds"] / entry["tuned"]["latency"]["seconds"]
    return float(entry["bench"]["contenders"][0]["seconds"] * slower)


def _row(name: str, entry: Mapping[str, Any]) -> list[str]:
    peer, curve, default = best_peer(entry), latencies(entry), untuned(entry)
    if peer is None:
        return [name, "none", "", "", "", ""]
    faster = next((elapsed for elapsed, latency in curve if latency < peer["seconds"]), None)
    return [
        name,
        peer["name"],
        "not measured" if default is None else f"{peer['seconds'] / default:.2f}",
        f"{curve[0][0]:.0f} s" if curve else "never",
        "never" if faster is None else f"{faster:.0f} s",
        f"{entry['tuned']['seconds']:.0f} s",
    ]


def draw(entries: Mapping[str, Mapping[str, Any]]) -> Path:
    """Draws latency against seconds of tuning, a panel for each model, with lines for its peers."""
    figure, axes = panels(list(entries))
    for axis, entry in zip(axes, entries.values(), strict=True):
        end, default = entry["tuned"]["seconds"], untuned(entry)
        curve = latencies(entry)
        points = [*curve, *((end, latency) for _, latency in curve[-1:])]
        axis.step(
            [elapsed for elapsed, _ in points],
            [1e3 * latency for _, latency in points],
            where="post",
            color=COLOURS[0],
            label="stormdrop, with the kernels so far",
        )
        if default is not None:
            phases = entry["tuned"]["phases"]
            begin = phases["import"] + phases["verify"]
            axis.plot([begin], [1e3 * default], "o", color=COLOURS[0], label="stormdrop, default schedules")
        for colour, name in zip(COLOURS[1:], MODEL_PEERS, strict=False):
            for peer in entry["bench"]["contenders"][1:]:
                if peer["name"] == name and peer["agrees"]:
                    axis.axhline(1e3 * peer["seconds"], color=colour, linewidth=1.2, linestyle="--", label=name)
        axis.set_xlim(0, end)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("seconds of tuning, with everything in them", fontsize=8)
        axis.set_ylabel("latency, ms", fontsize=8)
    legend(figure, axes[0])
    path = OUT / f"{_NAME}_seconds.png"
    save(figure, path)
    return path


if __name__ == "__main__":
    main()
