"""How kernels for GPUs are launched, and what `ptxas` says that they need."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tvm.script import tirx as T

from stormdrop.codegen.cuda import Resources, compile_for, cuda_source, launches, resources, resources_of
from stormdrop.codegen.device_code import build_for_device
from stormdrop.errors import MeasureError, TargetError
from stormdrop.machine.gpu import GPUS, for_architectures
from stormdrop.model.untuned import compile_model
from stormdrop.runtime.device.code import CUBIN, PTX

A100 = GPUS["a100"]
PTXAS = """\
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, 2048 bytes smem, 376 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
    24 bytes stack frame, 20 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, 368 bytes cmem[0]
"""


@T.prim_func(s_tir=True)
def two_kernels(x: T.Buffer((6, 64), "float32"), y: T.Buffer((6, 64), "float32"), z: T.Buffer((4, 96), "float32")):  # type: ignore[no-untyped-def, valid-type]
    T.func_attr({"tirx.noalias": True})
    for row in T.thread_binding(6, thread="blockIdx.x"):
        for column in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("scale"):
                i, j = T.axis.remap("SS", [row, column])
                y[i, j] = x[i, j] * T.float32(2)
    for row in T.thread_binding(4, thread="blockIdx.y"):
        for outer in T.thread_binding(3, thread="threadIdx.y"):
            for inner in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("fill"):
                    i = T.axis.spatial(4, row)
                    j = T.axis.spatial(96, outer * 32 + inner)
                    z[i, j] = T.float32(1)


def fake_nvcc(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a program named nvcc on the PATH, as the only one."""
    program = folder / "nvcc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_every_kernel_has_its_launch() -> None:
    assert [(launch.blocks, launch.threads) for launch in launches(two_kernels, A100)] == [(6, 64), (4, 96)]
    names = [launch.kernel for launch in launches(two_kernels, A100)]
    source = cuda_source(two_kernels, A100)
    assert len(set(names)) == 2 and all(f"{name}(" in source for name in names)


def test_resources_are_read_from_what_ptxas_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text(PTXAS)
    fake_nvcc(tmp_path, f'while read line; do echo "$line" >&2; done < {tmp_path}/text', monkeypatch)
    assert resources("", A100) == [Resources("first", 40, 2048, 0), Resources("second", 255, 0, 20)]


def test_sources_with_the_same_headers_are_compiled_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a_of_1", "a_of_0", "b_of_0"]
    lines = (f"Compiling entry function '{name}'\nUsed {8 + n} registers" for n, name in enumerate(names))
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    script = f"""
    for file; do :; done
    while read line; do echo "$line" >> {tmp_path}/source; done < "$file"
    while read line; do echo "$line" >&2; done < {tmp_path}/text
    """
    fake_nvcc(tmp_path, script, monkeypatch)
    begin = 'extern "C" __global__ void'
    sources = [f"headers\n{begin} a();\n{begin} __launch_bounds__(64) b() {{}}\n", f"headers\n{begin} a() {{}}\n"]
    assert resources_of(sources, A100) == [
        [Resources("a", 9, 0, 0), Resources("b", 10, 0, 0)],
        [Resources("a", 8, 0, 0)],
    ]
    assert (tmp_path / "source").read_text().split("\n") == [
        "headers",
        f"{begin} a_of_0();",
        f"{begin} __launch_bounds__(64) b_of_0() {{}}",
        "",
        f"{begin} a_of_1() {{}}",
        "",
    ]


def test_nvcc_gets_the_architecture_and_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""
    echo "$@" > {tmp_path}/arguments
    for file; do :; done
    read line < "$file"
    echo "$line" > {tmp_path}/source
    """
    fake_nvcc(tmp_path, script, monkeypatch)
    assert resources("the source\n", A100) == []
    assert "-arch=sm_80" in (tmp_path / "arguments").read_text()
    assert (tmp_path / "source").read_text() == "the source\n"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on the PATH")
def test_code_of_each_architecture() -> None:
    module = build_for_device({"two": two_kernels}, for_architectures(A100, ["sm_86", "sm_75+ptx"]))
    assert [(image.form, image.arch) for image in module.images] == [
        (CUBIN, "sm_80"),
        (CUBIN, "sm_86"),
        (CUBIN, "sm_75"),
        (PTX, "compute_75"),
    ]
    assert all(image.code.startswith(b"\x7fELF") for image in module.images[:3])
    assert b".target sm_75" in module.images[3].code
    assert {each.name for each in module.resources} == {launch.entry for launch in module.kernels["two"].launches}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on the PATH")
def test_a_kernel_that_does_not_fit_one_architecture() -> None:
    body = "__shared__ float x[__CUDA_ARCH__ < 800 ? 16384 : 1024]; x[threadIdx.x] = *y; *y = x[0];"
    source = f'extern "C" __global__ void greedy(float* y) {{ {body} }}'
    assert compile_for(source, "sm_80")[1][0].shared == 4096
    with pytest.raises(MeasureError, match=r"^nvcc for sm_75: ptxas error .*'greedy' uses too much shared data.*$"):
        compile_for(source, "sm_75")


def test_the_first_error_of_nvcc_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("warning: odd", "k.cu(3): error: no x", "error: later")
    fake_nvcc(tmp_path, "\n".join([*(f"echo '{line}' >&2" for line in lines), "exit 2"]), monkeypatch)
    with pytest.raises(MeasureError, match=r"^nvcc for sm_80: k\.cu\(3\): error: no x$"):
        resources("", A100)


def test_without_nvcc_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MeasureError, match="there is no nvcc on the PATH"):
        resources("", A100)


def test_without_nvcc_no_model_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match=r"^target cuda/a100: there is no nvcc on the PATH; it is part of the CUDA"):
        compile_model(tmp_path / "missing.onnx", target=A100)
