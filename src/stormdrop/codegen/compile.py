"""From a scheduled function to a callable: in process, without a C compiler and without files.

What differs from TVM's defaults was measured on convolutions, matmul, depthwise and softmax, and leaves the results
alone to the last bit (`benchmarks/kernels/cost.py` says what a candidate costs):

- Accumulators are on the stack (see `lowering`). LLVM has less to find out: it saves 10 to 20 of some 100 ms, and the
  kernels are faster.
- LLVM's level is 2 (see `Target.tvm`), which saves 5 to 15 ms. Level 1 would save 5 ms more, but leaves strided loads
  alone that 2 makes vectors of.
- TVM's common subexpression elimination is off: it takes 9 to 32 ms on unrolled kernels, and LLVM does the same job
  anyway.
- The checks of the arguments' types and shapes are off: generating them takes 5 ms and compiling them another 12,
  more than many a kernel. `check_arguments` makes the same checks once, in Python.

(The other just-in-time engine saves nothing. Some 12 ms go into conversions of half precision that TVM adds to every
module.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.tirx import PrimFunc

from ..errors import TargetError
from ..ir.attributes import APART
from ..ir.elementary import exact_on_gpus
from ..ir.reference import evaluate
from ..ir.stages import shape_of
from ..ir.workload import Workload
from ..machine.cpu import Machine, Target
from ..sketches.contract import Variant
from .lowering import PIPELINE

PASS_CONFIG = {"tirx.disable_cse_tir": True, "tirx.disable_assert": True}


@dataclass(frozen=True)
class Kernel:
    """A compiled function; `module` keeps its machine code alive."""

    call: Callable[..., object]
    module: Any


def compile_kernel(function: PrimFunc, target: Any) -> Kernel:
    """Machine code of a scheduled function for a TVM target; raises whatever TVM raises.

    The callable takes tensors in the order of the function's parameters and does not check them.
    """
    return ready(build_module(function, target))


def ready(module: Any) -> Kernel:
    """The function `main` of a module. Looking it up is what generates the machine code."""
    return Kernel(module["main"], module)


def assembler(function: PrimFunc, target: Any) -> str:
    """The assembler text of a scheduled function, for any machine that LLVM knows."""
    return str(build_module(function, target).inspect_source("asm"))


def gpu_pass_config(function: PrimFunc) -> dict[str, bool]:
    """How a scheduled function for GPUs is lowered."""
    apart = function.attrs is not None and APART in function.attrs
    return {"tirx.disable_assert": True, "tirx.disable_storage_rewrite": apart}


def build_module(function: PrimFunc, target: Any) -> Any:
    """TVM's module of a scheduled function, for any machine that it knows; raises whatever TVM raises."""
    if str(target.kind.name) != "llvm":
        module = tvm.IRModule({"main": exact_on_gpus(function).with_attr("global_symbol", "main")})
        with tvm.transform.PassContext(config=gpu_pass_config(function)):
            return tvm.tirx.build(module, target.with_host("llvm"))
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    with tvm.transform.PassContext(config=PASS_CONFIG):
        return tvm.tirx.build(module, target, pipeline=PIPELINE)


def check_arguments(function: PrimFunc, arguments: Sequence[tuple[tuple[int, ...], str]]) -> None:
    """Raises ValueError where arguments of these shapes and types do not fit the function's parameters."""
    if len(function.params) != len(arguments):
        raise ValueError(f"the function has {len(function.params)} parameters, not {len(arguments)}")
    for position, (parameter, (shape, dtype)) in enumerate(zip(function.params, arguments, strict=True)):
        wanted = (shape_of(parameter), str(parameter.dtype))
        if wanted != (tuple(shape), dtype):
            raise ValueError(f"parameter {position} is {wanted[1]}{wanted[0]}, not {dtype}{tuple(shape)}")


class TunedKernel:
    """A workload under one schedule, ready to be called with NumPy arrays. Compiled in this process.

    `kernel(x, w)` takes the workload's inputs in order and returns its output (a list where there are several).
    Constant inputs are laid out for the schedule when an array is seen for the first time, and again only when
    another array is passed: do not write into one between two calls. Raises `TargetError` for another machine's target.
    """

    def __init__(self, workload: Workload, target: Machine, variant: Variant) -> None:
        if target.runner:
            raise TargetError(
                f"target {target.name}: its machine is {target.runner}; a kernel can be called there only"
            )
        place = tvm.runtime.cpu()
        if not isinstance(target, Target):
            target.machine  # noqa: B018  says so where there is no such GPU
            place = tvm.runtime.cuda(target.place)
        self.workload = workload
        self.variant = variant
        self._kernel = compile_kernel(variant.main, target.tvm())
        self._prepared: dict[int, tuple[Any, Any]] = {}
        self._device = place

    def __call__(self, *inputs: NDArray[Any]) -> Any:
        """The outputs for these inputs. Raises ValueError for a wrong number, shape or element type."""
        specs = self.workload.inputs
        if len(inputs) != len(specs):
            raise ValueError(f"{self.workload.name} takes {len(specs)} inputs, not {len(inputs)}")
        for spec, array in zip(specs, inputs, strict=True):
            if tuple(array.shape) != spec.shape or str(array.dtype) != spec.dtype:
                raise ValueError(
                    f"input {spec.name} must be {spec.dtype}{spec.shape}, not {array.dtype}{tuple(array.shape)}"
                )
        arguments = [self._argument(position, array) for position, array in enumerate(inputs)]
        outputs = [tvm.runtime.empty(spec.shape, spec.dtype, self._device) for spec in self.workload.outputs]
        self._kernel.call(*arguments, *outputs)
        results = [output.numpy() for output in outputs]
        return results[0] if len(results) == 1 else results

    def _argument(self, position: int, array: NDArray[Any]) -> Any:
        if position not in self.workload.constants:
            return tvm.runtime.tensor(np.ascontiguousarray(array), self._device)
        known = self._prepared.get(position)
        if known is None or known[0] is not array:
            transform = self.variant.transforms.get(position)
            laid_out = array if transform is None else evaluate(transform, [array])[0]
            known = (array, tvm.runtime.tensor(np.ascontiguousarray(laid_out), self._device))
            self._prepared[position] = known
        return known[1]
