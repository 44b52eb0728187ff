"""The 30 shapes of Table 1 of the AF-DS paper on a GPU: its four systems beside ROLLER, storm, MetaSchedule and torch.

    run.py [--target cuda] [--minutes 9] [--shapes M0,R2] [--budgets 1,2] [--trials 1000] [--runs 3] [--small]
           [--show] [--fresh]

Every shape is tuned from nothing, `--runs` times with different seeds. The searches are as the paper prints them
(`preset=paper`, populations of 2,048; the space has the knobs of Listing 1 only), and convolutions are plain, as in
Table 1:

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

Every tuning and every race is a line of benchmarks/out/gpu_cuda.jsonl as soon as it is done. A call ends after
`--minutes` and the next one goes on there, also in the middle of a tuning (but for MetaSchedule's, which runs to its
end). All shapes take days. `--small` has two shapes, one run, half a minute each and no runs by trials, about eight
minutes. `--target opencl` is a dry run where there is no GPU, with PoCL: without torch and MetaSchedule, and the speeds
are those over Ansor's.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

import _metaschedule_peer
from _common import Campaign, campaign_parser, chosen, machine
from _contenders import scheduled
from _shapes import SHAPES, TABLE_1, Shape
from _slices import Slice, SliceOver, add_target, kept_in, target_here, tuned
from gpu._table_1_figures import show

from stormdrop.bench.peers.torch_cuda import captured, event_seconds
from stormdrop.codegen.compile import build_module
from stormdrop.errors import LockTimeout, StormdropError, one_line
from stormdrop.ir.workload import Workload
from stormdrop.machine.contract import CUDA, Machine
from stormdrop.machine.gpu import Gpu, require_gpu
from stormdrop.measure.worker.devices import device_here
from stormdrop.sketches.contract import Variant
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.sketches.meta_schedule import replay, tunable

SMALL = ["M0", "R2"]
_SYSTEMS = {
    "Ansor": ("evolutionary", "statements"),
    "Ansor-AF": ("evolutionary", "analytic"),
    "Ansor-DS": ("gradient", "statements"),
    "Ansor-AF-DS": ("gradient", "analytic"),
}
"""The search and the features of the paper's systems."""

_BEST = 50  # of ROLLER's kernels
_ROUNDS = 15
_SAMPLE = 5e-3  # seconds of a sample
IN_GRAPH = 20  # executions of a torch kernel per launch


@dataclass(frozen=True)
class Arm:
    """A way to tune a shape.

    Attributes:
        search: Our search; None for MetaSchedule's own.
        features: What its cost model sees.
        options: Its options.
        minutes: Its time; 0 if it has none.
        trials: The most candidates; 0 without a bound.
    """

    search: str | None
    features: str = "knobs"
    options: Mapping[str, Any] = field(default_factory=dict)
    minutes: float = 0.0
    trials: int = 0


def main() -> None:
    options = _options()
    name, against = "gpu_small" if options.small else "gpu", _by_trials("Ansor", options)
    file = kept_in(name, options.target)
    if options.show:
        show(file.stem, Campaign(file, None, options).saved(options.shapes), against)
        return
    target = target_here(options.target, only_gpus=True)
    target.tvm()  # makes CUDA number GPUs as the driver does, before torch begins to use it
    host = {**machine(target), **(_torch() if target.device == CUDA else {})}
    campaign = Campaign(file, host, options, retries=True)
    setting = {"budgets": options.budgets, "trials": options.trials, "runs": options.runs}
    with Slice(options.minutes) as slice_:
        campaign.collect(options.shapes, lambda shape: measure(shape, target, options, campaign, slice_), setting)
    show(file.stem, campaign.saved(options.shapes), against)


def _torch() -> dict[str, Any]:
    """The versions of torch's libraries. Raises `StormdropError` if torch cannot use a GPU, before hours of tuning."""
    try:
        import torch
    except ImportError:
        raise StormdropError("torch is not installed: kernels are compared with those of a torch for CUDA") from None
    if not torch.cuda.is_available():
        raise StormdropError(f"torch {torch.__version__} finds no GPU: install a torch for CUDA")
    return {"torch_cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}


def arms(options: argparse.Namespace, device: str) -> dict[str, Arm]:
    """The ways in which a shape is tuned, by name."""
    paper, longest = {"preset": "paper"}, max(options.budgets)
    found = {}
    for system, (search, features) in _SYSTEMS.items():
        for minutes in options.budgets:
            found[f"{system}, {minutes:g} min"] = Arm(search, features, paper, minutes)
        if options.trials:
            found[_by_trials(system, options)] = Arm(search, features, paper, trials=options.trials)
    found[f"ROLLER's best {_BEST}"] = Arm("roller", options={"measured": _BEST}, trials=_BEST)
    found[f"storm, {longest:g} min"] = Arm("storm", minutes=longest)
    if device == CUDA:
        found[f"MetaSchedule, {longest:g} min"] = Arm(None, minutes=longest)
    return found


def measure(
    name: str, target: Machine, options: argparse.Namespace, campaign: Campaign, slice_: Slice
) -> dict[str, Any]:
    """Tunes a shape in all ways, races the kernels beside torch's, and returns the entry of the shape.

    A tuning that fails is in `efforts` with the reason, and has no kernel.

    Args:
        name: The shape.
        target: The GPU.
        options: Those of the command line.
        campaign: Keeps every tuning.
        slice_: The time of this call.

    Raises:
        SliceOver: It is over, and not all is done.
    """
    workload = plain(SHAPES[name])
    variants: dict[str, Variant] = {}
    efforts: dict[str, dict[str, Any]] = {}
    for kind, arm in arms(options, target.device).items():
        for run in range(options.runs):
            work = partial(tried, f"{name}: {kind}, run {run + 1}", workload, arm, run, target, slice_, options.fresh)
            entry = campaign.once({"shape": name, "arm": kind, "run": run}, work)
            efforts[f"{kind} #{run}"] = entry["effort"]
            if entry["schedule"] is not None:
                variants[f"{kind} #{run}"] = rebuilt(workload, target, arm, entry["schedule"])
    slice_.check()
    try:
        return {"efforts": efforts, "times": race(workload, variants, target)}
    except Exception as error:  # noqa: BLE001  whatever TVM raises: hours of tunings must not be lost
        print(f"{name}: the race failed: {error}", file=sys.stderr, flush=True)
        return {"efforts": efforts, "times": {}, "failed": one_line(error)}


def tried(
    name: str, workload: Workload, arm: Arm, seed: int, target: Machine, slice_: Slice, fresh: bool
) -> dict[str, Any]:
    """A tuning as an entry: its schedule (None if it failed) and what it took."""
    try:
        if arm.search is None:
            slice_.check()
            schedule, effort = _of_meta_schedule(workload, arm, seed, target)
        else:
            schedule, effort = _of_ours(name, workload, arm, seed, target, slice_, fresh)
    except (SliceOver, LockTimeout):  # another process has the machine: a later call tries again
        raise
    except Exception as error:  # noqa: BLE001  whatever TVM raises: hours of other tunings must not be lost
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return {"schedule": None, "effort": {"failed": one_line(error)}}
    return {"schedule": schedule, "effort": effort}


def _of_ours(
    name: str, workload: Workload, arm: Arm, seed: int, target: Machine, slice_: Slice, fresh: bool
) -> tuple[Any, dict[str, Any]]:
    tuning = tuned(
        slice_,
        f"{name}, {target.machine}",
        workload,
        seconds=60 * arm.minutes or None,
        fresh=fresh,
        target=target,
        search=arm.search,
        options=arm.options,
        features=arm.features,
        sketches=None if arm.search == "storm" else [GpuContraction(listing_1=True)],
        trials=arm.trials or None,
        seed=seed,
        transfer=False,
    )
    best = tuning.result.best
    if best is None:
        raise StormdropError(f"no candidate of {arm.search} worked: {tuning.result.error}")
    curve: dict[int, tuple[int, float, float | None]] = {}  # after each batch: candidates, seconds, the best time
    fastest: float | None = None
    for trial in tuning.trials:
        if trial.measurement.ok:
            fastest = min(statistics.median(trial.measurement.seconds), fastest or math.inf)
        curve[trial.batch] = trial.position + 1, trial.elapsed, fastest
    effort = {"seconds": tuning.seconds, "trials": tuning.result.trials, "curve": list(curve.values())}
    return {"sketch": best.sketch, "config": dict(best.config)}, effort


def _of_meta_schedule(workload: Workload, arm: Arm, seed: int, target: Machine) -> tuple[Any, dict[str, Any]]:
    result = _metaschedule_peer.tune([tunable(workload)], [1.0], target, seed, seconds=60 * arm.minutes)
    (function,) = result.functions
    if function.trace is None:
        raise StormdropError("no candidate of MetaSchedule worked")
    return function.trace, {"seconds": result.seconds, "trials": result.measured}


def rebuilt(workload: Workload, target: Machine, arm: Arm, schedule: Any) -> Variant:
    """The schedule that an entry holds: a trace of MetaSchedule, or the name of a sketch and its configuration."""
    if arm.search is None:
        return replay(workload, schedule)
    return scheduled(workload, target, **schedule)


def _by_trials(system: str, options: argparse.Namespace) -> str:
    """The name of a system's arm that is bounded by trials; by the longest time if none is."""
    return f"{system}, {options.trials} trials" if options.trials else f"{system}, {max(options.budgets):g} min"


def plain(shape: Shape) -> Workload:
    """The function of a shape, without bias and activation."""
    arguments = {name: value for name, value in shape.arguments.items() if name not in ("bias", "act")}
    return dataclasses.replace(shape, arguments=arguments).workload()


def race(
    workload: Workload, variants: Mapping[str, Variant], target: Machine, half: bool = False
) -> dict[str, list[float]]:
    """Times schedules, and on an NVIDIA GPU torch, in turns; returns the seconds per execution by round.

    With `half` torch takes part in float16, too, beside kernels in float32.
    """
    device, arrays = device_here(target), workload.random_inputs(0)
    outputs, _ = device.outputs([(spec.shape, spec.dtype) for spec in workload.outputs])
    clocks: dict[str, Callable[[int], float]] = {}
    for name, variant in variants.items():
        kernel = device.load(build_module(variant.main, target.tvm()))
        arguments = [*map(device.tensor, variant.arguments(arrays)), *outputs]
        clocks[name] = partial(device.time_calls, device.call(kernel, [arguments]))
    if target.device == CUDA:
        clocks |= _torch_clocks(workload, arrays, require_gpu(target), half)
    numbers = {name: max(1, math.ceil(_SAMPLE / max(clock(IN_GRAPH), 1e-7))) for name, clock in clocks.items()}
    rounds: dict[str, list[float]] = {name: [] for name in clocks}
    for _ in range(_ROUNDS):
        for name, clock in clocks.items():
            rounds[name].append(clock(numbers[name]))
    return rounds


def _torch_clocks(workload: Workload, arrays: Sequence[Any], gpu: Gpu, half: bool) -> dict[str, Callable[[int], float]]:
    """What times a number of executions of torch's kernels: in a graph, and as they are called from Python."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.cuda.set_device(gpu.cuda_index)
    tensors = [torch.from_numpy(array).cuda() for array in arrays]
    calls = torch_calls(workload, tensors)
    if half and tensors[0].dtype == torch.float32:
        halves = torch_calls(workload, [tensor.half() for tensor in tensors])
        calls |= {f"{name} float16": call for name, call in halves.items()}
    clocks: dict[str, Callable[[int], float]] = {}
    for name, call in calls.items():
        try:
            together = graph(torch, call)
        except RuntimeError as error:  # cuDNN has no such kernel, or it cannot be captured
            print(f"{name}: {one_line(error)}", file=sys.stderr, flush=True)
            continue

        def in_graphs(number: int, call: Any = together) -> float:
            return event_seconds(torch, call, -(-number // IN_GRAPH)) / IN_GRAPH

        clocks[f"{name} eager"], clocks[name] = partial(event_seconds, torch, call), in_graphs
    return clocks


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


def _minutes(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    add_target(parser, CUDA, minutes=9.0)
    parser.add_argument("--shapes", default=",".join(TABLE_1), help="shapes, separated by commas (%(default)s)")
    parser.add_argument(
        "--budgets", default=[1.0, 2.0], type=_minutes, help="minutes of tuning, separated by commas (1,2)"
    )
    parser.add_argument("--trials", type=int, default=1000, help="of the runs by trials; 0 for none (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each tuning, with different seeds (%(default)s)")
    parser.add_argument("--small", action="store_true", help=f"{' and '.join(SMALL)}, one run of half a minute each")
    options = parser.parse_args()
    options.shapes = SMALL if options.small else chosen(options.shapes, TABLE_1, "shape")
    options.budgets = [0.5] if options.small else options.budgets
    options.runs, options.trials = (1, 0) if options.small else (options.runs, options.trials)
    return options


if __name__ == "__main__":
    try:
        main()
    except StormdropError as error:
        sys.exit(str(error))
