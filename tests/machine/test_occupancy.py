"""How many blocks a multiprocessor holds, compared with `cuda_occupancy.h`, the calculator of the CUDA toolkit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from stormdrop.machine.gpu import parse
from stormdrop.machine.known_gpus import BEFORE_SM_80, FAMILIES

PROGRAM = """\
#include <climits>
#include <cuda_occupancy.h>
#include <iostream>
int main(int, char **arguments) {
    cudaOccDeviceProp device;
    int *fields[] = {&device.computeMajor, &device.computeMinor, &device.maxThreadsPerMultiprocessor};
    for (int **field = fields; *++arguments && field < fields + 3; ++field) **field = std::stoi(*arguments);
    device.sharedMemPerMultiprocessor = std::stoi(arguments[0]);
    device.reservedSharedMemPerBlock = std::stoi(arguments[1]);
    device.maxThreadsPerBlock = 1024;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = device.sharedMemPerBlockOptin = 48 << 10;
    device.numSms = 1;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    int threads;
    while (std::cin >> threads >> kernel.numRegs >> kernel.sharedSizeBytes) {
        cudaOccResult result;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, 0)) return 1;
        std::cout << result.activeBlocksPerMultiprocessor << '\\n';
    }
}
"""


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nvcc = shutil.which("nvcc")
    if nvcc is None or shutil.which("g++") is None:
        pytest.skip("there is no CUDA toolkit with nvcc, or no g++")
    folder = tmp_path_factory.mktemp("calculator")
    (folder / "main.cpp").write_text(PROGRAM)
    built = subprocess.run([nvcc, "-o", folder / "main", folder / "main.cpp"], check=False, capture_output=True)
    if built.returncode:
        pytest.skip("this toolkit has no calculator")
    return folder / "main"


@pytest.mark.parametrize("arch", FAMILIES)
def test_as_many_blocks_as_nvidias_calculator_says(calculator: Path, arch: str) -> None:
    gpu = parse(f"cuda/{arch}:multiprocessors=8:clock=1e9:bandwidth=1e11")
    rng = np.random.default_rng(0)
    threads, registers = rng.integers(1, 1025, 2000), rng.integers(1, 256, 2000)
    shared = rng.integers(0, 48 << 10, 2000) * rng.integers(0, 2, 2000)
    reserved = 0 if arch in BEFORE_SM_80 else 1 << 10
    numbers = [arch[3:-1], arch[-1], gpu.warps * 32, gpu.shared, reserved]
    rows = "\n".join(" ".join(map(str, row)) for row in zip(threads, registers, shared, strict=True))
    said = subprocess.run([calculator, *map(str, numbers)], input=rows, capture_output=True, text=True, check=True)
    assert gpu.blocks_per_multiprocessor(threads, registers, shared).tolist() == [*map(int, said.stdout.split())]
