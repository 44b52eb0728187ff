"""The contract of a machine: what kernels are made for, and where they are measured.

Cpu       a CPU: this machine, another one behind a runner, or one that is only compiled for    cpu.py
Gpu       an NVIDIA GPU: in this machine, behind a runner, or only built for                    gpu.py
OpenCl    any device of this machine that OpenCL drives                                         opencl.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

CPU, CUDA, OPENCL = "cpu", "cuda", "opencl"


class Machine(Protocol):
    """A machine that kernels are made for. A frozen, hashable value that goes to other processes."""

    def with_runner(self, address: str) -> Machine:
        """The same machine, measured through the runner at HOST:PORT, or by this process if it is empty."""

    def __hash__(self) -> int: ...

    @property
    def device(self) -> str:
        """`CPU`, `CUDA` or `OPENCL`: what executes the kernels. A sketch is made for one of them."""

    @property
    def name(self) -> str:
        """What people call it, such as "cpu", "cpu/neoverse-n1" or "h200"."""

    @property
    def target_name(self) -> str:
        """The name that `parse_machine` takes, such as "cpu/neoverse-n1" or "cuda/h200"."""

    @property
    def cores(self) -> int:
        """CPU cores that a kernel uses, or that kernels for a GPU are compiled with."""

    @property
    def runner(self) -> str:
        """HOST:PORT of TVM's RPC server on the machine that measures; empty for this machine."""

    @property
    def kind(self) -> str:
        """TVM's kind of target, and the processor that code is generated for, such as "llvm znver4"."""

    @property
    def machine(self) -> str:
        """The identity under which measurements are recorded.

        Raises:
            TargetError: Nothing can be measured on this machine from here.
        """

    @property
    def caches(self) -> int:
        """Bytes that all caches of the cores hold together; 0 if unknown, and for a GPU."""

    @property
    def gpus(self) -> Sequence[int]:
        """The numbers of the GPUs in this machine that measure; empty if kernels run elsewhere or on the CPU."""

    @property
    def conditions(self) -> Mapping[str, str]:
        """What measured times depend on besides the identity, such as a GPU's driver and clock limits."""

    @property
    def stated_limits(self) -> tuple[float, float] | None:
        """FLOP/s and bytes/s as the maker states them; None for a machine whose limits are measured."""

    def tvm(self) -> Any:
        """The target for TVM's compiler."""

    def local_device(self) -> Any:
        """The device of this process that executes its kernels, as TVM's runtime (for OpenCL: pyopencl) knows it.

        Raises:
            TargetError: This process has no such device.
        """


M = TypeVar("M", bound=Machine, contravariant=True)
"""The kind of machine that a sketch is for."""
