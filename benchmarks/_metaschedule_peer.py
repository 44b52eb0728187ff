"""Tunes functions with TVM MetaSchedule and its own search, and records what it has found by when.

MetaSchedule uses TVM's own space, evolutionary search, XGBoost model, builder and runner, and its task scheduler if
there are several functions. It compiles and runs on all cores, and may lay out weights as it likes. Three things favour
it. The import of TVM is not in its time. A worker of its builder, which is started anew for each batch and after each
timeout, first parses the tensor intrinsics of all GPUs, which can take longer than a build may take; here it builds
without them. And its workers do not load torch.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import add_to_import_path

if TYPE_CHECKING:
    from stormdrop.machine.contract import Machine

BATCH = 64  # MetaSchedule's default


@dataclass
class FunctionResult:
    """The result for one function.

    Attributes:
        curve: pairs of seconds of tuning, known at the end of each batch, and seconds of the best kernel from then on.
        trace: the trace of the best kernel, from which `stormdrop.sketches.meta_schedule.replay` makes its schedule.
    """

    curve: list[tuple[float, float]] = field(default_factory=list)
    trace: Any = None

    @property
    def best(self) -> float | None:
        """Seconds per execution of the best kernel; None if no candidate has worked yet."""
        return self.curve[-1][1] if self.curve else None


@dataclass
class Result:
    """The result of a tuning.

    Attributes:
        functions: the results in the order of the functions.
        measured: the number of measured candidates.
        failed: the number of candidates that failed.
        seconds: wall seconds with everything in them.
    """

    functions: list[FunctionResult]
    measured: int = 0
    failed: int = 0
    seconds: float = 0.0


def tune(
    modules: Sequence[Any],
    weights: Sequence[float],
    target: Machine,
    seed: int,
    trials: int = 1 << 30,
    seconds: float = float("inf"),
) -> Result:
    """Tunes modules until the trials or the time are used up.

    Args:
        modules: the modules, with one function `main` each.
        weights: how often each function counts.
        target: the machine to tune for.
        seed: the seed of the search.
        trials: the most candidates, over all functions.
        seconds: the most wall seconds.
    """
    add_to_import_path(Path(__file__).parent)
    os.environ["TVM_FFI_DISABLE_TORCH_C_DLPACK"] = "1"
    import tvm.s_tir.tensor_intrin  # takes as long as a tuning of ours, so it is not in the time
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    from stormdrop.machine.cpu import Cpu

    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)
    result = Result([FunctionResult() for _ in modules])
    tvm_target = target.tvm()
    if isinstance(target, Cpu):  # without the options that our kernels are compiled with
        tvm_target = tvm.target.Target({"kind": "llvm", "mcpu": target.mcpu, "num-cores": target.cores})

    @derived_object
    class Watch(ms.measure_callback.PyMeasureCallback):
        def apply(self, scheduler: Any, task: int, candidates: Any, builds: Any, runs: Any) -> None:
            elapsed, function = time.perf_counter() - begin, result.functions[task]
            for candidate, run in zip(candidates, runs, strict=True):
                result.measured += 1
                if not run.run_secs:
                    result.failed += 1
                    continue
                taken = statistics.fmean(float(sample) for sample in run.run_secs)
                if function.best is None or taken < function.best:
                    function.curve.append((elapsed, taken))
                    traces[task] = candidate.sch.trace
            if elapsed >= seconds:
                ended.append(elapsed)
                raise TimeoutError("the time is over")

    traces: dict[int, Any] = {}
    ended: list[float] = []
    with tempfile.TemporaryDirectory(prefix="metaschedule-") as scratch:
        begin = time.perf_counter()
        tasks = [
            ms.TuneContext(
                module,
                target=tvm_target,
                space_generator="post-order-apply",
                search_strategy="evolutionary",
                task_name=f"function{position}",
                rand_state=seed + position,
                num_threads=target.cores,
            ).clone()
            for position, module in enumerate(modules)
        ]
        try:
            ms.tune.tune_tasks(
                tasks=tasks,
                task_weights=list(weights),
                work_dir=scratch,
                max_trials_global=trials,
                num_trials_per_iter=BATCH,
                builder=ms.builder.LocalBuilder(max_workers=target.cores, f_build=build),
                database="memory",
                measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), Watch()],
            )
        except Exception:
            # What comes back through TVM is not always of the type that was raised.
            if not ended:
                raise
        result.seconds = time.perf_counter() - begin
    for task, trace in traces.items():
        result.functions[task].trace = json.loads(json.dumps(trace.as_json(), default=lambda number: number.value))
    return result


def build(module: Any, target: Any, _params: Any) -> Any:
    """MetaSchedule's `default_build` without the import of tensor intrinsics. Runs in its builder's workers."""
    from tvm.driver import build as compiled
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return compiled(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), target=target)
