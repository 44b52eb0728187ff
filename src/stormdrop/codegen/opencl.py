"""OpenCL source of a scheduled function, and how its kernels are launched. Nothing here needs OpenCL.

TVM generates the source. Its module does not say how the kernels are launched, so that is read from the host's function
before code is generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm.tirx import PrimFunc

from ..runtime.device.code import DeviceKernel
from .gpu_lowering import argument_bytes, device_kernel, launches_of, lower_for_gpu


@dataclass(frozen=True)
class OpenClModule:
    """A scheduled function for OpenCL.

    Attributes:
        source: The source of all kernels.
        kernel: How they are launched.
        sizes: The bytes of each parameter of the function, 0 if no kernel takes it, and then of what kernels hand on.
    """

    source: str
    kernel: DeviceKernel
    sizes: tuple[int, ...]


def build_opencl(function: PrimFunc, target: Any) -> OpenClModule:
    """The OpenCL source of a scheduled function, and how it is launched. Raises whatever TVM raises.

    Args:
        function: The scheduled function.
        target: TVM's target of the kind "opencl".

    Raises:
        MeasureError: As `device_kernel`.
    """
    host, kernels = lower_for_gpu(function, target)
    sizes = argument_bytes(kernels)
    kernel = device_kernel(function, launches_of(host, kernels), sizes)
    _, _, finalize = tvm.tirx.get_default_tir_pipeline(target)
    generate = tvm.get_global_func("target.build.opencl")
    source = generate(finalize()(tvm.IRModule(dict(kernels))), target).inspect_source("cl")
    taken = (sizes.get(str(buffer.name), 0) for buffer in function.params)
    return OpenClModule(str(source), kernel, (*taken, *kernel.scratch))
