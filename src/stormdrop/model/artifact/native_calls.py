"""Calls of a model that a library executes; see `model.native`. They need no TVM."""

from __future__ import annotations

import os

from ...errors import ArtifactError
from ...machine.process.forks import FORKED
from ...machine.threads import usable_cores
from ...runtime import native_calls
from ...runtime.inputs import Array, Given
from ...runtime.library import NativeModel, pool_cores
from ...runtime.parts import PartCalls, RunPart
from ..program.compiled import NativeCode
from .metadata import Metadata


class NativeCalls:
    """Calls the library of a native model. Several threads may use one object.

    All native models of a process share the threads and cores of one pool. It knows nothing of calls of other models,
    which `CoreShares` shares the cores out to.
    A process that was forked has none of these threads. The model is then opened once more, with threads of that
    process, unless onnxruntime runs a part: its threads do not survive a fork, and the call is an error.

    Args:
        native: What the library executes.
        metadata: What the model says about itself.
        threads: The most threads that a call uses.
        run_part: Runs its parts, if it has some.

    Raises:
        ArtifactError: The library refuses to open the model.
    """

    def __init__(self, native: NativeCode, metadata: Metadata, threads: int, run_part: RunPart | None) -> None:
        self._native, self._metadata = native, metadata
        self._threads = threads
        self._parts = None if run_part is None else PartCalls(metadata.name, run_part)
        self._open()

    def _open(self) -> None:
        part = None if self._parts is None else self._parts.function
        threads = min(self._threads, pool_cores() or usable_cores())  # TVM_NUM_THREADS may be more
        model = NativeModel(self._native.library, self._native.weights, threads, part)
        model.check_agreement(self._metadata.name, self._metadata.all_sizes)
        inputs, outputs = len(self._metadata.inputs), len(self._metadata.outputs)
        self._calls = native_calls.NativeCalls(model, self._parts, inputs, outputs)
        self._process = os.getpid()

    def __call__(self, given: Given) -> list[Array]:
        """Runs the model.

        Args:
            given: The inputs of the call.

        Returns:
            Its outputs. The arrays belong to the caller.

        Raises:
            ArtifactError: A kernel fails, or onnxruntime runs a part, and this process was forked since the model was
                loaded.
            ModelError: onnxruntime does not take the inputs of a part.
        """
        return self._here()(given)

    def profile(self, given: Given) -> list[tuple[str, float]]:
        """Runs the model, and times its steps.

        Args:
            given: The inputs of the call.

        Returns:
            The symbol of each step, in the order of the execution, and its seconds.

        Raises:
            ArtifactError: As for a call.
            ModelError: As for a call.
        """
        return self._here().profile(given)

    def _here(self) -> native_calls.NativeCalls:
        """The calls of the model as it is open in this process."""
        if self._process != os.getpid():
            if self._parts is not None:
                raise ArtifactError(FORKED)
            self._open()
        return self._calls
