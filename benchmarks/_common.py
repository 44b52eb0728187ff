"""What all benchmarks share: a description of the machine, what is kept of a campaign, output files, and bar charts."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from stormdrop import Cpu, peak
from stormdrop.cli.output import table
from stormdrop.machine.contract import CPU, Machine
from stormdrop.records.codec import encode

OUT = Path(__file__).parent / "out"
RECORDED = Path(__file__).parent / "recorded"
"""Files of entries that the repository keeps, of several machines."""

_PACKAGES = ("stormdrop", "apache-tvm", "torch", "onnxruntime", "openvino", "tensorflow-cpu", "ai-edge-litert")


def machine(target: Machine | None = None) -> dict[str, Any]:
    """The CPU, its cores, its measured limits, and the versions of the tools; and the GPU, if the target is one."""
    cpu = Cpu.detect()
    limits = peak(cpu)
    on_gpu = target is not None and target.device != CPU
    return {
        "cpu": cpu.cpu,
        "cores": cpu.cores,
        "peak_gflops": limits.flops / 1e9,
        "bandwidth_gbs": limits.bandwidth / 1e9,
        "python": platform.python_version(),
        "versions": versions(),
        **({"gpu": target.machine, "conditions": dict(target.conditions)} if target and on_gpu else {}),
    }


def versions() -> dict[str, str | None]:
    """The versions of the tools; None for what is not installed."""
    return {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def save(name: str, document: dict[str, Any]) -> Path:
    """Writes the document as JSON and returns its path."""
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def chosen(text: str, among: Collection[str], what: str) -> list[str]:
    """The names in a text with commas. Ends the program with one line if one is unknown."""
    names = text.split(",")
    if unknown := [name for name in names if name not in among]:
        sys.exit(f"there is no {what} {unknown[0]}; there are {', '.join(among)}")
    return names


def campaign_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the flags that every script with a `Campaign` has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print what is kept, and measure nothing")
    parser.add_argument("--fresh", action="store_true", help="measure again what is kept")
    parser.add_argument("--file", type=Path, help="what is kept (a file in benchmarks/out or benchmarks/recorded)")
    return parser


class Campaign:
    """What a script measures, kept as soon as it is known, so that a run that was ended goes on from there.

    The file has one JSON document a line, an entry; of entries that tell of the same the last one counts. A line that
    a run had no time to finish is lost, and no other line is. An entry also says on which machine it was made.

    Args:
        file: the script's own file.
        host: this machine, as the script describes it; None if entries do not depend on it.
        options: the flags of `campaign_parser`; None for none of them.
        same: the parts of the description that have to be equal.
        several: whether the file holds entries of several machines. If not, entries of another one end the program.
        retries: whether an entry that has failed is measured again.
        document: the part of an earlier version's file that holds the entries by name. It has the name of the file,
            with the ending ".json", and is read, too.

    Attributes:
        entries: all entries of the file, in the order in which they were made.
        host: this machine.
    """

    def __init__(
        self,
        file: Path,
        host: Mapping[str, Any] | None = None,
        options: argparse.Namespace | None = None,
        *,
        same: Sequence[str] = ("cpu", "cores", "gpu"),
        several: bool = False,
        retries: bool = False,
        document: str | None = None,
    ) -> None:
        OUT.mkdir(exist_ok=True)  # figures go there, wherever the file is
        self.file: Path = (options and options.file) or file
        self.host, self._same, self._retries = host, same, retries
        self._show = bool(options and options.show)
        self.entries = _entries_of_document(self.file.with_suffix(".json"), document) if document else []
        self.entries += _entries_of_lines(self.file)
        self._begin = len(self.entries) if options and options.fresh else 0
        if others := [] if several else [entry for entry in self.entries if not self._is_of_this_machine(entry)]:
            theirs = ", ".join(str(others[0]["machine"][part]) for part in same if part in others[0]["machine"])
            sys.exit(f"{self.file} is from another machine ({theirs}): move it away first")

    def usable(self) -> list[dict[str, Any]]:
        """The entries that need not be measured again."""
        return [entry for entry in self.entries[self._begin :] if self._holds(entry, {})]

    def latest(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The last entry that tells of `key`, however and whenever it was measured; None if there is none."""
        return next(self._that_tell_of(key, self.entries), None)

    def known(
        self, key: Mapping[str, Any], setting: Mapping[str, Any] | None = None, has: str | None = None
    ) -> dict[str, Any] | None:
        """The last entry that need not be measured again; None if there is none.

        Args:
            key: what it tells of.
            setting: how that has to be measured. An entry of an earlier version that does not say it counts.
            has: a part that it has to have, where other entries tell of the same.
        """
        wanted, entries = _as_kept(setting or {}), self.entries[self._begin :]
        found = (entry for entry in self._that_tell_of(key, entries) if self._holds(entry, wanted))
        return next((entry for entry in found if has is None or has in entry), None)

    def once(
        self,
        key: Mapping[str, Any],
        work: Callable[[], Mapping[str, Any]],
        setting: Mapping[str, Any] | None = None,
        has: str | None = None,
    ) -> dict[str, Any]:
        """The entry that is known, or a new one of what `work` returns. The arguments are those of `known`."""
        if (entry := self.known(key, setting, has)) is not None:
            return entry
        return self.keep({**key, **(setting or {}), **work()})

    def collect(
        self,
        names: Iterable[str],
        work: Callable[[str], Mapping[str, Any]],
        setting: Mapping[str, Any] | Callable[[str], Mapping[str, Any]] | None = None,
        key: str = "name",
    ) -> dict[str, dict[str, Any]]:
        """The entries of all names, each as soon as it is known; with --show those that are kept.

        Args:
            names: what is measured.
            work: measures one of them.
            setting: how it has to be measured; a function if that differs.
            key: the part of an entry that is the name.
        """
        if self._show:
            return self.saved(names, key)

        def said(name: str) -> Mapping[str, Any]:
            print(name, file=sys.stderr, flush=True)
            return work(name)

        return {
            name: self.once({key: name}, partial(said, name), setting(name) if callable(setting) else setting)
            for name in names
        }

    def saved(self, names: Iterable[str], key: str = "name") -> dict[str, dict[str, Any]]:
        """The last entries of those names that have one. Ends the program with one line if none has."""
        entries = {name: entry for name in names if (entry := self.latest({key: name})) is not None}
        if not entries:
            sys.exit(f"{self.file} holds nothing of this yet" + ": run this script without --show" * self._show)
        return entries

    def keep(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Appends an entry to the file, in place of a line that was cut off, and returns it as it is kept."""
        line = encode({**entry, **({} if self.host is None else {"machine": self.host})})
        _append(self.file, line)
        self.entries.append(json.loads(line))
        return self.entries[-1]

    def forget(self) -> None:
        """Removes the file."""
        self.file.unlink(missing_ok=True)
        self.entries.clear()
        self._begin = 0

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
        """Prints the machine and a table of what is kept."""
        if self.host is not None:
            print(described(self.host))
        table(headings, rows, title)

    def _that_tell_of(self, key: Mapping[str, Any], entries: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        wanted = _as_kept(key)
        for entry in reversed(entries):
            if all(part in entry and entry[part] == value for part, value in wanted.items()):
                yield entry

    def _holds(self, entry: Mapping[str, Any], setting: Mapping[str, Any]) -> bool:
        """Whether an entry was measured so, here, and by this version."""
        if self._retries and "failed" in entry:
            return False
        same_setting = all(entry.get(part, value) == value for part, value in setting.items())
        return same_setting and self._is_of_this_machine(entry) and self._is_of_this_version(entry)

    def _is_of_this_machine(self, entry: Mapping[str, Any]) -> bool:
        if self.host is None or "machine" not in entry:
            return True
        return all(entry["machine"].get(part) == self.host.get(part) for part in self._same)

    def _is_of_this_version(self, entry: Mapping[str, Any]) -> bool:
        if self.host is None or "machine" not in entry:
            return True
        theirs, ours = (host.get("versions", {}).get("stormdrop") for host in (entry["machine"], self.host))
        return bool(theirs == ours)


def _as_kept(parts: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(encode(parts))
    return read


def _entries_of_lines(path: Path) -> list[dict[str, Any]]:
    entries = []
    *lines, _ = path.read_text().split("\n") if path.exists() else [""]  # behind the last end of a line: cut off
    for line in lines:
        with contextlib.suppress(ValueError):  # cut off, and an earlier version went on behind it
            entries.append(json.loads(line))
    return entries


def _entries_of_document(path: Path, part: str) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    document = json.loads(path.read_text())
    return [{**entry, "name": name, "machine": document["machine"]} for name, entry in document[part].items()]


def _append(path: Path, line: str) -> None:
    """Appends a line, in place of one that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")


def described(host: Mapping[str, Any]) -> str:
    """The machine of an entry in a few words: its GPU, if it was measured on one."""
    return str(host.get("gpu") or f"{host['cpu']}, {host['cores']} cores")


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [headings, ["---"] * len(headings), *rows])


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


def bars(
    name: str,
    title: str,
    unit: str,
    groups: list[str],
    series: dict[str, list[float]],
    ranges: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> Path:
    """Draws grouped bars, one colour per series, and returns the path of the PNG.

    Args:
        name: The file's name.
        title: What stands above the bars.
        unit: What their heights are.
        groups: The names of the groups.
        series: A height for each group, by series.
        ranges: How far values reach below and above the heights, by series; no error bars by default.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    OUT.mkdir(exist_ok=True)
    positions, width = np.arange(len(groups)), 0.8 / len(series)
    figure, axes = plt.subplots(figsize=(max(6.0, 0.55 * len(groups) * len(series) ** 0.5 + 2), 4.2))
    for index, (label, values) in enumerate(series.items()):
        axes.bar(
            positions + (index - (len(series) - 1) / 2) * width,
            values,
            width,
            label=label,
            yerr=ranges and ranges[label],
        )
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
