"""Executes a model for a GPU that is not here: the same schedules, by another device.

    OpenCL     if this machine has a device of it, such as PoCL, and the model is in types that OpenCL has: blocks,
               threads and barriers as on the GPU
    the CPU    else: blocks and threads as serial loops, in which each thread fetches again what its block shares

Both show wrong indices and wrong arithmetic. Neither shows what the GPU's own code generator does wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tvm import tirx

from ...codegen.serial_loops import with_serial_loops
from ...machine.contract import CUDA, Machine
from ...machine.cpu import Cpu
from ...machine.gpu import Gpu
from ...machine.opencl import OpenCl, OpenClInfo, opencl_devices
from ...sketches.contract import Variant
from ..artifact.artifact import CompiledModel
from ..graph.graph import Graph
from .compile import PlacedVariant, build, plain_schedules
from .fallback import Fallback
from .kernel_library import KernelLibrary


class StandIn:
    """Executes schedules for a GPU that is not here.

    Args:
        gpu: The GPU.
        graph: The model.

    Attributes:
        words: What executes them, for messages.
    """

    def __init__(self, gpu: Gpu, graph: Graph) -> None:
        self._gpu = gpu
        info = None if _needs_half(graph) else next((each for each in opencl_devices() if _holds(each, gpu)), None)
        self._machine: Machine = Cpu.detect() if info is None else _with_limits(OpenCl.of(info), gpu)
        self._library = KernelLibrary(self._machine)
        by = "serial loops on this CPU" if info is None else f"OpenCL on {info.name}"
        self.words = f"executed by {by}, because there is no {gpu.name} here"
        if info is None:
            self.words += " (sorts and cumulative sums by TVM's for CPUs)"

    def build(self, graph: Graph, variants: Mapping[int, Variant], place: PlacedVariant | None) -> CompiledModel:
        """The model with these schedules, which this machine can run.

        Args:
            graph: The model.
            variants: The variant of each task.
            place: Makes the variants that write into a slice of a wider output.

        Raises:
            ModelError: It cannot be compiled for what executes it here.
        """
        plain = plain_schedules(self._gpu)
        form = _serial if isinstance(self._machine, Cpu) else _without_units
        variants = {index: form(variant) for index, variant in variants.items()}
        place = None if place is None else _places(form, place)
        if isinstance(self._machine, Cpu):
            plain = partial(_serial_plain, plain)
        return build(graph, variants, self._machine, place=place, library=self._library, plain=plain)


def stand_in_for(machine: Machine, graph: Graph) -> StandIn | None:
    """What executes a model's schedules for a GPU that is not here; None for any other machine."""
    return StandIn(machine, graph) if isinstance(machine, Gpu) and is_missing(machine) else None


def is_missing(machine: Machine) -> bool:
    """Whether a machine is an NVIDIA GPU that this machine has not, so that its models run elsewhere.

    Whether TVM can measure on it does not matter: models do not run by TVM's runtime.
    """
    return isinstance(machine, Gpu) and machine.device == CUDA and not machine.gpus


def _needs_half(graph: Graph) -> bool:
    """Whether a kernel reads or writes float16, which not every OpenCL device has."""
    return any(str(buffer.dtype) == "float16" for task in graph.tasks for buffer in task.function.params)


def _holds(device: OpenClInfo, gpu: Gpu) -> bool:
    """Whether an OpenCL device executes blocks as large as a GPU does."""
    return device.work_items >= gpu.threads_per_block and device.local >= gpu.shared_per_block


def _with_limits(device: OpenCl, gpu: Gpu) -> OpenCl:
    """The device with the limits of a GPU for blocks."""
    return replace(device, threads_per_block=gpu.threads_per_block, shared_per_block=gpu.shared_per_block)


def _without_units(variant: Variant) -> Variant:
    """The variant with plain loops in place of tensor cores."""
    return replace(variant, main=variant.anywhere, plain=None)


def _serial(variant: Variant) -> Variant:
    return replace(variant, main=with_serial_loops(variant.anywhere), plain=None)


def _places(form: Callable[[Variant], Variant], place: PlacedVariant) -> PlacedVariant:
    return lambda index, where: form(place(index, where))


def _serial_plain(plain: Callable[[tirx.PrimFunc], Fallback], function: tirx.PrimFunc) -> Any:
    fallback = plain(function)
    return replace(fallback, function=with_serial_loops(fallback.function))
