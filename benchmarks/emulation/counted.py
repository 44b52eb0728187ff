"""Searches on a device that repeats its times to 0.1%: an emulated Cortex-A72 whose clock counts instructions.

    counted.py [--board FOLDER] [--trials 24] [--searches droplet,storm,...] [--show] [--fresh]

Each search tunes three operators. The table and the plot show the executed instructions of the best schedule after so
many evaluations; a star marks where a search converged. Instructions are not cycles: this compares searches, and says
nothing about ARM processors. Every candidate is measured once, and kept in a ledger (benchmarks/out/counted.jsonl): a
run that was interrupted goes on, and searches that meet at a candidate share its count. At the end a few candidates are
counted again on a board that was started anew, and must have the same counts up to 0.1%: the server's own work adds a
few hundred instructions now and then.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen
from make_arm_board import DEFAULT

import stormdrop as sd
from stand_ins.arm_board import SECONDS_PER_INSTRUCTION, ArmBoard, missing
from stand_ins.cpus import cpu
from stormdrop.cli.output import table
from stormdrop.compare.search_run import run_search
from stormdrop.measure.contract import KernelSetup, Measurer
from stormdrop.measure.local import Limits, LocalMeasurer
from stormdrop.report.plots.style import line_style
from stormdrop.search import Knowledge, create, names
from stormdrop.sketches import knowledge
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Measurement, Request, Status

KERNELS = ("matmul m=32 n=64 k=32", "conv2d n=1 h=8 w=8 ci=16 co=32 kh=3 kw=3 pad=1", "softmax m=16 n=100")
SEARCHES = ("grid", "random", "genetic", "annealing", "evolutionary", "droplet", "dpansor", "storm")
CPU = "cortex-a72"
_SECONDS = 180.0  # for the build of a candidate, and for its run: patience for an emulator on a busy machine
_NOISE = 1e-3  # by which two counts of a candidate may differ
_AGAIN = 4  # candidates of each operator that are counted again

Ledger = dict[tuple[str, Candidate], Measurement]
"""What is known of a candidate of a kernel."""


class Board(LocalMeasurer):
    """Measures the candidates of a kernel on a board, under a lock of its own, because counts do not mind other load.

    Attributes:
        sketches: the sketches that apply, with their spaces.
        knowledge: what a tuning tells its search beforehand.
    """

    def __init__(self, text: str, board: ArmBoard) -> None:
        operator, *arguments = text.split()
        workload = sd.operators.create(operator, dict(argument.split("=") for argument in arguments))
        target = replace(cpu(f"cpu/{CPU}"), runner=board.address, cores=1)
        self.sketches = sketches_for(workload, target)
        setup = KernelSetup(workload, target, self.sketches)
        limits = Limits(build_seconds=_SECONDS, run_seconds=_SECONDS)
        super().__init__(setup, limits=limits, lock_path=OUT / "counted.lock")
        self.knowledge = Knowledge(
            features=knowledge.features(self.sketches, workload, target, "knobs"),
            prior=knowledge.prior(self.sketches, workload, target),
        )


class Counted(Measurer):
    """Measures each candidate once, and answers from the ledger ever after. It keeps the order of first requests."""

    def __init__(self, text: str, inner: Board, known: Ledger, campaign: Campaign) -> None:
        self._text, self._inner, self._known, self._campaign = text, inner, known, campaign

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            if (self._text, request.candidate) not in self._known:
                (measurement,) = self._inner.measure([Request(request.candidate, 1)])
                self._keep(request.candidate, measurement)
            measurement = self._known[self._text, request.candidate]
            yield replace(measurement, seconds=measurement.seconds * request.repeats)

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return list(self.measure([Request(candidate, rounds) for candidate in candidates]))

    def close(self) -> None:
        """Whoever opened the board closes it."""

    def _keep(self, candidate: Candidate, measurement: Measurement) -> None:
        measurement = Measurement(measurement.status, measurement.seconds[:1], measurement.error)
        self._known[self._text, candidate] = measurement
        row = {"kernel": self._text, "sketch": candidate.sketch, "point": candidate.point}
        row.update(status=measurement.status.value, seconds=measurement.seconds, error=measurement.error)
        self._campaign.keep(row)


def main() -> None:
    options = _options()
    campaign = Campaign(OUT / "counted.jsonl", options=options)
    if options.show:
        _show([run for run in campaign.entries if "search" in run])
        return
    known = _known(campaign)
    runs: list[dict[str, Any]] = []
    with ArmBoard(options.board, CPU, counted=True) as board:
        for text in KERNELS:
            with Board(text, board) as inner:
                device = Counted(text, inner, known, campaign)
                for name in options.searches:
                    spaces = [space for _, space in inner.sketches]
                    search = create(name, spaces, np.random.default_rng(0), inner.knowledge)
                    trace = run_search(search, device, options.trials)
                    best = _best_so_far([known[text, candidate] for candidate in trace.measurements])
                    run = {"kernel": text, "search": name, "trials": options.trials}
                    runs.append(campaign.keep({**run, "converged": trace.converged, "best": best}))
                    print(f"{text}: {name}: {len(best)} evaluations", file=sys.stderr, flush=True)
    differing = _count_again(options.board, known)
    _show(runs)
    print(f"{len(known)} candidates, {sum(not entry.ok for entry in known.values())} failed")
    print(
        f"{len(differing)} of {_AGAIN * len(KERNELS)} counts differ by more than 0.1% on a board that was started anew"
    )
    for line in differing:
        print(line)
    sys.exit(bool(differing))


def _show(runs: Sequence[dict[str, Any]]) -> None:
    """Prints the last run of each search on each operator, and draws their convergence."""
    if not runs:
        sys.exit("no search has run yet: run this script without --show")
    last = list({(run["kernel"], run["search"]): run for run in runs}.values())
    table(["operator", "search", "first", "best", "evaluations", "converged"], [_row(run) for run in last])
    print(_draw(last))


def _best_so_far(measurements: Sequence[Measurement]) -> list[float | None]:
    """The fewest instructions per execution after each evaluation; None while nothing has worked."""
    counts = [entry.seconds[0] / SECONDS_PER_INSTRUCTION if entry.ok else math.inf for entry in measurements]
    return [None if best == math.inf else best for best in itertools.accumulate(counts, min)]


def _count_again(folder: Path, known: Ledger) -> list[str]:
    """Counts a few candidates on a board that is started anew. Returns those whose count differs."""
    differing = []
    with ArmBoard(folder, CPU, counted=True) as board:
        for text in KERNELS:
            with Board(text, board) as inner:
                worked = sorted(
                    candidate for kernel, candidate in known if kernel == text and known[kernel, candidate].ok
                )
                for index in np.linspace(0, len(worked) - 1, _AGAIN).astype(int):
                    (again,) = inner.measure([Request(worked[index], 1)])
                    before = known[text, worked[index]].seconds[0]
                    if not again.ok or abs(again.seconds[0] - before) > _NOISE * before:
                        differing.append(f"{text}: {worked[index]}: {again} instead of {before} s")
    return differing


def _row(run: dict[str, Any]) -> list[str]:
    ends = ["-" if count is None else f"{count:.0f}" for count in (run["best"][0], run["best"][-1])]
    return [run["kernel"], run["search"], *ends, str(len(run["best"])), "yes" if run["converged"] else "no"]


def _draw(runs: Sequence[dict[str, Any]]) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import StrMethodFormatter

    figure, axes = plt.subplots(1, len(KERNELS), figsize=(5.2 * len(KERNELS), 4.2))
    for axis, text in zip(axes, KERNELS, strict=True):
        for index, run in enumerate(run for run in runs if run["kernel"] == text):
            best = [math.nan if count is None else count / 1000 for count in run["best"]]
            # Searches that see the same candidates have the same line: later ones are narrower, so that all are seen.
            style = line_style(index) | {"linewidth": 1.2 + 0.7 * (len(SEARCHES) - 1 - index)}
            axis.plot(range(1, len(best) + 1), best, drawstyle="steps-post", label=run["search"], **style)
            if run["converged"]:
                axis.plot(len(best), best[-1], marker="*", markersize=12, color=style["color"], linestyle="none")
        axis.set_title(text, fontsize=9)
        axis.set_xlabel("evaluations")
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}"))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("thousand instructions per execution")
    axes[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    path = OUT / "counted.png"
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
    return path


def _known(campaign: Campaign) -> Ledger:
    known: Ledger = {}
    for row in campaign.usable():
        if "search" in row:
            continue
        candidate = Candidate(row["sketch"], tuple(row["point"]))
        known[row["kernel"], candidate] = Measurement(Status(row["status"]), tuple(row["seconds"]), row["error"])
    return known


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--board", type=Path, default=DEFAULT, help="folder of the board (%(default)s)")
    parser.add_argument("--trials", type=int, default=24, help="evaluations of each search (%(default)s)")
    parser.add_argument("--searches", default=",".join(SEARCHES), help="with commas in between (%(default)s)")
    options = parser.parse_args()
    options.searches = chosen(options.searches, names(), "search")
    if not options.show and (reason := missing(options.board)):
        sys.exit(reason)
    return options


if __name__ == "__main__":
    main()
