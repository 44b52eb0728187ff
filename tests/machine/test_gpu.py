"""GPUs by name, and how many blocks one of their multiprocessors holds."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from stormdrop import operators
from stormdrop.codegen.compile import TunedKernel
from stormdrop.errors import TargetError
from stormdrop.machine import gpu as device
from stormdrop.machine.cpu import parse_machine
from stormdrop.machine.gpu import GPUS, Gpu
from stormdrop.machine.nvml import GpuInfo
from stormdrop.sketches.contract import Variant

SHAPES = {
    "NVIDIA H200": ("sm_90", 132 * 128, 6144),
    "NVIDIA H100 PCIe": ("sm_90", 114 * 128, 5120),
    "NVIDIA A100-SXM4-80GB": ("sm_80", 108 * 64, 5120),
    "NVIDIA RTX A1000": ("sm_86", 18 * 128, 128),
    "NVIDIA GeForce RTX 3090": ("sm_86", 82 * 128, 384),
    "Tesla V100": ("sm_70", 80 * 64, 4096),
}
"""Architecture, lanes and bits of the memory bus."""


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
    with pytest.raises(TargetError, match="unknown GPU 'a10': there is a100, h100, h200, rtx3090, rtx4090"):
        parse_machine("cuda/a10")
    with pytest.raises(TargetError, match="there is no NVIDIA GPU here; to build for one: cuda/a100, cuda/h100"):
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
    with pytest.raises(TargetError, match=r"unknown GPU 'a10': there is .*rtx4090, h100pcie, rtxa1000"):
        parse_machine("cuda/a10")


@pytest.mark.parametrize("here", [["NVIDIA H200"]], indirect=True)
@pytest.mark.usefixtures("here")
def test_a_gpu_that_tvm_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_runs_cuda", lambda: False)
    with pytest.raises(TargetError, match=r"wants CUDA 13, and its libcudart\.so\.13 where the loader looks"):
        GPUS["h200"].machine  # noqa: B018


@pytest.mark.parametrize("here", [["Tesla V100"]], indirect=True)
@pytest.mark.usefixtures("here")
def test_a_gpu_that_is_too_old() -> None:
    assert device.identify(device.visible_gpus()[0]) is None  # type: ignore[attr-defined]
    with pytest.raises(TargetError, match="nothing is known of sm_70, what the GPU here, Tesla V100, is"):
        parse_machine("cuda")


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared", "blocks"),
    [
        # As NVIDIA's occupancy calculator has them.
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
    threads, registers, shared = np.array([2048, 1024, 256]), np.array([16, 255, 16]), np.array([0, 0, 49 << 10])
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
