"""What a bench times: our contender and those of the peers that can take part, with what each is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..errors import InputError, MeasureError, hint
from ..machine.contract import CPU, Machine
from ..tuning.options import AUTO, BF16
from .contender import ContenderSpec
from .peers import (
    CUDA_PEERS,
    GROUPS,
    ONNXRUNTIME_EXACT,
    PACKAGES,
    TAKE_PRECISION,
    WITHOUT_ONNX,
    model_peers,
    operator_peers,
)
from .result import TOLERANCE, TOLERANCE_OF_ROUNDING

if TYPE_CHECKING:
    from ..ir.workload import Workload
    from ..model.artifact.metadata import Metadata
    from ..records import Store

OURS = "stormdrop"
"""The name of our own contender."""


@dataclass(frozen=True)
class TuningOptions:
    """How what was not tuned before is tuned.

    Attributes:
        target: The machine.
        seed: Seeds the inputs and the tuning.
        store: The records of earlier tunings; None for the default database.
        on_progress: Called with the progress of the tuning.
        on_phase: Called with what is done before and after it.
        scratch: A folder for temporary files.
        shapes: The shapes of inputs that an ONNX file leaves open, or of the size of a saved model.
        precision: What an ONNX file is tuned to compute in.
    """

    target: Machine
    seed: int
    store: Store | None
    on_progress: Callable[[Any], None] | None
    on_phase: Callable[[str], None]
    scratch: Path
    shapes: Mapping[str, tuple[int, ...]] | None
    precision: str


@dataclass(frozen=True)
class Plan:
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
    reference: Sequence[NDArray[Any]] | None
    skipped: Mapping[str, str]
    flops: float = 0.0
    tolerance: float = TOLERANCE


def select_peers(against: Sequence[str] | None, known: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Finds the peers that are asked for.

    Args:
        against: Their names, or names of groups; None for all.
        known: The peers that run this kind of `what`, by name.

    Returns:
        The names of those that run it, and why each of the others does not.

    Raises:
        InputError: There is no peer of a name.
    """
    everywhere = {*operator_peers(), *model_peers(), *CUDA_PEERS, *WITHOUT_ONNX}
    names: list[str] = []
    skipped: dict[str, str] = {}
    for requested in known if against is None else against:
        if requested not in everywhere:
            raise InputError(f"unknown peer {requested!r}; {hint(requested, sorted(everywhere))}")
        members = [name for name in GROUPS.get(requested, (requested,)) if name in known]
        if not members:
            skipped[requested] = f"does not run {_kind(requested, known)}"
        names += [name for name in members if name not in names]
    return names, skipped


def _kind(requested: str, known: Mapping[str, str]) -> str:
    """What a peer does not run, which is what those in `known` run."""
    if known == operator_peers():
        return "operators"
    elsewhere = model_peers() if known == CUDA_PEERS else CUDA_PEERS
    on = "NVIDIA GPUs" if known == CUDA_PEERS else "CPUs"
    return f"ONNX models on {on}" if requested in elsewhere else "ONNX models"


def not_installed(names: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """Finds out which peers cannot take part because the package that they need is not installed.

    Args:
        names: Their names.
        known: What makes each peer, by name; a plug-in's own peer is not looked for here.

    Returns:
        The reason for each that cannot, by name.
    """
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


def plan_operator(workload: Workload, peers: Sequence[str], tuning: TuningOptions) -> Plan:
    """Plans the bench of an operator, which is tuned if it has not been tuned yet.

    Args:
        workload: The operator.
        peers: The names of the peers.
        tuning: How it is tuned.

    Raises:
        MeasureError: No candidate worked.
    """
    from ..tuning.tune import tune

    result = tune(workload, target=tuning.target, seed=tuning.seed, store=tuning.store, on_progress=tuning.on_progress)
    if result.best is None:
        raise MeasureError(f"{workload.name}: no candidate worked, so there is nothing to bench")
    tuning.on_phase("computing what is right")
    inputs = workload.random_inputs(tuning.seed)
    ours = {"workload": workload, "sketch": result.best.sketch, "config": dict(result.best.config), "inputs": inputs}
    theirs = {"operator": workload.name.split()[0], "arguments": dict(workload.arguments), "inputs": inputs}
    contenders = [ContenderSpec(OURS, "stormdrop.bench.peers.ours:TunedOperator", ours)]
    contenders += [ContenderSpec(peer, operator_peers()[peer], theirs) for peer in peers]
    tolerance = max(TOLERANCE, workload.step)
    return Plan(workload.name, contenders, workload.reference(inputs), {}, workload.flops, tolerance)


def plan_model(path: Path, peers: Sequence[str], tuning: TuningOptions, peers_on: str = CPU) -> Plan:
    """Plans the bench of a model, which is tuned if it is an ONNX file.

    Args:
        path: The ONNX file, or the folder of a saved model.
        peers: The names of the peers. They are skipped if the ONNX file of a saved model is not there.
        tuning: How it is tuned, and which size is timed.
        peers_on: What the peers execute on.

    Raises:
        InputError: The model has no such size.
        DeviceError: The model is for a GPU, and there is none that can run it.
    """
    import onnx

    from ..model import load, tune_model
    from ..model.artifact.artifact_files import checksum
    from ..model.artifact.onnxruntime_parts import EXACT_SUMS, sums_saturate
    from ..model.inputs.samples import sample_feeds
    from ..model.onnx.rewrites.qdq import rounds_to_bytes

    if path.is_dir():
        tuning.on_phase(f"loading {path.name}")
        artifact, metadata = path, load(path).metadata
        source = Path(str(metadata.provenance.get("source", "")))
        source_checksum = metadata.provenance.get("sha256")
    else:
        artifact, source, source_checksum = tuning.scratch / "model.sd", path, None
        metadata = tune_model(
            path,
            target=tuning.target,
            seed=tuning.seed,
            store=tuning.store,
            shapes=tuning.shapes,
            precision=tuning.precision,
            on_progress=tuning.on_progress,
            out=artifact,
        ).model.metadata
    size = metadata.at(tuning.shapes or {})
    feeds = sample_feeds(size, tuning.seed)
    ours = {"artifact": str(artifact), "inputs": feeds}
    if metadata.device:
        contenders = [ContenderSpec(OURS, "stormdrop.bench.peers.ours:ModelOnGpu", ours, metadata.device)]
    else:
        contenders = [ContenderSpec(OURS, "stormdrop.bench.peers.ours:TunedModel", ours)]
    if not source.is_file():
        reason = f"the ONNX file that {path} was made from is not there ({source})"
        return Plan(str(path), contenders, None, dict.fromkeys(peers, reason))
    if source_checksum is not None and source_checksum != checksum(source):
        reason = f"the ONNX file that {path} was made from has changed since ({source})"
        return Plan(str(path), contenders, None, dict.fromkeys(peers, reason))
    theirs = {"model": with_sizes(source, size, metadata.provenance), "inputs": feeds}
    asked = metadata.provenance.get("precision")
    precision = BF16 if asked == AUTO else asked
    in_bytes = rounds_to_bytes(onnx.load_from_string(theirs["model"]))
    makers = model_peers(peers_on)
    for peer in peers:
        low = {"precision": precision} if precision and peer in TAKE_PRECISION else {}
        contenders.append(ContenderSpec(peer, makers[peer], {**theirs, **low}, peers_on))
        if peer == "onnxruntime" and peers_on == CPU and in_bytes and sums_saturate():
            contenders.append(ContenderSpec(ONNXRUNTIME_EXACT, makers[peer], {**theirs, "entries": {EXACT_SUMS: "1"}}))
    tolerance = TOLERANCE_OF_ROUNDING if precision or in_bytes else TOLERANCE
    return Plan(str(path), contenders, None, {}, tolerance=tolerance)


def with_sizes(source: Path, size: Metadata, provenance: Mapping[str, Any]) -> bytes:
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
