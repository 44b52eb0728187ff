"""A native model, or one for a GPU, that is loaded: NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArtifactError, InputError, one_line
from .calling import CallableModel
from .calls import ModelCalls
from .decoding.states import states_by_name
from .device.calls import DeviceCalls
from .device.code import read_files
from .device.opening import open_device
from .device.parts import ModelParts
from .folder import DEVICE, PROGRAM, WEIGHTS, OpenFolder
from .inputs import Array, CallInputs
from .library import NativeModel, library_of
from .metadata import Metadata
from .native_calls import NativeCalls
from .parts import PartCalls, Parts
from .program import State, program_of


class CompiledModel(CallableModel):
    """A native model, or one for a GPU, that is ready to run on this machine. `load` makes one.

    It runs at each of its `sizes`: the shapes of a call's inputs say which one that is. Several threads may call one
    model, and several models, at the same time: the calls in progress share the cores out, and those that find no core
    free wait. Each process opens a model for itself: after a fork the new one cannot run those of the other.

    Attributes:
        metadata: What the model says about itself.
        threads: The most threads that one call uses, the calling thread included.
        digest: The digest of all files of its folder: 64 hexadecimal digits. Give it to `load` to get this very model.
        folder: Its folder.

    Example:
        ```python
        from stormdrop import runtime

        model = runtime.load("native.sd")
        y = model(x)                              # inputs in order, or by keyword
        outputs = model.run({"data": x})          # inputs by name; all outputs by name
        ```
    """

    def __init__(self, calls: ModelCalls, metadata: Metadata, folder: Path, threads: int) -> None:
        self.metadata = metadata
        self.digest = metadata.digest
        self.folder = folder
        self.threads = threads
        self._calls = calls
        self._inputs = CallInputs(metadata.name, metadata.sizes, metadata.batched, metadata.ignored)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Runs the model on inputs by name.

        A contiguous input is read in place, if its memory begins at a multiple of 64 bytes; otherwise it is copied.

        Args:
            feeds: Each input by name: a NumPy array, or anything that exports DLPack from the memory of the CPU. Inputs
                that the model does not use (`Metadata.ignored`) may be given. Together they have the shapes of one of
                `sizes`, or fewer rows of the inputs in `Metadata.batched`: the nearest larger size then runs.

        Returns:
            All outputs by name. The arrays belong to the caller: later calls do not change them.

        Raises:
            InputError: An input is missing, unknown, on another device, or of another shape or type.
            ArtifactError: A kernel fails, or the model was loaded before this process was forked.

        Example:
            ```python
            outputs = model.run({"data": image})
            ```
        """
        return {info.name: value for info, value in zip(self.outputs, self._results(feeds), strict=True)}

    def profile(self, feeds: Mapping[str, Any]) -> list[tuple[str, float]]:
        """Runs the model as `run`, and times its steps.

        Args:
            feeds: As those of `run`.

        Returns:
            The name of each step, in the order of the execution, and its seconds.

        Raises:
            InputError: As `run`.
            ArtifactError: As `run`.
        """
        return self._calls.profile(self._inputs(feeds))

    def _results(self, feeds: Any) -> Sequence[Any]:
        on_device = self._results_on_device(feeds) if self._calls.on_gpu else None
        return self._calls(self._inputs(feeds)) if on_device is None else on_device


def load(folder: str | Path, digest: str | None = None, threads: int | None = None) -> CompiledModel:
    """Loads a native model, or one for a GPU. This runs code of the folder: load what you trust, or check its digest.

    Args:
        folder: What `CompiledModel.save` of stormdrop wrote, with `native=True` unless it is for a GPU.
        digest: The digest that the model must have. Nothing of the folder runs if it has another one.
        threads: The most threads that one call uses; all usable cores by default.

    Raises:
        ArtifactError: The folder holds no native model or one with another digest, its files are damaged, or this CPU
            lacks instructions that the kernels use.
        DeviceError: It is for a GPU, and that is not here, or cannot run it.
        InputError: `digest` is no digest, or `threads` is no number from 1 to the usable cores.

    Example:
        ```python
        from stormdrop import runtime

        model = runtime.load("native.sd")
        ```
    """
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise InputError(f"threads={threads!r}: must be a whole number from 1 on, the cores of this process at most")
    path = Path(folder)
    with OpenFolder(path, digest) as files:
        metadata = files.metadata
        parts = Parts(files) if metadata.parts else None
        if metadata.device:
            return _on_device(path, files, parts, _threads_of(threads))
        calls = PartCalls(metadata.name, parts.run) if parts else None
        states = _states(files)
        library, weights = library_of(metadata.name, *files.library()), files.weights()
        try:
            native = NativeModel(library, weights, threads or 0, calls.function if calls else None)
        except ArtifactError as error:
            if str(error).startswith("threads="):
                raise InputError(str(error)) from None
            name = str(error).replace(str(weights), f"{path}/weights.bin") if weights else str(error)
            raise ArtifactError(name if name.startswith(str(path)) else f"{path}: {name}") from None
    native.check_agreement(str(path), metadata.sizes)
    if parts is not None:
        parts.prepare(native.threads)
    counts = len(metadata.inputs), len(metadata.outputs), len(metadata.sizes)
    native_calls = NativeCalls(native, calls, *counts, states)
    return CompiledModel(native_calls, metadata, path, native.threads)


def _states(files: OpenFolder) -> tuple[State, ...]:
    """The states that a native model writes in place. Its program is read only if it may have some."""
    if not (files.metadata.declares_states or states_by_name(files.metadata.sizes)):
        return ()
    try:
        program = program_of(json.loads(files.read(PROGRAM)))
    except ValueError as error:
        raise ArtifactError(f"{files.metadata.name}: {PROGRAM} cannot be read: {one_line(error)}") from error
    return () if program.in_place is None else program.in_place.states


def _threads_of(threads: int | None) -> int:
    """How many threads onnxruntime may use for a part."""
    cores = len(os.sched_getaffinity(0))
    if threads is not None and threads > cores:
        raise InputError(f"threads={threads}: this process may use {cores} cores")
    return threads or cores


def _on_device(path: Path, files: OpenFolder, parts: Parts | None, threads: int) -> CompiledModel:
    """The model of a folder for a GPU."""
    metadata, name = files.metadata, PROGRAM
    try:
        program = program_of(json.loads(files.read(PROGRAM)))
        name = DEVICE
        code = read_files(files.read)
    except ValueError as error:
        raise ArtifactError(f"{path}: {name} cannot be read: {one_line(error)}") from error
    weights = np.frombuffer(files.read(WEIGHTS) if program.constants else b"", np.uint8)
    constants = [weights[each.offset : each.offset + each.bytes] for each in program.constants]
    given = (
        ModelParts(parts.models, threads, metadata.keep_denormals, partial(parts.prepare, threads)) if parts else None
    )
    opened = partial(open_device, metadata.device, metadata.device_name)
    calls = DeviceCalls(opened, program, code, constants, given)
    calls.open()
    return CompiledModel(calls, metadata, path, threads)
