"""Which GPUs another device stands in for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stormdrop.errors import TargetError
from stormdrop.machine import gpu as module
from stormdrop.machine.gpu import GPUS
from stormdrop.machine.nvml import GpuInfo
from stormdrop.model.building.stand_in import is_missing

A100 = GpuInfo(0, "NVIDIA A100-SXM4-80GB", "580.1", "sm_80", 108 * 64, 5120, 1410, 1593, 400)


@pytest.mark.parametrize(("here", "missing"), [([], True), ([A100], False)])
def test_a_gpu_that_is_here_runs_models_although_tvm_cannot_measure_on_it(
    here: Sequence[GpuInfo], missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "visible_gpus", lambda: tuple(here))
    monkeypatch.setattr(module, "_runs_cuda", lambda: False)
    with pytest.raises(TargetError):
        GPUS["a100"].machine  # noqa: B018
    assert is_missing(GPUS["a100"]) is missing
    assert is_missing(GPUS["h100"])
