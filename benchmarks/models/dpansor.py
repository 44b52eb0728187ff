"""The experiment of the DPAnsor paper on models: explore much, or explore little and then descend.

    dpansor.py [--models squeezenet,resnet18] [--trials 10000] [--N 1,10,25,50,100,200,300,1000] [--exploiters]
               [--show] [--fresh]

`evolutionary` (Ansor's search) has 10,000 trials over all kernels of a model. `dpansor` explores with N trials over all
kernels by the same search, and then descends from the best schedule of every kernel until it converges, with 100 trials
at most. Both are as printed (`preset=paper`), both search TVM MetaSchedule's own sketches, and both tune from nothing,
without a bound of time. If N is less than the number of kernels, every kernel gets one trial. `--exploiters` adds the
runs of section 3.4: 300 trials, and then grid, random search, GA or XGB with 100 trials per kernel in the descent's
place.

In the end the models of all runs take turns; the speed is the time of `evolutionary`'s model over theirs. The tables
and plots are Figures 10 to 13 and 16 to 18 of the paper.

Where this differs from the paper:

- The cost model of `evolutionary` sees the knobs' encodings, not Ansor's 164 features (`--features statements`). With
  these a round scores some 8,000 schedules at 10 ms each, and 10,000 trials take hours of computing features alone.
  Without them, each kernel has a cost model of its own.
- The paper takes means of three samples and Wilcoxon's rank-sum test with p below 0.01. Three samples a side cannot
  give a p below 0.05. The test is the same here, and its samples are the rounds of the race.

Every run is a line in benchmarks/recorded/dpansor.jsonl as soon as it is done, and a second run of the script goes on
from there. The models of an unfinished experiment stay in benchmarks/out/dpansor. SqueezeNet takes an hour with two
cores. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, RECORDED, Campaign, campaign_parser, chosen, machine
from _dpansor_figures import BASELINE, EXPLORED, Experiment, draw, show
from _graphs import NAMES, graph
from _race import artifacts, race

import stormdrop as sd
from stormdrop.model.inputs.samples import random_feeds

EXPLOITERS = ("grid", "random", "genetic", "annealing")
_FOLDER = OUT / "dpansor"


def main() -> None:
    options = _options()
    host = machine()
    setting = {"cpu": host["cpu"], "cores": host["cores"], "trials": options.trials, "features": options.features}
    campaign = Campaign(RECORDED / "dpansor.jsonl", host, options, several=True)
    experiments = _recorded(campaign, setting)
    runs = _runs(options)
    for model in () if options.show else options.models:
        experiment = experiments.setdefault(model, Experiment(model))
        for run, (search, settings, trials) in runs.items():
            if run in experiment.runs and (run in experiment.race or (_FOLDER / model / run).exists()):
                continue
            print(f"{model}: {run}", file=sys.stderr, flush=True)
            experiment.runs[run] = tune(model, run, search, settings, trials, options)
            campaign.keep({"model": model, "run": run, "setting": setting, "figures": experiment.runs[run]})
        if not set(runs) <= set(experiment.race):
            feeds = random_feeds(sd.load(_FOLDER / model / BASELINE).inputs, options.seed)
            experiment.race = race(artifacts(_FOLDER / model, list(runs), feeds), BASELINE, options.rounds)
            campaign.keep({"model": model, "race": experiment.race, "setting": setting})
    done = [experiments[model] for model in options.models if model in experiments and experiments[model].race]
    if not done:
        sys.exit(f"nothing is recorded in {campaign.file} for this machine and these models")
    for experiment in done:
        show(experiment)
    for path in draw(done, OUT):
        print(path)


def tune(
    model: str,
    run: str,
    search: str,
    settings: Mapping[str, Any],
    trials: int | None,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Tunes one model and returns the figures of the tuning. The artifact stays on disk."""
    artifact = _FOLDER / model / run
    shutil.rmtree(artifact, ignore_errors=True)
    with sd.open_store("sqlite://") as store:
        result = sd.tune_model(
            graph(model),
            search=search,
            options=dict(settings),
            trials=trials,
            time=None if trials else 24 * 3600.0,  # more than enough: the descents end by themselves
            seed=options.seed,
            sketches="meta_schedule",
            features=options.features,
            store=store,
            fresh=True,
            out=artifact,
        )
    if result.interrupted:
        sys.exit(130)
    document = result.to_json()
    explored = settings.get("N")
    layers = [task for task in document["tasks"] if task["trials"]]
    kept = ("name", "weight", "seconds", "trials", "tuning_seconds")
    return {
        "seconds": document["seconds"],
        "trials": document["trials"],
        "failed": document["failed"],
        "layers": [{key: task[key] for key in kept} for task in layers],
        "exploited": None if explored is None else document["trials"] - max(explored, len(layers)),
        "converged": sum(task["converged"] for task in layers),
        "curve": document["curve"],
        "error": document["verified"]["max_error"],
    }


def _runs(options: argparse.Namespace) -> dict[str, tuple[str, dict[str, Any], int | None]]:
    """By the name of a run its search, its options and its trials."""
    runs: dict[str, tuple[str, dict[str, Any], int | None]] = {
        BASELINE: (BASELINE, {"preset": "paper"}, options.trials),
        **{f"N={n}": ("dpansor", {"preset": "paper", "N": n}, None) for n in options.N},
    }
    if options.exploiters:
        runs.setdefault(f"N={EXPLORED}", ("dpansor", {"preset": "paper", "N": EXPLORED}, None))
        for exploiter in EXPLOITERS:
            settings = {
                "preset": "paper",
                "N": EXPLORED,
                "exploiter": exploiter,
                "exploiter_options": {"preset": "paper"},
            }
            runs[f"N={EXPLORED} {exploiter}"] = ("dpansor", settings, None)
    return runs


def _recorded(campaign: Campaign, setting: Mapping[str, Any]) -> dict[str, Experiment]:
    """The experiments of this machine and setting that are kept, by model."""
    experiments: dict[str, Experiment] = {}
    for row in campaign.usable():
        if row["setting"] == setting:
            experiment = experiments.setdefault(row["model"], Experiment(row["model"]))
            if "race" in row:
                experiment.race = row["race"]
            else:
                experiment.runs[row["run"]] = row["figures"]
    return experiments


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default="squeezenet,resnet18", help="models, separated by commas (%(default)s)")
    parser.add_argument("--trials", type=int, default=10_000, help=f"trials of {BASELINE} (%(default)s)")
    parser.add_argument("--N", default="1,10,25,50,100,200,300,1000", help="trials of exploration (%(default)s)")
    parser.add_argument("--exploiters", action="store_true", help="also other searches in the place of the descents")
    parser.add_argument("--features", default="knobs", help="what the cost model sees (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of the race (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    options = parser.parse_args()
    options.models = chosen(options.models, NAMES, "model")
    options.N = [int(n) for n in options.N.split(",")]
    return options


if __name__ == "__main__":
    main()
