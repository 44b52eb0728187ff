"""Kernels that TVM compiles, in a library without TVM."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

import native_models
import stormdrop
from native_models import write_model
from stormdrop.model.artifact.artifact_files import write_module
from stormdrop.runtime import load
from stormdrop.runtime.program import Program, SizeProgram, Step, View
from stormdrop.runtime.sizes import TensorInfo

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(native_models.compiler() is None, reason="there is no C compiler"),
]

SHAPE = (64, 256)


@T.prim_func
def scale(x: T.Buffer((64, 256), "float32"), y: T.Buffer((64, 256), "float32")):  # type: ignore[no-untyped-def, valid-type]
    for i in T.parallel(64):
        for j in T.vectorized(256):
            y[i, j] = T.exp(x[i, j]) * T.float32(2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale")
    function = scale.with_attr("global_symbol", "scale")
    write_module(tirx.build(tvm.IRModule({"scale": function}), tvm.target.Target("llvm")), "o", folder / "scale.o")
    views = (View("input", 0, 0, SHAPE, "float32", 0), View("output", 0, 0, SHAPE, "float32", 1))
    infos = ((TensorInfo("x", SHAPE, "float32"),), (TensorInfo("y", SHAPE, "float32"),))
    size = SizeProgram(*infos, (), views, (Step("kernel", "scale", (0,), (1,)),))
    return write_model(folder / "m", Program((), (size,)), [folder / "scale.o"], name="scale")


def test_a_kernel_of_tvm_runs_in_all_threads(model: Path) -> None:
    x = np.random.default_rng(1).random(SHAPE, np.float32)
    loaded = load(model)
    for _ in range(100):
        np.testing.assert_allclose(loaded(x), 2 * np.exp(x), rtol=1e-5)


def test_what_a_kernel_of_tvm_checks_is_an_error(tmp_path: Path, model: Path) -> None:
    views = (View("input", 0, 0, (64, 128), "float32", 0), View("output", 0, 0, SHAPE, "float32", 1))
    infos = ((TensorInfo("x", (64, 128), "float32"),), (TensorInfo("y", SHAPE, "float32"),))
    size = SizeProgram(*infos, (), views, (Step("kernel", "scale", (0,), (1,)),))
    wrong = load(write_model(tmp_path / "m", Program((), (size,)), [model.parent / "scale.o"], name="wrong"))
    with pytest.raises(stormdrop.InputError, match=r"^wrong: scale fails: \w+Error: ") as caught:
        wrong(np.zeros((64, 128), np.float32))
    assert "\n" not in str(caught.value)


def test_running_it_loads_numpy_only(model: Path) -> None:
    program = (
        "import sys, numpy as np\n"
        "from stormdrop.runtime import load\n"
        f"print(load({str(model)!r})(np.ones({SHAPE}, np.float32)).mean())\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))\n"
    )
    source = str(Path(stormdrop.__file__).parents[1])
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = [{source!r}, {SITE!r}]\n{program}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert float(lines[0]) == pytest.approx(2 * np.e, rel=1e-5)
    assert [name for name in lines[1].split() if not name.startswith("_")] == ["numpy", "stormdrop"]


SITE = str(Path(np.__file__).parents[1])


def test_the_example_in_c_runs(model: Path, tmp_path: Path) -> None:
    example = Path(stormdrop.__file__).parents[2] / "examples" / "c" / "run_model.c"
    include = Path(stormdrop.__file__).parent / "model" / "native"
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{include}", str(example), str(model / "model.so")]
    subprocess.run([*command, f"-Wl,-rpath,{model}", "-o", str(tmp_path / "run_model")], check=True)
    done = subprocess.run([tmp_path / "run_model", model], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "y begins with 2"
    refused = subprocess.run([tmp_path / "run_model"], capture_output=True, text=True, check=False)
    assert refused.returncode == 0, "a model without constants needs no folder"


def test_a_library_is_unloaded(model: Path) -> None:
    (dlclose := ctypes.CDLL(None).dlclose).argtypes = [ctypes.c_void_p]
    for _ in range(20):
        library = ctypes.CDLL(str(model / "model.so"), os.RTLD_NOW)
        library.stormdrop_open.restype = ctypes.c_void_p
        library.stormdrop_open.argtypes = library.stormdrop_close.argtypes = [ctypes.c_void_p] * 2
        library.stormdrop_close.argtypes = [ctypes.c_void_p]
        handle = library.stormdrop_open(None, None)
        x, y = np.zeros(SHAPE, np.float32), np.empty(SHAPE, np.float32)
        library.stormdrop_run.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 3]
        addresses = [(ctypes.c_void_p * 1)(each.ctypes.data) for each in (x, y)]
        assert library.stormdrop_run(handle, 0, *addresses, None) == 0
        assert y.min() == y.max() == 2
        library.stormdrop_close(handle)
        assert dlclose(library._handle) == 0
