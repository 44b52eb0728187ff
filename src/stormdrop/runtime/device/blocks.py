"""The memory of an execution on a device, and that of this machine from and to which it is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..inputs import Array, dtype_of
from ..program import SizeProgram, View, bytes_of, offsets_of
from ..sizes import OPEN, TensorInfo
from .code import DeviceKernel
from .contract import Device, Memory


class Blocks(NamedTuple):
    """The memory of an execution.

    Attributes:
        inputs: That of each input.
        outputs: That of each output.
        storage: Each block between steps.
        handed_on: What the launches of a kernel hand on; the next kernel's are in the same place.
    """

    inputs: Sequence[Memory]
    outputs: Sequence[Memory]
    storage: Sequence[Memory]
    handed_on: Memory

    def of(self, view: View, constants: Sequence[Memory], device: Device) -> Memory:
        """The memory of a view. One whose shape depends on data has none.

        Args:
            view: The view.
            constants: The memory of each constant.
            device: The device.
        """
        if OPEN in view.shape:
            return None
        blocks = {"input": self.inputs, "output": self.outputs, "storage": self.storage, "constant": constants}
        block = blocks[view.memory][view.index]
        return device.part(block, view.offset, view.bytes) if view.offset else block

    def scratch(self, kernel: DeviceKernel, device: Device) -> list[Memory]:
        """The memory that the launches of a kernel hand on.

        Args:
            kernel: The kernel.
            device: The device.
        """
        offsets = offsets_of(kernel.scratch, device.alignment)
        pairs = zip(offsets, kernel.scratch, strict=False)
        return [device.part(self.handed_on, offset, size) for offset, size in pairs]


def blocks_of(size: SizeProgram, kernels: Mapping[str, DeviceKernel], device: Device) -> Blocks:
    """Memory for an execution, in one piece.

    Args:
        size: What is executed.
        kernels: The kernels that it calls.
        device: The device.

    Raises:
        DeviceError: There is not as much.
    """
    called = {step.name for step in size.steps if step.kind == "kernel"}
    scratch = max((offsets_of(kernels[name].scratch, device.alignment)[-1] for name in called), default=0)
    tensors = [bytes_of(info.shape, info.dtype) for info in (*size.inputs, *size.outputs)]
    blocks = [*tensors, *size.storage, scratch]
    *offsets, total = offsets_of((max(block, 1) for block in blocks), device.alignment)
    whole = device.allocate(total)
    parts = [device.part(whole, offset, max(block, 1)) for offset, block in zip(offsets, blocks, strict=True)]
    first, last = len(size.inputs), len(tensors)
    return Blocks(parts[:first], parts[first:last], parts[last:-1], parts[-1])


def staging_arrays(device: Device, infos: Sequence[TensorInfo]) -> list[Array]:
    """An array of this machine for each tensor, in one piece of memory; those of an open shape have no elements.

    Args:
        device: The device that copies from and to them.
        infos: The tensors.
    """
    sizes = [bytes_of(info.shape, info.dtype) for info in infos]
    *offsets, total = offsets_of(sizes)
    memory = device.staging(total)
    return [
        memory[offset : offset + size].view(dtype_of(info.dtype)).reshape([max(extent, 0) for extent in info.shape])
        for info, offset, size in zip(infos, offsets, sizes, strict=True)
    ]
