"""How long a candidate takes: milliseconds per phase over random points, and candidates per second of a real tuning.

    cost.py [--points 20] [--seconds 10] [--kernels conv,matmul]

schedule   the sketch's rewrite of the function
lower      TVM's passes
optimise   LLVM: from TVM's loops to optimised code
machine    LLVM: machine code, in memory
pack       laying out constants anew (in a tuning once per layout, because neighbours share layouts)
first      the first execution, with what it allocates
check      filling the output before it, and comparing it after
samples    estimating the kernel's speed, and its three samples

The executions (first, samples) are wall time. All other phases are processor time of one thread, because other programs
on this machine lengthen the wall time. The figures are medians over points. A tuning compiles on all cores at once, and
its wall time has everything in it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import machine, save

import stormdrop as sd
from stormdrop import operators
from stormdrop.machine import threads
from stormdrop.records import open_store

PHASES = ("schedule", "lower", "optimise", "machine", "pack", "first", "check", "samples")
KERNELS: dict[str, Callable[[], Any]] = {
    "conv": lambda: operators.conv2d(1, 56, 56, 64, 64, 3, 3, 1, 1),
    "matmul": lambda: operators.matmul(512, 512, 512),
    "depthwise": lambda: operators.depthwise_conv2d(1, 56, 56, 128, 3, 3, 1, 1),
    "softmax": lambda: operators.softmax(512, 1000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20, help="random points per kernel and sketch (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="seconds of each tuning; 0 for no tuning (%(default)s)"
    )
    parser.add_argument("--kernels", default=",".join(KERNELS), help="kernels, separated by commas (%(default)s)")
    options = parser.parse_args()
    threads.configure()
    host, rows = machine(), []
    print(f"{host['cpu']}, {host['cores']} cores, {host['versions']}\n")
    print(f"{'':<26}" + "".join(f"{phase:>10}" for phase in (*PHASES, "together")) + "   ms")
    for name in options.kernels.split(","):
        workload = KERNELS[name]()
        for sketch, costs in by_sketch(workload, options.points):
            rows.append({"kernel": name, "sketch": sketch, "milliseconds": costs})
            print(
                f"{name:<10}{sketch:<16}" + "".join(f"{costs[key]:>10.2f}" for key in (*PHASES, "together")), flush=True
            )
    tunings = []
    for name in options.kernels.split(",") if options.seconds else ():
        tuning = tune(KERNELS[name](), options.seconds)
        tunings.append({"kernel": name, **tuning})
        phases = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in tuning["phases"].items())
        print(f"\n{name}: {tuning['per_second']:.1f} candidates per second, {tuning['trials']} in all; {phases}")
    print(f"\n{save('candidate_cost', {'machine': host, 'candidates': rows, 'tunings': tunings})}")


def by_sketch(workload: Any, points: int) -> Iterator[tuple[str, dict[str, float]]]:
    """The median milliseconds per phase of each sketch that applies."""
    from stormdrop.sketches.registry import sketches_for

    target = sd.Cpu.detect()
    for sketch, space in sketches_for(workload, target):
        rng = np.random.default_rng(0)
        timer = CandidateTimer(workload, target)
        spent = [timer.milliseconds(sketch, space.config(space.sample(rng))) for _ in range(points)]
        medians = {phase: float(np.median([phases[phase] for phases in spent])) for phase in PHASES}
        yield sketch.name, {**medians, "together": float(np.median([sum(phases.values()) for phases in spent]))}


class CandidateTimer:
    """Does what a worker does with a candidate (`measure.worker.workbench`), and times every phase."""

    def __init__(self, workload: Any, target: Any) -> None:
        import tvm

        self.workload, self.target = workload, target
        self.inputs = workload.random_inputs(0)
        self.tensors = [tvm.runtime.tensor(array) for array in self.inputs]
        self.outputs = [tvm.runtime.empty(spec.shape, spec.dtype) for spec in workload.outputs]
        self.expected: list[Any] = []

    def milliseconds(self, sketch: Any, config: dict[str, Any]) -> dict[str, float]:
        """The milliseconds of every phase of one candidate."""
        import tvm
        from tvm.tirx.build import tir_to_runtime
        from tvm.tirx.compilation_pipeline import get_tir_pipeline

        from stormdrop.codegen.compile import PASS_CONFIG
        from stormdrop.codegen.lowering import PIPELINE
        from stormdrop.ir.reference import evaluate
        from stormdrop.measure.timing import TimingPlan, sample
        from stormdrop.measure.worker.output_check import difference, fill

        spent: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        with _timed(spent, "schedule"):
            variant = sketch.apply(self.workload, self.target, config)
        target = self.target.tvm()
        with tvm.transform.PassContext(config=PASS_CONFIG):
            with _timed(spent, "lower"):
                module = tvm.IRModule({"main": variant.main.with_attr("global_symbol", "main")})
                module = tvm.tirx.transform.BindTarget(target.with_host(target))(module)
                lower, finish, _ = get_tir_pipeline(PIPELINE)
                module = finish()(lower(module))
            with _timed(spent, "optimise"):
                built = tir_to_runtime(module, {}, target)
            with _timed(spent, "machine"):
                function = built["main"]
        arguments = [*self.tensors, *self.outputs]
        for index, transform in variant.transforms.items():
            with _timed(spent, "pack"):
                packed = evaluate(transform, [self.inputs[index]])[0]
                arguments[index] = tvm.runtime.tensor(np.ascontiguousarray(packed))
        views = [np.from_dlpack(output) for output in self.outputs]
        with _timed(spent, "check"):
            for view in views:
                fill(view)
        with _timed(spent, "first", time.perf_counter):
            function(*arguments)
        self.expected = self.expected or [view.copy() for view in views]
        with _timed(spent, "check"):
            for view, expected in zip(views, self.expected, strict=True):
                difference("output", view, expected, 1.0)
        with _timed(spent, "samples", time.perf_counter):
            sample(lambda: function(*arguments), TimingPlan(), spent["first"] / 1e3)
        return spent


@contextmanager
def _timed(spent: dict[str, float], phase: str, clock: Callable[[], float] = time.thread_time) -> Iterator[None]:
    start = clock()
    yield
    spent[phase] += 1e3 * (clock() - start)


def tune(workload: Any, seconds: float) -> dict[str, Any]:
    """The candidates per second of a tuning from nothing, including the start of its workers."""
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/records.sqlite") as store:
        document = sd.tune(workload, time=seconds, store=store, fresh=True).to_json()
    return {
        "trials": document["trials"],
        "failed": document["failed"],
        "seconds": document["seconds"],
        "per_second": document["trials"] / document["seconds"],
        "phases": {phase: round(spent, 3) for phase, spent in document["phases"].items()},
    }


if __name__ == "__main__":
    main()
