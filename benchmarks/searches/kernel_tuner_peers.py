"""Kernel Tuner's own search strategies on recorded spaces, in its simulation mode (nothing is built, run or slept for).

    python -m pip install 'kernel_tuner>=1.5'
    python benchmarks/searches/kernel_tuner_peers.py [--quick]

`recorded.py` runs them beside our searches. Every run has its own search space, because a search space of Kernel Tuner
remembers the neighbours that were looked up in it. Both global random generators that the strategies draw from are
seeded. The Latin hypercubes of diff_evo and bayes_opt take no seed, so these two strategies do not repeat exactly.

How the figures compare with ours:

- The space holds every configuration of the file, including those that failed: trying one is an evaluation, as it is
  for our searches. A configuration that is not in the file costs nothing. The budget is a number of unique evaluations;
  a strategy that gives up earlier keeps its best.
- Strategies see the `time` of the file: the mean of the samples, without noise. The best so far is the lowest *median*
  of all evaluated configurations. This favours the strategies: they would report the one with the lowest mean.
- All options have Kernel Tuner's defaults. adaptive_tabu_greywolf and hybrid_vndx were developed on this collection.
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
from _comparison_report import report
from _grounds import DATA, caches, describe_machine, share_cores

from stormdrop.compare import recordings
from stormdrop.compare.comparison import Comparison, GroundResult, SearchRun
from stormdrop.compare.grounds import Limits
from stormdrop.compare.kernel_tuner import unpacked
from stormdrop.compare.search_run import PARTS
from stormdrop.measure.replay import Recording
from stormdrop.trial import Candidate, Measurement, Phases, Trial
from stormdrop.tuning.trace import Trace

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
    arguments = parser.parse_args()
    if util.find_spec("kernel_tuner") is None:
        raise SystemExit("Kernel Tuner is not installed: python -m pip install 'kernel_tuner>=1.5'")
    seeds = 1 if arguments.quick else arguments.seeds
    strategies = _QUICK if arguments.quick else arguments.strategies.split(",")
    machine = describe_machine("numpy", "scipy", "kernel_tuner", "scikit-learn")
    share_cores(arguments.jobs)

    grounds = {path: recordings.load(path) for path in caches(arguments.data)}
    by_ground = runs(grounds, strategies, seeds=seeds, trials=arguments.trials, jobs=arguments.jobs)
    results = [
        GroundResult(ground.name, ground.spaces, True, (ground.optimum, ground.optimum_seconds), by_ground[ground.name])
        for ground in grounds.values()
    ]
    labels = [label(strategy) for strategy in strategies]
    report(
        "kernel_tuner_peers",
        Comparison(results, labels, seeds, Limits(arguments.trials, None, True)).to_json(),
        machine,
    )


def label(strategy: str) -> str:
    """The name of a strategy among our searches."""
    return f"KT {strategy}"


def runs(
    grounds: Mapping[Path, Recording], strategies: Sequence[str], *, seeds: int, trials: int, jobs: int
) -> dict[str, list[SearchRun]]:
    """The runs of all strategies from the seeds 0 to seeds - 1, by recording. Every strategy and file has a process."""
    tasks = [(path, strategy, seeds, trials) for path in grounds for strategy in strategies]
    by_ground: dict[str, list[SearchRun]] = {recording.name: [] for recording in grounds.values()}
    with get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for (path, strategy, *_), orders in zip(tasks, pool.imap(evaluation_orders, tasks, chunksize=1), strict=True):
            recording = grounds[path]
            print(f"\r{recording.name:<28}{strategy:<28}", end="", file=sys.stderr)
            by_ground[recording.name] += [_run(recording, strategy, seed, order) for seed, order in enumerate(orders)]
    print(file=sys.stderr)
    return by_ground


def evaluation_orders(task: tuple[Path, str, int, int]) -> list[list[Values]]:
    """For each seed the distinct configurations in the order in which a strategy evaluates them.

    `task` is a file, a strategy, the number of seeds, and the budget of evaluations.
    """
    from constraint import FunctionConstraint
    from kernel_tuner import tune_kernel
    from kernel_tuner.util import infer_args_from_cache, read_cache

    path, strategy, seeds, trials = task
    warnings.filterwarnings(
        "ignore", module="kernel_tuner"
    )  # warns of parameters without thread blocks, and of invalid neighbours
    warnings.filterwarnings("ignore", module="scipy.optimize")  # warns of slopes at failures, which cost 1e308
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
    """The run of a strategy that evaluated these configurations. How long it took is unknown: its seconds are 0."""
    (space,) = recording.spaces
    trace = Trace(len(PARTS))
    for count, values in enumerate(order, start=1):
        config = {knob.name: value for knob, value in zip(space.knobs, values, strict=True)}
        candidate = Candidate(space.name, space.point(config))
        recorded = recording.recorded[candidate]
        trace.batch = count
        trace.record(Trial(candidate, Measurement(recorded.status, recorded.seconds, recorded.error)), Phases())
    return SearchRun(label(strategy), seed, trace, [lead.median for lead in trace.leads])


if __name__ == "__main__":
    main()
