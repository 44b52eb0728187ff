"""Checks every sketch of every operator on emulated ARM processors, through a runner, as a tuning would measure it.

    arm.py [--board FOLDER] [--cpus cortex-a72,a64fx] [--points 12] [--corners 4] [--sources builtin,rules]
           [--show] [--fresh]

A point is right if it schedules, compiles, runs on the board and computes what NumPy computes: small integers before
and after its samples, and real numbers of six decades within the bound that follows from rounding. The points of a
space are its origin, the outermost points (every knob has its first or last value), and random ones. MetaSchedule's own
sampling may refuse a point; refused points are counted separately.

Every point is written to a ledger (benchmarks/out/arm_points.jsonl) as soon as it is known, and is not tried again. So
a run that was interrupted goes on, and more points can be added later. All spaces get their first points before any
gets more. Times mean nothing on an emulator, so the machine may be busy, and the machine-wide lock is not taken.
`make_arm_board.py` makes the folder of the board.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from _common import OUT, Campaign, campaign_parser, chosen, machine, save
from correct import KERNELS
from make_arm_board import DEFAULT

import stormdrop as sd
from stand_ins.arm_board import ArmBoard, missing
from stand_ins.cpus import cpu as named_cpu
from stormdrop.cli.output import table
from stormdrop.errors import MeasureError, UnsupportedFunction
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import Limits, LocalMeasurer
from stormdrop.measure.pool.pool import WorkerPool
from stormdrop.sketches.registry import SOURCES, sketches_for
from stormdrop.trial import Candidate, Request, Status

_CHUNK = 4  # points of a space that are tried before the next space has its turn
_SECONDS = 180.0  # for the build of a point, and for its run: patience for an emulator on a busy machine
_DRAWN = 4096  # combinations of ends that are drawn in search of corners
_CRASHES = 3  # times that the board may end in one space before the space is left

Key = tuple[str, str, str, str, tuple[int, ...]]
"""Processor, kernel, source, sketch and point."""


def main() -> None:
    options = _options()
    campaign = Campaign(OUT / "arm_points.jsonl", options=options)
    if options.show:
        _report(_known(campaign.entries))
    known = _known(campaign.usable())
    with ExitStack() as stack:
        pool = stack.enter_context(WorkerPool(1, 1))
        boards = {cpu: stack.enter_context(ArmBoard(options.board, cpu)) for cpu in options.cpus}
        for begin in range(0, 1 + options.corners + options.points, _CHUNK):
            for text, cpu, source in itertools.product(options.kernels, options.cpus, options.sources):
                for key, verdict, why in _checked(text, cpu, source, options, begin, known, boards[cpu], pool):
                    known[key] = verdict, why
                    words = ("cpu", "kernel", "source", "sketch", "point", "verdict", "why")
                    campaign.keep(dict(zip(words, (*key, verdict, why), strict=True)))
                    if verdict not in ("right", "refused"):
                        print(f"{cpu}: {text}: {key[3]} {key[4]}: {verdict}: {why}", file=sys.stderr, flush=True)
    _report(known)


def _checked(
    text: str,
    cpu: str,
    source: str,
    options: argparse.Namespace,
    begin: int,
    known: dict[Key, tuple[str, str]],
    board: ArmBoard,
    pool: WorkerPool,
) -> Iterator[tuple[Key, str, str]]:
    """Tries one chunk of the points of each space of a kernel. Yields what is not known: key, verdict, reason."""
    operator, *arguments = text.split()
    workload = sd.operators.create(operator, dict(argument.split("=") for argument in arguments))
    target = replace(named_cpu(f"cpu/{cpu}"), cores=1)  # the board's
    try:
        sketches = sketches_for(workload, target, source)
    except UnsupportedFunction as error:  # MetaSchedule's rules fail on some functions
        print(f"{cpu}: {error}", file=sys.stderr, flush=True)
        return
    for sketch, space in sketches:
        points = _points(space, options.corners, options.points)[begin : begin + _CHUNK]
        keys = [(cpu, text, source, sketch.name, point) for point in points]
        todo = [key for key in keys if key not in known]
        for _ in range(_CRASHES):
            if not todo:
                break
            if not board.address:
                board.start()
            here = target.with_runner(board.address)
            limits = Limits(build_seconds=_SECONDS, run_seconds=_SECONDS)
            with LocalMeasurer(
                KernelSetup(workload, here, [(sketch, space)]), pool=pool, lock_path=OUT / "arm.lock", limits=limits
            ) as measurer:
                while todo:
                    measurer.best = None  # so that this point is also executed on real numbers
                    request = Request(Candidate(space.name, todo[0][4]), 1)
                    try:
                        (measurement,) = measurer.measure([request])
                    except MeasureError as error:
                        print(f"{cpu}: the board is started again: {error}", file=sys.stderr, flush=True)
                        board.stop()
                        break
                    refused = measurement.status is Status.INSTANTIATION and source == "meta_schedule"
                    verdict = "right" if measurement.ok else "refused" if refused else measurement.status.value
                    yield todo.pop(0), verdict, measurement.error


def _points(space: Any, corners: int, random: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(0)
    ends = [sorted({0, size - 1}) for knob in space.knobs for size in knob.sizes]
    outermost = (tuple(int(rng.choice(ends_of_size)) for ends_of_size in ends) for _ in range(_DRAWN))
    found = itertools.islice((point for point in dict.fromkeys(outermost) if space.contains(point)), corners)
    return list(dict.fromkeys([space.origin, *found, *(space.sample(rng) for _ in range(random))]))


def _known(rows: Sequence[Mapping[str, Any]]) -> dict[Key, tuple[str, str]]:
    return {
        (row["cpu"], row["kernel"], row["source"], row["sketch"], tuple(row["point"])): (row["verdict"], row["why"])
        for row in rows
    }


def _report(known: dict[Key, tuple[str, str]]) -> NoReturn:
    groups: dict[tuple[str, str], Counter[str]] = {}
    for (cpu, text, _, _, _), (verdict, _) in known.items():
        groups.setdefault((cpu, text.split()[0]), Counter())[verdict] += 1
    lines = []
    for (cpu, operator), counts in groups.items():
        wrong = sum(counts.values()) - counts["right"] - counts["refused"]
        spaces = {key[1:4] for key in known if (key[0], key[1].split()[0]) == (cpu, operator)}
        names = sorted({name.rstrip("0123456789") for _, _, name in spaces})
        lines.append([f"{cpu}: {operator}", ", ".join(names), *map(str, (len(spaces), counts["right"]))])
        lines[-1] += [str(counts["refused"]), str(wrong)]
    table(["operator", "sketches", "spaces", "right", "refused", "wrong"], lines)
    wrong_points = [(key, *why) for key, why in known.items() if why[0] not in ("right", "refused")]
    print(f"{len(known)} points, {len(wrong_points)} wrong")
    document = {"machine": machine(), "operators": lines, "wrong": wrong_points}
    print(save("arm", document))
    sys.exit(bool(wrong_points))


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    names = list(dict.fromkeys(text.split()[0] for text in KERNELS))
    parser.add_argument("--board", type=Path, default=DEFAULT, help="folder of the board (%(default)s)")
    parser.add_argument("--cpus", default="cortex-a72,a64fx", help="processors, with commas in between (%(default)s)")
    parser.add_argument("--operators", default=",".join(names), help="operators, with commas in between (all)")
    parser.add_argument("--points", type=int, default=12, help="random points of each space (%(default)s)")
    parser.add_argument("--corners", type=int, default=4, help="outermost points of each space (%(default)s)")
    parser.add_argument("--sources", default=",".join(SOURCES), help="sources of sketches (%(default)s)")
    options = parser.parse_args()
    if not options.show and (reason := missing(options.board)):
        sys.exit(reason)
    options.cpus, options.sources = options.cpus.split(","), chosen(options.sources, SOURCES, "source")
    wanted = chosen(options.operators, names, "operator")
    options.kernels = [text for text in KERNELS if text.split()[0] in wanted]
    return options


if __name__ == "__main__":
    main()
