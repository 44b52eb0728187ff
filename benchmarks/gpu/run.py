"""The 30 shapes of Table 1 of the AF-DS paper on a GPU: its four systems beside ROLLER, storm, MetaSchedule and torch.

    run.py [--shapes M0,R2] [--minutes 1,2] [--trials 1000] [--runs 3] [--small] [--show] [--fresh]

Every shape is tuned from nothing, `--runs` times with different seeds. The searches are as the paper prints them
(`preset=paper`, populations of 2,048), and convolutions are plain, as in Table 1:

    Ansor          `evolutionary` with the 164 features of a statement
    Ansor-AF       `evolutionary` with the seven analytical features
    Ansor-DS       `gradient` with the 164 features
    Ansor-AF-DS    `gradient` with the seven features
                   each of the four for 1 and 2 minutes, and for 1,000 trials (Figures 6, 11 and 12)
    ROLLER         `roller`, a construction in its manner; its best 50 are measured (Figure 12)
    storm          our default search, for the longest of these times
    MetaSchedule   TVM's own search, for the same time (it finishes its batch of 64)

All their kernels and those of torch (cuBLAS, cuDNN, float32 without TF32) then take turns in one process, timed by CUDA
events, where the paper has Nsight Compute. Kernels of torch run back to back in a CUDA graph, and also as they are
called from Python (`eager`). Convolutions run in both layouts. The figures are the speeds over the fastest of torch's
kernels and over those of Ansor after all its trials (arithmetic means of the runs, then geometric means of the shapes),
the seconds and candidates of tuning by network (Table 2), and the variability of the runs, (max - min) / max of their
speeds, as geometric means by network (equation 1, Table 3). Bars of each shape reach from the slowest to the fastest
run (Figures 6, 11 to 13); a table has the speeds of the runs by trials, as the searches measured them (Figure 2).

Every shape is saved in benchmarks/out/gpu.jsonl as soon as it is done. All shapes take days. `--small` has two shapes,
one run, half a minute each and no runs by trials, and is saved in gpu_small.jsonl; a tuning that would not end within
nine minutes is left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

import _metaschedule_peer
from _common import OUT, Campaign, bars, campaign_parser, chosen, machine
from _shapes import SHAPES, Shape

import stormdrop as sd
from stormdrop.bench.peers.torch_cuda import captured, event_seconds
from stormdrop.cli.output import table
from stormdrop.codegen.compile import compile_kernel
from stormdrop.errors import StormdropError, one_line
from stormdrop.machine.cpu import parse_machine
from stormdrop.machine.gpu import Gpu
from stormdrop.sketches.meta_schedule import replay, tunable
from stormdrop.statistics import ratio_interval

TABLE_1 = [name for name in SHAPES if name[0] in "MYR" and name[1:].isdigit()]
NETWORKS = {"M": "BERT", "Y": "YOLO-9000", "R": "ResNet-50"}
SMALL = ["M0", "R2"]
_SMALL_SECONDS = 9 * 60
_RACE_SECONDS = 30  # that the race of a shape may take
_SYSTEMS = {
    "Ansor": ("evolutionary", "statements"),
    "Ansor-AF": ("evolutionary", "analytic"),
    "Ansor-DS": ("gradient", "statements"),
    "Ansor-AF-DS": ("gradient", "analytic"),
}
"""The search and the features of the paper's systems."""

_BEST = 50  # of ROLLER's kernels
_LEAST = 1e-4  # that runs differ by, for the geometric mean
_TRIALS = (64, 128, 256, 512, 1000)
_ROUNDS = 15
_SAMPLE = 5e-3  # seconds of a sample
IN_GRAPH = 20  # executions of a torch kernel per launch

Tuned = tuple[Any, dict[str, Any]]
"""A schedule, and what its tuning took; of ours also (candidates, seconds, best time) after each batch."""


def main() -> None:
    options = _options()
    name = "gpu_small" if options.small else "gpu"
    file, document, against = OUT / f"{name}.jsonl", "shapes", _by_trials("Ansor", options)
    if options.show:
        show(name, Campaign(file, None, options, document=document).saved(options.shapes), against)
        return
    device = parse_machine("cuda")
    assert isinstance(device, Gpu)
    device.tvm()  # makes CUDA number GPUs as the driver does, before torch begins to use it
    host = {**machine(), **_torch(), "gpu": device.machine, "conditions": device.conditions}
    campaign = Campaign(file, host, options, same=("cpu", "cores", "gpu"), retries=True, document=document)
    setting = {"minutes": options.minutes, "trials": options.trials, "runs": options.runs}
    end = time.monotonic() + _SMALL_SECONDS if options.small else math.inf
    shapes = list(options.shapes)

    def work(shape: str) -> dict[str, Any]:
        begin = time.monotonic()
        left = (end - begin) / (len(shapes) - shapes.index(shape))
        return measure(shape, device, options, begin + left)

    show(name, campaign.collect(shapes, work, setting), against)


def _torch() -> dict[str, Any]:
    """The versions of torch's libraries. Raises `StormdropError` if torch cannot use a GPU, before hours of tuning."""
    try:
        import torch
    except ImportError:
        raise StormdropError("torch is not installed: kernels are compared with those of a torch for CUDA") from None
    if not torch.cuda.is_available():
        raise StormdropError(f"torch {torch.__version__} finds no GPU: install a torch for CUDA")
    return {"torch_cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}


def measure(name: str, device: Gpu, options: argparse.Namespace, end: float) -> dict[str, Any]:
    """Tunes a shape in all ways, races the kernels beside torch's, and returns the entry of the shape.

    A tuning that fails, or would not end before `end`, is in `efforts` with the reason, and has no kernel.
    """
    workload = plain(SHAPES[name])
    longest = max(options.minutes)
    kinds: dict[str, tuple[float, Callable[[int], Tuned]]] = {}  # with the minutes that it takes; 0 if nobody knows

    def add(kind: str, search: str, features: str, minutes: float = 0.0, trials: int = 0, **own: Any) -> None:
        kinds[kind] = minutes, lambda seed: ours(search, features, own, minutes, trials, seed)

    for system, (search, features) in _SYSTEMS.items():
        for minutes in options.minutes:
            add(f"{system}, {minutes:g} min", search, features, minutes, preset="paper")
        if options.trials:
            add(_by_trials(system, options), search, features, trials=options.trials, preset="paper")
    add(f"ROLLER's best {_BEST}", "roller", "knobs", trials=_BEST, measured=_BEST)
    add("storm", "storm", "knobs", longest)
    kinds["MetaSchedule"] = longest, lambda seed: theirs(longest, seed)  # the last one, because it ends late

    def ours(search: str, features: str, own: Mapping[str, Any], minutes: float, trials: int, seed: int) -> Tuned:
        curve: list[tuple[int, float, float | None]] = []
        with sd.open_store("sqlite://") as store:
            result = sd.tune(
                workload,
                target=device,
                search=search,
                options=own,
                features=features,
                time=60 * minutes or None,
                trials=trials or None,
                seed=seed,
                store=store,
                fresh=True,
                on_progress=lambda at: curve.append((at.trials, at.elapsed, at.best_seconds)),
            )
        if result.best is None:
            raise StormdropError(f"no candidate of {search} worked: {result.error}")
        effort = {"seconds": result.seconds, "trials": result.trials, "curve": curve}
        return result.best.apply(workload, device, result.best.config).main, effort

    def theirs(minutes: float, seed: int) -> Tuned:
        result = _metaschedule_peer.tune([tunable(workload)], [1.0], device, seed, seconds=60 * minutes)
        (function,) = result.functions
        if function.trace is None:
            raise StormdropError("no candidate of MetaSchedule worked")
        return replay(workload, function.trace).main, {"seconds": result.seconds, "trials": result.measured}

    kernels: dict[str, Any] = {}
    efforts: dict[str, dict[str, Any]] = {}
    for kind, (minutes, tuned) in kinds.items():
        for run in range(options.runs):
            label = f"{kind} #{run}"
            print(f"{name}: {kind}, run {run + 1}", file=sys.stderr, flush=True)
            if time.monotonic() + 60 * minutes + _RACE_SECONDS > end:
                efforts[label] = {"failed": "no time left"}
                continue
            try:
                function, effort = tuned(run)
                kernels[label] = compile_kernel(function, device.tvm())
                efforts[label] = effort
            except Exception as error:  # noqa: BLE001  whatever TVM raises: hours of other tunings must not be lost
                efforts[label] = {"failed": one_line(error)}
                print(f"{name}: {kind}: {error}", file=sys.stderr, flush=True)
    try:
        return {"efforts": efforts, "times": race(workload, kernels, device)}
    except Exception as error:  # noqa: BLE001  as above
        print(f"{name}: the race failed: {error}", file=sys.stderr, flush=True)
        return {"efforts": efforts, "times": {}, "failed": one_line(error)}


def _by_trials(system: str, options: argparse.Namespace) -> str:
    """The name of a system's arm that is bounded by trials; by the longest time if none is."""
    return f"{system}, {options.trials} trials" if options.trials else f"{system}, {max(options.minutes):g} min"


def plain(shape: Shape) -> Any:
    """The function of a shape, without bias and activation."""
    arguments = {name: value for name, value in shape.arguments.items() if name not in ("bias", "act")}
    return dataclasses.replace(shape, arguments=arguments).workload()


def race(workload: Any, kernels: Mapping[str, Any], device: Gpu, half: bool = False) -> dict[str, list[float]]:
    """Times the kernels and those of torch in turns; returns the seconds per execution by round.

    With `half` torch takes part in float16, too, beside kernels in float32.
    """
    import torch
    import tvm

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    place = tvm.runtime.cuda(device.cuda_index)
    arrays = workload.random_inputs(0)
    inputs = [tvm.runtime.tensor(array, place) for array in arrays]
    outputs = [tvm.runtime.empty(spec.shape, spec.dtype, place) for spec in workload.outputs]
    clocks: dict[str, Callable[[int], float]] = {}
    for name, kernel in kernels.items():

        def tuned(number: int, kernel: Any = kernel) -> float:
            return float(kernel.module.time_evaluator("main", place, number=number)(*inputs, *outputs).mean)

        clocks[name] = tuned
    with torch.cuda.device(device.cuda_index):
        tensors = [torch.from_numpy(array).cuda() for array in arrays]
        calls = torch_calls(workload, tensors)
        if half and tensors[0].dtype == torch.float32:
            halves = torch_calls(workload, [tensor.half() for tensor in tensors])
            calls |= {f"{name} float16": call for name, call in halves.items()}
        for name, call in calls.items():
            try:
                together = graph(torch, call)
            except RuntimeError as error:  # cuDNN has no such kernel, or it cannot be captured
                print(f"{name}: {one_line(error)}", file=sys.stderr, flush=True)
                continue
            clocks[f"{name} eager"] = partial(event_seconds, torch, call)

            def in_graphs(number: int, call: Any = together) -> float:
                return event_seconds(torch, call, -(-number // IN_GRAPH)) / IN_GRAPH

            clocks[name] = in_graphs
        numbers = {name: max(1, math.ceil(_SAMPLE / max(clock(IN_GRAPH), 1e-7))) for name, clock in clocks.items()}
        rounds: dict[str, list[float]] = {name: [] for name in clocks}
        for _ in range(_ROUNDS):
            for name, clock in clocks.items():
                rounds[name].append(clock(numbers[name]))
    return rounds


def graph(torch: Any, call: Callable[[], object]) -> Callable[[], object]:
    """Several executions as one launch, so that the time of Python between them does not count."""
    together, _ = captured(torch, lambda: [call() for _ in range(IN_GRAPH)])
    replay_: Callable[[], object] = together.replay
    return replay_


def torch_calls(workload: Any, tensors: Sequence[Any]) -> dict[str, Callable[[], object]]:
    """torch's calls: a matmul, a softmax, a layer norm, or a convolution in both layouts."""
    import torch

    arguments = workload.arguments
    operator = workload.name.partition(" ")[0]
    if operator == "softmax":
        return {"torch": partial(torch.softmax, tensors[0], -1)}
    if operator == "layer_norm":
        rows, scale, shift = tensors
        return {"torch": partial(torch.layer_norm, rows, scale.shape, scale, shift, arguments["eps"])}
    if "kh" not in arguments:
        a, b = tensors
        out = torch.matmul(a, b)
        return {"torch": lambda: torch.matmul(a, b, out=out)}
    x, weight = tensors
    groups = 1
    if operator == "depthwise_conv2d":
        weight, groups = weight.permute(2, 0, 1)[..., None], arguments["ci"]
    stride, pad = [arguments["stride"]] * 2, [arguments["pad"]] * 2

    calls: dict[str, Callable[[], object]] = {}
    for layout, name in ((torch.contiguous_format, "torch"), (torch.channels_last, "torch NHWC")):
        data = x.permute(0, 3, 1, 2).contiguous(memory_format=layout)
        kernel = weight.permute(0, 3, 1, 2).contiguous(memory_format=layout)
        calls[name] = partial(torch.conv2d, data, kernel, None, stride, pad, 1, groups)
    return calls


def show(name: str, entries: Mapping[str, Any], against: str) -> None:
    """Prints a row per shape and a table of the means of the networks, and draws bars of these means.

    Args:
        name: the name of the file of the bars.
        entries: the shapes.
        against: the arm that the others are compared with, besides torch.
    """
    kinds = list(dict.fromkeys(label.partition(" #")[0] for entry in entries.values() for label in entry["efforts"]))
    rows: list[list[str]] = []
    speeds: dict[str, dict[str, float]] = {}  # over torch, by shape and kind
    variable: defaultdict[str, dict[str, float]] = defaultdict(dict)
    reach: defaultdict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    spent: defaultdict[str, list[Mapping[str, float]]] = defaultdict(list)
    for shape, entry in entries.items():
        times = entry["times"]
        if not times:
            print(f"{shape}: {entry['failed']}", file=sys.stderr)
            continue
        reference = min((rounds for label, rounds in times.items() if label.startswith("torch")), key=statistics.median)
        row, speeds[shape] = [shape, f"{1e6 * statistics.median(reference):.0f} us"], {}
        for kind in kinds:
            labels = [label for label in times if label.partition(" #")[0] == kind]
            if not labels:
                row.append("-")
                continue
            ratios = [ratio_interval(reference, times[label]).estimate for label in labels]
            speeds[shape][kind] = statistics.fmean(ratios)
            reach[kind][shape] = speeds[shape][kind] - min(ratios), max(ratios) - speeds[shape][kind]
            variable[kind][shape] = (max(ratios) - min(ratios)) / max(ratios)
            spent[kind] += [entry["efforts"][label] for label in labels]
            row.append(f"{speeds[shape][kind]:.3f} ({variable[kind][shape]:.1%})")
        rows.append(row)
    table(["", "torch", *kinds], rows, "speed over torch's (cuBLAS, cuDNN; no TF32), mean of the runs; variability")
    groups = {network: [shape for shape in speeds if shape[0] == letter] for letter, network in NETWORKS.items()}
    groups = {network: shapes for network, shapes in groups.items() if shapes} | {"all": list(speeds)}
    rows = []
    means: dict[str, list[float]] = {}
    for kind in kinds:
        over_torch = [
            _mean([speeds[shape][kind] for shape in shapes if kind in speeds[shape]]) for shapes in groups.values()
        ]
        both = [[shape for shape in shapes if {kind, against} <= set(speeds[shape])] for shapes in groups.values()]
        over_ansor = [_mean([speeds[shape][kind] / speeds[shape][against] for shape in shapes]) for shapes in both]
        varied = [
            _mean([max(_LEAST, variable[kind][shape]) for shape in shapes if shape in variable[kind]])
            for shapes in groups.values()
        ]
        if spent[kind]:
            means[kind] = over_torch
            efforts = spent[kind]
            seconds, trials = (statistics.fmean(effort[what] for effort in efforts) for what in ("seconds", "trials"))
            figures = zip(over_torch, over_ansor, varied, strict=True)
            rows.append(
                [kind, *(f"{a:.3f} / {b:.3f}, {c:.1%}" for a, b, c in figures), f"{seconds:.0f} s", f"{trials:.0f}"]
            )
    table(
        ["", *groups, "tuning", "candidates"],
        rows,
        f"geometric means of the speeds over torch's / over those of {against}, and of the variability",
    )
    if means:
        print(bars(name, "Speed over torch (cuBLAS, cuDNN; no TF32)", "geometric mean", list(groups), means))
        heights = {kind: [speeds[shape].get(kind, 0.0) for shape in speeds] for kind in means}
        ranges = {kind: list(zip(*(reach[kind].get(shape, (0, 0)) for shape in speeds), strict=True)) for kind in means}
        title = "Speed over torch, mean of the runs; from the slowest to the fastest (Figures 6, 11 to 13)"
        print(bars(f"{name}_shapes", title, "speed", list(speeds), heights, ranges))
    show_curves(entries)


def show_curves(entries: Mapping[str, Any]) -> None:
    """Prints by trials how far the runs are from the best of all (Figure 2): the slowest, their mean, the fastest."""
    rows = []
    for shape, entry in entries.items():
        curves: defaultdict[str, list[Sequence[Sequence[float]]]] = defaultdict(list)
        for label, effort in entry["efforts"].items():
            if worked := [at for at in effort.get("curve", ()) if at[2] is not None]:
                curves[label.partition(" #")[0]].append(worked)
        best = min((at[2] for runs in curves.values() for run in runs for at in run), default=math.nan)
        for kind, runs in curves.items():
            row = [shape, kind]
            for trials in _TRIALS:
                reached = [min((at[2] for at in run if at[0] <= trials), default=math.inf) for run in runs]
                shares = [best / seconds for seconds in reached]
                row.append(f"{min(shares):.2f} {statistics.fmean(shares):.2f} {max(shares):.2f}")
            rows.append(row)
    if rows:
        title = "Speed over that of the best of all runs, after so many trials: slowest, mean, fastest (Figure 2)"
        table(["", "", *map(str, _TRIALS)], rows, title)


def _mean(ratios: Sequence[float]) -> float:
    return statistics.geometric_mean(ratios) if ratios else math.nan


def _minutes(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--shapes", default=",".join(TABLE_1), help="shapes, separated by commas (%(default)s)")
    parser.add_argument(
        "--minutes", default=[1.0, 2.0], type=_minutes, help="minutes of tuning, separated by commas (1,2)"
    )
    parser.add_argument("--trials", type=int, default=1000, help="of the runs by trials; 0 for none (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each tuning, with different seeds (%(default)s)")
    parser.add_argument("--small", action="store_true", help=f"{' and '.join(SMALL)}, one run of half a minute each")
    options = parser.parse_args()
    options.shapes = SMALL if options.small else chosen(options.shapes, TABLE_1, "shape")
    options.minutes = [0.5] if options.small else options.minutes
    options.runs, options.trials = (1, 0) if options.small else (options.runs, options.trials)
    return options


if __name__ == "__main__":
    try:
        main()
    except StormdropError as error:
        sys.exit(str(error))
