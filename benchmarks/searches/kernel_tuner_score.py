"""The score of the autotuning community for storm beside Kernel Tuner's own strategies, on recorded spaces.

    python -m pip install 'kernel_tuner>=1.5' 'autotuning_methodology>=1.1'
    python benchmarks/searches/kernel_tuner_score.py [--quick]

All strategies run in Kernel Tuner's simulation mode, storm by `StormStrategy`. The score is that of the package
`autotuning_methodology` with its default settings (Willemsen et al., "A Methodology for Comparing Auto-Tuning
Optimization Algorithms"): the budget of a space is the time in which random search is expected to come 95% of the way
from the median to the optimum; the best so far is compared at equal times with that expectation; 0 is as good as random
search, 1 is the optimum at once. The score is the mean over time and spaces.

The time of a strategy is the recorded time of its configurations, plus what the strategy itself takes on this machine.
Results are kept in `--folder` per space and strategy, and a later run goes on with what is missing there.

Deviations from the package's own command: a space holds what was recorded, not what restrictions leave of the
parameters, because caches hold no restrictions; and the spaces are those of `--data`.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
from _grounds import caches, describe_machine, parser, save, table

from stormdrop.compare import recordings
from stormdrop.compare.kernel_tuner import unpacked
from stormdrop.compare.kernel_tuner_writer import write_t4

OURS = "storm"
STRATEGIES = (
    OURS,
    "adaptive_tabu_greywolf",
    "hybrid_vndx",
    "pso",
    "genetic_algorithm",
    "simulated_annealing",
    "greedy_ils",
    "random_sample",
)
_QUICK = (OURS, "genetic_algorithm", "random_sample")
START, END = 0.01, 0.95
"""How far random search is on its way to the optimum when the comparison begins and ends."""

MARGIN = 1.1
"""A run may take this many times the budget, as in the package."""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--strategies", default=",".join(STRATEGIES), help="separated by commas (%(default)s)")
    options.add_argument("--folder", type=Path, default=Path("benchmarks/out/kernel_tuner_score"), help="(%(default)s)")
    arguments = options.parse_args()
    for package in ("kernel_tuner", "autotuning_methodology"):
        if util.find_spec(package) is None:
            raise SystemExit(f"{package} is not installed: the first lines of this script say how")
    strategies = _QUICK if arguments.quick else tuple(arguments.strategies.split(","))
    repeats = arguments.seeds or (2 if arguments.quick else 10)
    paths = caches(arguments.data)[: 2 if arguments.quick else None]
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    machine = describe_machine("numpy", "kernel_tuner", "autotuning_methodology")
    from autotuning_methodology.report_experiments import get_strategies_aggregated_performance

    aggregated = [one_space(path, strategies, repeats, folder) for path in paths]
    performances, *_ = get_strategies_aggregated_performance(aggregated, 0.95)
    alone = [get_strategies_aggregated_performance([one], 0.95)[0] for one in aggregated]
    rows = [
        {
            "strategy": name,
            "score": float(np.mean(performances[index])),
            "deviation": float(np.std(performances[index])),
            "by_space": {path.name: float(np.mean(of[index])) for path, of in zip(paths, alone, strict=True)},
        }
        for index, name in enumerate(strategies)
    ]
    rows.sort(key=lambda row: -row["score"])
    titles = [path.name.partition(".")[0] for path in paths]
    table(
        ("strategy", "score", *titles),
        [
            (row["strategy"], f"{row['score']:.3f}", *(f"{each:.3f}" for each in row["by_space"].values()))
            for row in rows
        ],
    )
    save("kernel_tuner_score", {"machine": machine, "repeats": repeats, "rows": rows})


def one_space(path: Path, strategies: tuple[str, ...], repeats: int, folder: Path) -> Any:
    """What the package needs of a space: random search, the curve of each strategy, statistics, and the ranges."""
    from autotuning_methodology.baseline import RandomSearchCalculatedBaseline
    from autotuning_methodology.curves import StochasticOptimizationAlgorithm
    from autotuning_methodology.searchspace_statistics import SearchspaceStatistics

    kernel, _, device = path.name.partition(".")[0].partition("_")
    plain, full = folder / f"{kernel}_{device}.json", folder / f"{kernel}_{device}_T4.json"
    plain.write_bytes(unpacked(path))
    _write_whole_space(path, json.loads(plain.read_text()), full)
    keys = _time_keys()
    statistics = SearchspaceStatistics(kernel, device, True, keys, ["time"], full, full_validate=False)
    first, last, begin, end = statistics.cutoff_point_fevals_time_start_end(START, END)
    curves = []
    for strategy in strategies:
        print(f"{kernel} on {device}: {strategy}", file=sys.stderr, flush=True)
        curves.append(
            StochasticOptimizationAlgorithm(
                results(strategy, plain, statistics, (max(begin, 0.0), end), repeats, folder / "run")
            )
        )
    times = np.linspace(start=begin, stop=end, num=1000)
    return RandomSearchCalculatedBaseline(statistics), curves, statistics, times, np.arange(first, last + 1)


def results(strategy: str, plain: Path, statistics: Any, span: tuple[float, float], repeats: int, folder: Path) -> Any:
    """The runs of a strategy on a space as the package keeps them: from its files, or made now."""
    from autotuning_methodology import runner
    from autotuning_methodology.caching import ResultsDescription

    place = folder / f"{strategy}-{repeats}"
    place.mkdir(parents=True, exist_ok=True)
    kept = ResultsDescription(
        place,
        statistics.application_name,
        statistics.device_name,
        strategy,
        strategy,
        True,
        statistics.objective_time_keys,
        ["time"],
        True,
    )
    if kept.has_results():
        return kept
    begin, end = span
    group = {
        "repeats": repeats,
        "budget": {"time_limit": MARGIN * end},
        "cutoff_times": {"cutoff_time_start": begin, "cutoff_time": MARGIN * end},
        "minimum_fraction_of_budget_valid": 0.25,
        "minimum_number_of_valid_search_iterations": 25,
    }
    space = _Simulated(plain, strategy, MARGIN * end)
    runner.tune = space.tune  # the package's own takes files of the format T1, which hold no recorded spaces
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return runner.collect_results(None, group, kept, statistics, False)


def _write_whole_space(path: Path, cache: Mapping[str, Any], full: Path) -> None:
    """Writes a recorded space in the format T4, with the times that Kernel Tuner's simulation mode reports.

    The package looks each of these up in the space, and takes no rounding.
    """
    write_t4(recordings.load(path), full)
    names = cache["tune_params_keys"]
    times = {tuple(entry[name] for name in names): entry["time"] for entry in cache["cache"].values()}
    document = json.loads(full.read_text())
    for result in document["results"]:
        for measurement in result["measurements"]:
            measurement["value"] = times[tuple(result["configuration"][name] for name in names)]
    full.write_text(json.dumps(document))


class _Simulated:
    """A recorded space, on which Kernel Tuner runs a strategy in its simulation mode."""

    def __init__(self, plain: Path, strategy: str, seconds: float) -> None:
        from kernel_tuner.util import read_cache

        self.plain, self.strategy, self.seconds, self.seed = plain, strategy, seconds, 0
        self.cache = read_cache(str(plain), open_cache=False)
        self.keys = self.cache["tune_params_keys"]
        self.space = {tuple(entry[key] for key in self.keys) for entry in self.cache["cache"].values()}

    def tune(self, *_: Any) -> tuple[list[Any], Mapping[str, Any], int]:
        """One run, in the place of `autotuning_methodology.runner.tune`."""
        import copy

        from autotuning_methodology.searchspace_statistics import convert_from_time_unit
        from constraint import FunctionConstraint
        from kernel_tuner import tune_kernel
        from kernel_tuner.file_utils import get_t4_results
        from kernel_tuner.util import infer_args_from_cache

        from stormdrop.integrations.kernel_tuner_strategy import StormStrategy

        random.seed(self.seed)
        np.random.seed(self.seed)
        strategy = StormStrategy(seed=self.seed) if self.strategy == OURS else self.strategy
        self.seed += 1
        found, _env = tune_kernel(
            **copy.deepcopy(infer_args_from_cache(self.cache)),
            cache=str(self.plain),
            restrictions=[FunctionConstraint(lambda *values: values in self.space)],
            simulation_mode=True,
            strategy=strategy,
            strategy_options={"time_limit": self.seconds},
            quiet=True,
        )
        document = get_t4_results(found, self.cache["tune_params"])
        for result in document["results"]:
            for name, value in result["times"].items():
                result["times"][name] = convert_from_time_unit(value, "milliseconds")
        return [], document, 0


def _time_keys() -> list[str]:
    """All parts of the time that the package knows."""
    import autotuning_methodology

    schema = json.loads((Path(autotuning_methodology.__file__).parent / "schemas/experiments.json").read_text())
    keys = schema["properties"]["statistics_settings"]["properties"]["objective_time_keys"]["items"]["enum"]
    return [key for key in keys if key != "all"]


if __name__ == "__main__":
    main()
