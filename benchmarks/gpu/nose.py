"""The experiment of the NoSE paper on a GPU: ResNet-18's convolutions, AutoTVM's template for CUDA, four searches.

    nose.py [--target cuda] [--layers C12,C2] [--time 3600] [--runs 4] [--minutes 9] [--show] [--fresh]
    nose.py --target cuda/a100 --compile 100

The template (`searches/_direct_cuda.py`) has no constraints, so configurations fail; each failure is a measurement with
a status (Table I). NoSE, GA, XGB and random run as printed, each for an hour on each layer of Table II, with four
seeds: eight days. Printed are

    Figures 5, 8   the best speed in GFLOP/s at shares of the time, mean of the runs and its standard error
    Figures 6, 7   candidates by status, and the seconds that were spent on them

Every batch of an unfinished run is in a database in benchmarks/out/tunings, and every finished run is a line of
benchmarks/out/nose.jsonl. A call ends after `--minutes` and the next one goes on there. The first seed of all layers
comes first. XGB does not carry its model from one layer to the next, as AutoTVM's does.

Without a GPU: `--target opencl` measures on any device that OpenCL drives, PoCL for instance. `--compile` compiles
random points by `nvcc` for a GPU that is not here, and says how they fail: a kernel that needs more registers than a
multiprocessor has could not be launched. `runtime` is then what `ptxas` predicts, and nothing is executed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "searches"))

from _common import OUT, Campaign, add_to_import_path, campaign_parser, chosen, machine
from _direct_cuda import InstantiationError, direct_cuda
from _slices import Slice, add_target, target_here, tuned

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.codegen.cuda import cuda_source, launches, resources
from stormdrop.compare.search_spec import SearchSpec, parse_searches
from stormdrop.errors import StormdropError
from stormdrop.machine.contract import Machine
from stormdrop.machine.gpu import Gpu

_TABLE_2 = {
    "C1": (224, 3, 64, 7, 2, 3),
    "C2": (56, 64, 64, 3, 1, 1),
    "C3": (56, 64, 64, 1, 1, 0),
    "C4": (56, 64, 128, 3, 2, 1),
    "C5": (56, 64, 128, 1, 2, 0),
    "C6": (28, 128, 128, 3, 1, 1),
    "C7": (28, 128, 256, 3, 2, 1),
    "C8": (28, 128, 256, 1, 2, 0),
    "C9": (14, 256, 256, 3, 1, 1),
    "C10": (14, 256, 512, 3, 2, 1),
    "C11": (14, 256, 512, 1, 2, 0),
    "C12": (7, 512, 512, 3, 1, 1),
}
"""Rows and columns, input and output channels, window, stride, padding. The paper prints a padding of 1 for all."""

LAYERS = {
    name: sd.operators.conv2d(
        n=1, h=size, w=size, ci=ci, co=co, kh=window, kw=window, stride=stride, pad=pad, layout="NCHW"
    )
    for name, (size, ci, co, window, stride, pad) in _TABLE_2.items()
}
SEARCHES = "nose:preset=paper,genetic:preset=paper,annealing:preset=paper,random"
_SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)
_REGISTERS = 65_536  # of a multiprocessor


def main() -> None:
    options = _options()
    file = OUT / "nose.jsonl"
    if options.show:
        show(Campaign(file, None, options).entries, options.time)
        return
    if options.compile:
        how = compiled(LAYERS[options.layers[0]], sd.parse_machine(options.target), options.compile)
        table(["", "points", "seconds"], [[kind, str(n), f"{spent:.1f}"] for kind, (n, spent) in how.items()])
        return
    target = target_here(options.target, only_gpus=True)
    campaign = Campaign(file, machine(target), options)
    add_to_import_path(Path(__file__).parents[1] / "searches")  # the workers import the template
    with Slice(options.minutes) as slice_:
        for seed in range(options.runs):
            for layer in options.layers:
                for search in options.searches:
                    key = {"layer": layer, "search": search.label, "seed": seed, "time": options.time}
                    campaign.once(key, partial(run, key, search, target, slice_, options.fresh))
    show(campaign.usable(), options.time)


def run(key: Mapping[str, Any], search: SearchSpec, target: Machine, slice_: Slice, fresh: bool) -> dict[str, Any]:
    """Goes on with a run of a search. Raises `SliceOver` if it is not finished in the time of this call."""
    tuning = tuned(
        slice_,
        f"{key['layer']}: {search.label}, seed {key['seed']}, {key['time']:g} s, {target.machine}",
        LAYERS[key["layer"]],
        seconds=key["time"],
        fresh=fresh,
        target=target,
        sketches=[direct_cuda],
        search=search.name,
        options=search.options,
        seed=key["seed"],
        transfer=False,
    )
    counts, spent = Counter[str](), defaultdict[str, float](float)
    for trial in tuning.trials:
        counts[trial.measurement.status.value] += 1
        spent[trial.measurement.status.value] += trial.measurement.phases.total
    curve = [list(point) for point in tuning.result.curve]
    return {"curve": curve, "seconds": tuning.seconds, "statuses": dict(counts), "status_seconds": dict(spent)}


def compiled(workload: Any, target: Machine, points: int) -> dict[str, tuple[int, float]]:
    """How random points fail by what `nvcc` says: the number and the seconds by status."""
    if not isinstance(target, Gpu):
        raise StormdropError("--compile is for NVIDIA's GPUs: --target cuda/a100")
    space = direct_cuda.space(workload, target)
    assert space is not None
    rng = np.random.default_rng(0)
    found: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(points):
        config, begin = space.config(space.sample(rng)), time.perf_counter()
        try:
            function = direct_cuda.apply(workload, target, config).main
            (launch,) = launches(function, target)
            (taken,) = resources(cuda_source(function, target), target)
            status = "runtime" if taken.registers * launch.threads > _REGISTERS else "ok"
        except InstantiationError:
            status = "instantiation"
        found[status].append(time.perf_counter() - begin)
    return {status: (len(seconds), sum(seconds)) for status, seconds in found.items()}


def show(entries: Sequence[Mapping[str, Any]], limit: float) -> None:
    """Prints the speeds of each layer by time, and how candidates failed. Ends the program if nothing is kept."""
    groups: defaultdict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for entry in {(e["layer"], e["search"], e["seed"]): e for e in entries if e["time"] == limit}.values():
        groups[entry["layer"], entry["search"]].append(entry)
    if not groups:
        sys.exit("no run is finished yet")
    rows, kinds = [], []
    for (layer, search), runs in groups.items():
        row = [layer, search, str(len(runs))]
        for share in _SHARES:
            best = [[kernel for at, kernel in entry["curve"] if at <= share * limit] for entry in runs]
            rates = [LAYERS[layer].flops / min(kernels) / 1e9 if kernels else 0.0 for kernels in best]
            error = statistics.stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else 0.0
            row.append(f"{statistics.fmean(rates):.1f} +- {error:.1f}")
        rows.append(row)
        for status in sorted({status for entry in runs for status in entry["statuses"]}):
            number, seconds = (
                statistics.fmean(entry[part].get(status, 0) for entry in runs)
                for part in ("statuses", "status_seconds")
            )
            kinds.append([layer, search, status, f"{number:.0f}", f"{seconds:.1f}"])
    headings = [f"at {share * limit:.0f} s" for share in _SHARES]
    table(["layer", "search", "runs", *headings], rows, "GFLOP/s, mean and standard error (Figures 5 and 8)")
    table(["layer", "search", "status", "candidates", "seconds"], kinds, "Means of the runs (Figures 6 and 7)")


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    add_target(parser, "cuda", minutes=9.0)
    parser.add_argument("--layers", default="C12,C2,C6,C9,C1,C3,C4,C5,C7,C8,C10,C11", help="layers (%(default)s)")
    parser.add_argument("--searches", default=SEARCHES, help="searches (%(default)s)")
    parser.add_argument("--time", type=float, default=3600.0, help="seconds of a run (%(default)s)")
    parser.add_argument("--runs", type=int, default=4, help="runs of each search, with different seeds (%(default)s)")
    parser.add_argument(
        "--compile", type=int, default=0, metavar="N", help="compile N random points of the first layer"
    )
    options = parser.parse_args()
    options.layers, options.searches = chosen(options.layers, LAYERS, "layer"), parse_searches(options.searches)
    return options


if __name__ == "__main__":
    try:
        main()
    except StormdropError as error:
        sys.exit(str(error))
