"""Searches on recorded spaces of GPU kernels: how close to the optimum they are after 25, 50, 100 and 200 evaluations.

    python benchmarks/searches/recorded.py [--quick]

All searches run with their defaults, which are the parameters of their papers if these print them. If Kernel Tuner is
installed, its strategies run on the same files (kernel_tuner_peers.py). The spaces are exhaustive caches of Kernel
Tuner (https://github.com/AutoTuningAssociation/benchmark_hub, MIT), which are read from `--data`.

An evaluation is a distinct candidate that is measured; a failure counts too. The figure is the recorded median of the
candidate that a search would report at that moment, divided by the best recorded median. Our searches see samples that
are drawn from the recorded ones (with `--exact` the medians themselves). Kernel Tuner sees the recorded mean, without
noise. costs.py measures how long the searches themselves take; this script does not.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any

from _comparison_report import OURS, report
from _grounds import DATA, caches, describe_machine, share_cores, show_progress

from stormdrop.compare import recordings
from stormdrop.compare.comparison import compare
from stormdrop.compare.search_spec import parse_searches
from stormdrop.search import names, needs_prior

SEARCHES = [OURS, *(name for name in names() if name != OURS and not needs_prior(name)), "dpansor:N=100"]
"""The searches that are compared: all that need no model of the machine. dpansor explores for 300 trials by default;
with a budget of 200 trials its droplet would never begin."""

_QUICK_STRATEGIES = ["adaptive_tabu_greywolf", "pso", "genetic_algorithm"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of Kernel Tuner caches (%(default)s)")
    parser.add_argument("--seeds", type=int, default=20, help="runs of each search on each space (%(default)s)")
    parser.add_argument("--trials", type=int, default=200, help="evaluations of a run (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side (%(default)s)")
    parser.add_argument("--searches", default=",".join(SEARCHES), help="as for `stormdrop compare` (%(default)s)")
    parser.add_argument("--strategies", help="of Kernel Tuner, separated by commas; all by default, '' for none")
    parser.add_argument("--exact", action="store_true", help="answer our searches with the medians, without noise")
    parser.add_argument("--quick", action="store_true", help="1 seed and 3 strategies, to try it: a minute")
    arguments = parser.parse_args()
    seeds = 1 if arguments.quick else arguments.seeds
    paths = caches(arguments.data)
    machine = describe_machine("numpy", "scipy", "xgboost-cpu", "kernel_tuner")
    share_cores(arguments.jobs)

    grounds = [recordings.load(path) for path in paths]
    searches = parse_searches(arguments.searches)
    settings: dict[str, Any] = {"seeds": seeds, "trials": arguments.trials, "jobs": arguments.jobs}
    comparison = compare(grounds, searches, **settings, exact=arguments.exact, on_progress=show_progress)
    print(file=sys.stderr)
    if arguments.strategies == "" or comparison.interrupted:
        pass
    elif util.find_spec("kernel_tuner") is None:
        print("Kernel Tuner is not installed, so its strategies are left out. To install it:")
        print("    python -m pip install 'kernel_tuner>=1.5'")
    else:
        import kernel_tuner_peers as peers

        strategies = arguments.strategies.split(",") if arguments.strategies else peers.STRATEGIES
        wanted = _QUICK_STRATEGIES if arguments.quick else strategies
        peer_runs = peers.runs(dict(zip(paths, grounds, strict=True)), wanted, **settings)
        comparison = replace(
            comparison,
            grounds=[replace(ground, runs=[*ground.runs, *peer_runs[ground.name]]) for ground in comparison.grounds],
            searches=[*comparison.searches, *map(peers.label, wanted)],
        )
    report("recorded", comparison.to_json(), machine)


if __name__ == "__main__":
    main()
