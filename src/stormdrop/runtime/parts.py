"""The parts of a model that onnxruntime runs, because no kernel can be made for their operators.

The library calls `PartCalls.function` for each of them, in the thread that has called the model.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ArtifactError, InputError, one_line
from .folder import OpenFolder
from .inputs import Array, dtype_of

RunPart = Callable[[int, Sequence[Array], Sequence[Array | None]], Sequence[Array]]
"""Runs a part: its index, its inputs, and the memory of its outputs, None for one whose shape depends on data. It
returns the outputs. Where there was memory they may be in it, or have to be copied there."""


@dataclass
class Call:
    """A call in progress.

    Attributes:
        outputs: The outputs of the model; those whose shape depends on data are put here.
        error: What went wrong.
    """

    outputs: list[Array]
    error: BaseException | None = None


class _Current(threading.local):
    call: Call | None = None


class Parts:
    """The parts of a model.

    Args:
        files: The folder of the model.

    Attributes:
        models: The ONNX model of each part.

    Raises:
        ArtifactError: A file is missing or damaged, or onnxruntime is not installed.
    """

    def __init__(self, files: OpenFolder) -> None:
        metadata = files.metadata
        operators = dict.fromkeys(name for part in metadata.parts for name in part.operators)
        try:
            importlib.import_module("onnxruntime")
        except ImportError as error:
            raise ArtifactError(
                f"{metadata.name}: onnxruntime has to run {', '.join(operators)}, and cannot be imported:"
                f" {one_line(error)}"
            ) from None
        self._metadata = metadata
        self.models = [files.read(part.file) for part in metadata.parts]
        self._sessions: list[Any] = []

    def prepare(self, threads: int) -> RunPart:
        """Makes the sessions.

        Args:
            threads: The most threads of a call.

        Returns:
            What runs the parts: `run`.

        Raises:
            ArtifactError: onnxruntime does not take a part.
        """
        from concurrent.futures import ThreadPoolExecutor  # most models have no parts, and need not wait for it

        # The first session of a process sets the mode for denormals of the thread that makes it, and leaves it so.
        with ThreadPoolExecutor(1) as thread:
            self._sessions = thread.submit(self._made, threads).result()
        return self.run

    def _made(self, threads: int) -> list[Any]:
        sessions = []
        for part, model in zip(self._metadata.parts, self.models, strict=True):
            options = part_options(min(threads, part.threads or threads), self._metadata.keep_denormals)
            try:
                sessions.append(session_of(model, options, ["CPUExecutionProvider"]))
            except Exception as error:  # onnxruntime's exceptions have no base class of their own
                raise ArtifactError(
                    f"{self._metadata.name}: onnxruntime does not take it: {one_line(error)}"
                ) from error
        return sessions

    def run(self, index: int, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> Sequence[Array]:
        """Runs a part: a `RunPart`."""
        session = self._sessions[index]
        names = [node.name for node in session.get_inputs()]
        results: Sequence[Array] = session.run(None, dict(zip(names, inputs, strict=True)))
        return results


def part_options(threads: int, keep_denormals: bool) -> Any:
    """Options of a session of onnxruntime for a part, which then computes as it was verified.

    Args:
        threads: The most threads of a run.
        keep_denormals: Its threads compute with denormals.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.x64quantprecision", "1")  # sums of products of bytes are exact
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    options.add_session_config_entry("session.set_denormal_as_zero", "0" if keep_denormals else "1")
    return options


def session_of(model: bytes, options: Any, providers: Sequence[Any]) -> Any:
    """A session of an ONNX model.

    onnxruntime refuses to optimise some models that run: it folds constants in a branch that is never taken, and finds
    that the sizes do not fit there. Such a model is not optimised. If a provider fails onnxruntime would print that and
    go on without it; here that is an error.

    Args:
        model: The model.
        options: onnxruntime's options of a session. They are changed.
        providers: What computes it, the first choice first, as onnxruntime takes them.

    Raises:
        Exception: Whatever onnxruntime raises for a model that it does not take.
    """
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)
    except RuntimeError:  # a provider's; those that are about the model are none
        raise
    except Exception:  # its exceptions have no base class of their own; a real fault is raised again
        if options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL:
            raise
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)


class PartCalls:
    """The parts of a model as its library calls them.

    Args:
        name: The name of the model, for messages.
        run: Runs a part.
    """

    def __init__(self, name: str, run: RunPart) -> None:
        self._name, self._run = name, run
        self._current = _Current()

    @contextmanager
    def call(self, outputs: list[Array]) -> Iterator[Call]:
        """A call of this thread, while it is in progress.

        Args:
            outputs: The outputs of the model. Those whose shape depends on data are replaced.
        """
        call = self._current.call = Call(outputs)
        try:
            yield call
        finally:
            self._current.call = None

    def function(
        self, _: Any, index: int, inputs: int, read: Any, input_: Any, outputs: int, written: Any, output: Any
    ) -> int:
        """Runs a part: the C interface's `stormdrop_part_function`."""
        call = self._current.call
        assert call is not None
        try:
            arrays = [_array(read[i].contents, input_[i], call) for i in range(inputs)]
            tensors = [written[i].contents for i in range(outputs)]
            memory = [None if _is_open(tensor) else _array(tensor, output[i], call) for i, tensor in enumerate(tensors)]
            results = self._run(index, arrays, memory)
            for tensor, planned, result in zip(tensors, memory, results, strict=True):
                if planned is None:
                    call.outputs[int(tensor.output)] = np.array(result, order="C")
                elif result is not planned:
                    if result.shape != planned.shape:
                        raise ValueError(f"a result has the shape {result.shape}, not {planned.shape}")
                    np.copyto(planned, result, casting="no")
        except BaseException as error:  # noqa: BLE001  it is raised where the call was begun
            known = isinstance(error, (InputError, KeyboardInterrupt))
            call.error = error if known else ArtifactError(f"{self._name}: onnxruntime's part fails: {one_line(error)}")
            return 1
        return 0


def _is_open(tensor: Any) -> bool:
    return any(extent < 0 for extent in tuple(tensor.shape[: tensor.rank]))


def _array(tensor: Any, address: int | None, call: Call) -> Array:
    """What a part reads or writes, where it is."""
    if _is_open(tensor):
        return call.outputs[int(tensor.output)]
    shape, dtype = tuple(tensor.shape[: tensor.rank]), dtype_of(tensor.type.decode())
    if not math.prod(shape):
        empty: Array = np.zeros(shape, dtype)
        return empty
    memory: Array = np.frombuffer((ctypes.c_char * tensor.bytes).from_address(address), np.uint8)
    array: Array = memory.view(dtype).reshape(shape)
    return array
