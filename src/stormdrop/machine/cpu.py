"""A CPU as the machine that kernels are made for: its name, cores, vector unit and caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from ..errors import TargetError
from . import gpu
from .contract import CPU, Machine
from .detect import cpu_family, cpu_model, data_caches, host_features, llvm_host, third_level_caches, vector_unit
from .known_cpus import KNOWN_CPUS
from .opencl import parse_opencl
from .remote import rpc
from .threads import thread_count
from .units import features_that_may_be_hidden, unit_features

KEEP_DENORMALS = "keep_denormals"
"""The key of a TVM target whose kernels do not flush denormals; see `codegen.denormals`."""


@dataclass(frozen=True, repr=False)
class Cpu:
    """A CPU as a `Machine`.

    `parse_machine` makes one of a name, `Cpu.detect` describes this machine, and `dataclasses.replace` changes
    one. Kernels can be compiled for any target. They can be measured on this machine, and on another one through a
    runner.

    Attributes:
        name: The name that `parse_machine` takes.
        cpu: The CPU's model.
        mcpu: LLVM's name of the processor, for which code is generated.
        cores: The number of cores that a kernel uses.
        lanes: float32 values in a vector register.
        registers: The number of vector registers.
        l1: Bytes of first-level data cache that one core sees; 0 if unknown, as for the other levels.
        l2: Bytes of second-level cache that one core sees.
        l3: Bytes of third-level cache that one core sees.
        triple: LLVM's target triple; empty for this machine.
        runner: HOST:PORT of the RPC server that measures; empty for this machine.
        l3s: The number of third-level caches.
        sve_bits: The least number of bits of an SVE vector, for an ARM processor whose SVE is to be used: LLVM's option
            `aarch64-sve-vector-bits-min`. `lanes` follows from it: a float32 has 32 bits. 0 is without SVE: LLVM
            otherwise makes several NEON instructions of each longer vector.
        keep_denormals: Kernels compute with denormals (numbers below 1.2e-38 in float32) as IEEE 754 says, which takes
            some 100 cycles for each. By default denormals count as zero. Measurements are recorded alike.
        features: LLVM's names of the instruction set extensions of arithmetic units (see `units`) that kernels may use.
            For this machine they are those that CPUID shows. A target that stands for another machine has none, unless
            it is made with some: its kernels then use no such unit.

    Example:
        >>> import stormdrop as sd
        >>> target = sd.parse_machine("cpu/x86-64-v3")
        >>> target.lanes, target.registers
        (8, 16)
        >>> target.with_runner("board:9090").machine
        'x86-64 with AVX2 at board:9090, 4 cores'
    """

    name: str
    cpu: str
    mcpu: str
    cores: int
    lanes: int
    registers: int
    l1: int
    l2: int
    l3: int
    triple: str = ""
    runner: str = ""
    l3s: int = 1
    sve_bits: int = 0
    keep_denormals: bool = False
    features: tuple[str, ...] = ()

    device: ClassVar[str] = CPU
    gpus: ClassVar[tuple[int, ...]] = ()
    conditions: ClassVar[Mapping[str, str]] = {}
    stated_limits: ClassVar[None] = None

    @staticmethod
    def parse(text: str | None = None) -> Machine:
        """The same as `parse_machine`, under the name that it had before version 0.3."""
        return parse_machine(text)

    @classmethod
    def detect(cls) -> Cpu:
        """This machine.

        Its cores are those that this process may use, or as many as the environment variable TVM_NUM_THREADS says.

        Example:
            >>> import stormdrop as sd
            >>> sd.Cpu.detect().name
            'cpu'
        """
        mcpu, features = llvm_host()
        lanes, registers = vector_unit(features)
        l1, l2, l3 = data_caches()
        l3s, units = third_level_caches(), unit_features(host_features(), cpu_family())
        return cls("cpu", cpu_model(), mcpu, thread_count(), lanes, registers, l1, l2, l3, l3s=l3s, features=units)

    def __repr__(self) -> str:
        where = f" at {self.runner}" if self.runner else ""
        vectors = f"{self.registers} registers of {self.lanes} float32"
        return f"Cpu({self.name!r}: {self.cpu}{where}, {self.mcpu}, {self.cores} cores, {vectors})"

    @property
    def kind(self) -> str:
        """TVM's kind of target and LLVM's name of the processor, such as "llvm znver4" or "llvm a64fx sve512"."""
        return f"llvm {self.mcpu}" + (f" sve{self.sve_bits}" if self.sve_bits else "")

    @property
    def machine(self) -> str:
        """The identity under which measurements are recorded: the CPU's model and the number of cores.

        Raises:
            TargetError: The target is another machine and has no runner. What is measured here must not be recorded
                as a measurement of it.
        """
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        if self.runner:
            return f"{self.cpu} at {self.runner}, {cores}"
        if self.triple:
            raise TargetError(
                f"target {self.name} is another machine: its kernels are compiled here, and measured with --runner"
            )
        return f"{self.cpu}, {cores}"

    @property
    def caches(self) -> int:
        """The total size of all second- and third-level caches in bytes, as reported; 0 if that is unknown.

        A virtual machine reports those of its host; `memory_rates.cached_bytes` says what was measured.
        """
        return self.cores * self.l2 + self.l3s * self.l3

    @property
    def target_name(self) -> str:
        """The name that `parse_machine` takes."""
        return self.name

    def with_runner(self, address: str) -> Cpu:
        """The same machine, measured through a runner.

        Args:
            address: HOST:PORT of the runner; an empty address stands for this machine.
        """
        return replace(self, runner=address)

    def of_runner(self) -> Cpu:
        """The same machine with the cores that its runner has; itself if it has no runner.

        A name such as "cpu/cortex-a72" stands for the cores of a common board. The board that measures may have others,
        and what is measured on it has to be made for those and recorded with those.

        Raises:
            TargetError: The runner does not answer.
        """
        return replace(self, cores=rpc.cores(self.runner)) if self.runner else self

    def tvm(self) -> Any:
        """The target for TVM's compiler."""
        return self._tvm_target

    def local_device(self) -> Any:
        """The device of this process that executes its kernels, as TVM's runtime knows it."""
        import tvm

        return tvm.runtime.cpu()

    @cached_property
    def _tvm_target(self) -> Any:
        import tvm

        triple = {"mtriple": self.triple} if self.triple else {}
        level = {"opt-level": 2}  # level 3 compiles for longer and makes no kernel faster
        keys = {"keys": ["cpu", KEEP_DENORMALS]} if self.keep_denormals else {}
        # TVM passes the option on to LLVM, and has to be told its type.
        sve = {"cl-opt": [f"-aarch64-sve-vector-bits-min:uint={self.sve_bits}"]} if self.sve_bits else {}
        attributes = {"mattr": self._attributes()} if self._attributes() else {}
        return tvm.target.Target(
            {"kind": "llvm", "mcpu": self.mcpu, "num-cores": self.cores, **level, **triple, **keys, **sve, **attributes}
        )

    def _attributes(self) -> list[str]:
        """What LLVM has to know of the units besides its model of the processor.

        A model that LLVM guessed for this machine may have units that a hypervisor hides: those are taken away.
        """
        known = frozenset() if self.triple else features_that_may_be_hidden(cpu_family())
        return sorted([f"+{name}" for name in self.features] + [f"-{name}" for name in known - {*self.features}])

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_tvm_target"}


def parse_machine(text: str | None = None) -> Machine:
    """The machine with a name.

    Args:
        text: "cpu" (or "llvm", "native", "host") for the CPU of this machine, which is also the default;
            "cpu/" and LLVM's name of a processor for another CPU that is known; "cuda" for the first GPU of this
            machine; "cuda/" and a name for another GPU, or its numbers, as `gpu.parse` takes them; "opencl" for the
            first device of this machine that OpenCL drives; "opencl/" and a number or a name for another one. Case
            does not matter.

    Returns:
        A `Cpu` for a CPU, a `Gpu` for a GPU, an `OpenCl` for a device of OpenCL.

    Raises:
        TargetError: The name is unknown, or this version makes no kernels for the machine, or it is "cuda" and
            this machine has no GPU that kernels can be made for.

    Example:
        >>> import stormdrop as sd
        >>> sd.parse_machine("cpu/neoverse-n1").cores
        64
        >>> sd.parse_machine("cuda/a100").kind
        'cuda sm_80'
    """
    name = (text or "cpu").strip().lower()
    if name in {"cpu", "llvm", "native", "host"}:
        return Cpu.detect()
    if name in KNOWN_CPUS:
        return Cpu(name, **KNOWN_CPUS[name]._asdict())
    if name.split("/")[0] == "cuda":
        return gpu.parse(name)
    if name.split("/")[0] == "opencl":
        return parse_opencl(name)
    if name.split("/")[0] in {"nvidia", "gpu", "rocm", "metal", "vulkan"}:
        raise TargetError(f"target {text!r}: for NVIDIA's GPUs use --target cuda, for all others --target opencl")
    others = ", ".join(KNOWN_CPUS)
    raise TargetError(
        f"unknown target {text!r}: use --target cpu, cuda or opencl (this machine); only to compile: {others}"
    )


def keeping_denormals(machine: Machine | None) -> Cpu:
    """A machine whose kernels compute with denormals; see `Cpu.keep_denormals`.

    Args:
        machine: A CPU; None stands for this machine's.

    Raises:
        TargetError: The machine is no CPU.
    """
    machine = Cpu.detect() if machine is None else machine
    message = f"target {machine.name}: kernels can keep denormals on CPUs only"
    return replace(require_cpu(machine, message), keep_denormals=True)


def require_cpu(machine: Machine, message: str) -> Cpu:
    """The machine, if it is a CPU.

    Args:
        machine: A CPU or a GPU.
        message: The error message for a machine that is no CPU.

    Raises:
        TargetError: The machine is no CPU.
    """
    if not isinstance(machine, Cpu):
        raise TargetError(message)
    return machine


Target = Cpu
"""The name that `Cpu` had before version 0.3. Use `Cpu`, and `parse_machine` for the name of any machine."""
