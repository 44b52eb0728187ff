"""What all benchmarks share: a description of the machine, the output files, and bar charts."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from stormdrop import Cpu, peak

OUT = Path(__file__).parent / "out"

_PACKAGES = ("stormdrop", "apache-tvm", "torch", "onnxruntime", "openvino", "tensorflow-cpu", "ai-edge-litert")


def machine() -> dict[str, Any]:
    """The CPU, its cores, its measured limits, and the versions of the tools."""
    target = Cpu.detect()
    limits = peak(target)
    return {
        "cpu": target.cpu,
        "cores": target.cores,
        "peak_gflops": limits.flops / 1e9,
        "bandwidth_gbs": limits.bandwidth / 1e9,
        "python": platform.python_version(),
        "versions": versions(),
    }


def versions() -> dict[str, str | None]:
    """The versions of the tools; None for what is not installed."""
    return {name: _version(name) for name in _PACKAGES}


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


def kept_lines(path: Path) -> list[dict[str, Any]]:
    """The entries of a file that has one JSON document a line, which a run that is started again reads first.

    A last line that an earlier run had no time to finish is removed from the file.
    """
    if not path.exists():
        return []
    *lines, last = path.read_text().split("\n")
    if last:
        path.write_text("".join(f"{line}\n" for line in lines))
    return [json.loads(line) for line in lines]


def keep_line(path: Path, entry: Mapping[str, Any]) -> None:
    """Appends an entry to such a file, in place of a line that was cut off."""
    path.parent.mkdir(exist_ok=True)
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def in_child(script: str, arguments: Sequence[str], limit: float) -> dict[str, Any]:
    """What a script prints as its last line, in a process of its own: a JSON document.

    Args:
        script: the path of the script.
        arguments: what it is called with.
        limit: the most seconds that it may take.

    Returns:
        The document; or under "failed" why there is none.
    """
    command = [sys.executable, script, *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"takes more than {limit:.0f} s"}
    try:
        return dict(json.loads(run.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        last = (run.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return {"failed": f"CRASH {run.returncode}: {last}"}


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
