"""Times a tuned operator or model beside its peers: interleaved, with intervals, and with their outputs compared.

Who takes part is in `plan` and `peers`, how the contenders take turns in `turns`, what comes out in `result`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..errors import DeviceError, InputError, MeasureError
from ..ir.relative_error import relative_error
from ..machine.contract import CPU, CUDA, OPENCL, Machine
from ..machine.nvml import visible_gpus
from ..machine.process.scratch import scratch_folder
from ..measure.timing import MOST_ROUNDS
from ..statistics import median_interval, ratio_interval
from ..tuning.options import FLOAT32
from .contender import ContenderSpec, Unavailable
from .contender_process import ContenderProcess
from .peers import model_peers, operator_peers
from .plan import OURS, Plan, TuningOptions, not_installed, plan_model, plan_operator, select_peers
from .result import BenchResult, Standing
from .service import Load, take_service_turns
from .turns import silent, take_turns

if TYPE_CHECKING:
    from ..ir.workload import Workload
    from ..records import Store

Array = NDArray[Any]

ROUNDS = MOST_ROUNDS
"""How often each contender is timed, by default."""


def bench(
    what: Workload | str | Path,
    against: Sequence[str] | None = None,
    *,
    rounds: int = ROUNDS,
    load: Load | None = None,
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    precision: str = FLOAT32,
    target: Machine | None = None,
    store: Store | None = None,
    on_progress: Callable[[Any], None] | None = None,
    on_phase: Callable[[str], None] | None = None,
) -> BenchResult:
    """Times our kernel or model beside its peers, in interleaved rounds.

    Args:
        what: An operator (`operators.matmul(512, 512, 512)`), an ONNX file, or the folder of a saved model. An
            operator or file without a finished tuning in the store is tuned first.
        against: The names of the peers: "onnxruntime", "openvino", "torch" (which stands for all its forms),
            "torch-packed", "torch-compiled", "tensorflow" (which stands for both its forms), "tensorflow-xla",
            "litert"; for a model on an NVIDIA GPU "torch", "torch-compiled", "onnxruntime" and "tensorrt". The default
            is all of them. Beside a model on another GPU, the default is none, and those that are named run on the CPU.
            A peer that is not installed, does not support `what`, or dies before
            its first turn is skipped, and the result says why.
        rounds: How often each contender is timed; at least 2.
        load: How long a model is also called as a service, and with how many calls at a time; `Load(30.0, (1, 2, 4))`
            calls each contender for 30 seconds with each number. By default it is not.
        seed: Seeds the inputs and the tuning.
        shapes: The shapes of inputs whose shape an ONNX file leaves open, by input name. Of a saved model with several
            sizes, those of the size that is timed, by default the first.
        precision: What an ONNX file is tuned to compute in, as in `tune_model`. Beside a model with layers in 16 bits,
            OpenVINO, torch and TensorRT compute in that type, too; onnxruntime and LiteRT compute in float32.
        target: The machine to tune for: this machine's CPU by default, or for an ONNX file one of its GPUs. A saved
            model runs on what it was made for.
        store: The records of earlier tunings. The default is the default database.
        on_progress: Called with the progress of the tuning.
        on_phase: Called with what is done now, in a few words, except while something is tuned.

    Returns:
        The median time of each contender, its ratio to ours, both with 95% intervals, and its error.

    Raises:
        InputError: `what` is none of these, a peer is unknown, `rounds` is below 2, a precision is given for
            something else than an ONNX file, a load for an operator, or a target for a saved model that was made for
            something else.
        TargetError: An operator is to be timed on a GPU, or there is no such GPU.
        DeviceError: There is no GPU that can run the saved model.
        MeasureError: Our own kernel does not run, or a contender dies in one of its turns.

    Example:
        ```python
        import stormdrop as sd

        result = sd.bench(sd.operators.matmul(512, 512, 512), against=["onnxruntime"])
        for standing in result.standings:
            print(standing.name, standing.seconds, standing.ratio)
        ```
    """
    from ..ir.workload import Workload
    from ..machine.cpu import Cpu, require_cpu

    if rounds < 2:
        raise InputError(f"rounds {rounds}: an interval needs 2 or more")
    if precision != FLOAT32 and (isinstance(what, Workload) or Path(what).is_dir()):
        has = "an operator has its dtype" if isinstance(what, Workload) else "a saved model has its own"
        raise InputError(f"precision {precision} is for ONNX files: {has}")
    if load is not None and isinstance(what, Workload):
        raise InputError("a load is for models: an operator serves no calls")
    machine = target or Cpu.detect()
    if isinstance(what, Workload):
        pointer = "bench times operators on CPUs only; benchmarks/gpu/run.py times them on GPUs"
        device = require_cpu(machine, f"target {machine.name}: {pointer}").device
    else:
        device = _device(Path(what), target)
    peers_on = CPU if device == OPENCL and against is not None else device
    known = operator_peers() if isinstance(what, Workload) else model_peers(peers_on)
    peers, skipped = select_peers(against, known)
    skipped |= not_installed(peers, known)
    peers = [name for name in peers if name not in skipped]
    if against and not peers:  # said before anything is tuned
        raise InputError("; ".join(f"{name}: {reason}" for name, reason in skipped.items()))
    with scratch_folder() as scratch:
        told = on_phase or silent
        tuning = TuningOptions(machine, seed, store, on_progress, told, scratch, shapes, precision)
        if isinstance(what, Workload):
            plan = plan_operator(what, peers, tuning)
        else:
            plan = plan_model(Path(what), peers, tuning, peers_on)
        return _run(plan, machine.cores, rounds, skipped, load, told)


def _device(what: Path, target: Machine | None) -> str:
    """What executes a model.

    Raises:
        InputError: A target is given that is none of a saved model's.
        DeviceError: A saved model was made for an NVIDIA GPU, and there is none here.
    """
    from ..model.artifact.kept_tuning import read_tuning

    wanted = CPU if target is None else target.device
    if not what.is_dir():
        return wanted
    metadata = read_tuning(what)[0]
    made_for = metadata.device or CPU
    other_gpu = wanted == CUDA and target is not None and target.name != metadata.cpu
    if target is not None and (wanted != made_for or other_gpu):
        raise InputError(f"target {target.name}: {what} was made for {made_for}: leave the target out")
    if made_for == CUDA and not visible_gpus():
        raise DeviceError(f"{what} was made for an NVIDIA GPU, and there is none here")
    return made_for


def _run(
    plan: Plan,
    threads: int,
    rounds: int,
    skipped: Mapping[str, str],
    load: Load | None = None,
    on_phase: Callable[[str], None] = silent,
) -> BenchResult:
    """Starts the contenders, compares their outputs, and times them in turns."""
    left_out = {**skipped, **plan.skipped}
    processes: list[ContenderProcess] = []
    outputs: list[list[Array]] = []  # of each process
    try:
        for spec in plan.contenders:
            on_phase(f"starting {spec.name}")
            try:
                process, arrays = _start(spec, threads)
            except (Unavailable, MeasureError) as reason:
                if spec.name == OURS:
                    raise MeasureError(f"{plan.what}: our own kernel cannot run: {reason}") from reason
                left_out[spec.name] = str(reason)
            else:
                processes.append(process)
                outputs.append(arrays)
        reference = outputs[0] if plan.reference is None else plan.reference
        times = take_turns(processes, rounds, on_phase=on_phase)
        on_gpus = [process for process in processes if process.device != CPU]
        calls = take_turns(on_gpus, rounds, on_phase=on_phase, whole_calls=True) if on_gpus else None
        whole = {} if calls is None else dict(zip(on_gpus, map(median_interval, calls.seconds), strict=True))
        services = None if load is None else take_service_turns(processes, load, on_phase)
        standings = tuple(
            replace(
                _standing(process, times.seconds[0], times.seconds[index], _error(reference, outputs[index])),
                tolerance=plan.tolerance,
                services=services.by_contender[index] if services else (),
                device=process.device,
                call=whole.get(process),
            )
            for index, process in enumerate(processes)
        )
    finally:
        for process in processes:
            process.close()
    disturbed = max(times.disturbed, calls.disturbed if calls else 0)
    result = BenchResult(plan.what, rounds, disturbed, standings, left_out, plan.flops)
    if services is None:
        return result
    return replace(result, load=load, disturbed_turns=services.disturbed, unserved=services.missing)


def _start(spec: ContenderSpec, threads: int) -> tuple[ContenderProcess, list[Array]]:
    """A contender that works, and its outputs. Raises `Unavailable`, or `MeasureError` if its process dies."""
    process = ContenderProcess(spec, threads)
    try:
        return process, process.outputs()
    except BaseException:
        process.close()
        raise


def _standing(process: ContenderProcess, ours: Sequence[float], theirs: Sequence[float], error: float) -> Standing:
    """The result of a contender from the times of all rounds, ours and its own."""
    time, ratio = median_interval(theirs), ratio_interval(theirs, ours)
    return Standing(
        process.name,
        time.estimate,
        (time.low, time.high),
        ratio.estimate,
        (ratio.low, ratio.high),
        error,
        process.versions,
        process.settings,
        tuple(theirs),
    )


def _error(reference: Sequence[Array], outputs: Sequence[Array]) -> float:
    """The largest relative error of all outputs; infinite if their number or shapes differ."""
    if len(reference) != len(outputs):
        return math.inf
    return max((relative_error(got, want) for want, got in zip(reference, outputs, strict=True)), default=0.0)
