"""The headline of the Droplet Search paper: six models, each kernel tuned on its own by the searches of AutoTVM.

    autotvm.py [--target cuda] [--minutes 9] [--models resnet18,vgg16] [--searches droplet,random]
               [--trials 2000] [--shared] [--rounds 15] [--show] [--table] [--layers] [--fresh]

The models are the six of the paper (its Figure 9; papers.py says what stands for each). AutoTVM has one template per
kernel and tunes one kernel after the other, without a budget that they share. So here every convolution and matrix
product has the space of one sketch, the default one, and each search has `--trials` candidates at most for each
kernel. All searches are as the papers print them (`preset=paper`): `droplet`, `grid`, `random`, `genetic` (AutoTVM's
GA), `annealing` (XGB), and `evolutionary` (the search of Ansor, with rounds of min(64, K / L), where K is `--trials`
for each of the L kernels). With `--shared` a search has `--trials` candidates for each model, in equal shares for its
kernels. A kernel that several models have is tuned once; its share is then that of the first of them.

The best candidate of a search is the one that it measured as the fastest. The models made of these take turns (Figure
11), with that of all default schedules ("No opt"), and so do the kernels of ResNet-18 and VGG-16 (Figure 18). A search
that finds nothing that works leaves the kernel its default schedule, and the table says so.

Where this differs from the paper:

- The paper has 10,000 evaluations for each search and model ("a hard limit", section 4.2); here it is 2,000 at most for
  each search and kernel. In Figure 18 all searches but Droplet Search evaluate 10,024 and 11,326 candidates, which are
  the sizes of the spaces in Figure 9 (10K and 11.3K).
- The paper's Ansor has its own sketches and tunes all kernels. `--searches ansor` is that: `evolutionary` on the
  sketches that rules derive. It is not among the default ones, because it has another space than the others.
- The cost models of `annealing` and `evolutionary` see the knobs, not AutoTVM's loop features and Ansor's 164 of a
  statement.
- AutoTVM's templates no longer exist in TVM. Ours has tiles that need not divide the extent, and packs weights.
- The other kernels (poolings, softmax, copies) keep their default schedules, as in AutoTVM.
- Weights come from memory in every execution, as the paper's artifact flushes the caches. How long a candidate is timed
  is ours.
- Student's t-test on three samples, with which the paper compares, stands beside intervals of ratios of all rounds.

Every tuning and every race is one line of benchmarks/recorded/autotvm.jsonl (on a GPU:
benchmarks/out/autotvm_cuda.jsonl) as soon as it is done, and a second run on the same CPU or GPU goes on from there,
also in the middle of a tuning that `--minutes` has ended. `--show` prints Figures 11 and 18 as Markdown, for each of
them; `--table` prints only the first of them, `--layers` only the second. All models with 100 trials take some hours,
with 2,000 days. Run it on an idle machine. `--target opencl` is a dry run where there is no GPU, with PoCL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _autotvm_tables import layer_table, model_table
from _common import OUT, Campaign, campaign_parser, chosen, machine
from _contenders import operator_specs, with_tuples
from _race import artifacts, race
from _slices import Slice, SliceOver, add_target, kept_in, target_here, unfinished
from papers import MODELS, exported

import stormdrop as sd
from stormdrop.errors import MeasureError, UnsupportedFunction
from stormdrop.ir.workload import Workload
from stormdrop.machine.contract import CPU, CUDA, OPENCL, Machine
from stormdrop.machine.limits.passing import passing_between
from stormdrop.model.building.builder import ModelBuilder, provenance_of, source_of
from stormdrop.model.building.repair import verified_or_repaired
from stormdrop.model.building.saving import Verifier
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.any_model import import_model
from stormdrop.model.tuning.scheduler import recorded_tasks
from stormdrop.model.verification.references import with_references
from stormdrop.model.verification.verify import Reference
from stormdrop.records import Store
from stormdrop.sketches.contract import AnySketch
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.sketches.registry import sketches_for
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions

NAMES = [name for name, model in MODELS.items() if "Droplet Search" in model.papers]
LAYERS = ("resnet18", "vgg16")
UNTUNED = "no opt"
SEARCHES = {
    "droplet": "droplet",
    "grid": "grid",
    "random": "random",
    "genetic": "genetic",
    "annealing": "annealing",
    "evolutionary": "evolutionary",
    "ansor": "evolutionary",
}
"""The search of each arm."""

ANSOR = "ansor"
"""The arm that has the sketches of the rules; all others have the template."""

TEMPLATES: Mapping[str, AnySketch] = {CPU: RegisterBlocked(), CUDA: GpuContraction(), OPENCL: GpuContraction()}
"""The template of convolutions and matrix products, by the kind of device."""

_FOLDER = OUT / "autotvm"


@dataclass(frozen=True)
class Layer:
    """A kernel of a model.

    Attributes:
        index: Its index among the tasks of the graph.
        workload: Its function.
        weight: How often the model calls it.
        template: Whether it has AutoTVM's kind of template: a convolution or a matrix product.
    """

    index: int
    workload: Workload
    weight: int
    template: bool


def main() -> None:
    options = _options()
    trials = f"{options.trials} per model" if options.shared else options.trials
    setting = {"trials": trials, "seed": options.seed}
    target = None if options.show or options.table or options.layers else target_here(options.target)
    host = None if target is None else machine(target)
    campaign = Campaign(kept_in("autotvm", options.target), host, options, several=True)
    if target is not None:
        where = target.cpu if isinstance(target, sd.Cpu) else target.machine
        with Slice(options.minutes) as slice_:
            for model in options.models:
                complete(campaign, model, options, {**setting, "cpu": where}, target, slice_)
    entries = [entry for entry in campaign.entries if all(entry[key] == setting[key] for key in setting)]
    for cpu in dict.fromkeys(entry["cpu"] for entry in entries):
        of_cpu = [entry for entry in entries if entry["cpu"] == cpu]
        models = [name for name in options.models if any(entry.get("model") == name for entry in of_cpu)]
        print(f"{cpu}\n")
        if not options.layers:
            print(model_table(of_cpu, models, options.searches), end="\n\n")
        if not options.table:
            layers = [name for name in models if name in LAYERS]
            print(layer_table(of_cpu, layers, _templated(options.searches)), end="\n\n")


def complete(
    campaign: Campaign,
    model: str,
    options: argparse.Namespace,
    setting: Mapping[str, Any],
    target: Machine,
    slice_: Slice,
) -> None:
    """Does what is missing of a model: its tunings, the races of its kernels, and the race of the whole models."""
    source = _FOLDER / model / "model.onnx"
    if not source.exists():
        exported(model, source)
    graph = import_model(source)
    layers = layers_of(graph, target)
    listed = [{"key": each.workload.key, "weight": each.weight, "template": each.template} for each in layers]
    campaign.once({**setting, "model": model, "layers": listed}, lambda: {"kernels": len(graph.tasks)})

    def tuning(layer: Layer, arm: str) -> dict[str, Any]:
        slice_.check()
        kernels = {each.workload.key for each in layers if each.template or arm == ANSOR}
        trials = max(1, options.trials // len(kernels)) if options.shared else options.trials
        name = f"{model}: {layer.workload.name}: {arm}, {setting['trials']}, seed {options.seed}, {setting['cpu']}"
        with unfinished(name, options.fresh) as store:
            found = tuned(layer.workload, arm, trials, options.seed, target, store, slice_)
        return {"name": layer.workload.name, **found}

    tunings = {
        (key, arm): campaign.once({**setting, "key": key, "search": arm}, partial(tuning, layer, arm))
        for layer in layers
        for key in [layer.workload.key]
        for arm in options.searches
        if layer.template or arm == ANSOR
    }
    arms = _templated(options.searches)

    def raced(layer: Layer) -> dict[str, Any]:
        slice_.check()
        found = {arm: tunings[layer.workload.key, arm]["best"] for arm in arms}
        return {"race": race_layer(layer.workload, found, options, target)}

    for layer in layers if arms and model in LAYERS else ():
        if layer.template:
            campaign.once({**setting, "layer": layer.workload.key, "arms": arms}, partial(raced, layer))

    def raced_models() -> dict[str, Any]:
        slice_.check()
        return race_models(model, graph, layers, tunings, options, target)

    campaign.once({**setting, "model": model, "arms": options.searches}, raced_models)


def _templated(arms: Sequence[str]) -> list[str]:
    """The arms that the paper compares kernel by kernel: Ansor has other kernels, so it is not in Figure 18."""
    return [arm for arm in arms if arm != ANSOR]


def layers_of(graph: Graph, target: Machine) -> list[Layer]:
    """The kernels of a graph that can be tuned."""
    layers = []
    for task in graph.tasks:
        try:
            workload = Workload.create(task.name, task.function, task.constants)
        except UnsupportedFunction:
            continue  # it gets a plain schedule
        sketches = sketches_for(workload, target)
        if sketches:
            template = any(sketch.name == TEMPLATES[target.device].name for sketch, _ in sketches)
            layers.append(Layer(task.index, workload, task.weight, template))
    return layers


def tuned(
    workload: Workload, arm: str, trials: int, seed: int, target: Machine, store: Store, slice_: Slice
) -> dict[str, Any]:
    """One tuning from nothing, or the rest of it. Without a working candidate `best` is None, and `error` says why."""
    settings: dict[str, Any] = {"preset": "paper"}
    if SEARCHES[arm] == "evolutionary":
        settings |= {"K": trials, "L": 1}  # of L kernels with as many trials each, min(64, K / L) is the same
    options = TuneOptions(
        search=SEARCHES[arm],
        search_options=settings,
        seed=seed,
        resume=True,
        sketches="rules" if arm == ANSOR else [TEMPLATES[target.device]],
        transfer=False,
    )
    passing = passing_between(target, sys.maxsize) if isinstance(target, sd.Cpu) else None
    kernel = KernelTask.create(workload, target, options, passing=passing)
    size = sum(space.size for _, space in kernel.sketches)
    with kernel.session(store, on_progress=slice_.progress) as session:
        try:
            session.search(trials=trials - session.trials)
        except KeyboardInterrupt:
            session.finish(interrupted=True)
            raise SliceOver from None
        except MeasureError as error:
            reason = str(error)  # nothing works: the tuning ends here
        else:
            reason = session.trace.error
        result = session.finish(race_seconds=0.0)
    fastest = min(result.by_sketch, key=lambda best: best.seconds, default=None)
    return {
        "best": None if fastest is None else {"sketch": fastest.sketch, "config": dict(fastest.config)},
        "error": reason,
        "space": size,
        "search_seconds": session.effort,
        "measured": result.trials,
        "failed": result.failed,
        "converged": result.converged,
        "curve": [list(point) for point in result.curve],
    }


def race_layer(
    workload: Workload, found: Mapping[str, Any], options: argparse.Namespace, target: Machine
) -> dict[str, Any] | None:
    """The best kernels of all searches in turns; None if none has found any."""
    working = {arm: best for arm, best in found.items() if best is not None}
    if not working:
        return None
    return race(operator_specs(workload, target, working, [], options.seed), next(iter(working)), options.rounds)


def race_models(
    model: str,
    graph: Graph,
    layers: Sequence[Layer],
    tunings: Mapping[tuple[str, str], Mapping[str, Any]],
    options: argparse.Namespace,
    target: Machine,
) -> dict[str, Any]:
    """The models of all searches and the untuned one in turns, and what is to say about each."""
    folder = _FOLDER / model
    graph, references = with_references(graph, options.seed)
    made = {UNTUNED: built(graph, references, {}, folder, UNTUNED, options.seed, target)}
    for arm in options.searches:
        entries = {each.index: tunings.get((each.workload.key, arm)) for each in layers}
        best = {index: entry["best"] for index, entry in entries.items() if entry and entry["best"]}
        made[arm] = built(graph, references, best, folder, arm, options.seed, target)
        made[arm]["without"] = [entry["name"] for entry in entries.values() if entry and not entry["best"]]
    feeds = references[0].feeds
    specs = artifacts(folder, list(made), feeds, target.device)
    return {"models": made, "race": race(specs, options.searches[0], options.rounds)}


def built(
    graph: Graph,
    references: Sequence[Reference],
    best: Mapping[int, Mapping[str, Any]],
    folder: Path,
    arm: str,
    seed: int,
    target: Machine,
) -> dict[str, Any]:
    """Builds, verifies and saves the model with the best schedules of a search, by task; the others have the default.

    Returns:
        The error of the model, and the tasks whose schedules had to give way because the model was wrong with them.
    """
    options = TuneOptions(seed=seed, fresh=True, sketches="rules" if arm == ANSOR else None)
    tasks = recorded_tasks(graph, target, options, None)
    provenance = provenance_of(source_of(folder / "model.onnx"), None, options, tasks)
    builder = ModelBuilder(graph, tasks.tasks, target, options, provenance)
    found = {index: (each["sketch"], with_tuples(each["config"])) for index, each in best.items()}
    combination = {**builder.winners, **found}
    verifier = Verifier(builder, references, folder / arm, False, seed)
    model = builder.build(combination)
    verified = verified_or_repaired(graph, builder, model, combination, verifier, lambda _: None)
    return {"error": verifier.last.max_error, "replaced": [each.task for each in verified.replaced]}


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    add_target(parser)
    default = ",".join(arm for arm in SEARCHES if arm != ANSOR)
    parser.add_argument("--models", default=",".join(NAMES), help="models, separated by commas (%(default)s)")
    parser.add_argument("--searches", default=default, help="searches, separated by commas (%(default)s)")
    parser.add_argument(
        "--trials", type=int, default=2000, help="the most candidates of a search for each kernel (%(default)s)"
    )
    parser.add_argument("--shared", action="store_true", help="share --trials out to the kernels of a model")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each race (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    parser.add_argument("--table", action="store_true", help="as --show, but the models only")
    parser.add_argument("--layers", action="store_true", help="as --show, but the kernels only")
    options = parser.parse_args()
    options.models = chosen(options.models, NAMES, "model")
    options.searches = chosen(options.searches, SEARCHES, "search")
    if options.trials < 1:
        sys.exit(f"--trials {options.trials}: must be 1 or more")
    return options


if __name__ == "__main__":
    main()
