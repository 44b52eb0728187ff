"""Tunings beside a busy core: do fast kernels win all the same, and do those that win deserve it?

    beside_load.py [--model squeezenet|FILE.onnx] [--runs 20] [--time 30s] [--busy 1]
    beside_load.py --check

Each run tunes the model from another seed, without earlier records, while other processes keep `--busy` cores busy. Of
its kernels it keeps what stands in the model, and the fastest that was measured. `--check` races them with the default
schedules later, when nothing else runs. It prints:

    kept     how many of the three costliest kernels of a run have their default schedule, although the fastest that
             was measured takes two thirds of its time or less in the quiet race
    left     how many of them had no turn
    false    how many schedules that stand in a model are slower than the default in the quiet race: by its median, and
             significantly; of a run's ten costliest
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import onnx
from _common import OUT, Campaign, campaign_parser, machine
from _graphs import ZOO, graph

import stormdrop as sd
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.tuned_task import TunedTask
from stormdrop.model.importer.any_model import import_model
from stormdrop.model.tuning.scheduler import tasks_of
from stormdrop.records import open_store
from stormdrop.statistics import ratio_interval
from stormdrop.trial import Candidate
from stormdrop.tuning.options import TuneOptions

_COSTLIEST = 3
_FASTER = 1.5
_SECONDS = 1.0  # of a quiet race
_CHECKED = 10  # winners of a run, the costliest


def main() -> None:
    parser = campaign_parser(__doc__)
    parser.add_argument("--model", default="squeezenet", help="a model of the zoo, or an ONNX file")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--time", default="30s", help="the budget of a run")
    parser.add_argument("--busy", type=int, default=1, help="busy cores")
    parser.add_argument("--check", action="store_true", help="race the winners of the runs, on an idle machine")
    options = parser.parse_args()
    campaign = Campaign(OUT / "beside_load.jsonl", machine(), options)
    model = graph(options.model) if options.model in ZOO else onnx.load(options.model)
    setting = {"model": Path(options.model).stem, "time": options.time, "busy": options.busy}
    runs = {str(seed): {**setting, "seed": seed} for seed in range(options.runs)}
    if not options.show:
        for name, key in runs.items():
            if not options.check:
                print(f"run {name}", file=sys.stderr, flush=True)
                campaign.once(key, partial(_tuned, model, key))
        if options.check:
            _check(campaign, model, list(runs.values()))
    _print(campaign, list(runs.values()))


@contextmanager
def _busy(cores: int) -> Iterator[None]:
    """Keeps cores busy."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_spin, daemon=True) for _ in range(cores)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _spin() -> None:
    while True:
        pass


def _tuned(model: onnx.ModelProto, key: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, _busy(key["busy"]), open_store(Path(folder) / "records.db") as store:
        result = sd.tune_model(model, time=key["time"], seed=key["seed"], store=store)
    document = result.to_json()
    stands = {each["task"]: each for each in result.model.metadata.provenance["schedules"]}
    ordered = sorted(
        (task for task in result.tasks if task.kernel is not None), key=lambda task: -(task.untuned or 0.0)
    )
    kernels = [_kernel(task, stands.get(task.task.name)) for task in ordered]
    kept = ("latency", "untuned", "speedup", "peer", "trials", "suspect", "phases", "inside")
    return {"kernels": kernels, **{name: document[name] for name in kept}}


def _kernel(task: TunedTask, stands: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is known of a kernel at the end of a run."""
    assert task.kernel is not None
    space = task.kernel.sketches[0][1]
    default = {"sketch": space.name, "config": dict(space.config(space.origin))}
    result = task.result
    fastest = None if result is None else min(result.by_sketch, key=lambda best: best.seconds, default=None)
    return {
        "name": task.task.name,
        "untuned": task.untuned,
        "default": default,
        "won": default if stands is None else {name: stands[name] for name in ("sketch", "config")},
        "fastest": None if fastest is None else {"sketch": fastest.sketch, "config": dict(fastest.config)},
        "seconds": None if fastest is None else fastest.seconds,
        "reason": task.reason,
    }


def _check(campaign: Campaign, model: onnx.ModelProto, runs: Sequence[Mapping[str, Any]]) -> None:
    """Races what stands with the defaults, and what was faster than a default that stands."""
    target = Cpu.detect()
    tasks = {task.task.name: task for task in tasks_of(import_model(model), target, TuneOptions(), True)}
    for key in runs:
        entry = campaign.latest(key)
        if entry is None:
            continue
        won = [each for each in entry["kernels"] if each["won"] != each["default"]][:_CHECKED]
        for each, which in [*((each, "won") for each in won), *((each, "fastest") for each in _kept(entry))]:
            print(f"run {key['seed']}: {each['name']}", file=sys.stderr, flush=True)
            kernel = tasks[each["name"]].kernel
            campaign.once({"of": each["name"], "run": _name(key), "which": which}, partial(_race, kernel, each, which))


def _kept(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The costliest kernels that have their default schedule although another one seemed to be faster."""
    costliest = entry["kernels"][:_COSTLIEST]
    return [each for each in costliest if each["won"] == each["default"] and each["fastest"] not in (None, each["won"])]


def _name(key: Mapping[str, Any]) -> str:
    return f"{key['model']}, {key['time']}, {key['busy']} busy, seed {key['seed']}"


def _race(kernel: Any, entry: Mapping[str, Any], which: str) -> dict[str, Any]:
    spaces = {space.name: space for _, space in kernel.sketches}
    candidates = [
        Candidate(each["sketch"], spaces[each["sketch"]].point(each["config"]))
        for each in (entry["default"], entry[which])
    ]
    with kernel.measurer(None) as measurer:
        default, other = measurer.race_for(candidates, [entry["seconds"] or _SECONDS] * 2, _SECONDS)
    if not (default.ok and other.ok):
        return {"ratio": None, "failed": default.error or other.error}
    ratio = ratio_interval(default.seconds, other.seconds)
    return {"ratio": list(ratio), "suspect": default.suspect or other.suspect}


def _print(campaign: Campaign, runs: Sequence[Mapping[str, Any]]) -> None:
    rows, kept, left, raced, slower, plainly = [], 0, 0, 0, 0, 0
    for key in runs:
        entry = campaign.latest(key)
        if entry is None:
            continue

        def ratios(kernels: Sequence[Mapping[str, Any]], which: str, run: str = _name(key)) -> list[list[float]]:
            found = [campaign.latest({"of": each["name"], "run": run, "which": which}) for each in kernels]
            return [each["ratio"] for each in found if each and each["ratio"]]

        here = sum(estimate >= _FASTER for estimate, _, _ in ratios(_kept(entry), "fastest"))
        none = sum(each["fastest"] is None for each in entry["kernels"][:_COSTLIEST])
        won = ratios(entry["kernels"], "won")
        kept, left, raced = kept + here, left + none, raced + len(won)
        slower += sum(estimate < 1 for estimate, _, _ in won)
        plainly += sum(high < 1 for _, _, high in won)
        speedup = entry["speedup"] or [None] * 3
        rows.append(
            [
                str(key["seed"]),
                f"{1e3 * entry['latency']['seconds']:.3g} ms" if entry["latency"]["seconds"] else "-",
                "-" if speedup[0] is None else f"{speedup[1]:.2f} to {speedup[2]:.2f}",
                str(entry["trials"]),
                str(here) if won else "-",
                str(none),
                f"{sum(high < 1 for _, _, high in won)} of {len(won)}" if won else "-",
            ]
        )
    headings = ["run", "latency", "faster than untuned", "trials", "kept", "left", "false"]
    campaign.table(headings, rows)
    print(f"left {left} of {_COSTLIEST * len(rows)} costliest kernels")
    if raced:
        print(
            f"kept {kept} of them; slower in the quiet race: {slower} of {raced} by the median, {plainly} significantly"
        )


if __name__ == "__main__":
    main()
