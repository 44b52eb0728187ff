"""What Ansor's 164 features of a candidate cost: scheduled and extracted by TVM, and computed from its knobs alone.

    statements.py [--shapes M1,R2,R7] [--candidates 40] [--batches 1,32,512,2048] [--rounds 5]

The space is that of Listing 1 of the AF-DS paper for an A100. Every round has other random candidates. In it, TVM does
`--candidates` of them, one by one, and `stormdrop/sketches/gpu/statements/` does batches of each size. The figures are
medians of the milliseconds of processor time per candidate, in one thread, so that the machine may be busy. `share` are
the candidates that are known from their knobs. `equal` are those of them that TVM did, too: all 164 features have to be
the same to the last bit, else the script ends with an error. It needs no GPU, and takes half a minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from _common import bars, chosen, save, versions
from _shapes import SHAPES, TABLE_1
from gpu.run import plain

from stormdrop.cli.output import table
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.sketches.statement_features import extractor

_NAME = "gpu_statements"
_PARTS = ("schedule", "extract")


def main() -> None:
    options = _options()
    entries = {name: measured(name, options) for name in options.shapes}
    kinds = [*_PARTS, *map(str, options.batches)]
    rows = [
        [
            name,
            *(f"{entry['milliseconds'][kind]:.3f}" for kind in kinds),
            f"{entry['share']:.0%}",
            str(entry["compared"]),
        ]
        for name, entry in entries.items()
    ]
    table(["", *_PARTS, *(f"batch of {size}" for size in options.batches), "share", "equal"], rows)
    series = {kind: [entry["milliseconds"][kind] for entry in entries.values()] for kind in kinds}
    print(bars(_NAME, "Ansor's features of a candidate", "ms of processor time", list(entries), series))
    print(save(_NAME, {"versions": versions(), "shapes": entries}))


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The milliseconds per candidate of a shape, by part of TVM's way and by size of a batch.

    Raises:
        AssertionError: A feature is another one than TVM extracts.
    """
    workload, device, sketch = plain(SHAPES[name]), GPUS["a100"], GpuContraction(listing_1=True)
    space = sketch.space(workload, device)
    assert space is not None
    rng, extract = np.random.default_rng(0), extractor(workload, device, threads=1)
    times: dict[str, list[float]] = defaultdict(list)
    compared, shares = 0, []
    for _ in range(options.rounds):
        points = [space.sample(rng) for _ in range(max(options.candidates, *options.batches))]
        scheduled, extracted = [], []
        for point in points[: options.candidates]:
            start = time.process_time()
            scheduled.append(sketch.apply(workload, device, space.config(point)).main)
            between = time.process_time()
            extracted += extract(scheduled[-1:])
            times["schedule"].append(between - start)
            times["extract"].append(time.process_time() - between)
        for size in options.batches:
            columns = space.columns(points[:size])
            start = time.process_time()
            stated = sketch.statements(workload, device, columns)
            times[str(size)].append((time.process_time() - start) / size)
        assert stated is not None
        rows, known = stated
        shares.append(float(known.mean()))
        for right, mine, sure in zip(extracted, rows, known, strict=False):
            if sure:
                np.testing.assert_array_equal(mine, right)
                compared += 1
    milliseconds = {kind: 1e3 * statistics.median(values) for kind, values in times.items()}
    return {"milliseconds": milliseconds, "share": statistics.fmean(shares), "compared": compared}


def _sizes(text: str) -> list[int]:
    return sorted(int(number) for number in text.split(","))


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="M1,R2,R7", help="shapes of Table 1, separated by commas (%(default)s)")
    parser.add_argument("--candidates", type=int, default=40, help="that TVM does in a round (%(default)s)")
    parser.add_argument("--batches", default=[1, 32, 512, 2048], type=_sizes, help="sizes of batches (1,32,512,2048)")
    parser.add_argument("--rounds", type=int, default=5, help="with other candidates each (%(default)s)")
    options = parser.parse_args(arguments)
    options.shapes = chosen(options.shapes, TABLE_1, "shape")
    return options


if __name__ == "__main__":
    main()
