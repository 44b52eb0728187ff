"""Kernels that are executed in another process before they are taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tvm.script import tirx as T

from stormdrop.machine.cpu import Cpu
from stormdrop.model.open_sizes.checked import Sized
from stormdrop.model.open_sizes.trials import Trials

pytestmark = pytest.mark.compiles


def double(step: int, offset: int, dtype: str = "float32") -> Any:
    """y[i] = 2 x[i] for 64 of them, or what a schedule that is wrong makes of it."""

    @T.prim_func(private=True, s_tir=True)
    def function(x: T.Buffer((64,), dtype), y: T.Buffer((64,), dtype)) -> None:  # type: ignore[valid-type]
        for i in range(64 // step):
            with T.sblock("y"):
                v = T.axis.spatial(64 // step, i)
                y[v * step + offset] = x[v * step] * T.cast(2, dtype)

    return function


def beside() -> Any:
    """It writes one element more than there are."""

    @T.prim_func(private=True, s_tir=True)
    def function(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")) -> None:  # type: ignore[valid-type]
        for i in range(65):
            with T.sblock("y"):
                v = T.axis.spatial(65, i)
                y[v] = x[T.min(v, 63)] * T.float32(2)

    return function


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    with Trials(Cpu.detect()) as trials:
        yield trials


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "float16"])
def test_kernels(trials: Trials, dtype: str) -> None:
    right = Sized(double(1, 0, dtype), {}, 0.0)
    assert trials.wrong(double(1, 0, dtype), right) == ""
    assert "elements differ" in trials.wrong(double(2, 0, dtype), right)


def test_a_kernel_that_writes_beside_its_output(trials: Trials) -> None:
    """Its output is there, too."""
    right = Sized(double(1, 0), {}, 0.0)
    assert trials.wrong(beside(), right) == "the kernel writes to 4 bytes after output 0"
    assert trials.wrong(double(1, 0), right) == ""


def test_one_that_crashes(trials: Trials) -> None:
    """The next one is tried by another process."""
    right = Sized(double(1, 0), {}, 0.0)
    assert trials.wrong(double(1, 2**30), right).startswith("it crashes")
    assert trials.wrong(double(1, 0), right) == ""
