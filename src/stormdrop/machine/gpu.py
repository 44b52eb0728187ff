"""An NVIDIA GPU as the machine that kernels are made for: what it offers a kernel, and which one this machine has."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import TargetError, hint
from ..runtime.device.cuda import short_names
from .contract import CUDA, Machine
from .known_gpus import (
    ARCH,
    BEFORE_SM_80,
    EXAMPLE,
    FAMILIES,
    KNOWN_GPUS,
    NEED_CUDA_12,
    WITHOUT_TENSOR_CORES,
    Family,
    KnownGpu,
    by_numbers,
)
from .nvml import GpuInfo, free_memory, visible_gpus
from .remote.rpc import connect
from .threads import thread_count

WARP = 32
"""Threads that run in lockstep."""
BANKS = 32
"""Banks of shared memory."""
WORD = 4
"""Bytes: the width of a bank."""
SECTOR = 32
"""Bytes of global memory that are moved at once."""
REGISTERS_PER_THREAD = 255
"""The most registers that a thread can have."""

_REGISTERS = 65536  # of a multiprocessor
_REGISTER_UNIT = 256  # registers that a warp is given at a time
_RESERVED = 1 << 10  # bytes of shared memory that each block takes for the system, since sm_80
_WARP_UNIT = 4  # each quarter of a multiprocessor holds as many warps as the others


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU as a `Machine`.

    Attributes:
        name: The name after "cuda/" in the target's name; `parse` says how a GPU is written by its numbers.
        arch: The architecture, such as "sm_90".
        lanes: float32 lanes of a multiprocessor.
        warps: The most warps that a multiprocessor holds.
        blocks: The most blocks that a multiprocessor holds.
        shared: Bytes of shared memory of a multiprocessor.
        multiprocessors: The number of multiprocessors.
        flops: FLOP/s in float32 without tensor cores, as NVIDIA states them.
        bandwidth: Bytes/s of the memory, as NVIDIA states them.
        threads_per_block: The most threads of a block.
        shared_per_block: Bytes of shared memory that a block has without asking for more at its launch.
        runner: HOST:PORT of the RPC server on the machine that has the GPU; empty for this machine.
        architectures: For which others the code of models is compiled, too; see `for_architectures`. "sm_86" stands
            for machine code, "compute_86" for PTX.

    Example:
        >>> from stormdrop.machine.gpu import GPUS
        >>> GPUS["a100"].kind
        'cuda sm_80'
    """

    name: str
    arch: str
    lanes: int
    warps: int
    blocks: int
    shared: int
    multiprocessors: int
    flops: float
    bandwidth: float
    threads_per_block: int = 1024
    shared_per_block: int = 48 << 10
    runner: str = ""
    architectures: tuple[str, ...] = ()

    device: ClassVar[str] = CUDA
    caches: ClassVar[int] = 0

    @property
    def target_name(self) -> str:
        """The name that `parse_machine` takes."""
        return f"cuda/{self.name}"

    @property
    def stated_limits(self) -> tuple[float, float]:
        """FLOP/s (float32) and bytes/s of NVIDIA's data sheet."""
        return self.flops, self.bandwidth

    @property
    def clock(self) -> float:
        """Cycles per second of a multiprocessor at its stated FLOP/s, of which each lane does two in a cycle."""
        return self.flops / self.multiprocessors / (2 * self.lanes)

    @property
    def tensor_cores(self) -> bool:
        """Whether it executes the instructions of tensor cores."""
        return self.device == CUDA and self.arch not in WITHOUT_TENSOR_CORES

    @property
    def asynchronous_copies(self) -> bool:
        """Whether it copies to shared memory beside other work, and multiplies matrices of a warp (`mma.m16n8k16`)."""
        return self.device == CUDA and self.arch not in BEFORE_SM_80

    @property
    def shared_opt_in(self) -> int:
        """Bytes of shared memory that a block can have if its launch asks for them; before sm_80 it never asks."""
        return self.shared - _RESERVED if self.asynchronous_copies else self.shared_per_block

    @property
    def kind(self) -> str:
        """TVM's kind of target and the architecture, such as "cuda sm_90"."""
        return f"cuda {self.arch}"

    @property
    def cores(self) -> int:
        """CPU cores of this machine, which compile the kernels."""
        return thread_count()

    @property
    def machine(self) -> str:
        """The identity under which measurements are recorded: the GPU's marketing name, and the runner if there is one.

        Raises:
            TargetError: There is no such GPU here or behind the runner, so that nothing measured may be recorded as a
                measurement of it; or TVM cannot use it.
        """
        if self.runner:
            return self._runner_identity
        if self._local_gpus:
            if not _runs_cuda():
                raise TargetError(
                    f"target cuda/{self.name}: TVM's CUDA runtime does not load here: it wants CUDA 13, and its"
                    " libcudart.so.13 where the loader looks (LD_LIBRARY_PATH)"
                )
            if reason := lacks_compiler(self.arch):
                raise TargetError(f"target cuda/{self.name}: {reason}")
            return self._local_gpus[0].name
        others = visible_gpus()
        reason = f"the GPU here is an {others[0].name}" if others else "there is no NVIDIA GPU here"
        raise TargetError(f"target cuda/{self.name}: {reason}: its kernels are built and checked, not measured")

    @property
    def gpus(self) -> list[int]:
        """The numbers of the GPUs in this machine that are of this kind; empty if a runner measures."""
        return [] if self.runner else [info.number for info in self._local_gpus]

    @property
    def conditions(self) -> dict[str, str]:
        """The driver, highest clocks and power limit of each such GPU in this machine; empty if a runner measures."""
        return {} if self.runner else {f"gpu {info.number}": str(info) for info in self._local_gpus}

    @property
    def free_memory(self) -> float:
        """The bytes of the memory of the first such GPU that a model can have; infinite if they are not known."""
        free = free_memory(self.gpus[0]) if self.gpus else None
        return math.inf if free is None else free

    @property
    def cuda_index(self) -> int:
        """The index that CUDA gives, in this process, to the first GPU of this kind. There must be one here."""
        return visible_gpus().index(self._local_gpus[0])

    def is_one(self, marketing: str, arch: str, multiprocessors: int) -> bool:
        """Whether a GPU is one of this kind.

        Args:
            marketing: The name that the driver gives it.
            arch: Its architecture.
            multiprocessors: How many multiprocessors it has.
        """
        named = self.name.startswith(ARCH) or self.name in short_names(marketing)
        return named and (arch, multiprocessors) == (self.arch, self.multiprocessors)

    def with_runner(self, address: str) -> Gpu:
        """The same machine, measured through a runner.

        Args:
            address: HOST:PORT of the runner; an empty address stands for this machine.
        """
        return replace(self, runner=address)

    def tvm(self) -> Any:
        """The target for TVM's compiler."""
        return self._tvm_target

    def local_device(self) -> Any:
        """The device of this process that executes its kernels, as TVM's runtime knows it.

        Raises:
            TargetError: This machine has no such GPU, or TVM cannot use it.
        """
        import tvm

        self.machine  # noqa: B018  raises
        return tvm.runtime.cuda(self.cuda_index)

    def warps_by_registers(self, registers: Any) -> Any:
        """The number of warps that a multiprocessor has registers for.

        Args:
            registers: The registers of a thread, an integer or an array.
        """
        per_warp = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
        return _REGISTERS // per_warp // _WARP_UNIT * _WARP_UNIT

    def registers_per_thread(self, threads: Any) -> Any:
        """The most registers that a thread gets if a multiprocessor has to hold its block (`__launch_bounds__`).

        Args:
            threads: The threads of the block, an integer or an array.
        """
        warps = -(-threads // (WARP * _WARP_UNIT)) * _WARP_UNIT
        return np.minimum(REGISTERS_PER_THREAD, _REGISTERS // warps // _REGISTER_UNIT * _REGISTER_UNIT // WARP)

    def blocks_per_multiprocessor(self, threads: Any, registers: Any, shared: Any) -> NDArray[np.int64]:
        """How many blocks run on a multiprocessor at once, for one kernel or for n of them.

        Args:
            threads: The threads of a block, an integer or shape (n,).
            registers: The registers of a thread, an integer or shape (n,). Those beyond `REGISTERS_PER_THREAD` are
                spilled.
            shared: Bytes of shared memory of a block, an integer or shape (n,).

        Returns:
            Shape () or (n,); 0 for a block that a multiprocessor cannot hold.
        """
        warps = -(-threads // WARP)
        reserved, unit = (0, 256) if self.arch in BEFORE_SM_80 else (_RESERVED, 128)  # bytes
        per_block = -(-(shared + reserved) // unit) * unit
        limits = [
            np.full(np.shape(threads), self.blocks),
            self.warps // warps,
            self.warps_by_registers(np.minimum(registers, REGISTERS_PER_THREAD)) // warps,
            self.shared // np.maximum(per_block, 1),
        ]
        blocks = np.minimum.reduce(np.broadcast_arrays(*limits)).astype(np.int64)
        return np.where((threads <= self.threads_per_block) & (shared <= self.shared_opt_in), blocks, 0)

    @property
    def _local_gpus(self) -> list[GpuInfo]:
        """The GPUs of this machine that are of this kind."""
        return [info for info in visible_gpus() if self.is_one(info.name, info.arch, _multiprocessors(info))]

    @cached_property
    def _runner_identity(self) -> str:
        device = connect(self.runner).cuda(0)
        try:
            name, arch = str(device.device_name), ARCH + str(device.compute_version).replace(".", "")
        except RuntimeError as error:
            raise TargetError(
                f"target cuda/{self.name}: the TVM behind {self.runner} finds no NVIDIA GPU: it wants CUDA 13, and its"
                " libcudart.so.13 where the loader looks"
            ) from error
        if not self.is_one(name, arch, int(device.multi_processor_count)):
            what = f"{name} ({arch}, {device.multi_processor_count} multiprocessors)"
            raise TargetError(f"target cuda/{self.name}: the GPU at {self.runner} is an {what}")
        return f"{name} at {self.runner}"

    @cached_property
    def _tvm_target(self) -> Any:
        import tvm

        if shutil.which("nvcc"):
            # TVM's default is NVRTC, which makes other machine code of the same source. What is measured has to be what
            # a model gets, and that is nvcc's.
            os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the driver counts in this order, too
        return tvm.target.Target(
            {
                "kind": "cuda",
                "arch": self.arch,
                "max_threads_per_block": self.threads_per_block,
                "max_shared_memory_per_block": self.shared_per_block,
                "thread_warp_size": WARP,
            }
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in {"_tvm_target", "_runner_identity"}}


def _gpu(name: str, family: Family, known: KnownGpu) -> Gpu:
    return Gpu(name, known.arch, *family, known.multiprocessors, known.flops, known.bandwidth)


GPUS = {name: _gpu(name, FAMILIES[known.arch], known) for name, known in KNOWN_GPUS.items()}
"""The GPUs that kernels can be built for on any machine, by name."""


def parse(name: str) -> Gpu:
    """The GPU with a name.

    Args:
        name: "cuda/NAME", or "cuda" for the first GPU of this machine that kernels can be made for, or any GPU by its
            numbers: "cuda/ARCH:multiprocessors=N:clock=HZ:bandwidth=BYTES", where the clock is the boost clock and the
            bandwidth that of the memory in bytes/s. What its multiprocessors have (lanes=, warps=, blocks=, shared=)
            follows from the architecture, and can be written, too.

    Raises:
        TargetError: The name is unknown, a number is missing or wrong, or this machine has no GPU that kernels can be
            made for.

    Example:
        >>> gpu = parse("cuda/sm_86:multiprocessors=84:clock=1.8e9:bandwidth=768e9")
        >>> gpu.flops, gpu.warps
        (38707200000000.0, 48)
        >>> gpu.name
        'sm_86:multiprocessors=84:clock=1800e6:bandwidth=768e9'
    """
    _, slash, model = name.partition("/")
    if model.startswith(ARCH):
        return _gpu(*by_numbers(model))
    local = [gpu for gpu in map(identify, visible_gpus()) if gpu is not None]
    if slash:
        known = {gpu.name: gpu for gpu in (*GPUS.values(), *local)}
        if model not in known:
            raise TargetError(f"unknown GPU {model!r}; {hint(model, known)}; any other by its numbers: {EXAMPLE}")
        return known[model]
    if local:
        return local[0]
    if not visible_gpus():
        raise TargetError(
            f"target cuda: there is no NVIDIA GPU here; to build for one, write cuda/NAME: {', '.join(GPUS)}"
        )
    raise TargetError(_unknown(visible_gpus()[0]))


def local_gpu(marketing: str, arch: str) -> Gpu:
    """The GPU of this machine that another library calls so. Libraries may count GPUs in another order than NVML.

    Args:
        marketing: The marketing name, such as "NVIDIA H200".
        arch: The architecture, such as "sm_90".

    Raises:
        TargetError: The driver reports no such GPU, or nothing is known of the architecture.
    """
    info = next((info for info in visible_gpus() if (info.name, info.arch) == (marketing, arch)), None)
    if info is None:
        raise TargetError(f"target cuda: the driver (NVML) reports no {marketing} ({arch})")
    gpu = identify(info)
    if gpu is None:
        raise TargetError(_unknown(info))
    return gpu


def identify(info: GpuInfo) -> Gpu | None:
    """Which machine a GPU that the driver reports is.

    Returns:
        The entry of `GPUS` with this name and as many multiprocessors (there are several H100s); otherwise a `Gpu`
        made of what the driver reports; None if the architecture is not known.
    """
    if info.arch not in FAMILIES:
        return None
    names, multiprocessors = short_names(info.name), _multiprocessors(info)
    for gpu in filter(None, map(GPUS.get, names)):
        if gpu.multiprocessors == multiprocessors:
            return gpu
    # Clocks are in MHz and the bus in bits; a lane does two operations per cycle, the memory two transfers.
    flops, bandwidth = 2e6 * info.lanes * info.clock, 2e6 * info.memory * info.bus / 8
    return Gpu(names[-1], info.arch, *FAMILIES[info.arch], multiprocessors, flops, bandwidth)


def _unknown(info: GpuInfo) -> str:
    """Says that no kernels can be made for a GPU of this machine."""
    return (
        f"target cuda: nothing is known of {info.arch}, what the GPU here, {info.name}, is; there are kernels"
        f" for {', '.join(FAMILIES)}"
    )


def target_name(info: GpuInfo) -> str | None:
    """The name that `parse_machine` takes for a GPU of this machine, such as "cuda/h200"; None if it is too old."""
    gpu = identify(info)
    return None if gpu is None else f"cuda/{gpu.name}"


def for_architectures(machine: Machine | None, names: str | Sequence[str]) -> Gpu:
    """A GPU whose models hold code for other architectures, too. Their schedules are those for the GPU.

    Args:
        machine: The GPU; None stands for this machine's CPU, which is none.
        names: The architectures: "sm_86" for its machine code, "sm_86+ptx" for its PTX besides. The driver of this and
            of every newer GPU compiles PTX when a model is loaded. Or a text of them with commas in between.

    Raises:
        TargetError: The machine is no NVIDIA GPU, an architecture is unknown, or CUDA here does not compile for it.

    Example:
        >>> for_architectures(GPUS["a100"], ["sm_86", "sm_90+ptx"]).architectures
        ('sm_86', 'sm_90', 'compute_90')
    """
    if machine is None or machine.device != CUDA:
        name = "cpu" if machine is None else machine.name
        raise TargetError(
            f"target {name}: has no architectures to choose from by --arch (architectures=); only NVIDIA's GPUs have"
            " (cuda/NAME)"
        )
    gpu, codes = require_gpu(machine), dict[str, None]()
    for name in names.strip().removesuffix(",").split(",") if isinstance(names, str) else names:
        arch, plus, form = name.strip().lower().partition("+")
        if arch not in FAMILIES:
            raise TargetError(f"unknown architecture {name!r}; {hint(arch, FAMILIES)}; with PTX besides: sm_86+ptx")
        if plus and form != "ptx":
            raise TargetError(f"architecture {name!r}: only +ptx may follow, as in {arch}+ptx")
        if reason := lacks_compiler(arch):
            raise TargetError(f"architecture {name}: {reason}")
        codes |= dict.fromkeys([arch, f"compute_{arch.removeprefix(ARCH)}"] if plus else [arch])
    return replace(gpu, architectures=tuple(code for code in codes if code != gpu.arch))


def lacks_compiler(arch: str) -> str:
    """Why this machine cannot compile for an architecture, which CUDA 13 has dropped, or an older CUDA does not know.

    Args:
        arch: The architecture, such as "sm_61" or "compute_61".

    Returns:
        One line; empty if it can, or if nobody knows because there is no `nvcc`.
    """
    nvcc, arch = shutil.which("nvcc"), arch.replace("compute_", ARCH)
    known = _architectures(nvcc) if nvcc else []
    if arch in known:
        return ""
    if arch in NEED_CUDA_12:
        return (
            f"{arch} needs CUDA 12's nvcc first on the PATH: CUDA 13 compiles for sm_75 and newer, whose PTX does not"
            f" run on {arch} either"
        )
    return f"{arch} needs a newer nvcc: the one on the PATH compiles for {', '.join(known)}" if known else ""


def require_gpu(machine: Machine) -> Gpu:
    """The machine, if it is an NVIDIA GPU.

    Raises:
        TargetError: The machine is a CPU, or a device of OpenCL.
    """
    if not isinstance(machine, Gpu) or machine.device != CUDA:
        raise TargetError(f"target {machine.name} is no NVIDIA GPU")
    return machine


def _multiprocessors(info: GpuInfo) -> int:
    """The number of multiprocessors of a GPU that the driver reports; 0 if the architecture is not known."""
    return info.lanes // FAMILIES[info.arch].lanes if info.arch in FAMILIES else 0


@lru_cache
def _architectures(nvcc: str) -> list[str]:
    """The architectures that an `nvcc` compiles for."""
    return subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False).stdout.split()


def _runs_cuda() -> bool:
    import tvm

    return bool(tvm.runtime.enabled("cuda"))
