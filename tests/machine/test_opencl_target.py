"""OpenCL devices by name. Nothing here needs one."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from stormdrop import operators
from stormdrop.errors import TargetError
from stormdrop.machine import opencl
from stormdrop.machine.cpu import parse_machine
from stormdrop.machine.gpu import require_gpu
from stormdrop.machine.opencl import OpenCl, OpenClInfo
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Ordinal

CPU = OpenClInfo(1, "pthread-AMD EPYC", "Portable Computing Language", "3.1", True, 4096, 512 << 10, 2, 2445, False)
GPU = OpenClInfo(0, "Radeon RX 7900 XT", "AMD", "3590", False, 256, 64 << 10, 84, 2400, True)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", ModuleType("pyopencl"))
    monkeypatch.setattr(opencl, "_found", lambda: dict.fromkeys(request.param, None))


@pytest.mark.parametrize("here", [[GPU, CPU]], indirect=True)
@pytest.mark.usefixtures("here")
def test_names() -> None:
    first, other = parse_machine("opencl"), parse_machine("OpenCL/1")
    assert isinstance(first, OpenCl) and isinstance(other, OpenCl)
    assert first == parse_machine("opencl/radeon-rx-7900-xt") == parse_machine("opencl/0")
    assert (first.name, first.device, first.kind) == ("opencl/radeon-rx-7900-xt", "opencl", "opencl")
    assert first.machine == "Radeon RX 7900 XT, AMD"
    assert first.conditions == {"opencl": "2400 MHz, driver 3590"}
    assert (first.threads_per_block, first.shared_per_block) == (256, 64 << 10)
    assert (other.threads_per_block, other.shared_per_block) == (1024, 64 << 10)
    assert (first.gpus, first.stated_limits) == ([], None)
    with pytest.raises(TargetError, match=r"no such device here; there is opencl/0 \(radeon-rx-7900-xt\), opencl/1"):
        parse_machine("opencl/mali")


@pytest.mark.parametrize("here", [[]], indirect=True)
@pytest.mark.usefixtures("here")
def test_no_device() -> None:
    with pytest.raises(TargetError, match="OpenCL finds no device here; it needs a driver"):
        parse_machine("opencl")
    with pytest.raises(TargetError, match="opencl/radeon-rx-7900-xt: OpenCL has no such device here"):
        OpenCl.of(GPU).machine  # noqa: B018


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(
        TargetError, match=r"opencl needs pyopencl, .* not installed: pip install 'stormdrop\[opencl\]'"
    ):
        parse_machine("opencl")


def test_a_device_with_tiny_work_groups_is_refused() -> None:
    with pytest.raises(TargetError, match="has at most 16 work-items in a work-group; the kernels need 32"):
        OpenCl.of(replace(GPU, work_items=16))


def test_a_runner_is_refused() -> None:
    with pytest.raises(TargetError, match="measured on this machine, not behind a runner"):
        OpenCl.of(GPU).with_runner("board:9090")
    assert OpenCl.of(GPU).with_runner("") == OpenCl.of(GPU)


def test_a_device_travels_to_workers() -> None:
    machine = OpenCl.of(GPU)
    assert str(machine.tvm().kind.name) == "opencl"
    assert pickle.loads(pickle.dumps(machine)) == machine


def test_its_sketches_are_those_of_gpus_without_tensor_cores() -> None:
    work = operators.matmul(64, 64, 64, dtype="float16")
    names = [sketch.name for sketch, _ in sketches_for(work, OpenCl.of(GPU))]
    assert names == ["gpu_contraction"]
    with pytest.raises(TargetError, match="for OpenCL there is builtin"):
        sketches_for(work, OpenCl.of(GPU), "meta_schedule")


@pytest.mark.parametrize("items", [32, 64, 256])
def test_blocks_fit_into_small_work_groups(items: int) -> None:
    machine = OpenCl.of(replace(GPU, work_items=items))
    spaces = [space for _, space in sketches_for(operators.softmax(8, 100), machine)]
    assert {space.name for space in spaces} == {"gpu_rows", "gpu_streaming"}
    for space in spaces:
        (threads,) = (knob for knob in space.knobs if knob.name == "threads")
        assert isinstance(threads, Ordinal) and max(threads.values) == items
        assert space.columns([space.origin])["threads"][0] <= items
    assert sketches_for(operators.matmul(64, 64, 64), machine)


def test_it_is_no_gpu_of_nvidia() -> None:
    with pytest.raises(TargetError, match="target opencl/radeon-rx-7900-xt is no NVIDIA GPU"):
        require_gpu(OpenCl.of(GPU))
