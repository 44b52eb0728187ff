"""`ms.tune_tir` with storm beside TVM's own evolutionary search: the same space, builder, runner and trials.

    tune_tir.py [--shapes M0,R5,BE3] [--trials 256] [--seeds 3]     tune what is missing, then race the final kernels
    tune_tir.py --show                                              print what is saved

Each tuning is a line of JSON in benchmarks/out/tune_tir.jsonl, and so is the race of a shape and a seed, in which both
final kernels take turns in separate processes. What is there is not done again, so the script may be ended at any time.
`curve` has pairs of seconds of tuning, known at the end of each batch, and seconds of the best kernel from then on.

MetaSchedule's builder works without the tensor intrinsics of GPUs, which it would otherwise parse for each batch
(benchmarks/_metaschedule_peer.py). Storm asks for a batch of 64 at a time, as MetaSchedule's own search does. Run it on
an idle machine.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import _metaschedule_peer
from _common import OUT, Campaign, add_to_import_path, campaign_parser, chosen, machine
from _shapes import SHAPES, Shape

import stormdrop as sd
from stormdrop.bench.bench import ROUNDS
from stormdrop.bench.contender import ContenderSpec
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.bench.result import TOLERANCE
from stormdrop.bench.turns import take_turns
from stormdrop.ir.relative_error import relative_error
from stormdrop.machine import threads
from stormdrop.statistics import median_interval, ratio_interval

THREE = ("M0", "R5", "BE3")
"""A matrix product, a convolution of ResNet-50, and a kernel of BERT."""

STRATEGIES = ("evolutionary", "storm")
BATCH = 64  # MetaSchedule's default


def main() -> None:
    parser = campaign_parser(__doc__)
    parser.add_argument("--shapes", default=",".join(THREE), help="shapes, separated by commas (%(default)s)")
    parser.add_argument("--trials", type=int, default=256, help="trials of each tuning (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="tunings of each shape and strategy (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each race (%(default)s)")
    options = parser.parse_args()
    threads.configure()
    campaign = Campaign(OUT / "tune_tir.jsonl", None if options.show else machine(), options)
    if not options.show:
        shapes = [SHAPES[name] for name in chosen(options.shapes, SHAPES, "shape")]
        for seed in range(options.seeds):
            for shape in shapes:
                complete(campaign, shape, seed, options.trials, options.rounds)
    show(campaign.entries)


def complete(campaign: Campaign, shape: Shape, seed: int, trials: int, rounds: int) -> None:
    """Tunes a shape with the strategies that are missing, and races the results."""
    key = {"shape": shape.name, "seed": seed, "trials": trials}
    done = {
        strategy: campaign.once({**key, "strategy": strategy}, partial(tuned, shape, strategy, seed, trials))
        for strategy in STRATEGIES
    }
    campaign.once(key, lambda: {"race": raced(shape, done, rounds)}, has="race")


def tuned(shape: Shape, strategy: str, seed: int, trials: int) -> dict[str, Any]:
    """Tunes a shape: what was found, when, and its trace."""
    os.environ["TVM_FFI_DISABLE_TORCH_C_DLPACK"] = "1"
    import tvm.s_tir.tensor_intrin  # its import is not in the time of either
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    from stormdrop.integrations.meta_schedule_strategy import storm_strategy
    from stormdrop.sketches.meta_schedule import tunable

    add_to_import_path(Path(_metaschedule_peer.__file__).parent)
    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)
    machine_here = sd.Cpu.detect()
    target = tvm.target.Target({"kind": "llvm", "mcpu": machine_here.mcpu, "num-cores": machine_here.cores})
    curve: list[tuple[float, float]] = []
    best: list[Any] = []  # the trace of the fastest
    counts = {"measured": 0, "failed": 0}

    @derived_object
    class Watch(ms.measure_callback.PyMeasureCallback):
        def apply(self, scheduler: Any, task: int, candidates: Any, builds: Any, runs: Any) -> None:
            elapsed = time.perf_counter() - begin
            for candidate, run in zip(candidates, runs, strict=True):
                counts["measured"] += 1
                if not run.run_secs:
                    counts["failed"] += 1
                    continue
                seconds = statistics.fmean(float(sample) for sample in run.run_secs)
                if not curve or seconds < curve[-1][1]:
                    curve.append((elapsed, seconds))
                    best[:] = [candidate.sch.trace]

    with tempfile.TemporaryDirectory(prefix="tune-tir-") as folder:
        begin = time.perf_counter()
        ms.tune_tir(
            tunable(shape.workload()),
            target,
            folder,
            max_trials_global=trials,
            num_trials_per_iter=min(BATCH, trials),
            strategy=storm_strategy() if strategy == "storm" else strategy,
            builder=ms.builder.LocalBuilder(max_workers=machine_here.cores, f_build=_metaschedule_peer.build),
            measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), Watch()],
            num_tuning_cores=machine_here.cores,
            seed=seed + 1,
        )
        elapsed = time.perf_counter() - begin
    trace = None if not best else json.loads(json.dumps(best[0].as_json(), default=lambda number: number.value))
    return {**counts, "tuning_seconds": elapsed, "curve": curve, "trace": trace}


def raced(shape: Shape, done: Mapping[str, Mapping[str, Any]], rounds: int) -> dict[str, Any] | None:
    """The final kernels in turns: the time of TVM's own search over that of storm; None if one found no kernel."""
    if any(done[strategy]["trace"] is None for strategy in STRATEGIES):
        return None
    workload = shape.workload()
    inputs = workload.random_inputs(0)
    (expected,) = workload.reference(inputs)
    specs = [
        ContenderSpec(
            strategy,
            "metaschedule:Replayed",
            {"workload": workload, "inputs": inputs, "trace": done[strategy]["trace"]},
        )
        for strategy in STRATEGIES
    ]
    add_to_import_path(Path(__file__).parent)
    with ExitStack() as stack:
        processes = [stack.enter_context(ContenderProcess(spec, sd.Cpu.detect().cores)) for spec in specs]
        errors = [relative_error(process.outputs()[0], expected) for process in processes]
        times = take_turns(processes, rounds)
    theirs, ours = times.seconds
    ratio = ratio_interval(theirs, ours)
    return {
        "seconds": {name: median_interval(of).estimate for name, of in zip(STRATEGIES, times.seconds, strict=True)},
        "ratio": ratio.estimate,
        "interval": [ratio.low, ratio.high],
        "disturbed": times.disturbed,
        "agree": all(error <= TOLERANCE for error in errors),
    }


def show(saved: Sequence[Mapping[str, Any]]) -> None:
    """Prints a line per race, and the geometric mean of each shape."""
    tunings = {(each["shape"], each["seed"], each["strategy"]): each for each in saved if "strategy" in each}
    ratios: dict[str, list[float]] = defaultdict(list)
    for each in saved:
        race = each.get("race")
        if race is None:
            continue
        found = [tunings[each["shape"], each["seed"], strategy] for strategy in STRATEGIES]
        taken = ", ".join(f"{one['strategy']} {one['tuning_seconds']:.0f} s" for one in found)
        low, high = race["interval"]
        notes = (" WRONG" if not race["agree"] else "") + (" disturbed" if race["disturbed"] else "")
        print(f"{each['shape']:<5}seed {each['seed']}: {race['ratio']:.3f} ({low:.3f} to {high:.3f}); {taken}{notes}")
        ratios[each["shape"]].append(race["ratio"])
    for shape, of_shape in ratios.items():
        print(f"{shape:<5}evolutionary's time over storm's, geometric mean: {statistics.geometric_mean(of_shape):.3f}")


if __name__ == "__main__":
    main()
