"""Records the whole space of one kernel on this machine, so that searches can run on the recording.

The kernel is a 3x3 convolution of the last stage of ResNet-50; its space has some 1,000 points. They are measured in
several passes in different orders, so that the recording also holds the noise between groups. A pass takes some
minutes. `stormdrop.compare.recordings.load` reads the file.
"""

from __future__ import annotations

import argparse
import gzip
import io
import time
from importlib import metadata
from pathlib import Path

import numpy as np

import stormdrop as sd
from stormdrop.compare import recordings
from stormdrop.measure.local import LocalMeasurer
from stormdrop.records import Filter, Outcome, Problem, Record, Setting, open_store, write_lines
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Request

WORKLOAD = sd.operators.conv2d(n=1, h=7, w=7, ci=512, co=512, kh=3, kw=3, pad=1)
OUT = Path(__file__).parents[2] / "examples" / "data" / "conv2d_7x7_512.jsonl.gz"
REPEATS = 3  # samples of a candidate in one pass
BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3, help="how often every point is measured (%(default)s)")
    parser.add_argument("--points", type=int, help="record this many random points only, to try it")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the orders (%(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="the file to write (%(default)s)")
    arguments = parser.parse_args()

    target = sd.Target.detect()
    sketches, spaces = zip(*sketches_for(WORKLOAD, target), strict=True)
    rng = np.random.default_rng(arguments.seed)
    candidates = [Candidate(space.name, point) for space in spaces for point in space.points()]
    candidates = [candidates[i] for i in rng.permutation(len(candidates))[: arguments.points]]
    by_name = {space.name: space for space in spaces}
    problem = Problem(WORKLOAD.key, WORKLOAD.text, WORKLOAD.name, f"llvm {target.mcpu}", target.machine)
    setting = Setting(
        search="all points",
        seed=arguments.seed,
        sketches={space.name: space.fingerprint for space in spaces},
        method={
            "passes": arguments.passes,
            "repeats": REPEATS,
            "spaces": {space.name: space.describe() for space in spaces},
        },
        versions={name: metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy")},
    )
    begin = time.perf_counter()
    with open_store("sqlite://") as store, LocalMeasurer(WORKLOAD, target, sketches, spaces) as measurer:
        session = store.open(problem, setting)
        for number in range(arguments.passes):
            order = [candidates[i] for i in rng.permutation(len(candidates))]
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                measured = list(measurer.measure([Request(candidate, REPEATS) for candidate in batch]))
                elapsed = time.perf_counter() - begin
                records = [
                    Record(candidate.sketch, by_name[candidate.sketch].config(candidate.point), measurement, elapsed)
                    for candidate, measurement in zip(batch, measured, strict=True)
                ]
                store.append(session, start // BATCH, records)
                print(f"\rpass {number + 1}: {start + len(batch)} of {len(order)}, {elapsed:.0f} s", end="", flush=True)
        print()
        store.finish(session, Outcome())
        lines = io.BytesIO()
        write_lines(store.dump(Filter()), lines)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_bytes(gzip.compress(lines.getvalue(), mtime=0))
    show(arguments.out)


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
