"""The 30 shapes of Table 1 of the AF-DS paper on a GPU: Ansor-AF-DS beside Ansor, MetaSchedule and torch.

    run.py [--shapes M0,R2] [--minutes 1,2] [--runs 3] [--small] [--resume] [--show]

For each shape, `--runs` times with different seeds and from nothing:

    AF-DS, 1 and 2 minutes    `gradient` with the seven analytical features
    storm                     ours, the longest of the times
    MetaSchedule              TVM's own, the same time (it ends with a batch of 64)
    Ansor                     `evolutionary` with the 164 features per statement, the same time, where the paper has
                              1,000 trials; of a population a sixteenth of Ansor's, as features take 10 ms each

All of their kernels and torch's (cuBLAS, cuDNN, float32 without TF32) then take turns in one process, timed by CUDA's
events. torch's run back to back in a CUDA graph; convolutions in both layouts, and with bias and ReLU in cuDNN's kernel
(`fused`) or after it; beside them as they are called from Python (`eager`). What comes out: speeds over the fastest of
torch's and over Ansor's, seconds and candidates of tuning, by network (Table 2 of the paper), and how far the runs are
apart, (max - min) / max of their speeds (equation 1, Table 3).

Kept shape by shape in benchmarks/out/gpu.json. All of it takes 14 hours. `--small` is two shapes, one run, half a
minute each, in gpu_small.json: a tuning that could not end within eight minutes is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

import metaschedule_peer
from common import OUT, bars, kept, machine, save
from shapes import SHAPES, chosen

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.codegen.compile import compile_kernel
from stormdrop.errors import StormdropError, one_line
from stormdrop.machine.cpu import Target
from stormdrop.machine.gpu import Gpu
from stormdrop.sketches.meta_schedule import replay, tunable
from stormdrop.statistics import ratio_interval

TABLE_1 = [name for name in SHAPES if name[0] in "MYR" and name[1:].isdigit()]
NETWORKS = {"M": "BERT", "Y": "YOLO-9000", "R": "ResNet-50"}
SMALL = ["M0", "R2"]
_SMALL_SECONDS = 8 * 60
_RACE_SECONDS = 30  # that the end of a shape may take
_ANSOR = "Ansor"
_POPULATION = 128
_ROUNDS = 15
_SAMPLE = 5e-3  # seconds
_IN_GRAPH = 20  # executions of torch's that are launched at once

Tuned = tuple[Any, float, int]
"""A schedule, the seconds and the candidates of its tuning."""


def main() -> None:
    options = _options()
    name = "gpu_small" if options.small else "gpu"
    if options.show:
        path = OUT / f"{name}.json"
        if not path.exists():
            sys.exit(f"nothing was measured yet: there is no {path}")
        show(name, json.loads(path.read_text())["shapes"])
        return
    device = Target.parse("cuda")
    assert isinstance(device, Gpu)
    device.tvm()  # which has CUDA count GPUs as the driver does, before torch begins with it
    where = {**machine(), **_torch(), "gpu": device.machine, "conditions": device.conditions}
    entries = kept(name, where, "shapes", same=("cpu", "cores", "gpu"))
    how = {"minutes": options.minutes, "runs": options.runs}
    end = time.monotonic() + _SMALL_SECONDS if options.small else math.inf
    for at, shape in enumerate(options.shapes):
        known = entries.get(shape, {})
        if options.resume and known.get("times") and all(known[key] == value for key, value in how.items()):
            continue
        left = (end - time.monotonic()) / (len(options.shapes) - at)
        entries[shape] = {**how, **measured(shape, device, options, time.monotonic() + left)}
        save(name, {"machine": where, "shapes": entries})
    show(name, {shape: entries[shape] for shape in options.shapes if shape in entries})


def _torch() -> dict[str, Any]:
    """Its versions. Raises `StormdropError` where it cannot use a GPU: to be known before hours of tuning."""
    try:
        import torch
    except ImportError:
        raise StormdropError("torch is not installed: a build for CUDA is what kernels are compared with") from None
    if not torch.cuda.is_available():
        raise StormdropError(f"torch {torch.__version__} finds no GPU: a build for CUDA is needed")
    return {"torch_cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}


def measured(name: str, device: Gpu, options: argparse.Namespace, end: float) -> dict[str, Any]:
    """What was tuned for a shape, and how fast it is beside torch's.

    A tuning that fails, or could not be over by `end`, is in `efforts` with the reason and without a kernel.
    """
    workload = SHAPES[name].workload()
    longest = max(options.minutes)
    kinds: dict[str, tuple[float, Callable[[int], Tuned]]] = {}
    for minutes in options.minutes:
        kinds[f"AF-DS, {minutes:g} min"] = (
            minutes,
            lambda seed, minutes=minutes: ours("gradient", "analytic", minutes, seed),
        )
    kinds["storm"] = longest, lambda seed: ours("storm", "knobs", longest, seed)
    kinds[_ANSOR] = longest, lambda seed: ours("evolutionary", "statements", longest, seed, population=_POPULATION)
    kinds["MetaSchedule"] = longest, lambda seed: theirs(longest, seed)  # it ends late: the last

    def ours(search: str, features: str, minutes: float, seed: int, **how: Any) -> Tuned:
        with sd.open_store("sqlite://") as store:
            found = sd.tune(
                workload,
                target=device,
                search=search,
                options=how,
                features=features,
                time=60 * minutes,
                seed=seed,
                store=store,
                fresh=True,
            )
        if found.best is None:
            raise StormdropError(f"no candidate of {search} worked: {found.error}")
        return found.best.apply(workload, device, found.best.config).main, found.seconds, found.trials

    def theirs(minutes: float, seed: int) -> Tuned:
        found = metaschedule_peer.tune([tunable(workload)], [1.0], device, seed, seconds=60 * minutes)
        (function,) = found.functions
        if function.trace is None:
            raise StormdropError("no candidate of MetaSchedule worked")
        return replay(workload, function.trace).main, found.seconds, found.measured

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
                function, seconds, trials = tuned(run)
                kernels[label] = compile_kernel(function, device.tvm())
                efforts[label] = {"seconds": seconds, "trials": trials}
            except Exception as error:  # noqa: BLE001  whatever TVM raises: the other tunings of hours count
                efforts[label] = {"failed": one_line(error)}
                print(f"{name}: {kind}: {error}", file=sys.stderr, flush=True)
    try:
        return {"efforts": efforts, "times": race(workload, kernels, device)}
    except Exception as error:  # noqa: BLE001  as above
        print(f"{name}: the race failed: {error}", file=sys.stderr, flush=True)
        return {"efforts": efforts, "times": {}, "failed": one_line(error)}


def race(workload: Any, kernels: Mapping[str, Any], device: Gpu) -> dict[str, list[float]]:
    """Seconds per execution by round, of the kernels and of torch, in turns."""
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
        for name, call in torch_calls(workload, [torch.from_numpy(array).cuda() for array in arrays]).items():
            try:
                together = graph(torch, call)
            except RuntimeError as error:  # cuDNN has no such kernel, or it cannot be captured
                print(f"{name}: {one_line(error)}", file=sys.stderr, flush=True)
                continue
            clocks[f"{name} eager"] = lambda number, call=call: events(torch, call, number)
            clocks[name] = lambda number, call=together: events(torch, call, -(-number // _IN_GRAPH)) / _IN_GRAPH
        numbers = {name: max(1, math.ceil(_SAMPLE / max(clock(_IN_GRAPH), 1e-7))) for name, clock in clocks.items()}
        rounds: dict[str, list[float]] = {name: [] for name in clocks}
        for _ in range(_ROUNDS):
            for name, clock in clocks.items():
                rounds[name].append(clock(numbers[name]))
    return rounds


def graph(torch: Any, call: Callable[[], object]) -> Callable[[], object]:
    """Several executions as one launch, so that Python's time between them is not the kernel's."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # what is chosen at the first call cannot be chosen in a graph
            call()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(_IN_GRAPH):
            call()
    replay_: Callable[[], object] = captured.replay
    return replay_


def events(torch: Any, call: Callable[[], object], number: int) -> float:
    """Mean seconds of so many calls, by CUDA's events; one more warms up."""
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / number


def torch_calls(workload: Any, tensors: Sequence[Any]) -> dict[str, Callable[[], object]]:
    """torch's own: a matmul, or a convolution in both layouts, with bias and ReLU in cuDNN's kernel and after it."""
    import torch

    arguments = workload.arguments
    if "kh" not in arguments:
        a, b = tensors
        out = torch.matmul(a, b)
        return {"torch": lambda: torch.matmul(a, b, out=out)}
    x, weight, bias = tensors
    stride, pad = [arguments["stride"]] * 2, [arguments["pad"]] * 2

    calls: dict[str, Callable[[], object]] = {}
    for layout, name in ((torch.contiguous_format, "torch"), (torch.channels_last, "torch NHWC")):
        data = x.permute(0, 3, 1, 2).contiguous(memory_format=layout)
        kernel = weight.permute(0, 3, 1, 2).contiguous(memory_format=layout)
        how = data, kernel, bias, stride, pad
        calls[name] = lambda how=how: torch.relu_(torch.conv2d(*how))
        calls[f"{name} fused"] = lambda how=how: torch.cudnn_convolution_relu(*how, [1, 1], 1)
    return calls


def show(name: str, entries: Mapping[str, Any]) -> None:
    """A row per shape, a table of the networks' means, and bars of them."""
    kinds = list(dict.fromkeys(each.partition(" #")[0] for entry in entries.values() for each in entry["efforts"]))
    rows: list[list[str]] = []
    speeds: dict[str, dict[str, float]] = {}  # over torch, of each shape and kind
    variable: defaultdict[str, dict[str, float]] = defaultdict(dict)
    spent: defaultdict[str, list[Mapping[str, float]]] = defaultdict(list)
    for shape, entry in entries.items():
        times = entry["times"]
        if not times:
            print(f"{shape}: {entry['failed']}", file=sys.stderr)
            continue
        reference = min((rounds for each, rounds in times.items() if each.startswith("torch")), key=statistics.median)
        row, speeds[shape] = [shape, f"{1e6 * statistics.median(reference):.0f} us"], {}
        for kind in kinds:
            own = [each for each in times if each.partition(" #")[0] == kind]
            if not own:
                row.append("-")
                continue
            ratios = [ratio_interval(reference, times[each]).estimate for each in own]
            speeds[shape][kind] = statistics.median(ratios)
            variable[kind][shape] = (max(ratios) - min(ratios)) / max(ratios)
            spent[kind] += [entry["efforts"][each] for each in own]
            row.append(f"{speeds[shape][kind]:.3f} ({variable[kind][shape]:.1%})")
        rows.append(row)
    table(["", "torch", *kinds], rows, "speed over torch's (cuBLAS, cuDNN; no TF32), median of the runs; variability")
    groups = {network: [shape for shape in speeds if shape[0] == letter] for letter, network in NETWORKS.items()}
    groups = {network: shapes for network, shapes in groups.items() if shapes} | {"all": list(speeds)}
    rows = []
    means: dict[str, list[float]] = {}
    for kind in kinds:
        over_torch = [_mean([speeds[each][kind] for each in own if kind in speeds[each]]) for own in groups.values()]
        both = [[each for each in own if {kind, _ANSOR} <= set(speeds[each])] for own in groups.values()]
        over_ansor = [_mean([speeds[each][kind] / speeds[each][_ANSOR] for each in own]) for own in both]
        if spent[kind]:
            means[kind] = over_torch
            seconds, trials = (statistics.fmean(each[what] for each in spent[kind]) for what in ("seconds", "trials"))
            effort = [f"{statistics.fmean(variable[kind].values()):.1%}", f"{seconds:.0f} s", f"{trials:.0f}"]
            rows.append([kind, *(f"{a:.3f} / {b:.3f}" for a, b in zip(over_torch, over_ansor, strict=True)), *effort])
    table(
        ["", *groups, "variability", "tuning", "candidates"],
        rows,
        f"geometric means of the speeds over torch's / over {_ANSOR}'s; mean variability",
    )
    if means:
        print(bars(name, "Speed over torch (cuBLAS, cuDNN; no TF32)", "geometric mean", list(groups), means))


def _mean(ratios: Sequence[float]) -> float:
    return statistics.geometric_mean(ratios) if ratios else math.nan


def _minutes(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def _options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--shapes", default=",".join(TABLE_1), help="%(default)s")
    asked.add_argument("--minutes", default=[1.0, 2.0], type=_minutes, help="of tuning (1,2)")
    asked.add_argument("--runs", type=int, default=3, help="of each tuning, with seeds of their own (%(default)s)")
    asked.add_argument("--small", action="store_true", help=f"{' and '.join(SMALL)}, once, half a minute each")
    asked.add_argument("--resume", action="store_true", help="leave out the shapes that are there")
    asked.add_argument("--show", action="store_true", help="print what is there, and measure nothing")
    options = asked.parse_args()
    options.shapes = SMALL if options.small else chosen(options.shapes, TABLE_1)
    options.minutes = [0.5] if options.small else options.minutes
    options.runs = 1 if options.small else options.runs
    return options


if __name__ == "__main__":
    try:
        main()
    except StormdropError as error:
        sys.exit(str(error))
