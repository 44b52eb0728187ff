"""Checks of a GPU's schedules without a GPU."""

from __future__ import annotations

import shutil

import pytest

from stormdrop import operators
from stormdrop.codegen import gpu_check
from stormdrop.codegen.compile import Kernel, compile_together
from stormdrop.codegen.gpu_check import CrossCheck, cross_check
from stormdrop.errors import MeasureError, TargetError
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS

A100 = GPUS["a100"]


def test_schedules_of_a_small_workload_run_serially() -> None:
    check = cross_check(operators.matmul(48, 64, 32), A100, schedules=2)
    assert (check.arch, check.schedules, check.built, check.right) == ("sm_80", 2, 2, 2)
    assert check.accepted == (None if shutil.which("nvcc") is None else 2)
    assert check.passed and not check.errors
    assert "2 of 2 schedules for sm_80 were built" in str(check)


def test_a_large_workload_does_not_run() -> None:
    check = cross_check(operators.matmul(1024, 1024, 1024), A100, schedules=1)
    assert check.right is None and "too large" in str(check)
    assert check.passed


def test_a_schedule_that_fails_is_counted_by_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise ValueError("no such instruction")

    monkeypatch.setattr(gpu_check, "cuda_source", refuse)
    check = cross_check(operators.matmul(48, 64, 32), A100, schedules=3)
    assert (check.built, check.right, check.passed) == (0, 0, False)
    ((error, count),) = check.errors.items()
    assert "no such instruction" in error and count == check.schedules
    assert error in str(check)


def test_a_schedule_that_nvcc_or_llvm_refuses_is_counted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(sources: list[str], *_: object) -> list[str]:
        if chosen[0] in sources:
            raise MeasureError("nvcc: too many registers")
        return sources

    def compiled(functions: list[object], *_: object) -> list[Kernel]:
        if len(functions) > 1:
            raise ValueError("not together")
        return compile_together(functions, *_)

    chosen: list[str] = []
    monkeypatch.setattr(gpu_check, "cuda_source", lambda *_: chosen.append(str(len(chosen))) or chosen[-1])
    monkeypatch.setattr(gpu_check, "resources_of", taken)
    monkeypatch.setattr(gpu_check, "compile_together", compiled)
    monkeypatch.setattr("shutil.which", lambda _: "nvcc")
    check = cross_check(operators.matmul(48, 64, 32), A100, schedules=3)
    assert (check.schedules, check.built, check.accepted, check.right) == (3, 3, 2, 3)
    assert check.errors == {"MeasureError: nvcc: too many registers": 1} and not check.passed


@pytest.mark.parametrize(
    ("built", "accepted", "right", "passed"),
    [(4, 4, 4, True), (4, None, None, True), (3, 4, 4, False), (4, 3, None, False), (4, None, 3, False)],
)
def test_a_check_that_was_not_made_fails_nothing(
    built: int, accepted: int | None, right: int | None, passed: bool
) -> None:
    assert CrossCheck("sm_90", 4, built, accepted, right, {}).passed == passed


def test_a_cpu_is_no_gpu() -> None:
    with pytest.raises(TargetError):
        cross_check(operators.matmul(48, 64, 32), Cpu.detect())


def test_an_access_out_of_bounds_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "accesses_out_of_bounds", lambda *_: ["main_kernel stores y0[0] to [55]"])
    check = cross_check(operators.matmul(48, 64, 32), A100, schedules=2)
    assert (check.built, check.right, check.passed) == (2, 0, False)
    assert check.errors == {"main_kernel stores y0[0] to [55]": 2}
