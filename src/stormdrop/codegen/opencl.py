"""OpenCL source of a scheduled function, and how its kernels are launched. Nothing here needs OpenCL.

TVM generates the source. Its module does not say how the kernels are launched, so that is read from the host's function
before code is generated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.tirx import PrimFunc

from ..errors import MeasureError
from .gpu_lowering import KernelLaunch, argument_bytes, launches_of, lower_for_gpu


@dataclass(frozen=True)
class OpenClModule:
    """A scheduled function for OpenCL.

    Attributes:
        source: The source of all kernels.
        launches: How they are launched, in this order.
        parameters: The names of the parameters of the scheduled function, in order.
        sizes: The bytes of each argument of the kernels, by name.
    """

    source: str
    launches: tuple[KernelLaunch, ...]
    parameters: tuple[str, ...]
    sizes: Mapping[str, int]


def build_opencl(function: PrimFunc, target: Any) -> OpenClModule:
    """The OpenCL source of a scheduled function, and how it is launched. Raises whatever TVM raises.

    Args:
        function: The scheduled function.
        target: TVM's target of the kind "opencl".

    Raises:
        MeasureError: What a kernel takes is no parameter of the function, and no other kernel takes it.
    """
    host, kernels = lower_for_gpu(function, target)
    launches = launches_of(host, kernels)
    _, _, finalize = tvm.tirx.get_default_tir_pipeline(target)
    generate = tvm.get_global_func("target.build.opencl")
    source = generate(finalize()(tvm.IRModule(dict(kernels))), target).inspect_source("cl")
    parameters = tuple(str(buffer.name) for buffer in function.params)
    uses = Counter(name for launch in launches for name in launch.arguments)
    if lonely := [name for name, count in uses.items() if count == 1 and name not in parameters]:
        raise MeasureError(f"{', '.join(lonely)}: no parameter, and nothing that one kernel hands on to another")
    return OpenClModule(str(source), launches, parameters, argument_bytes(kernels))
