"""Records the whole space of one kernel on this machine, so that searches can run on the recording.

The kernel is the 3x3 convolution of stride 2 in the last stage of ResNet-50; its space has some 600 points. They are
measured in several passes in different orders, so that the recording also holds the noise between groups. A pass takes
some minutes. `stormdrop.compare.recordings.load` reads the file, and `transfer.py --recordings` compares files of
several machines.

Every measurement is written to a ledger, a file of JSON lines beside the recordings of benchmarks/out, as soon as it is
known. A run that was ended goes on from there. `exhaustive.py` records another kernel in this way.
"""

from __future__ import annotations

import gzip
import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser

import stormdrop as sd
from stormdrop.compare import recordings
from stormdrop.ir.workload import Workload
from stormdrop.machine.contract import Machine
from stormdrop.measure.contract import KernelSetup, Measurer
from stormdrop.measure.sites import site_of
from stormdrop.records import Filter, Outcome, Problem, Record, Setting, StoredTrial, open_store, write_lines
from stormdrop.records.codec import trial_from_json, trial_to_json
from stormdrop.sketches.contract import AnySketch
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Space
from stormdrop.trial import Candidate, Request

WORKLOAD = sd.operators.conv2d(n=1, h=14, w=14, ci=512, co=512, kh=3, kw=3, stride=2, pad=1)
RECORDING = OUT / "conv2d.jsonl.gz"
REPEATS = 3  # samples of a candidate in one pass
BATCH = 16


def main() -> None:
    parser = campaign_parser(__doc__)
    parser.add_argument("--passes", type=int, default=3, help="how often every point is measured (%(default)s)")
    parser.add_argument("--points", type=int, help="record this many random points only, to try it")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the orders (%(default)s)")
    parser.add_argument("--out", type=Path, default=RECORDING, help="the file to write (%(default)s)")
    arguments = parser.parse_args()
    target = sd.Cpu.detect()
    ledger = arguments.file or OUT / f"{arguments.out.name.split('.')[0]}.ledger.jsonl"
    sketches = sketches_for(WORKLOAD, target)
    seed, passes, points, fresh = arguments.seed, arguments.passes, arguments.points, arguments.fresh
    if not arguments.show:
        record(WORKLOAD, target, sketches, ledger, arguments.out, points=points, passes=passes, seed=seed, fresh=fresh)
    elif not arguments.out.exists():
        sys.exit(f"{arguments.out} is not there yet: run this script without --show")
    show(arguments.out)


def record(
    workload: Workload,
    target: Machine,
    sketches: Sequence[tuple[AnySketch, Space]],
    ledger: Path,
    out: Path,
    *,
    points: int | None = None,
    passes: int = 1,
    seed: int = 0,
    fresh: bool = False,
    before_batch: Callable[[], None] = lambda: None,
) -> None:
    """Measures points of spaces, and writes them as a recording as soon as all are there.

    Ends the program with one line if the ledger holds measurements of something else.

    Args:
        workload: the kernel.
        target: this machine, or a device of it.
        sketches: its sketches with their spaces.
        ledger: the file to which measurements are written as they come, and from which a run goes on.
        out: the recording.
        points: so many random points are measured; all by default.
        passes: how often each is measured.
        seed: the seed of the points that are picked and of the orders.
        fresh: forget what the ledger holds.
        before_batch: may raise something to end, so that another run goes on there.
    """
    spaces = [space for _, space in sketches]
    rng = np.random.default_rng(seed)
    candidates = [Candidate(space.name, point) for space in spaces for point in space.points()]
    candidates = [candidates[i] for i in rng.permutation(len(candidates))[:points]]
    todo = [(number, candidates[i]) for number in range(passes) for i in rng.permutation(len(candidates))]
    problem = Problem(workload.key, workload.text, workload.name, target.kind, target.machine)
    setting = Setting(
        search="all points",
        seed=seed,
        sketches={space.name: space.fingerprint for space in spaces},
        method={
            "passes": passes,
            "repeats": REPEATS,
            "spaces": {space.name: space.describe() for space in spaces},
        },
        versions={name: metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy")},
    )
    identity = {
        "workload": problem.workload_key,
        "machine": f"{problem.target}, {problem.machine}",
        "points": len(candidates),
        **{name: getattr(setting, name) for name in ("seed", "sketches", "versions")},
        "passes": passes,
    }
    campaign = Campaign(ledger)
    if fresh:
        campaign.forget()
    known = _known(campaign, identity, setting.sketches)
    begin = time.perf_counter() - (known[-1].elapsed if known else 0.0)
    if len(known) < len(todo):
        with site_of(target).measurer(KernelSetup(workload, target, sketches)) as measurer:
            for trial in _measured(measurer, spaces, todo, len(known), setting.sketches, begin, before_batch):
                campaign.keep(trial_to_json(trial))
                known.append(trial)
        print()
    with open_store("sqlite://") as store:
        session = store.open(problem, setting)
        for start in range(0, len(known), BATCH):
            records = [Record(t.sketch, t.config, t.measurement, t.elapsed) for t in known[start : start + BATCH]]
            store.append(session, start // BATCH, records)
        store.finish(session, Outcome())
        lines = io.BytesIO()
        write_lines(store.dump(Filter()), lines)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(gzip.compress(lines.getvalue(), mtime=0))


def _known(campaign: Campaign, identity: dict[str, Any], fingerprints: Any) -> list[StoredTrial]:
    """What an earlier run has measured. A new ledger gets its first line, which says what it is of."""
    header, *rows = campaign.entries or [campaign.keep(identity)]
    if header != identity:
        parts = [part for part in identity if header.get(part) != identity[part]]
        sys.exit(f"{campaign.file} was begun with other {', '.join(parts)}: move it away first")
    return [trial_from_json(row, position, fingerprints) for position, row in enumerate(rows)]


def _measured(
    measurer: Measurer,
    spaces: Sequence[Space],
    todo: Sequence[tuple[int, Candidate]],
    done: int,
    fingerprints: Any,
    begin: float,
    before_batch: Callable[[], None],
) -> Iterator[StoredTrial]:
    """Measures what is left to do, and yields each trial as soon as it is known."""
    by_name = {space.name: space for space in spaces}
    for start in range(done, len(todo), BATCH):
        before_batch()
        batch = [candidate for _, candidate in todo[start : start + BATCH]]
        measured = measurer.measure([Request(candidate, REPEATS) for candidate in batch])
        for position, (candidate, measurement) in enumerate(zip(batch, measured, strict=True), start):
            config = by_name[candidate.sketch].config(candidate.point)
            elapsed = time.perf_counter() - begin
            fingerprint = fingerprints[candidate.sketch]
            yield StoredTrial(position // BATCH, position, candidate.sketch, fingerprint, config, measurement, elapsed)
        print(f"\rpass {todo[position][0] + 1}: {position + 1} of {len(todo)}, {elapsed:.0f} s", end="", flush=True)


def show(path: Path) -> None:
    """Prints a summary of a recording."""
    recording = recordings.load(path)
    best = recording.optimum
    config = next(space for space in recording.spaces if space.name == best.sketch).config(best.point)
    failed = sum(not known.seconds for known in recording.recorded.values())
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB, {len(recording.recorded)} candidates, {failed} failed")
    print(f"fastest {recording.optimum_seconds * 1e3:.3f} ms: {config}")


if __name__ == "__main__":
    main()
