"""Times a tuned operator or model beside its peers: interleaved, with intervals, and with their outputs compared.

How the contenders take turns is in `turns`, who they are is in `peers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..errors import InputError, MeasureError, hint
from ..ir.relative_error import relative_error
from ..machine.process.scratch import scratch_folder
from ..measure.timing import MOST_ROUNDS
from ..report.formatting import ascii_time
from ..statistics import median_interval, ratio_interval
from ..tuning.options import BF16, FLOAT32
from .contender import ContenderSpec, Unavailable
from .contender_process import ContenderProcess
from .peers import GROUPS, IN_BFLOAT16, ONNXRUNTIME_EXACT, PACKAGES, model_peers, operator_peers
from .turns import take_turns

if TYPE_CHECKING:
    from ..ir.workload import Workload
    from ..machine.cpu import Cpu
    from ..model.artifact.metadata import Metadata
    from ..records import Store

Array = NDArray[Any]

OURS = "stormdrop"
"""The name of our own contender."""

ROUNDS = MOST_ROUNDS

TOLERANCE = 1e-3
"""The relative error up to which two contenders agree: float32, with sums in any order."""

TOLERANCE_OF_ROUNDING = 5e-2
"""The same for models in bfloat16 and in bytes, which contenders round to at different places."""


@dataclass(frozen=True)
class Standing:
    """The result of one contender.

    Attributes:
        name: Its name.
        seconds: The median of its rounds, in seconds per execution.
        interval: A 95% interval of `seconds`.
        ratio: Its time over ours, compared round by round: above 1, ours is faster.
        ratio_interval: A 95% interval of `ratio`.
        error: The largest relative error of its outputs. The reference is NumPy's result for an operator, and our own
            output for a model.
        versions: The versions of its libraries, by name.
        settings: How it ran, such as threads and layouts.
        samples: Its time in each round, in seconds per execution.
        tolerance: The error up to which it agrees with the reference.
    """

    name: str
    seconds: float
    interval: tuple[float, float]
    ratio: float
    ratio_interval: tuple[float, float]
    error: float
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[float] = ()
    tolerance: float = TOLERANCE

    @property
    def agrees(self) -> bool:
        """Whether its outputs are those of the reference, within the rounding of the type that is computed in."""
        return self.error <= self.tolerance


@dataclass(frozen=True, repr=False)
class BenchResult:
    """The result of a bench.

    Attributes:
        what: What was timed.
        rounds: The number of interleaved rounds.
        disturbed: In how many of them something else used the machine.
        standings: Our own result first, then those of the peers.
        skipped: Why each of the other peers did not take part, by name.
        flops: Floating-point operations of one execution; 0 if unknown.
    """

    what: str
    rounds: int
    disturbed: int
    standings: tuple[Standing, ...]
    skipped: Mapping[str, str]
    flops: float = 0.0

    def __repr__(self) -> str:
        """A line for each contender: its time, and that over ours."""
        width = max(len(standing.name) for standing in self.standings)
        lines = [
            f"{standing.name:<{width}}  {ascii_time(standing.seconds)}, {standing.ratio:.2f} times ours"
            for standing in self.standings
        ]
        return "\n  ".join([f"BenchResult of {self.what}, {self.rounds} rounds:", *lines])

    def _repr_html_(self) -> str:
        """What Jupyter shows."""
        from ..report.notebook import bench_html

        return bench_html(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop bench --json`."""
        contenders = [
            {
                "name": standing.name,
                "seconds": standing.seconds,
                "interval": list(standing.interval),
                "ratio": standing.ratio,
                "ratio_interval": list(standing.ratio_interval),
                "gflops": self.flops / standing.seconds / 1e9 if self.flops else None,
                "max_error": standing.error,
                "agrees": standing.agrees,
                "versions": dict(standing.versions),
                "settings": dict(standing.settings),
                "samples": list(standing.samples),
            }
            for standing in self.standings
        ]
        return {
            "what": self.what,
            "runs": self.rounds,
            "disturbed": self.disturbed,
            "contenders": contenders,
            "skipped": dict(self.skipped),
        }


def bench(
    what: Workload | str | Path,
    against: Sequence[str] | None = None,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    precision: str = FLOAT32,
    target: Cpu | None = None,
    store: Store | None = None,
    on_progress: Callable[[Any], None] | None = None,
) -> BenchResult:
    """Times our kernel or model beside its peers, in interleaved rounds.

    Args:
        what: An operator (`operators.matmul(512, 512, 512)`), an ONNX file, or the folder of a saved model. An
            operator or file without a finished tuning in the store is tuned first.
        against: The names of the peers: "onnxruntime", "openvino", "torch" (which stands for all its forms),
            "torch-packed", "torch-compiled", "tensorflow" (which stands for both its forms), "tensorflow-xla",
            "litert". The default is all of them. A peer that is not installed, does not support `what`, or dies before
            its first turn is skipped, and the result says why.
        rounds: How often each contender is timed; at least 2.
        seed: Seeds the inputs and the tuning.
        shapes: The shapes of inputs whose shape an ONNX file leaves open, by input name. Of a saved model with several
            sizes, those of the size that is timed, by default the first.
        precision: What an ONNX file is tuned to compute in, as in `tune_model`. Beside a model with layers in bfloat16,
            OpenVINO and torch compute in bfloat16, too; onnxruntime and LiteRT compute in float32.
        target: The machine to tune for. The default is this machine.
        store: The records of earlier tunings. The default is the default database.
        on_progress: Called with the progress of the tuning.

    Returns:
        The median time of each contender, its ratio to ours, both with 95% intervals, and its error.

    Raises:
        InputError: `what` is none of these, a peer is unknown, `rounds` is below 2, or a precision is given for
            something else than an ONNX file.
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
    from ..machine.cpu import Cpu

    if rounds < 2:
        raise InputError(f"rounds {rounds}: an interval needs 2 or more")
    if precision != FLOAT32 and (isinstance(what, Workload) or Path(what).is_dir()):
        has = "an operator has its dtype" if isinstance(what, Workload) else "a saved model has its own"
        raise InputError(f"precision {precision} is for ONNX files: {has}")
    machine = target or Cpu.detect()
    known = operator_peers() if isinstance(what, Workload) else model_peers()
    peers, skipped = _select_peers(against, known)
    skipped |= _not_installed(peers, known)
    peers = [name for name in peers if name not in skipped]
    if against and not peers:  # said before anything is tuned
        raise InputError("; ".join(f"{name}: {reason}" for name, reason in skipped.items()))
    with scratch_folder() as scratch:
        tuning = _TuningOptions(machine, seed, store, on_progress, scratch, shapes, precision)
        if isinstance(what, Workload):
            plan = _plan_operator(what, peers, tuning)
        else:
            plan = _plan_model(Path(what), peers, tuning)
        return _run(plan, machine.cores, rounds, skipped)


@dataclass(frozen=True)
class _TuningOptions:
    """How to tune what was not tuned before; `scratch` is a folder for temporary files."""

    target: Cpu
    seed: int
    store: Store | None
    on_progress: Callable[[Any], None] | None
    scratch: Path
    shapes: Mapping[str, tuple[int, ...]] | None
    precision: str


@dataclass(frozen=True)
class _Plan:
    """What a bench times.

    Attributes:
        what: What the contenders compute.
        contenders: Ours first.
        reference: The outputs to compare with; None if these are our own.
        skipped: Why peers cannot take part, by name.
        flops: Floating-point operations of one execution; 0 if unknown.
        tolerance: The error up to which contenders agree.
    """

    what: str
    contenders: Sequence[ContenderSpec]
    reference: Sequence[Array] | None
    skipped: Mapping[str, str]
    flops: float = 0.0
    tolerance: float = TOLERANCE


def _select_peers(against: Sequence[str] | None, known: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The names of the requested peers, and why others of them do not run this kind of `what`."""
    everywhere = {**operator_peers(), **model_peers()}
    names: list[str] = []
    skipped: dict[str, str] = {}
    for requested in known if against is None else against:
        if requested not in everywhere:
            raise InputError(f"unknown peer {requested!r}; {hint(requested, sorted(everywhere))}")
        members = [name for name in GROUPS.get(requested, (requested,)) if name in known]
        if not members:
            kind = "operators" if known == operator_peers() else "ONNX models"
            skipped[requested] = f"does not run {kind}"
        names += [name for name in members if name not in names]
    return names, skipped


def _not_installed(names: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """Why some of these peers cannot take part: the package that each needs is not installed."""
    packages = {
        name: PACKAGES.get(name, name.partition("-")[0])
        for name in names
        if known[name].startswith(f"{__package__}.peers.")
    }
    return {
        name: f"not installed: pip install {package.replace('_', '-')}"
        for name, package in packages.items()
        if find_spec(package) is None
    }


def _plan_operator(workload: Workload, peers: Sequence[str], tuning: _TuningOptions) -> _Plan:
    from ..tuning.tune import tune

    result = tune(workload, target=tuning.target, seed=tuning.seed, store=tuning.store, on_progress=tuning.on_progress)
    if result.best is None:
        raise MeasureError(f"{workload.name}: no candidate worked, so there is nothing to bench")
    inputs = workload.random_inputs(tuning.seed)
    ours = {"workload": workload, "sketch": result.best.sketch, "config": dict(result.best.config), "inputs": inputs}
    theirs = {"operator": workload.name.split()[0], "arguments": dict(workload.arguments), "inputs": inputs}
    contenders = [ContenderSpec(OURS, "stormdrop.bench.peers.ours:TunedOperator", ours)]
    contenders += [ContenderSpec(peer, operator_peers()[peer], theirs) for peer in peers]
    tolerance = max(TOLERANCE, workload.step)
    return _Plan(workload.name, contenders, workload.reference(inputs), {}, workload.flops, tolerance)


def _plan_model(path: Path, peers: Sequence[str], tuning: _TuningOptions) -> _Plan:
    import onnx

    from ..model import load, tune_model
    from ..model.artifact.artifact_files import checksum
    from ..model.artifact.onnxruntime_parts import EXACT_SUMS, sums_saturate
    from ..model.inputs.samples import sample_feeds
    from ..model.onnx.rewrites.qdq import rounds_to_bytes

    if path.is_dir():
        artifact, model = path, load(path)
        source = Path(str(model.metadata.provenance.get("source", "")))
        source_checksum = model.metadata.provenance.get("sha256")
    else:
        artifact, source, source_checksum = tuning.scratch / "model.sd", path, None
        model = tune_model(
            path,
            target=tuning.target,
            seed=tuning.seed,
            store=tuning.store,
            shapes=tuning.shapes,
            precision=tuning.precision,
            on_progress=tuning.on_progress,
            out=artifact,
        ).model
    size = model.metadata.at(tuning.shapes or {})
    feeds = sample_feeds(size, tuning.seed)
    ours = {"artifact": str(artifact), "inputs": feeds}
    contenders = [ContenderSpec(OURS, "stormdrop.bench.peers.ours:TunedModel", ours)]
    if not source.is_file():
        reason = f"the ONNX file that {path} was made from is not there ({source})"
        return _Plan(str(path), contenders, None, dict.fromkeys(peers, reason))
    if source_checksum is not None and source_checksum != checksum(source):
        reason = f"the ONNX file that {path} was made from has changed since ({source})"
        return _Plan(str(path), contenders, None, dict.fromkeys(peers, reason))
    theirs = {"model": _with_sizes(source, size, model.metadata.provenance), "inputs": feeds}
    mixed = "precision" in model.metadata.provenance
    in_bytes = rounds_to_bytes(onnx.load_from_string(theirs["model"]))
    for peer in peers:
        low = {"precision": BF16} if mixed and peer in IN_BFLOAT16 else {}
        contenders.append(ContenderSpec(peer, model_peers()[peer], {**theirs, **low}))
        if peer == "onnxruntime" and in_bytes and sums_saturate():
            contenders.append(
                ContenderSpec(ONNXRUNTIME_EXACT, model_peers()[peer], {**theirs, "entries": {EXACT_SUMS: "1"}})
            )
    tolerance = TOLERANCE_OF_ROUNDING if mixed or in_bytes else TOLERANCE
    return _Plan(str(path), contenders, None, {}, tolerance=tolerance)


def _with_sizes(source: Path, size: Metadata, provenance: Mapping[str, Any]) -> bytes:
    """An ONNX file with the sizes and values that the model was compiled for, and without inputs that it does not use.

    The peers then know the sizes, too: with open ones they prepare less. They refuse a model with a branch that is
    wrong for these sizes, though it is never taken, as that for another sampling rate; such a file stays as it is.
    """
    from onnx.shape_inference import InferenceError, infer_shapes

    from ..model.onnx.source import read_source
    from ..model.onnx.weights import moved_in

    values = provenance.get("values")
    values = values if isinstance(values, dict) else None
    sized = moved_in(read_source(source, {info.name: info.shape for info in size.inputs}, values).model)
    try:
        infer_shapes(sized, strict_mode=True)
    except InferenceError:
        return source.read_bytes() if values is None else bytes(sized.SerializeToString())
    return bytes(sized.SerializeToString())


def _run(plan: _Plan, threads: int, rounds: int, skipped: Mapping[str, str]) -> BenchResult:
    """Starts the contenders, compares their outputs, and times them in turns."""
    left_out = {**skipped, **plan.skipped}
    processes: list[ContenderProcess] = []
    outputs: list[list[Array]] = []  # of each process
    try:
        for spec in plan.contenders:
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
        times = take_turns(processes, rounds)
        standings = tuple(
            replace(
                _standing(process, times.seconds[0], times.seconds[index], _error(reference, outputs[index])),
                tolerance=plan.tolerance,
            )
            for index, process in enumerate(processes)
        )
    finally:
        for process in processes:
            process.close()
    return BenchResult(plan.what, rounds, times.disturbed, standings, left_out, plan.flops)


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
