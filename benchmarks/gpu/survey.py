"""Whole models for GPUs without a GPU: compiled by `nvcc`, and their kernels executed as CUDA source on this machine.

    survey.py compile [--only resnet18,bert_base] [--targets cuda/a100,cuda/rtx3080]
    survey.py execute [--only squeezenet] [--blocks 8] [--seconds 60] [--schedules 2]

`compile` compiles the 23 models of the papers (`benchmarks/models/papers.py`) with their default schedules. An entry
has each kernel with its sketch, its launches, the registers, shared memory and spilled bytes that `ptxas` reports, and
the seconds that are expected of it (`_expected_seconds.py` says by what). Nothing is executed or verified.

`execute` runs every kernel of seven smaller models by `tests/stand_ins/cuda_on_host.py`, at its default and at random
schedules: as it is, and with each sanitizer. Outputs are compared with NumPy in float64. A grid of more than --blocks
blocks is reduced to its first, its last, and some evenly in between, and only what these write is compared; if that
takes more than --seconds, to three blocks, then to one. The entry says how many were executed, of how many. A kernel
that writes into a slice of a concatenation is one of its own, whose other elements must stay as they are.

Each model, or kernel and schedule, is a line of the file as soon as it is known, and a run that was ended goes on from
there. `--show` prints the tables of what is kept. The exit code is 1 if a model or a kernel is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, RECORDED, Campaign, campaign_parser, chosen, in_child, versions
from gpu._compiled_models import compiled
from gpu._executed_kernels import NOT_COMPARED, RIGHT, executed, kernels_of
from gpu._networks import NETWORKS
from papers import MODELS, exported

from stormdrop.cli.output import table
from stormdrop.errors import StormdropError
from stormdrop.machine.gpu import GPUS, Gpu, parse

TARGETS = "cuda/a100,cuda/rtx3080"
LIMIT = 3600.0  # seconds that one model may take


def main() -> None:
    options = _options()
    if options.one:
        print(json.dumps(compile_one(options.one, parse(options.targets))))
        return
    sys.exit(compile_all(options) if options.what == "compile" else execute_all(options))


def compile_all(options: argparse.Namespace) -> bool:
    """Compiles the models, each in a process of its own. Returns whether something is wrong."""
    campaign = Campaign(RECORDED / "gpu_survey.jsonl", _host(), options, same=(), several=True, retries=True)
    names = chosen(options.only or ",".join(MODELS), MODELS, "model")
    entries = []
    for name in names:
        for target in options.targets.split(","):
            key = {"model": name, "target": target}
            arguments = ["compile", "--one", name, "--targets", target]
            if options.show:
                entry = campaign.latest(key)
            else:
                print(name, target, file=sys.stderr, flush=True)
                entry = campaign.once(key, lambda given=arguments: in_child(__file__, given, LIMIT))  # type: ignore[misc]
            if entry is not None:
                entries.append(entry)
    headings = [
        "",
        "for",
        "kernels",
        "calls",
        "launches",
        "spilling",
        "expected",
        "of that",
        "import",
        "compile",
        "MB",
    ]
    table([*headings, "of that code"], [_row(entry) for entry in entries])
    return not entries or any("failed" in entry or entry["without_launch"] for entry in entries)


def compile_one(name: str, gpu: Gpu) -> dict[str, Any]:
    """The entry of a model, or under "failed" why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        exported(name, path)
        try:
            return compiled(path, gpu)
        except StormdropError as error:
            return {"failed": str(error)}


def _row(entry: Mapping[str, Any]) -> list[str]:
    begin = [entry["model"], entry["target"]]
    if "failed" in entry:
        return [*begin, "failed: " + entry["failed"][:160], *[""] * 9]
    shares = sorted(entry["seconds_by_sketch"].items(), key=lambda item: -item[1])
    return [
        *begin,
        str(len(entry["kernels"])),
        str(entry["calls"]),
        str(entry["launches"]),
        str(len(entry["spilling"])),
        f"{1e3 * entry['seconds']:.3f} ms",
        ", ".join(f"{name} {seconds / entry['seconds']:.1%}" for name, seconds in shares),
        f"{entry['import_seconds']:.0f} s",
        f"{entry['compile_seconds']:.0f} s",
        f"{entry['bytes'] / 1e6:.1f}",
        f"{entry['code_bytes'] / 1e6:.1f}",
    ]


def execute_all(options: argparse.Namespace) -> bool:
    """Executes the kernels. Returns whether one of them is wrong."""
    campaign = Campaign(OUT / "gpu_survey_kernels.jsonl", _host(), options, same=(), several=True)
    networks = chosen(options.only or ",".join(NETWORKS), NETWORKS, "network")
    entries = []
    if options.show:
        latest = {(entry["key"], entry["schedule"]): entry for entry in campaign.entries}
        entries = [entry for entry in latest.values() if entry["network"] in networks]
    else:
        seen = set[str]()
        for network in networks:
            for kernel in kernels_of(network, GPUS["a100"]):
                if kernel.key in seen:
                    continue
                seen.add(kernel.key)
                for schedule in range(1 if kernel.workload is None else 1 + options.schedules):
                    key = {"key": kernel.key, "schedule": schedule}
                    entry = campaign.known(key, {"blocks": options.blocks})
                    if entry is None:
                        found = executed(kernel, schedule, GPUS["a100"], options.blocks, options.seconds)
                        about = {"network": network, "kernel": kernel.name, **key, "blocks": options.blocks}
                        entry = campaign.keep({**about, **found})
                        print(network, kernel.name, schedule, entry["verdict"], file=sys.stderr, flush=True)
                    entries.append(entry)
    _show_executed(entries)
    return not entries or any(entry["verdict"] not in (RIGHT, NOT_COMPARED) for entry in entries)


def _show_executed(entries: Sequence[Mapping[str, Any]]) -> None:
    counts = Counter((entry["network"], entry["sketch"], entry["verdict"]) for entry in entries)
    reduced = Counter(
        (entry["network"], entry["sketch"], entry["verdict"]) for entry in entries if entry["executed"] != entry["grid"]
    )
    rows = [[*key, str(count), str(reduced[key])] for key, count in sorted(counts.items())]
    table(["first in", "sketch", "verdict", "schedules", "of these, some of the blocks"], rows)
    for entry in entries:
        if entry["verdict"] != RIGHT:
            print(json.dumps(entry))


def _host() -> dict[str, Any]:
    return {"versions": versions()}


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("what", choices=("compile", "execute"))
    parser.add_argument("--only", default="", help="models, separated by commas (all)")
    parser.add_argument("--targets", default=TARGETS, help="what `compile` compiles for (%(default)s)")
    parser.add_argument("--schedules", type=int, default=2, help="random schedules of each kernel (%(default)s)")
    parser.add_argument("--blocks", type=int, default=8, help="the most blocks of a grid (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="the most of an execution (%(default)s)")
    parser.add_argument("--one", metavar="MODEL", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
