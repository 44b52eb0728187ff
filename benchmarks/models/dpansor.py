"""The experiment of the DPAnsor paper on models: explore much, or explore little and then descend.

    dpansor.py [--target cuda] [--minutes 9] [--models squeezenet,resnet18] [--trials 10000]
               [--N 1,10,25,50,100,200,300,1000] [--exploiters] [--show] [--fresh]

`evolutionary` (Ansor's search) has 10,000 trials over all kernels of a model. `dpansor` explores with N trials over all
kernels by the same search, and then descends from the best schedule of every kernel until it converges, with 100 trials
at most. Both are as printed (`preset=paper`), both search TVM MetaSchedule's own sketches, and both tune from nothing,
without a bound of time. If N is less than the number of kernels, every kernel gets one trial. `--exploiters` adds the
runs of section 3.4: 300 trials, and then grid, random search, GA or XGB with 100 trials per kernel in the descent's
place.

In the end the models of all runs take turns; the speed is the time of `evolutionary`'s model over theirs. The tables
and plots are Figures 10 to 13 and 16 to 18 of the paper; on a GPU Figures 11, 12, 15 and 18. (Figure 19 is that of
`kernels/microkernels.py`.) The models are the twenty of the paper; `papers.py` says what stands for each.

Where this differs from the paper:

- The cost model of `evolutionary` sees the knobs' encodings, not Ansor's 164 features (`--features statements`). With
  these a round scores some 8,000 schedules at 10 ms each, and 10,000 trials take hours of computing features alone.
  Without them, each kernel has a cost model of its own.
- The paper takes means of three samples and Wilcoxon's rank-sum test with p below 0.01. Three samples a side cannot
  give a p below 0.05. The test is the same here, and its samples are the rounds of the race.
- What is recorded as "squeezenet" with 29 kernels is version 1.0, of the ONNX model zoo.

Every run is a line in benchmarks/recorded/dpansor.jsonl (on a GPU: benchmarks/out/dpansor_cuda.jsonl) as soon as it is
done, and a second run of the script goes on from there, also in the middle of a tuning that `--minutes` has ended. The
models of an unfinished experiment stay in benchmarks/out/dpansor. SqueezeNet takes an hour with two cores. Run it on an
idle machine. `--target opencl` is a dry run where there is no GPU, with PoCL; the sketches are then those that rules
derive.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen, machine
from _dpansor_figures import BASELINE, EXPLORED, Experiment, draw, show, show_means
from _race import artifacts, race
from _slices import Slice, SliceOver, add_target, kept_in, target_here, unfinished
from papers import MODELS, exported

import stormdrop as sd
from stormdrop.machine.contract import CPU, OPENCL, Machine
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.records import Store

NAMES = [name for name, model in MODELS.items() if "DPAnsor" in model.papers]
EXPLOITERS = ("grid", "random", "genetic", "annealing")
_FOLDER = OUT / "dpansor"  # with a folder for each target


def main() -> None:
    options = _options()
    target = None if options.show else target_here(options.target)
    host = None if target is None else machine(target)
    campaign = Campaign(kept_in("dpansor", options.target), host, options, several=True)
    setting = _last_setting(campaign, options) if target is None else _setting(target, options)
    experiments = _recorded(campaign, setting)
    if target is not None:
        with Slice(options.minutes) as slice_:
            for model in options.models:
                complete(campaign, experiments.setdefault(model, Experiment(model)), setting, options, target, slice_)
    done = [experiments[model] for model in options.models if model in experiments and experiments[model].race]
    if not done:
        sys.exit(f"no model is finished in {campaign.file} with this setting")
    for experiment in done:
        show(experiment)
    show_means(done)
    for path in draw(done, OUT):
        print(path)


def _setting(target: Machine, options: argparse.Namespace) -> dict[str, Any]:
    """What experiments have in common whose figures can be compared."""
    host = machine(target)
    setting = {"cpu": host["cpu"], "cores": host["cores"], "trials": options.trials, "features": options.features}
    return setting if target.device == CPU else {**setting, "gpu": host["gpu"], "sketches": _sketches(target)}


def _last_setting(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """The setting of the last entry with these trials and features, on whatever machine."""
    settings = [row["setting"] for row in campaign.entries if "setting" in row]
    asked = (options.trials, options.features)
    return next((each for each in reversed(settings) if (each["trials"], each["features"]) == asked), {})


def _folder(options: argparse.Namespace, model: str) -> Path:
    """Where a model and its artifacts for a target are."""
    return _FOLDER / "".join(letter if letter.isalnum() else "_" for letter in options.target) / model


def complete(
    campaign: Campaign,
    experiment: Experiment,
    setting: Mapping[str, Any],
    options: argparse.Namespace,
    target: Machine,
    slice_: Slice,
) -> None:
    """Does what is missing of a model: its tunings and the race of the results."""
    model = experiment.model
    runs = _runs(options)
    for run, (search, settings, trials) in runs.items():
        if run in experiment.runs and (run in experiment.race or (_folder(options, model) / run).exists()):
            continue
        slice_.check()
        key = {"model": model, "run": run, "setting": setting}
        begin = time.perf_counter()
        what = f"{options.trials} trials, {options.features}, seed {options.seed}, {setting.get('gpu', setting['cpu'])}"
        with unfinished(f"{model}: {run}, {what}", options.fresh) as store:
            try:
                figures = tune(model, run, search, settings, trials, options, target, store, slice_)
            except SliceOver:
                campaign.keep({**key, "part": time.perf_counter() - begin})
                raise
        figures["seconds"] += experiment.parts.pop(run, 0.0)
        experiment.runs[run] = figures
        campaign.keep({**key, "figures": figures})
    if not set(runs) <= set(experiment.race):
        slice_.check()
        feeds = random_feeds(sd.load(_folder(options, model) / BASELINE).inputs, options.seed)
        specs = artifacts(_folder(options, model), list(runs), feeds, target.device)
        experiment.race = race(specs, BASELINE, options.rounds)
        campaign.keep({"model": model, "race": experiment.race, "setting": setting})


def tune(
    model: str,
    run: str,
    search: str,
    settings: Mapping[str, Any],
    trials: int | None,
    options: argparse.Namespace,
    target: Machine,
    store: Store,
    slice_: Slice,
) -> dict[str, Any]:
    """Tunes one model, or goes on with that, and returns the figures of the tuning. The artifact stays on disk.

    Raises:
        SliceOver: The time of this call is over.
    """
    source, artifact = _folder(options, model) / "model.onnx", _folder(options, model) / run
    if not source.exists():
        exported(model, source)
    shutil.rmtree(artifact, ignore_errors=True)
    result = sd.tune_model(
        source,
        target=target,
        search=search,
        options=dict(settings),
        trials=trials,
        time=None if trials else 24 * 3600.0,  # more than enough: the descents end by themselves
        seed=options.seed,
        sketches=_sketches(target),
        features=options.features,
        store=store,
        resume=True,
        transfer=False,
        on_progress=lambda _: slice_.check(),  # without the model that Ctrl-C would compile
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


def _sketches(target: Machine) -> str:
    """Ansor's sketches: TVM's own, which has none for OpenCL."""
    return "rules" if target.device == OPENCL else "meta_schedule"


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
            elif "part" in row:
                experiment.parts[row["run"]] = experiment.parts.get(row["run"], 0.0) + row["part"]
            else:
                experiment.runs[row["run"]] = row["figures"]
                experiment.parts.pop(row["run"], None)  # they are in the figures
    return experiments


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    add_target(parser)
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
