"""Calls of a model that a library executes; see `model.native`. They need no TVM."""

from __future__ import annotations

import os
from functools import cached_property

from ...errors import ArtifactError
from ...machine.process.forks import FORKED
from ...machine.threads import usable_cores
from ...runtime import native_calls
from ...runtime.calls import ModelCalls, Observer
from ...runtime.inputs import Array, Given
from ...runtime.library import NativeModel, pool_cores
from ...runtime.parts import PartCalls, RunPart
from ..program.compiled import CompiledProgram
from .metadata import Metadata


class NativeCalls(ModelCalls):
    """Calls the library of a native model.

    All native models of a process share the threads and cores of one pool. It knows nothing of calls of other models,
    which `CoreShares` shares the cores out to.
    A process that was forked has none of these threads. The model is then opened once more, with threads of that
    process, unless onnxruntime runs a part: its threads do not survive a fork, and the call is an error.

    Args:
        compiled: The program, with the library that executes it.
        metadata: What the model says about itself.
        threads: The most threads that a call uses.
        run_part: Runs its parts, if it has some.

    Raises:
        ArtifactError: The library refuses to open the model.
    """

    times_itself = True

    def __init__(self, compiled: CompiledProgram, metadata: Metadata, threads: int, run_part: RunPart | None) -> None:
        self._compiled, self._metadata = compiled, metadata
        self._threads, self._run_part = threads, run_part
        self._parts = None if run_part is None else PartCalls(metadata.name, run_part)
        self._open()

    def _open(self) -> None:
        part = None if self._parts is None else self._parts.function
        threads = min(self._threads, pool_cores() or usable_cores())  # TVM_NUM_THREADS may be more
        native = self._compiled.native
        assert native is not None
        model = NativeModel(native.library, native.weights, threads, part)
        model.check_agreement(self._metadata.name, self._metadata.all_sizes)
        inputs, outputs = len(self._metadata.inputs), len(self._metadata.outputs)
        in_place = self._compiled.program.in_place
        self.states = () if in_place is None else in_place.states
        sizes = len(self._compiled.program.sizes)
        self._calls = native_calls.NativeCalls(model, self._parts, inputs, outputs, sizes, self.states)
        self._process = os.getpid()

    def __call__(self, given: Given) -> list[Array]:
        return self._here()(given)

    def step(self, given: Given, memory: list[Array]) -> list[Array]:
        return self._here().step(given, memory)

    def profile(self, given: Given) -> list[tuple[str, float]]:
        return self._here().profile(given)

    def observed(self, observer: Observer) -> ModelCalls:
        """See `ModelCalls`. TVM calls the kernels, and is imported for this."""
        from .in_process import InProcessCalls

        return InProcessCalls(self._stepwise, self._metadata, self._threads, self._run_part, observer)

    @cached_property
    def _stepwise(self) -> CompiledProgram:
        """The program, with modules of TVM for its kernels."""
        from .tvm_modules import with_modules

        return with_modules(self._compiled, self._metadata)

    def _here(self) -> native_calls.NativeCalls:
        """The calls of the model as it is open in this process."""
        if self._process != os.getpid():
            if self._parts is not None:
                raise ArtifactError(FORKED)
            self._open()
        return self._calls
