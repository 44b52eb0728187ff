"""Kernel Tuner's own search strategies on recorded spaces, in its simulation mode (nothing is built, run or slept for).

    python -m pip install 'kernel_tuner>=1.5'
    python benchmarks/searches/kernel_tuner_peers.py [--quick]

`recorded.py` runs them beside ours. Every run has a search space of its own, because Kernel Tuner's remembers
neighbours that it has looked up, and both of the random generators that the strategies draw from, which are global, are
seeded. The Latin hypercubes of diff_evo and bayes_opt take no seed: these two do not repeat exactly.

How the figures compare with ours:

- The space is every configuration of the file, those that failed too: to try one is an evaluation, as for ours. What is
  not in the file costs nothing. The budget is unique evaluations; a strategy that gives up earlier keeps its best.
- Strategies see the `time` of the file: the mean of the samples, without noise. Best so far is the least *median* of
  all that were evaluated, which favours them: a user would be told the one with the least mean.
- Options are Kernel Tuner's defaults. adaptive_tabu_greywolf and hybrid_vndx were developed on this collection.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from importlib import util
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from grounds import DATA
from recorded import caches, place, report, share_cores

from stormdrop.compare import recordings
from stormdrop.compare.comparison import Comparison, GroundResult, SearchRun
from stormdrop.compare.grounds import Limits
from stormdrop.compare.kernel_tuner import unpacked
from stormdrop.compare.search_run import PARTS
from stormdrop.measure.replay import Recording
from stormdrop.trial import Candidate
from stormdrop.tuning.trace import Lead, Trace

STRATEGIES = (
    "adaptive_tabu_greywolf",
    "hybrid_vndx",
    "pso",
    "genetic_algorithm",
    "diff_evo",
    "firefly_algorithm",
    "simulated_annealing",
    "dual_annealing",
    "basinhopping",
    "mls",
    "greedy_mls",
    "ordered_greedy_mls",
    "greedy_ils",
    "bayes_opt",
    "random_sample",
)
_QUICK = ("adaptive_tabu_greywolf", "pso", "genetic_algorithm", "random_sample")

Values = tuple[Any, ...]
"""A configuration: the values of the parameters in the order of the file."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of Kernel Tuner caches (%(default)s)")
    parser.add_argument("--seeds", type=int, default=20, help="runs of each strategy on each space (%(default)s)")
    parser.add_argument("--trials", type=int, default=200, help="evaluations of a run (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side (%(default)s)")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="separated by commas (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="1 seed and 4 strategies, to try it: a minute")
    asked = parser.parse_args()
    if util.find_spec("kernel_tuner") is None:
        raise SystemExit("Kernel Tuner is not installed: python -m pip install 'kernel_tuner>=1.5'")
    seeds = 1 if asked.quick else asked.seeds
    strategies = _QUICK if asked.quick else asked.strategies.split(",")
    where = place("numpy", "scipy", "kernel_tuner", "scikit-learn")
    share_cores(asked.jobs)

    grounds = {path: recordings.load(path) for path in caches(asked.data)}
    found = runs(grounds, strategies, seeds=seeds, trials=asked.trials, jobs=asked.jobs)
    judged = [
        GroundResult(each.name, each.spaces, True, (each.optimum, each.optimum_seconds), found[each.name])
        for each in grounds.values()
    ]
    labels = [label(strategy) for strategy in strategies]
    report("kernel_tuner_peers", Comparison(judged, labels, seeds, Limits(asked.trials, None, True)).to_json(), where)


def label(strategy: str) -> str:
    """What a strategy is called beside our searches."""
    return f"KT {strategy}"


def runs(
    grounds: Mapping[Path, Recording], strategies: Sequence[str], *, seeds: int, trials: int, jobs: int
) -> dict[str, list[SearchRun]]:
    """By recording the runs of all strategies from the seeds 0 to seeds - 1; a process per strategy and file."""
    tasks = [(path, strategy, seeds, trials) for path in grounds for strategy in strategies]
    found: dict[str, list[SearchRun]] = {recording.name: [] for recording in grounds.values()}
    with get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for (path, strategy, *_), orders in zip(tasks, pool.imap(evaluated, tasks, chunksize=1), strict=True):
            recording = grounds[path]
            print(f"\r{recording.name:<28}{strategy:<28}", end="", file=sys.stderr)
            found[recording.name] += [_run(recording, strategy, seed, order) for seed, order in enumerate(orders)]
    print(file=sys.stderr)
    return found


def evaluated(task: tuple[Path, str, int, int]) -> list[list[Values]]:
    """For a file, a strategy, seeds and a budget: per seed the distinct configurations in the order of evaluation."""
    from constraint import FunctionConstraint
    from kernel_tuner import tune_kernel
    from kernel_tuner.util import infer_args_from_cache, read_cache

    path, strategy, seeds, trials = task
    warnings.filterwarnings("ignore", module="kernel_tuner")  # of parameters without thread blocks, invalid neighbours
    warnings.filterwarnings("ignore", module="scipy.optimize")  # its slopes of what fails, which is 1e308
    orders = []
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "cache.json"
        plain.write_bytes(unpacked(path))
        cache = read_cache(str(plain), open_cache=False)
        keys = cache["tune_params_keys"]
        space = {tuple(entry[key] for key in keys) for entry in cache["cache"].values()}
        for seed in range(seeds):
            random.seed(seed)
            np.random.seed(seed)
            results, _ = tune_kernel(
                **copy.deepcopy(infer_args_from_cache(cache)),
                cache=str(plain),
                restrictions=[FunctionConstraint(lambda *values: values in space)],
                simulation_mode=True,
                strategy=strategy,
                strategy_options={"max_fevals": trials},
                quiet=True,
            )
            tried = dict.fromkeys(tuple(result[key] for key in keys) for result in results)
            orders.append([values for values in tried if values in space])
    return orders


def _run(recording: Recording, strategy: str, seed: int, order: Sequence[Values]) -> SearchRun:
    """A run that leads with the best of all that it has evaluated; its seconds are unknown and left at 0."""
    (space,) = recording.spaces
    walked, times = Trace(), list[float]()
    for count, values in enumerate(order, start=1):
        candidate = Candidate(space.name, space.point({k.name: v for k, v in zip(space.knobs, values, strict=True)}))
        walked.evaluated[candidate] = recording.recorded[candidate].status
        seconds = recording.truth(candidate)
        if seconds is not None and (not times or seconds < times[-1]):
            walked.leads.append(Lead(count, count, (0.0,) * len(PARTS), candidate))
            times.append(seconds)
    return SearchRun(label(strategy), seed, walked, times)


if __name__ == "__main__":
    main()
