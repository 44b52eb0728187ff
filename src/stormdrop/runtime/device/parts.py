"""The parts of a model on a device that onnxruntime runs.

by its CUDA provider    on the memory of the program; nothing is copied          `CudaParts`
by its CPU provider     what a part reads is copied to this machine before, and what it writes to the device
                        afterwards; a profile has these copies by their names   `copied_bytes`
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ...errors import DeviceError, one_line
from ..inputs import dtype_of
from ..parts import RunPart, part_options, session_of
from ..program import SizeProgram, bytes_of
from ..sizes import OPEN
from .contract import Device, Memory, StreamDevice, StreamQueue

TO_HOST, TO_DEVICE = "copy to the host", "copy to the GPU"
"""What a profile calls the copies before and after a part, after the symbol of the step and a colon."""

_logger = logging.getLogger(__name__)

_PROVIDER = "CUDAExecutionProvider"


_DOES_NOT_LOAD = "CUDA_PATH is set"
"""What onnxruntime raises if the provider does not load and CUDA_PATH is set. Else it leaves the provider out."""


class ModelParts(NamedTuple):
    """The parts of a model, before it is known what runs them.

    Attributes:
        models: The ONNX model of each.
        threads: The most threads of this machine that a part may use.
        keep_denormals: They compute with denormals.
        on_host: Makes what runs them on this machine. It raises what says in one line why it cannot.
    """

    models: Sequence[bytes]
    threads: int
    keep_denormals: bool
    on_host: Callable[[], RunPart]


class DeviceTensor(NamedTuple):
    """A tensor in the memory of a device.

    Attributes:
        memory: Its memory; None if a part is going to make it, and its shape depends on data.
        shape: Its shape.
        dtype: The name of its type.
    """

    memory: Memory
    shape: tuple[int, ...]
    dtype: str


def copied_bytes(size: SizeProgram) -> dict[str, int]:
    """The bytes of the copies before and after each part that this machine runs, by the names in a profile.

    A result whose shape depends on data is an output of the model: it stays on this machine, and is not copied.

    Args:
        size: The program of a size.

    Example:
        >>> from stormdrop.runtime.program import SizeProgram, Step, View
        >>> views = View("storage", 0, 0, (2, 3), "float32", 0), View("output", 0, 0, (2, OPEN), "int64", 1)
        >>> copied_bytes(SizeProgram((), (), (24,), views, (Step("part", "0", (0,), (1,)),)))
        {'stormdrop.onnxruntime.0: copy to the host': 24, 'stormdrop.onnxruntime.0: copy to the GPU': 0}
    """
    return {
        f"{step.symbol}: {name}": sum(size.views[view].bytes for view in views if OPEN not in size.views[view].shape)
        for step in size.steps
        if step.kind == "part"
        for name, views in ((TO_HOST, step.reads), (TO_DEVICE, step.writes))
    }


def cuda_parts(parts: ModelParts, device: Device) -> CudaParts | None:
    """What runs the parts on an NVIDIA GPU; None if onnxruntime cannot, or the device is another one.

    onnxruntime cannot if it was built without CUDA, if it lacks libraries of NVIDIA, or if it takes a part by its CPU
    provider only.

    Args:
        parts: The parts.
        device: The device.

    Raises:
        DeviceError: onnxruntime does not take a part, or the GPU has too little memory for it.
    """
    queue = device.queue()
    if not isinstance(device, StreamDevice) or not isinstance(queue, StreamQueue):
        return None
    try:
        import onnxruntime
    except ImportError:  # what runs them on this machine says so
        return None
    if _PROVIDER not in onnxruntime.get_available_providers():
        return None
    # With TF32 it would compute with other numbers than it was verified with.
    settings = {"device_id": str(device.gpu), "user_compute_stream": str(queue.stream), "use_tf32": "0"}

    def made() -> list[Any]:
        providers = [(_PROVIDER, settings), "CPUExecutionProvider"]
        options = (part_options(parts.threads, parts.keep_denormals) for _ in parts.models)
        return [session_of(model, each, providers) for model, each in zip(parts.models, options, strict=True)]

    try:
        # The first session of a process sets the mode for denormals of the thread that makes it, and leaves it so.
        with ThreadPoolExecutor(1) as thread:
            sessions = thread.submit(made).result()
    except Exception as error:  # onnxruntime's exceptions have no base class of their own
        if _DOES_NOT_LOAD not in str(error):
            raise DeviceError(
                f"{device.name}: onnxruntime cannot open a part of the model: {one_line(error)}"
            ) from error
        sessions = []
    if not sessions or not all(_PROVIDER in session.get_providers() for session in sessions):
        _logger.warning("the CPU runs parts of the model: onnxruntime's CUDA provider does not find NVIDIA's libraries")
        return None
    going_on = onnxruntime.RunOptions()
    going_on.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return CudaParts(device, queue, sessions, going_on)


class CudaParts:
    """Runs parts by onnxruntime's CUDA provider on the memory of a program. Several threads may use one object.

    All sessions work in one stream, whose number they need when they are made: a part has its weights on the GPU once,
    however many calls are in progress. This stream waits for that of the call, and that of the call for this one; the
    caller waits for neither.

    Args:
        device: The GPU.
        queue: The queue in whose stream the sessions work.
        sessions: The session of each part.
        going_on: onnxruntime's options of a run that is not waited for.
    """

    def __init__(self, device: StreamDevice, queue: StreamQueue, sessions: Sequence[Any], going_on: Any) -> None:
        self._sessions, self._going_on = sessions, going_on  # before the queue: they end before their stream does
        self._device, self._queue = device, queue
        self._turn = threading.Lock()  # onnxruntime has one handle of cuDNN for a stream, which is for one thread

    def run(
        self, index: int, read: Sequence[DeviceTensor], written: Sequence[DeviceTensor], queue: StreamQueue
    ) -> list[DeviceTensor]:
        """Puts a part into a queue.

        Args:
            index: Which part.
            read: Its inputs.
            written: Its outputs.
            queue: The queue of the call.

        Returns:
            The outputs: those that have no memory in a copy on the device, with the shapes that they have.

        Raises:
            Exception: Whatever onnxruntime raises.
        """
        session, place = self._sessions[index], ("cuda", self._device.gpu)
        binding = session.io_binding()
        for node, tensor in zip(session.get_inputs(), read, strict=True):
            binding.bind_input(node.name, *place, *_described(tensor))
        for node, tensor in zip(session.get_outputs(), written, strict=True):
            binding.bind_output(node.name, *place, *(() if tensor.memory is None else _described(tensor)))
        with self._turn, queue.on(self._queue.stream):
            session.run_with_iobinding(binding, self._going_on)
            made = zip(written, binding.get_outputs(), strict=True)
            return [
                self._copied(value, tensor.dtype, queue) if tensor.memory is None else tensor for tensor, value in made
            ]

    def _copied(self, value: Any, dtype: str, queue: StreamQueue) -> DeviceTensor:
        """A copy of a tensor in onnxruntime's memory, which it may use for another one from the next run on."""
        shape = tuple(value.shape())
        size = bytes_of(shape, dtype)
        memory = self._device.allocate(size)
        queue.copy(self._device.at(value.data_ptr()), memory, size)
        return DeviceTensor(memory, shape, dtype)


def _described(tensor: DeviceTensor) -> tuple[Any, tuple[int, ...], int]:
    """A tensor as onnxruntime binds it: its type, its shape, and where it is."""
    return dtype_of(tensor.dtype).type, tensor.shape, tensor.memory.address
