"""The code of scheduled functions for a GPU, all kernels of a module in one source: for models.

scheduled functions by symbol  --TVM-->  CUDA or OpenCL source, and how the kernels are launched
--nvcc->  cubin or PTX, for each architecture
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm.tirx import PrimFunc

from ..errors import MeasureError
from ..machine.contract import OPENCL
from ..machine.gpu import Gpu
from ..machine.known_gpus import ARCH
from ..runtime.device.code import CUBIN, OPENCL_SOURCE, PTX, DeviceKernel, Image
from .cuda import Resources, compile_for
from .gpu_lowering import argument_bytes, device_kernel, launches_of, lower_for_gpu


@dataclass(frozen=True)
class DeviceModule:
    """Kernels for a device.

    Attributes:
        kernels: How each is launched, by the symbol of its function.
        source: The source of all of them.
        images: Their code as a device loads it, for each architecture of the target.
        resources: What `ptxas` says that each launched kernel needs on the target; none for OpenCL.
    """

    kernels: Mapping[str, DeviceKernel]
    source: str
    images: Sequence[Image]
    resources: Sequence[Resources] = ()


def build_for_device(functions: Mapping[str, PrimFunc], device: Gpu) -> DeviceModule:
    """Generates the code of scheduled functions.

    Args:
        functions: The functions by their symbols.
        device: What they are for.

    Raises:
        MeasureError: There is no `nvcc`, or it refuses the source, for one of the target's architectures; nothing of a
            function is bound to threads, which would be lost without a word; or as `device_kernel`.
        Exception: Whatever TVM raises.
    """
    target = device.tvm()
    lowered, kernels = dict[str, PrimFunc](), dict[str, DeviceKernel]()
    for symbol, function in functions.items():
        host, of_function = lower_for_gpu(function, target, symbol)
        if not of_function:
            raise MeasureError(f"{symbol}: none of its loops is bound to the threads of a GPU")
        kernels[symbol] = device_kernel(function, launches_of(host, of_function), argument_bytes(of_function))
        lowered |= of_function
    _, _, finalize = tvm.tirx.get_default_tir_pipeline(target)
    opencl = device.device == OPENCL
    generate = tvm.get_global_func(f"target.build.{'opencl' if opencl else 'cuda'}")
    source = ""
    if lowered:
        module = generate(finalize()(tvm.IRModule(lowered)), target)
        source = str(module.inspect_source("cl" if opencl else "cuda"))
    if opencl:
        return DeviceModule(kernels, source, [Image(OPENCL_SOURCE, "", source.encode())])
    compiled = {arch: compile_for(source, arch) for arch in (device.arch, *device.architectures)}
    images = [Image(CUBIN if arch.startswith(ARCH) else PTX, arch, code) for arch, (code, _) in compiled.items()]
    return DeviceModule(kernels, source, images, compiled[device.arch][1])
