"""Which GPUs of the records come first."""

from __future__ import annotations

from stormdrop.machine.gpu import GPUS, identify
from stormdrop.machine.nvml import GpuInfo
from stormdrop.machine.similar_gpus import unlikeness


def test_a_gpu_that_is_not_among_the_known_ones_is_like_itself() -> None:
    here = identify(GpuInfo(0, "NVIDIA GeForce RTX 3070", "580.1", "sm_86", 46 * 128, 5888, 1725, 7001, 220))
    assert here is not None
    own = unlikeness(here.kind, here, "cuda sm_86", "NVIDIA GeForce RTX 3070")
    assert own == (False, 0.0) < unlikeness(here.kind, here, "cuda sm_86", "NVIDIA A10G")


def test_one_of_the_same_family_is_another_gpu() -> None:
    h100 = GPUS["h100"]
    assert unlikeness(h100.kind, h100, h100.kind, "NVIDIA H100") == (False, 0.0)
    assert unlikeness(h100.kind, h100, h100.kind, "NVIDIA H100 PCIe") > (False, 0.0)
