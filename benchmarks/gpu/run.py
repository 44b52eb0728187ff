"""The 30 shapes of Table 1 of the AF-DS paper on a GPU: Ansor-AF-DS beside Ansor, MetaSchedule and torch.

    run.py [--shapes M0,R2] [--minutes 1,2] [--runs 3] [--small] [--resume] [--show]

For each shape, `--runs` times with different seeds and from nothing:

    AF-DS, 1 and 2 minutes    `gradient` with the seven analytical features
    Ansor                     `evolutionary` with the 164 features per statement, the longest of the times; of a
                              population a sixteenth of Ansor's, as features take 10 ms each
    MetaSchedule              TVM's own, the same time
    storm                     ours, the same time

All of their kernels and torch's (cuBLAS, cuDNN, float32 without TF32; of both layouts the faster) then take turns in
one process, timed by CUDA's events: speeds over torch's, seconds and candidates of tuning (Table 2 of the paper), and
how far the runs are apart, (max - min) / max of their speeds (equation 1, Table 3). Kept shape by shape in
benchmarks/out/gpu.json. All of it takes days of GPU time; `--small` is two shapes, one run, half a minute each: eight
minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

import metaschedule_peer
from common import OUT, kept, machine, save
from shapes import SHAPES, chosen

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.errors import StormdropError
from stormdrop.kernel.compile import compile_kernel
from stormdrop.kernel.gpu.device import Device
from stormdrop.kernel.meta_schedule import replay, tunable
from stormdrop.kernel.target import Target
from stormdrop.statistics import ratio_interval

_NAME = "gpu"
TABLE_1 = [name for name in SHAPES if name[0] in "MYR" and name[1:].isdigit()]
SMALL = ["M0", "R2"]
_POPULATION = 128
_ROUNDS = 15
_SAMPLE = 5e-3  # seconds

Tuned = tuple[Any, float, int]
"""A schedule, the seconds and the candidates of its tuning."""


def main() -> None:
    options = _options()
    if options.show:
        show(json.loads((OUT / f"{_NAME}.json").read_text())["shapes"])
        return
    device = Target.parse("cuda")
    assert isinstance(device, Device)
    where = {**machine(), "gpu": device.machine, "conditions": device.conditions}
    entries = kept(_NAME, where, "shapes", same=("cpu", "cores", "gpu"))
    for name in options.shapes:
        if options.resume and name in entries:
            continue
        entries[name] = measured(name, device, options)
        save(_NAME, {"machine": where, "minutes": options.minutes, "shapes": entries})
    show({name: entries[name] for name in options.shapes if name in entries})


def measured(name: str, device: Device, options: argparse.Namespace) -> dict[str, Any]:
    """What was tuned for a shape, and how fast it is beside torch's."""
    workload = SHAPES[name].workload()
    longest = max(options.minutes)
    kinds: dict[str, Callable[[int], Tuned]] = {}
    for minutes in options.minutes:
        kinds[f"AF-DS, {minutes:g} min"] = lambda seed, minutes=minutes: ours("gradient", "analytic", minutes, seed)
    kinds["Ansor"] = lambda seed: ours("evolutionary", "statements", longest, seed, population=_POPULATION)
    kinds["storm"] = lambda seed: ours("storm", "knobs", longest, seed)
    kinds["MetaSchedule"] = lambda seed: theirs(longest, seed)

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
            raise StormdropError(f"{name}: no candidate of {search} worked: {found.error}")
        return found.best.apply(workload, device, found.best.config).main, found.seconds, found.trials

    def theirs(minutes: float, seed: int) -> Tuned:
        found = metaschedule_peer.tune([tunable(workload)], [1.0], device, seed, seconds=60 * minutes)
        (function,) = found.functions
        if function.trace is None:
            raise StormdropError(f"{name}: no candidate of MetaSchedule worked")
        return replay(workload, function.trace).main, found.seconds, found.measured

    kernels, efforts = {}, {}
    for kind, tuned in kinds.items():
        for run in range(options.runs):
            print(f"{name}: {kind}, run {run + 1}", file=sys.stderr, flush=True)
            function, seconds, trials = tuned(run)
            kernels[f"{kind} #{run}"] = compile_kernel(function, device.tvm())
            efforts[f"{kind} #{run}"] = {"seconds": seconds, "trials": trials}
    times = race(workload, kernels)
    return {"efforts": efforts, "times": times}


def race(workload: Any, kernels: Mapping[str, Any]) -> dict[str, list[float]]:
    """Seconds per execution by round, of the kernels and of torch, in turns."""
    import torch
    import tvm

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    device = tvm.runtime.device("cuda", 0)
    arrays = workload.random_inputs(0)
    inputs = [tvm.runtime.tensor(array, device) for array in arrays]
    outputs = [tvm.runtime.empty(spec.shape, spec.dtype, device) for spec in workload.outputs]
    clocks: dict[str, Callable[[int], float]] = {}
    for name, kernel in kernels.items():

        def tuned(number: int, kernel: Any = kernel) -> float:
            return float(kernel.module.time_evaluator("main", device, number=number)(*inputs, *outputs).mean)

        clocks[name] = tuned
    for name, call in torch_calls(workload, [torch.from_numpy(array).cuda() for array in arrays]).items():
        clocks[name] = lambda number, call=call: events(torch, call, number)
    numbers = {name: max(1, math.ceil(_SAMPLE / max(clock(3), 1e-7))) for name, clock in clocks.items()}
    rounds: dict[str, list[float]] = {name: [] for name in clocks}
    for _ in range(_ROUNDS):
        for name, clock in clocks.items():
            rounds[name].append(clock(numbers[name]))
    return rounds


def events(torch: Any, call: Callable[[], object], number: int) -> float:
    """Mean seconds of so many executions, by CUDA's events; one more warms up."""
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / number


def torch_calls(workload: Any, tensors: Sequence[Any]) -> dict[str, Callable[[], object]]:
    """torch's own: a matmul, or a convolution in both layouts with bias and ReLU."""
    import torch

    arguments = workload.arguments
    if "kh" not in arguments:
        a, b = tensors
        return {"torch": lambda: torch.matmul(a, b)}
    x, weight, bias = tensors
    how = {"stride": arguments["stride"], "padding": arguments["pad"]}

    def convolution(layout: Any) -> Callable[[], object]:
        data = x.permute(0, 3, 1, 2).contiguous(memory_format=layout)
        kernel = weight.permute(0, 3, 1, 2).contiguous(memory_format=layout)
        return lambda: torch.relu_(torch.conv2d(data, kernel, bias, **how))

    return {"torch": convolution(torch.contiguous_format), "torch NHWC": convolution(torch.channels_last)}


def show(entries: Mapping[str, Any]) -> None:
    """A row per shape: speeds over the faster torch, the median of the runs and their variability."""
    kinds: list[str] = []
    rows: list[list[str]] = []
    speeds, variable, spent = (defaultdict[str, list[Any]](list) for _ in range(3))
    for name, entry in entries.items():
        times = entry["times"]
        reference = min(
            (times[each] for each in ("torch", "torch NHWC") if each in times),
            key=lambda rounds: statistics.median(rounds),
        )
        kinds = list(dict.fromkeys(each.partition(" #")[0] for each in entry["efforts"]))
        row = [name, f"{1e6 * statistics.median(reference):.0f} us"]
        for kind in kinds:
            own = {each: times[each] for each in times if each.partition(" #")[0] == kind}
            ratios = [ratio_interval(reference, rounds).estimate for rounds in own.values()]
            speeds[kind].append(statistics.median(ratios))
            variable[kind].append((max(ratios) - min(ratios)) / max(ratios))
            spent[kind] += [entry["efforts"][each] for each in own]
            row.append(f"{statistics.median(ratios):.3f} ({variable[kind][-1]:.1%})")
        rows.append(row)
    table(["", "torch", *kinds], rows, "speed over torch's (cuBLAS, cuDNN; no TF32), median of the runs; variability")
    for kind, values in speeds.items():
        mean = math.exp(statistics.fmean(map(math.log, values)))
        seconds, trials = (statistics.fmean(each[what] for each in spent[kind]) for what in ("seconds", "trials"))
        print(
            f"{kind}: geometric mean {mean:.3f}, mean variability {statistics.fmean(variable[kind]):.1%},"
            f" {seconds:.0f} s and {trials:.0f} candidates of tuning"
        )


def _options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--shapes", default=",".join(TABLE_1), help="%(default)s")
    asked.add_argument("--minutes", default="1,2", help="of tuning (%(default)s)")
    asked.add_argument("--runs", type=int, default=3, help="of each tuning, with seeds of their own (%(default)s)")
    asked.add_argument("--small", action="store_true", help=f"{' and '.join(SMALL)}, once, half a minute each")
    asked.add_argument("--resume", action="store_true", help="leave out the shapes that are there")
    asked.add_argument("--show", action="store_true", help="print what is there, and measure nothing")
    options = asked.parse_args()
    options.shapes = SMALL if options.small else chosen(options.shapes, TABLE_1)
    options.minutes = [0.5] if options.small else [float(each) for each in options.minutes.split(",")]
    options.runs = 1 if options.small else options.runs
    return options


if __name__ == "__main__":
    try:
        main()
    except StormdropError as error:
        sys.exit(str(error))
