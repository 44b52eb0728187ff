"""GPUs by name, and how many blocks one of their multiprocessors holds."""

from __future__ import annotations

import os
import pickle
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from stormdrop import operators
from stormdrop.codegen.compile import TunedKernel
from stormdrop.codegen.cuda import resources
from stormdrop.errors import MeasureError, TargetError
from stormdrop.machine import gpu as device
from stormdrop.machine.cpu import parse_machine
from stormdrop.machine.gpu import GPUS, Gpu
from stormdrop.machine.known_gpus import tensor_rate
from stormdrop.machine.nvml import GpuInfo
from stormdrop.sketches.contract import Variant

SHAPES = {
    "NVIDIA H200": ("sm_90", 132 * 128, 6144),
    "NVIDIA H100 PCIe": ("sm_90", 114 * 128, 5120),
    "NVIDIA A100-SXM4-80GB": ("sm_80", 108 * 64, 5120),
    "NVIDIA RTX A1000": ("sm_86", 18 * 128, 128),
    "NVIDIA GeForce RTX 3090": ("sm_86", 82 * 128, 384),
    "NVIDIA GeForce GTX 1080 Ti": ("sm_61", 28 * 128, 352),
    "NVIDIA RTX A6000": ("sm_86", 84 * 128, 384),
    "Tesla V100-SXM2-16GB": ("sm_70", 80 * 64, 4096),
    "Tesla P100-PCIE-16GB": ("sm_60", 56 * 64, 4096),
}
"""Architecture, lanes and bits of the memory bus."""
A6000 = "sm_86:multiprocessors=84:clock=1800e6:bandwidth=768e9"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    infos = tuple(
        GpuInfo(number, name, "580.1", *SHAPES[name], 1980, 2619, 700) for number, name in enumerate(request.param)
    )
    monkeypatch.setattr(device, "visible_gpus", lambda: infos)
    monkeypatch.setattr(device, "_runs_cuda", lambda: True)


@pytest.mark.parametrize("here", [[]], indirect=True)
@pytest.mark.usefixtures("here")
def test_names() -> None:
    assert parse_machine("cuda/a100") is GPUS["a100"]
    assert parse_machine("CUDA/RTX4090").kind == "cuda sm_89"
    with pytest.raises(
        TargetError, match=r"unknown GPU 'a6000'; did you mean 'rtxa6000'\?; any other by its numbers: "
    ):
        parse_machine("cuda/a6000")
    with pytest.raises(
        TargetError, match=r"there is no NVIDIA GPU here; to build for one, write cuda/NAME: gtx.*, a100"
    ):
        parse_machine("cuda")
    with pytest.raises(TargetError, match="cuda/a100: there is no NVIDIA GPU here: its kernels are built and checked"):
        GPUS["a100"].machine  # noqa: B018
    with pytest.raises(TargetError, match="for all others --target opencl"):
        parse_machine("rocm")


@pytest.mark.parametrize("here", [["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA H200"]], indirect=True)
@pytest.mark.usefixtures("here")
def test_the_gpus_of_this_machine() -> None:
    assert parse_machine("cuda") is GPUS["h200"]
    assert (GPUS["h200"].machine, GPUS["h200"].gpus) == ("NVIDIA H200", [0, 2])
    assert GPUS["a100"].machine == "NVIDIA A100-SXM4-80GB"
    assert (GPUS["h200"].cuda_index, GPUS["a100"].cuda_index) == (0, 1)
    assert GPUS["a100"].conditions == {"gpu 1": "1980 MHz, memory 2619 MHz, 700 W, driver 580.1"}
    with pytest.raises(TargetError, match="the GPU here is an NVIDIA H200"):
        GPUS["h100"].machine  # noqa: B018


@pytest.mark.parametrize(
    ("name", "clock"),
    {
        "gtx1080ti": 1582, "gtx1650": 1665, "t4": 1590, "a100": 1410, "rtx3080": 1710, "rtx3090": 1695,
        "rtxa6000": 1800, "a10g": 1710, "rtx4090": 2520, "l4": 2040, "l40s": 2520, "h100": 1980, "h200": 1980,
        "rtx5090": 2407,
    }.items(),
)  # fmt: skip
def test_what_nvidia_states_is_what_the_lanes_do_at_the_boost_clock(name: str, clock: float) -> None:
    gpu = GPUS[name]
    assert gpu.clock == pytest.approx(1e6 * clock, rel=0.01)


@pytest.mark.parametrize(
    ("name", "teraflops"),
    {
        "gtx1080ti": 0, "t4": 65, "a100": 312, "rtx3080": 59.5, "rtx3090": 71, "rtxa6000": 154.8, "a10g": 70,
        "rtx4090": 165.2, "l4": 121, "l40s": 362, "rtx5090": 209.5,
    }.items(),
)  # fmt: skip
def test_tensor_cores_do_what_nvidia_states(name: str, teraflops: float) -> None:
    gpu = GPUS[name]
    clocks = gpu.flops / (2 * gpu.lanes)  # of all multiprocessors
    assert tensor_rate(name, gpu.arch) * clocks / 1e12 == pytest.approx(teraflops, rel=0.02)


def test_every_gpu_by_name_stands_with_its_clock() -> None:
    marks = test_what_nvidia_states_is_what_the_lanes_do_at_the_boost_clock.pytestmark  # type: ignore[attr-defined]
    assert [name for name, _ in marks[0].args[1]] == [*GPUS]


@pytest.mark.parametrize(
    "text",
    [
        "sm_86:multiprocessors=84:clock=1.8e9:bandwidth=768e9",
        "sm_86:bandwidth=768000000000:clock=1800e6:multiprocessors=84",
        "SM_86:Multiprocessors=84:clock=1.8E9:bandwidth=7.68e11:lanes=128:shared=102400",
    ],
)
def test_a_gpu_by_its_numbers_has_one_name(text: str) -> None:
    gpu = parse_machine(f"cuda/{text}")
    assert isinstance(gpu, Gpu)
    assert (gpu.name, gpu.kind, gpu.bandwidth) == (A6000, "cuda sm_86", 768e9)
    assert gpu.flops == pytest.approx(GPUS["rtxa6000"].flops, rel=0.001)
    assert replace(gpu, name="rtxa6000", flops=GPUS["rtxa6000"].flops) == GPUS["rtxa6000"]
    assert parse_machine(f"cuda/{gpu.name}") == gpu


def test_what_a_multiprocessor_has_may_be_written() -> None:
    gpu = parse_machine(f"cuda/{A6000}:shared=65536:warps=32")
    assert isinstance(gpu, Gpu)
    assert gpu.name == f"{A6000}:warps=32:shared=65536"
    assert (gpu.warps, gpu.shared, gpu.blocks) == (32, 65536, 16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sm_85", "nothing is known of sm_85: there are kernels for sm_61, "),
        ("sm_86", "it lacks multiprocessors, clock, bandwidth; write for example cuda/sm_86:multiprocessors=84:clock="),
        ("sm_86:84", "write a number as name=value, not '84'"),
        ("sm_86:cores=84", "a GPU has no number 'cores'; choose from multiprocessors, clock, bandwidth, lanes, "),
        ("sm_86:clock=1e9:clock=2e9", "clock is given twice"),
        ("sm_86:clock=1800", "clock=1800 must be a whole number from 100e6 to 10e9 Hz"),
        ("sm_86:bandwidth=inf", "bandwidth=inf must be a whole number from 1e9 to 100000e9 bytes/s"),
        ("sm_86:clock=nan", "clock=nan must be a whole number"),
        ("sm_86:multiprocessors=many", "multiprocessors=many must be a whole number from 1 to 1024"),
        ("sm_86:multiprocessors=8.5", "multiprocessors=8.5 must be a whole number from 1 to 1024"),
    ],
)
def test_bad_numbers(text: str, message: str) -> None:
    with pytest.raises(TargetError) as raised:
        parse_machine(f"cuda/{text}")
    assert str(raised.value).startswith(f"target cuda/{text}: {message}")


@pytest.mark.parametrize("here", [["NVIDIA RTX A6000"]], indirect=True)
@pytest.mark.usefixtures("here")
def test_a_gpu_by_its_numbers_that_is_here() -> None:
    gpu = parse_machine(f"cuda/{A6000}")
    assert (gpu.machine, gpu.gpus) == ("NVIDIA RTX A6000", [0])
    with pytest.raises(TargetError, match="the GPU here is an NVIDIA RTX A6000"):
        parse_machine(f"cuda/{A6000.replace('84', '46')}").machine  # noqa: B018


def test_nvcc_compiles_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "")  # what it is now comes back after the test
    for there in (False, True):
        monkeypatch.delenv("TVM_CUDA_COMPILE_MODE", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        if there:
            (tmp_path / "nvcc").touch(0o755)
        replace(GPUS["a100"]).tvm()  # another one than that which has made its target
        assert os.environ.get("TVM_CUDA_COMPILE_MODE") == ("nvcc" if there else None)


def test_code_for_several_architectures() -> None:
    gpu = device.for_architectures(GPUS["a100"], ["sm_80", "SM_86 ", "sm_90+ptx", "sm_86"])
    assert gpu.architectures == ("sm_86", "sm_90", "compute_90")
    assert replace(gpu, architectures=()) == GPUS["a100"]
    assert device.for_architectures(GPUS["a100"], ["sm_80+ptx"]).architectures == ("compute_80",)
    assert device.for_architectures(GPUS["a100"], "sm_86, sm_90+ptx,") == gpu


@pytest.mark.parametrize(
    ("target", "name", "message"),
    [
        ("cuda/a100", "sm_85", "unknown architecture 'sm_85'; did you mean 'sm_"),
        ("cuda/a100", "sm_86+sass", "architecture 'sm_86+sass': only +ptx may follow, as in sm_86+ptx"),
        ("cuda/a100", "", "unknown architecture ''; "),
        ("cpu/znver5", "sm_86", "target cpu/znver5: has no architectures to choose from by --arch (architectures=); "),
    ],
)
def test_architectures_that_there_are_not(target: str, name: str, message: str) -> None:
    with pytest.raises(TargetError) as raised:
        device.for_architectures(parse_machine(target), [name])
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


def test_a_gpu_behind_a_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(device_name="NVIDIA GeForce RTX 3080", compute_version="8.6", multi_processor_count=70)
    monkeypatch.setattr(device, "connect", lambda address: SimpleNamespace(cuda=lambda index: there))
    by_numbers = parse_machine(f"cuda/{A6000.replace('84', '70')}").with_runner("board:9090")
    assert by_numbers.machine == "NVIDIA GeForce RTX 3080 at board:9090"
    wrong = r"cuda/rtx3080: the GPU at board:9090 is an NVIDIA GeForce RTX 3080 \(sm_86, 70 multiprocessors\)"
    with pytest.raises(TargetError, match=wrong):
        GPUS["rtx3080"].with_runner("board:9090").machine  # noqa: B018


@pytest.mark.parametrize("name", ["sm_120", "sm_120+ptx"])
def test_an_architecture_that_nvcc_does_not_know_yet(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc_for("sm_80 sm_90", tmp_path, monkeypatch)
    said = f"architecture {name}: sm_120 needs a newer nvcc: the one on the PATH compiles for sm_80, sm_90"
    with pytest.raises(TargetError, match=f"^{re.escape(said)}$"):
        device.for_architectures(GPUS["a100"], ["sm_90+ptx", name])


def nvcc_for(architectures: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts an `nvcc` for some architectures on the PATH, as the only program."""
    nvcc = folder / "nvcc"
    nvcc.write_text(f'#!/bin/sh\n[ "$1" = --list-gpu-code ] && echo {architectures}\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize("here", [["NVIDIA GeForce GTX 1080 Ti"]], indirect=True)
@pytest.mark.parametrize(("compiles_for", "measured"), [("sm_75 sm_80", False), ("sm_61 sm_75", True)])
@pytest.mark.usefixtures("here")
def test_a_gpu_that_cuda_13_has_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles_for: str, measured: bool
) -> None:
    nvcc_for(compiles_for, tmp_path, monkeypatch)
    gpu = parse_machine("cuda")
    assert gpu is GPUS["gtx1080ti"]
    if measured:
        assert gpu.machine == "NVIDIA GeForce GTX 1080 Ti"
        return
    with pytest.raises(TargetError, match=r"cuda/gtx1080ti: sm_61 needs CUDA 12's nvcc first on the PATH: CUDA 13 "):
        gpu.machine  # noqa: B018
    with pytest.raises(MeasureError, match="sm_61 needs CUDA 12's nvcc"):
        resources("", gpu)


@pytest.mark.parametrize("here", [["NVIDIA GeForce RTX 3090"]], indirect=True)
@pytest.mark.usefixtures("here")
def test_a_gpu_that_is_in_the_table() -> None:
    assert parse_machine("cuda") is GPUS["rtx3090"]


@pytest.mark.parametrize("here", [["NVIDIA H100 PCIe", "NVIDIA RTX A1000", "NVIDIA H100 PCIe"]], indirect=True)
@pytest.mark.usefixtures("here")
def test_a_gpu_that_is_not_in_the_table() -> None:
    gpu = parse_machine("cuda")
    assert isinstance(gpu, Gpu)
    assert (gpu.name, gpu.arch, gpu.multiprocessors, gpu.shared) == ("h100pcie", "sm_90", 114, 228 << 10)
    assert gpu.flops == pytest.approx(2 * 114 * 128 * 1980e6)
    assert gpu.gpus == [0, 2] and gpu.machine == "NVIDIA H100 PCIe"
    assert parse_machine("cuda/rtxa1000").machine == "NVIDIA RTX A1000"
    with pytest.raises(TargetError, match="cuda/a100: the GPU here is an NVIDIA H100 PCIe"):
        GPUS["a100"].machine  # noqa: B018
    with pytest.raises(TargetError, match="unknown GPU 'rtxa100'; did you mean 'rtxa1000'"):
        parse_machine("cuda/rtxa100")


@pytest.mark.parametrize("here", [["NVIDIA H200"]], indirect=True)
@pytest.mark.usefixtures("here")
def test_a_gpu_that_tvm_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_runs_cuda", lambda: False)
    with pytest.raises(TargetError, match=r"wants CUDA 13, and its libcudart\.so\.13 where the loader looks"):
        GPUS["h200"].machine  # noqa: B018


@pytest.mark.parametrize("here", [["Tesla P100-PCIE-16GB"]], indirect=True)
@pytest.mark.usefixtures("here")
def test_a_gpu_that_is_too_old() -> None:
    assert device.identify(device.visible_gpus()[0]) is None  # type: ignore[attr-defined]
    with pytest.raises(TargetError, match="nothing is known of sm_60, what the GPU here, Tesla P100-PCIE-16GB, is"):
        parse_machine("cuda")


@pytest.mark.parametrize("here", [["NVIDIA A100-SXM4-80GB", "NVIDIA H200", "Tesla P100-PCIE-16GB"]], indirect=True)
@pytest.mark.usefixtures("here")
def test_a_gpu_as_another_library_calls_it() -> None:
    assert device.local_gpu("NVIDIA H200", "sm_90") is GPUS["h200"]
    with pytest.raises(TargetError, match=r"the driver \(NVML\) reports no NVIDIA H100 \(sm_90\)"):
        device.local_gpu("NVIDIA H100", "sm_90")
    with pytest.raises(TargetError, match="nothing is known of sm_60"):
        device.local_gpu("Tesla P100-PCIE-16GB", "sm_60")


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared", "blocks"),
    [
        # As NVIDIA's occupancy calculator has them.
        ("gtx1080ti", 1024, 32, 48 << 10, 2),
        ("gtx1080ti", 32, 16, 0, 32),
        ("t4", 256, 64, 32 << 10, 2),
        ("a100", 256, 32, 0, 8),
        ("a100", 256, 64, 0, 4),
        ("a100", 256, 33, 0, 6),
        ("a100", 160, 80, 0, 4),
        ("a100", 128, 32, 48 << 10, 3),
        ("a100", 32, 16, 0, 32),
        ("a100", 1024, 65, 0, 0),
        ("rtx3090", 256, 32, 0, 6),
        ("rtx3090", 64, 32, 0, 16),
        ("rtx4090", 64, 32, 0, 24),
        ("h100", 1024, 32, 0, 2),
        ("h100", 256, 40, 48 << 10, 4),
    ],
)
def test_blocks_per_multiprocessor(name: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    arguments = [np.array([value]) for value in (threads, registers, shared)]
    assert GPUS[name].blocks_per_multiprocessor(*arguments).tolist() == [blocks]


@pytest.mark.parametrize(
    ("threads", "registers"), [(1024, 64), (1023, 64), (768, 80), (512, 128), (256, 255), (32, 255)]
)
def test_a_thread_gets_what_lets_its_block_run(threads: int, registers: int) -> None:
    a100, shared = GPUS["a100"], np.array([0])
    assert a100.registers_per_thread(np.array([threads])).tolist() == [registers]
    assert a100.blocks_per_multiprocessor(np.array([threads]), np.array([registers]), shared)[0] >= 1
    if registers < 255:
        assert a100.blocks_per_multiprocessor(np.array([threads]), np.array([registers + 1]), shared).tolist() == [0]


def test_what_no_block_may_have_runs_nowhere() -> None:
    threads, registers, shared = np.array([2048, 1024, 256]), np.array([16, 255, 16]), np.array([0, 0, 164 << 10])
    assert GPUS["a100"].blocks_per_multiprocessor(threads, registers, shared).tolist() == [0, 0, 0]


@pytest.mark.parametrize("here", [["NVIDIA H200"]], indirect=True)
@pytest.mark.usefixtures("here")
def test_a_kernel_is_called_on_its_own_gpu_only() -> None:
    work = operators.matmul(32, 32, 32)
    variant = Variant(work.function)
    with pytest.raises(TargetError, match="target cuda/a100: the GPU here is an NVIDIA H200"):
        TunedKernel(work, GPUS["a100"], variant)
    with pytest.raises(TargetError, match="its machine is board:9090; a kernel can be called there only"):
        TunedKernel(work, replace(GPUS["a100"], runner="board:9090"), variant)


def test_a_device_travels_to_workers() -> None:
    a100 = GPUS["a100"]
    assert str(a100.tvm().kind.name) == "cuda"
    travelled: Gpu = pickle.loads(pickle.dumps(a100))
    assert travelled == a100
