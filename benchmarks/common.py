"""What all benchmarks share: a description of the machine, the output files, and bar charts."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from stormdrop import Target, peak

OUT = Path(__file__).parent / "out"


def machine() -> dict[str, Any]:
    """The CPU, its cores, its measured limits, and the versions of the tools."""
    target = Target.detect()
    limits = peak(target)
    return {
        "cpu": target.cpu,
        "cores": target.cores,
        "peak_gflops": limits.flops / 1e9,
        "bandwidth_gbs": limits.bandwidth / 1e9,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("stormdrop", "apache-tvm", "torch", "onnxruntime", "openvino")},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def earlier_entries(
    name: str, host: Mapping[str, Any], key: str = "kernels", same: Sequence[str] = ("cpu", "cores")
) -> dict[str, Any]:
    """The entries that earlier runs of a script have saved. Ends the program if they are from another machine.

    Args:
        name: the name of the script's file in benchmarks/out, without ".json".
        host: this machine, as the script describes it.
        key: the part of the document that holds the entries.
        same: the parts of the description that have to be equal.
    """
    path = OUT / f"{name}.json"
    if not path.exists():
        return {}
    document = json.loads(path.read_text())
    if any(document["machine"][part] != host[part] for part in same):
        theirs = ", ".join(str(document["machine"][part]) for part in same)
        sys.exit(f"{path} is from another machine ({theirs}): move it away first")
    entries: dict[str, Any] = document[key]
    return entries


def save(name: str, document: dict[str, Any]) -> Path:
    """Writes the document as JSON and returns its path."""
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def ledger_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger: a file of JSON lines, which a run that is started again reads first.

    A last line that an earlier run had no time to finish is removed from the file.
    """
    if not path.exists():
        return []
    *lines, last = path.read_text().split("\n")
    if last:
        path.write_text("".join(f"{line}\n" for line in lines))
    return [json.loads(line) for line in lines]


def add_to_import_path(folder: Path) -> None:
    """Lets processes that are started from now on import the modules of `folder`."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(folder) not in folders:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), *folders]))


def bars(name: str, title: str, unit: str, groups: list[str], series: dict[str, list[float]]) -> Path:
    """Draws grouped bars, one colour per series, and returns the path of the PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    OUT.mkdir(exist_ok=True)
    positions, width = np.arange(len(groups)), 0.8 / len(series)
    figure, axes = plt.subplots(figsize=(max(6.0, 0.55 * len(groups) * len(series) ** 0.5 + 2), 4.2))
    for index, (label, values) in enumerate(series.items()):
        axes.bar(positions + (index - (len(series) - 1) / 2) * width, values, width, label=label)
    axes.set_xticks(
        positions, groups, rotation=30 if len(groups) > 4 else 0, ha="right" if len(groups) > 4 else "center"
    )
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    axes.grid(axis="y", alpha=0.3)
    path = OUT / f"{name}.png"
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
    return path
