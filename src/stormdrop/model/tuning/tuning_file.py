"""What tuning a model found, kept in its folder beside the model: a gzipped JSON document that a report is made from.

`artifact/kept_tuning.py` reads it.

The document is that of `stormdrop tune --json`, without its digest, and with these keys more:

    format     1
    created    when the tuning ended, in ISO 8601 and UTC
    command    the command line that makes such a model; null if it was no ONNX file
    machine    the fields of the target
    limits     the machine's `flops` and `bandwidth` per second, and whether they were measured `undisturbed`; or null
    profile    the time of each kernel inside the model, at its first size (`profile.Profile`); or null
    kernels    for each entry of `tasks`, at the same position, what its search tried and what the model has
"""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArtifactError
from ...machine.contract import CPU, Machine
from ...machine.limits.peak import known_peak
from ...report.formatting import json_value
from ...space import Space
from ...tuning.kernel import KernelTask
from ...tuning.options import FLOAT32, TuneOptions
from ..artifact.artifact import CompiledModel
from ..artifact.artifact_files import METADATA, TUNING, checksum
from ..artifact.atomic_folder import replace_folder
from ..artifact.kept_tuning import FORMAT
from ..artifact.metadata import Metadata
from ..building.builder import ModelBuilder
from ..building.tuned_task import Choice, TunedTask
from ..inputs.combinations import GivenShapes, is_list
from ..inputs.inputs import Values
from ..profile import Profile
from ..states.declared import Declared
from .result import ModelResult

_COUNTED = 100_000  # points without constraints that are counted: a test of those of GPUs takes some 10 us


def tuning_document(
    result: ModelResult,
    builder: ModelBuilder,
    combination: Mapping[int, Choice],
    options: TuneOptions,
    shapes: GivenShapes | None,
    profile: Profile | None,
    values: Values | None = None,
) -> dict[str, Any]:
    """Describes a tuning.

    Args:
        result: What it brought.
        builder: Has built the model.
        combination: The schedule of each task that the model has, by the index of the task.
        options: How the model was tuned.
        shapes: The sizes that were given for inputs that the model leaves open.
        profile: The times of the kernels inside the model; None if they were not measured.
        values: The values that were given for inputs that are fixed.

    Returns:
        The document, whose numbers are finite.
    """
    limits, document = known_peak(result.target), result.to_json()
    provenance = result.model.metadata.provenance
    source, state = provenance.get("source"), provenance.get("state", {})
    del document["digest"]  # it is not known before the document is written
    whole = {
        "format": FORMAT,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": None if source is None else _command(source, options, shapes, result.target, values or {}, state),
        **document,
        "machine": asdict(result.target),  # type: ignore[call-overload]
        "limits": None if limits is None else asdict(limits),
        "profile": None if profile is None else _profile(profile, result.model),
        "kernels": [_kernel(task, builder, combination, task.task.name in result.inside) for task in result.tasks],
    }
    finite: dict[str, Any] = json_value(whole)
    return finite


def add_tuning(model: CompiledModel, folder: Path, document: Mapping[str, Any]) -> None:
    """Adds the document of a tuning to the folder of a saved model. The folder changes at once, or not at all.

    Args:
        model: The model that was saved there. It gets the new digest, and knows the folder.
        folder: Where it was saved.
        document: The document.

    Raises:
        ArtifactError: The folder cannot be written.
    """
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))

    def write(new: Path) -> None:
        for file in folder.iterdir():
            _link(file, new / file.name)
        (new / TUNING).unlink(missing_ok=True)
        (new / TUNING).write_bytes(gzip.compress(text.encode(), mtime=0))
        metadata, checksums, _ = Metadata.from_json((new / METADATA).read_bytes())
        described = metadata.to_json({**checksums, TUNING: checksum(new / TUNING)})
        (new / METADATA).unlink()  # it is a link to the former file
        (new / METADATA).write_text(described)
        model.digest = Metadata.from_json(described.encode())[2]

    before = model.digest
    try:
        replace_folder(folder, write)
        model.folder = folder
    except OSError as error:
        model.digest = before
        raise ArtifactError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _points(space: Space) -> int:
    """The number of points of a space, or an upper bound if counting them takes long."""
    return space.size if space.bound <= _COUNTED else space.bound


def _kernel(
    task: TunedTask, builder: ModelBuilder, combination: Mapping[int, Choice], won_inside: bool
) -> dict[str, Any]:
    """What the search of a task tried, and what the model has for it."""
    choice, kernel, result = combination.get(task.task.index), task.kernel, task.result
    schedule = None if choice is None or kernel is None else builder.scheduled_text(task.task.index, choice)
    entry: dict[str, Any] = {
        "workload": None
        if kernel is None
        else {
            "key": kernel.workload.key,
            "flops": kernel.workload.flops,
            "bytes": kernel.workload.bytes,
            "inputs": [asdict(spec) for spec in kernel.workload.inputs],
            "outputs": [asdict(spec) for spec in kernel.workload.outputs],
        },
        "spaces": {} if kernel is None else {space.name: _points(space) for _, space in kernel.sketches},
        "chosen": None if choice is None else {"sketch": choice[0], "config": dict(choice[1])},
        "default": choice is not None and kernel is not None and _is_default(choice, kernel),
        "won_inside": won_inside,
        "tir": schedule,
        "search": None,
    }
    if result is not None:
        found = result.to_json()
        keys = ("best", "baseline", "trials", "failed", "reused", "suspect", "seconds", "phases", "statuses")
        entry["search"] = {
            **{key: found[key] for key in (*keys, "converged", "end", "interrupted", "disturbed", "curve")},
            "error": result.error,
            "finalists": [finalist.to_json() for finalist in result.finalists],
            "by_sketch": [best.to_json() for best in result.by_sketch],
        }
    return entry


def _is_default(choice: Choice, kernel: KernelTask) -> bool:
    """Whether a schedule is the one that a kernel has without tuning: the origin of its first sketch's space."""
    _, space = kernel.sketches[0]
    return choice == (space.name, space.config(space.origin))


def _profile(profile: Profile, model: CompiledModel) -> dict[str, Any]:
    """A profile whose kernels say which task they belong to, by its index; None for a kernel of no task."""
    document = profile.to_json()
    for kernel in document["kernels"]:
        kernel["task"] = model.symbols.get(kernel["name"])
    return document


def _command(
    source: str, options: TuneOptions, shapes: GivenShapes | None, target: Machine, values: Values, state: Declared
) -> str:
    """The command line of a tuning."""
    words = ["stormdrop", "tune", source, "--search", options.search, "--seed", str(options.seed)]
    if options.trials is not None:
        words += ["--trials", str(options.trials)]
    if options.seconds is not None:
        words += ["--time", f"{options.seconds:g}s"]
    if options.precision != FLOAT32:
        words += ["--precision", options.precision]
    if options.max_error is not None:
        words += ["--max-error", f"{options.max_error:g}"]
    if isinstance(options.sketches, str):
        words += ["--sketches", options.sketches]
    for name, shape in (shapes or {}).items():
        sizes = (",".join(map(str, size)) if is_list(size) else str(size) for size in shape)
        words += ["--shape", f"{name}={'x'.join(sizes)}"]
    for name, value in values.items():
        words += ["--value", f"{name}={json.dumps(np.asarray(value).tolist(), separators=(',', ':'))}"]
    for output, into in state.items():
        words += ["--state", f"{output}={into}"]
    if target.runner or target.device != CPU:
        words += ["--target", target.target_name]
    if target.runner:
        key, _, place = target.runner.rpartition("@")
        words += ["--tracker", place, "--device", key] if key else ["--runner", place]
    return shlex.join([*words, "--fresh"])


def _link(file: Path, copy: Path) -> None:
    """Gives a file a second name; where the file system has none, copies it."""
    try:
        os.link(file, copy)
    except OSError:
        shutil.copy(file, copy)  # with its mode: a file that others may write is not mapped
