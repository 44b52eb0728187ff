"""A device that OpenCL drives, as the machine that kernels are made for: a GPU of any maker, or a CPU through PoCL.

The package `pyopencl` (an extra) finds the devices and executes kernels on them. TVM's own OpenCL runtime, which its
wheels lack, is not used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from ..errors import DeviceError, TargetError
from ..optional_packages import load
from ..runtime.device import opencl as runtime
from .contract import OPENCL
from .gpu import Gpu

_LANES = 64  # float32 lanes of a compute unit: OpenCL does not tell; most GPUs have about 64
_OPERATIONS_PER_BYTE = 10.0  # of the memory, for the rough order of default schedules
_MOST_SHARED = 64 << 10  # bytes: CPUs offer much more, of which kernels for GPUs can make no use
_LEAST_WORK_ITEMS = 32  # of a work-group, which the sketches need


@dataclass(frozen=True)
class OpenClInfo:
    """What OpenCL reports about a device.

    Attributes:
        number: The position among all devices, as `stormdrop doctor` counts them: GPUs come first.
        name: The device's name.
        platform: The name of the platform, which is the driver: "Portable Computing Language", "Oclgrind".
        driver: The version of the driver.
        on_cpu: Whether the cores of this machine execute its kernels.
        work_items: The most work-items of a work-group.
        local: Bytes of local memory of a work-group.
        units: The number of compute units.
        clock: The highest clock in MHz.
        half: Whether it computes in float16.
    """

    number: int
    name: str
    platform: str
    driver: str
    on_cpu: bool
    work_items: int
    local: int
    units: int
    clock: int
    half: bool

    @property
    def target(self) -> str:
        """The name that `parse_machine` takes, such as "opencl/0"."""
        return f"opencl/{self.number}"

    @property
    def short_name(self) -> str:
        """The name in lower case, with hyphens: "radeon-rx-7900-xt"."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


@dataclass(frozen=True)
class OpenCl(Gpu):
    """An OpenCL device of this machine as a `Machine`.

    The sketches are those for GPUs, without tensor cores: blocks are work-groups, threads are work-items, and shared
    memory is local memory. What OpenCL does not report (lanes of a compute unit, bandwidth, registers) is assumed. It
    only decides which schedule is the default.

    Attributes:
        info: What OpenCL reports about the device; the other attributes follow from it.

    Example:
        >>> from stormdrop.machine.opencl import OpenCl, OpenClInfo
        >>> info = OpenClInfo(0, "Radeon RX 7900 XT", "AMD", "1", False, 256, 64 << 10, 84, 2400, True)
        >>> machine = OpenCl.of(info)
        >>> machine.name, machine.threads_per_block
        ('opencl/radeon-rx-7900-xt', 256)
    """

    info: OpenClInfo | None = None

    device: ClassVar[str] = OPENCL

    @classmethod
    def of(cls, info: OpenClInfo) -> OpenCl:
        """The machine that OpenCL reports.

        Args:
            info: What it reports.

        Raises:
            TargetError: Its work-groups are too small for the sketches.
        """
        if info.work_items < _LEAST_WORK_ITEMS:
            raise TargetError(
                f"target {info.target}: {info.name} has at most {info.work_items} work-items in a work-group;"
                f" the kernels need {_LEAST_WORK_ITEMS}"
            )
        flops = 2e6 * _LANES * info.units * info.clock
        shared = min(info.local, _MOST_SHARED)
        limits = (_LANES, 64, 32, shared, info.units, flops, flops / _OPERATIONS_PER_BYTE)
        return cls(f"opencl/{info.short_name}", "", *limits, min(info.work_items, 1024), shared, info=info)

    @property
    def target_name(self) -> str:
        """The name that `parse_machine` takes."""
        return self.name

    @property
    def stated_limits(self) -> None:  # type: ignore[override]
        """Nothing is known of a device's limits."""
        return None

    @property
    def kind(self) -> str:
        """TVM's kind of target."""
        return OPENCL

    @property
    def machine(self) -> str:
        """The identity under which measurements are recorded: the names of the device and of its platform.

        Raises:
            TargetError: There is no such device here.
        """
        assert self.info is not None
        if self.info not in opencl_devices():
            raise TargetError(f"target {self.name}: OpenCL has no such device here")
        return f"{self.info.name}, {self.info.platform}"

    @property
    def gpus(self) -> list[int]:
        """Nothing: one device of this machine measures, whose number CUDA does not know."""
        return []

    @property
    def free_memory(self) -> float:
        """The bytes of the device's memory. OpenCL does not say how many are in use."""
        return float(self.local_device().global_mem_size)

    @property
    def conditions(self) -> dict[str, str]:
        """The driver and the highest clock."""
        assert self.info is not None
        return {"opencl": f"{self.info.clock} MHz, driver {self.info.driver}"}

    def with_runner(self, address: str) -> Gpu:
        """The same machine.

        Args:
            address: Has to be empty.

        Raises:
            TargetError: There is an address: TVM's servers know no OpenCL.
        """
        if address:
            raise TargetError(f"target {self.name}: OpenCL devices are measured on this machine, not behind a runner")
        return self

    def local_device(self) -> Any:
        """The device as pyopencl knows it.

        Raises:
            TargetError: There is no such device here.
        """
        self.machine  # noqa: B018  raises
        assert self.info is not None
        return _found()[self.info]

    @cached_property
    def _tvm_target(self) -> Any:
        import tvm

        # Of one lane: within a warp TVM would reduce with barriers that not all work-items reach.
        return tvm.target.Target(
            {
                "kind": "opencl",
                "thread_warp_size": 1,
                "max_threads_per_block": self.threads_per_block,
                "max_num_threads": self.threads_per_block,
                "max_shared_memory_per_block": self.shared_per_block,
            }
        )


def opencl_devices() -> tuple[OpenClInfo, ...]:
    """The OpenCL devices of this machine, GPUs first; none without the package `pyopencl` or without a driver."""
    return tuple(_found())


def parse_opencl(name: str) -> OpenCl:
    """The OpenCL device with a name.

    Args:
        name: "opencl" for the first device, "opencl/N" for the one with a number, or "opencl/" and a device's name.

    Raises:
        TargetError: The package `pyopencl` or a driver is missing, or there is no such device.
    """
    runtime.keep_no_programs()
    load("pyopencl", f"target {name}", TargetError)
    devices = opencl_devices()
    if not devices:
        raise TargetError(
            f"target {name}: OpenCL finds no device here; it needs a driver (ICD), for a CPU pocl-opencl-icd"
        )
    _, _, wanted = name.partition("/")
    if not wanted:
        return OpenCl.of(devices[0])
    for info in devices:
        if wanted in (str(info.number), info.short_name):
            return OpenCl.of(info)
    known = ", ".join(f"{info.target} ({info.short_name})" for info in devices)
    raise TargetError(f"target {name}: OpenCL has no such device here; there is {known}")


@lru_cache(maxsize=1)
def _found() -> Mapping[OpenClInfo, Any]:
    """The devices of this machine as pyopencl knows them."""
    try:
        devices = runtime.opencl_devices()
    except DeviceError:  # there is no package
        return {}
    return {_describe(number, device): device for number, device in enumerate(devices)}


def _describe(number: int, device: Any) -> OpenClInfo:
    import pyopencl as cl

    return OpenClInfo(
        number,
        device.name.strip(),
        device.platform.name.strip(),
        device.driver_version.strip(),
        bool(device.type & cl.device_type.CPU),
        min(device.max_work_group_size, device.max_work_item_sizes[0]),
        device.local_mem_size,
        device.max_compute_units,
        device.max_clock_frequency,
        "cl_khr_fp16" in device.extensions.split(),
    )
