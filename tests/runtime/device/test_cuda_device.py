"""Models on CUDA devices: the calls of the driver, and what the kernels compute, by a stand-in for the driver."""

from __future__ import annotations

import ctypes
import gc
import inspect
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from stand_ins.cuda_driver import LIBRARY, PYTHON, CudaDriver, CUresult, Kernel, Misuse, in_context
from stand_ins.cuda_on_host import library_of
from stormdrop import operators
from stormdrop.codegen import device_code
from stormdrop.errors import ArtifactError, DeviceError, InputError
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS
from stormdrop.runtime.calls import ModelCalls
from stormdrop.runtime.device.calls import DeviceCalls
from stormdrop.runtime.device.code import CUBIN, OPENCL_SOURCE, PTX, DeviceCode, DeviceKernel, Image, Launch
from stormdrop.runtime.device.cuda import CudaDevice, open_cuda
from stormdrop.runtime.device.device_array import DeviceArray
from stormdrop.runtime.device.execution import DeviceExecution, DeviceProgram
from stormdrop.runtime.device.opencl import open_opencl, opencl_devices
from stormdrop.runtime.device.parts import ModelParts
from stormdrop.runtime.metadata import Metadata
from stormdrop.runtime.model import CompiledModel
from stormdrop.runtime.program import Constant, Program, SizeProgram, Step, View
from stormdrop.runtime.sizes import Size, TensorInfo
from stormdrop.sketches.registry import sketches_for

Array = Any
ROWS, COLUMNS = 4, 6
BYTES = ROWS * COLUMNS * 4


def floats(address: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_float * (ROWS * COLUMNS)).from_address(address))


def double(groups: Any, items: Any, x: int, y: int) -> None:
    floats(y)[:] = floats(x) * 2


def shift(groups: Any, items: Any, x: int, c: int, y: int) -> None:
    floats(y)[:] = floats(x) + floats(c)


def fail(groups: Any, items: Any, *addresses: int) -> None:
    raise MemoryError


KERNELS = {"double_kernel": Kernel(2, double), "shift_kernel": Kernel(3, shift)}
DOUBLE = DeviceKernel((Launch("double_kernel", (0, 1), (2, 1, 1), (32, 1, 1)),), 2)
SHIFT = DeviceKernel((Launch("shift_kernel", (0, 1, 2), (1, 1, 1), (64, 2, 1), 64 << 10),), 3)
CODE = DeviceCode({"double": DOUBLE, "shift": SHIFT}, [Image(CUBIN, "sm_80", PYTHON)])
SHAPE = (ROWS, COLUMNS)
X, Y = TensorInfo("x", SHAPE, "float32"), TensorInfo("y", SHAPE, "float32")
CONSTANT = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(SHAPE)


def program_of(*steps: Step, info: TensorInfo = X) -> Program:
    """A program whose views are: 0 the input x, 1 storage, 2 a constant, 3 the output y."""
    memories = ("input", "storage", "constant", "output")
    views = tuple(View(memory, 0, 0, SHAPE, info.dtype, tensor) for tensor, memory in enumerate(memories))  # type: ignore[arg-type]
    return Program((Constant(0, SHAPE, "float32"),), (SizeProgram((info,), (Y,), (BYTES,), views, steps),))


PROGRAM = program_of(Step("kernel", "double", (0,), (1,)), Step("kernel", "shift", (1, 2), (3,)))


class Foreign:
    """An array of another library, by `__cuda_array_interface__`."""

    def __init__(self, driver: CudaDriver, values: Array, gpu: int = 0, **changes: Any) -> None:
        self.address = in_context(driver, "cuMemAlloc", max(values.nbytes, 1), gpu=gpu)
        ctypes.memmove(self.address, values.ctypes.data, values.nbytes)
        described = {"shape": values.shape, "typestr": values.dtype.str, "data": (self.address, False), "version": 3}
        self.__cuda_array_interface__ = {**described, **changes}


def executed(driver: CudaDriver, program: Program = PROGRAM, code: DeviceCode = CODE) -> DeviceExecution:
    return DeviceExecution(DeviceProgram(CudaDevice(0, driver), program, code, [CONSTANT]), 0)


@pytest.fixture
def driver() -> Iterator[CudaDriver]:
    """A driver with Python kernels. What was not given back in the end is a failure."""
    made = CudaDriver(KERNELS)
    yield made
    gc.collect()
    assert made.lost or made.leaks() == []


@pytest.fixture
def x() -> Array:
    return np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


def test_a_call_is_one_launch_of_a_graph(driver: CudaDriver, x: Array) -> None:
    execution = executed(driver)
    (graph,) = driver.graphs
    assert graph == [
        ("upload", BYTES),
        ("launch", "double_kernel", (2, 1, 1), (32, 1, 1)),
        ("launch", "shift_kernel", (1, 1, 1), (64, 2, 1)),
        ("download", BYTES),
    ]
    assert [call[:2] for call in driver.calls] == [("upload", BYTES), ("wait", driver.calls[0][-1])]  # the constant
    driver.calls.clear()
    for _ in range(2):
        (y,) = execution.run([x])
        np.testing.assert_array_equal(y, x * 2 + CONSTANT)
        ((name, number, stream), wait), driver.calls[:] = driver.calls, []
        assert (name, number, wait) == ("graph", 0, ("wait", stream))


def test_the_memory_is_given_back_with_the_last_who_uses_it(driver: CudaDriver) -> None:
    device = CudaDevice(0, driver)
    part = device.part(device.allocate(1000), 256, 100)
    assert driver.used == 1000
    del device
    gc.collect()
    assert driver.used == 1000 and part.size == 100
    del part
    assert driver.used == 0


def test_profile_times_each_step(driver: CudaDriver, x: Array) -> None:
    execution = executed(driver)
    names, seconds = zip(*execution.profile([x]), strict=True)
    assert names == ("double", "shift") and all(0 <= each < 60 for each in seconds)
    assert 0 < execution.seconds([x], 3) < 60
    assert driver.graphs[1] == driver.graphs[0][1:-1]  # the steps alone


def test_a_copy_step_and_what_kernels_hand_on(driver: CudaDriver, x: Array) -> None:
    twice = DeviceKernel(
        tuple(Launch("double_kernel", arguments, (1, 1, 1), (32, 1, 1)) for arguments in ((0, 2), (2, 1))), 2, (BYTES,)
    )
    program = program_of(Step("kernel", "twice", (0,), (1,)), Step("copy", "", (1,), (3,)))
    (y,) = executed(driver, program, DeviceCode({"twice": twice}, CODE.images)).run([x])
    np.testing.assert_array_equal(y, x * 4)


def test_threads_call_at_the_same_time(driver: CudaDriver) -> None:
    program = DeviceProgram(CudaDevice(0, driver), PROGRAM, CODE, [CONSTANT])

    def call(value: int) -> bool:
        execution = DeviceExecution(program, 0)
        x = np.full(SHAPE, value, np.float32)
        return all(np.array_equal(execution.run([x])[0], x * 2 + CONSTANT) for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(4)))
    assert driver.shared == {"shift_kernel": 64 << 10}


# ------------------------------------------------------------------------------------------------ arrays on the device
def test_arrays_of_others_on_their_stream(driver: CudaDriver, x: Array) -> None:
    execution = executed(driver)
    mine, producer = in_context(driver, "cuStreamCreate", 1), in_context(driver, "cuStreamCreate", 1)
    given = Foreign(driver, x, stream=producer)
    driver.calls.clear()
    (y,) = execution.run_on_device([given], mine)
    own = driver.calls[0][1]
    assert driver.calls == [
        ("after", own, f"s{mine}"),  # earlier calls of this execution
        ("after", f"s{producer}", f"s{mine}"),
        ("copy", BYTES, f"s{mine}"),
        ("graph", 1, f"s{mine}"),
        ("copy", BYTES, f"s{mine}"),
        ("after", f"s{mine}", own),  # later calls of it
    ]
    assert driver.graphs[1] == driver.graphs[0][1:-1]
    (z,) = execution.run_on_device([y], mine)  # what it gives it takes
    result = np.empty(SHAPE, np.float32)
    in_context(driver, "cuMemcpyDtoHAsync", result.ctypes.data, z.__cuda_array_interface__["data"][0], BYTES, mine)
    in_context(driver, "cuStreamSynchronize", mine)
    np.testing.assert_array_equal(result, (x * 2 + CONSTANT) * 2 + CONSTANT)
    np.testing.assert_array_equal(execution.run([x])[0], x * 2 + CONSTANT)
    for release, handle in [("cuMemFree", given.address), ("cuStreamDestroy", mine), ("cuStreamDestroy", producer)]:
        in_context(driver, release, handle)


class Named(CudaDriver):
    """A driver of GPUs with names of their own."""

    NAMES = ("NVIDIA GeForce RTX 3090", "NVIDIA A100-SXM4-80GB", "Tesla T4")

    def __init__(self) -> None:
        super().__init__(gpus=len(self.NAMES))

    def cuDeviceGetName(self, length: int, device: int) -> Any:
        return self.CUresult.CUDA_SUCCESS, self.NAMES[device].encode()


@pytest.mark.parametrize(("name", "number"), [("rtx3090", 0), ("a100", 1), ("t4", 2), ("h200", 0), ("", 0)])
def test_the_gpu_of_a_name_is_taken(name: str, number: int) -> None:
    assert open_cuda(name, Named()).gpu == number


def test_a_wrong_input_costs_no_memory(driver: CudaDriver, x: Array) -> None:
    model = model_of(DeviceCalls(lambda: CudaDevice(0, driver), PROGRAM, CODE, [CONSTANT]))
    model(x)
    given = Foreign(driver, x[:2].copy())
    driver.calls.clear()
    with pytest.raises(InputError, match="input 'x' is of shape"):
        model(given)
    np.testing.assert_array_equal(model(x), x * 2 + CONSTANT)
    assert [call[0] for call in driver.calls] == ["graph", "wait"]  # nothing is allocated or captured anew
    in_context(driver, "cuMemFree", given.address)


def test_several_threads_open_one_model_once(driver: CudaDriver, x: Array) -> None:
    opened: list[int] = []

    def opening() -> CudaDevice:
        opened.append(0)
        return CudaDevice(0, driver)

    model = model_of(DeviceCalls(opening, PROGRAM, CODE, [CONSTANT]))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: model(x), range(8)))
    assert opened == [0]


@pytest.mark.parametrize("kind", [ValueError, BufferError])
def test_an_array_without_memory_is_refused_in_one_line(driver: CudaDriver, kind: type[Exception]) -> None:
    class Meta:
        def __dlpack_device__(self) -> tuple[int, int]:
            raise kind("unknown device type meta")

        def __dlpack__(self, **_: Any) -> Any:
            raise kind("unknown device type meta")

    model = model_of(DeviceCalls(lambda: CudaDevice(0, driver), PROGRAM, CODE, [CONSTANT]))
    with pytest.raises(InputError, match="input 'x' is no array"):
        model(Meta())


def model_of(calls: ModelCalls) -> CompiledModel:
    """A model whose metadata fit the program."""
    metadata = Metadata(
        "net", (X,), (Y,), "a100", (), (Size((X,), (Y,)),), (), (), False, "cuda", "", False, "1", {}, "0" * 64
    )
    return CompiledModel(calls, metadata, Path("net.sd"), 1)


def test_a_model_takes_arrays_of_the_gpu_and_of_this_machine(driver: CudaDriver, x: Array) -> None:
    model = model_of(DeviceCalls(lambda: CudaDevice(0, driver), PROGRAM, CODE, [CONSTANT]))
    given = Foreign(driver, x)
    y = model(given)
    assert isinstance(y, DeviceArray) and y.__cuda_array_interface__["shape"] == SHAPE
    z = model.run_on_device({"x": y})["y"]
    result = np.empty(SHAPE, np.float32)
    in_context(driver, "cuMemcpyDtoHAsync", result.ctypes.data, z.__cuda_array_interface__["data"][0], BYTES, 1)
    in_context(driver, "cuStreamSynchronize", 1)
    np.testing.assert_array_equal(result, (x * 2 + CONSTANT) * 2 + CONSTANT)
    np.testing.assert_array_equal(model(x), x * 2 + CONSTANT)
    with pytest.raises(InputError, match="input 'x' is missing"):
        model.run_on_device({})
    with pytest.raises(InputError, match="has no input 'z'"):
        model.run_on_device({"x": given, "z": given})
    with pytest.raises(InputError, match="net: runs on arrays of this machine, and takes none in the memory"):
        model_of(ModelCalls()).run_on_device({"x": given})
    in_context(driver, "cuMemFree", given.address)


def test_outputs_are_written_to_arrays_of_the_caller(driver: CudaDriver, x: Array) -> None:
    model = model_of(DeviceCalls(lambda: CudaDevice(0, driver), PROGRAM, CODE, [CONSTANT]))
    given, place, small = Foreign(driver, x), Foreign(driver, np.zeros_like(x)), Foreign(driver, x[:2].copy())
    model.run_on_device({"x": given}, into={"y": place})
    used = driver.used
    assert model.run_on_device({"x": given}, into={"y": place}) == {"y": place}
    assert driver.used == used
    result = np.empty(SHAPE, np.float32)
    in_context(driver, "cuMemcpyDtoHAsync", result.ctypes.data, place.address, BYTES, 1)
    in_context(driver, "cuStreamSynchronize", 1)
    np.testing.assert_array_equal(result, x * 2 + CONSTANT)
    with pytest.raises(InputError, match=r"output 'y' is of shape \(2, 6\), not"):
        model.run_on_device({"x": given}, into={"y": small})
    with pytest.raises(InputError, match="net: its outputs are y, not z"):
        model.run_on_device({"x": given}, into={"z": place})
    for each in (given, place):
        each.__cuda_array_interface__["data"] = (each.address, True)
    with pytest.raises(InputError, match=r"^output 'y' is read-only$"):
        model.run_on_device({"x": given}, into={"y": place})
    for each in (given, place, small):
        in_context(driver, "cuMemFree", each.address)


def test_a_call_on_the_default_stream(driver: CudaDriver, x: Array) -> None:
    given = Foreign(driver, x)
    (y,) = executed(driver).run_on_device([given])
    assert y.stream == 1 and driver.calls[-2] == ("copy", BYTES, "s1")
    in_context(driver, "cuMemFree", given.address)


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        (np.zeros(SHAPE), {}, "input 'x' is float64, not float32"),
        (np.zeros((6, 4), np.float32), {}, r"input 'x' is of shape \(6, 4\), not \(4, 6\)"),
        (
            np.zeros((4, 12), np.float32),
            {"shape": SHAPE, "strides": (48, 4)},
            r"input 'x' is not contiguous: give a copy in C order, such as x\.contiguous\(\) of torch",
        ),
        (np.zeros(SHAPE, np.float32), {"gpu": 1}, "input 'x' is on GPU 1, and the model is on GPU 0"),
        (
            np.zeros(SHAPE, np.float32),
            {"data": (64, False)},
            "input 'x' is in memory that CUDA does not know, and the model is on GPU 0",
        ),
        (
            np.zeros(SHAPE, np.float32),
            {"mask": 1},
            "input 'x' is no array that can be read: ValueError: it is masked.*",
        ),
    ],
)
def test_an_array_that_is_not_what_the_model_takes(values: Array, changes: dict[str, Any], message: str) -> None:
    driver = CudaDriver(KERNELS, gpus=2)
    execution, other = executed(driver), CudaDevice(1, driver)
    given = Foreign(driver, values, **changes)
    with pytest.raises(InputError, match=f"^{message}$"):
        execution.run_on_device([given])
    assert other.gpu == 1


def test_an_array_of_this_machine_is_refused(driver: CudaDriver, x: Array) -> None:
    assert refusal(lambda: executed(driver).run_on_device([x]), InputError) == (
        "input 'x' is a ndarray that is not in the memory of GPU 0, as all have to be"
    )


def test_a_model_with_a_part_takes_arrays_of_this_machine(driver: CudaDriver, x: Array) -> None:
    program = program_of(Step("kernel", "double", (0,), (1,)), Step("part", "0", (1,), (3,)))
    parts = ModelParts([b""], 1, False, lambda: lambda part, read, memory: [read[0] + 1])
    execution = DeviceExecution(DeviceProgram(CudaDevice(0, driver), program, CODE, [CONSTANT], parts), 0)
    assert refusal(lambda: execution.run_on_device([x]), InputError) == (
        "onnxruntime runs a part of the model on this machine: give arrays of this machine"
    )
    np.testing.assert_array_equal(execution.run([x])[0], x * 2 + 1)


def test_opencl_takes_no_arrays_of_others(x: Array) -> None:
    pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
    if not opencl_devices():
        pytest.skip("OpenCL finds no device here")
    device, copy = open_opencl(""), program_of(Step("copy", "", (0,), (3,)))
    execution = DeviceExecution(DeviceProgram(device, copy, DeviceCode({}, []), [CONSTANT]), 0)
    np.testing.assert_array_equal(execution.run([x])[0], x)
    assert refusal(lambda: execution.run_on_device([x]), InputError) == (
        f"{device.name}: arrays in the memory of a GPU are taken by CUDA only"
    )


def test_a_stream_that_is_captured_is_refused(driver: CudaDriver, x: Array) -> None:
    execution, given = executed(driver), Foreign(driver, x)
    stream = in_context(driver, "cuStreamCreate", 1)
    in_context(driver, "cuStreamBeginCapture", stream, 2)
    with pytest.raises(DeviceError, match="the stream is being captured, and models cannot be captured by others"):
        execution.run_on_device([given], stream)
    in_context(driver, "cuGraphDestroy", in_context(driver, "cuStreamEndCapture", stream))
    in_context(driver, "cuMemFree", given.address)
    in_context(driver, "cuStreamDestroy", stream)


# ----------------------------------------------------------------------------------------------------------- bad input
def refusal(act: Callable[[], Any], kind: type[Exception] = DeviceError) -> str:
    """The message of what is refused: one line."""
    with pytest.raises(kind) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


class NoDriver(CudaDriver):
    def cuDriverGetVersion(self) -> Any:
        raise RuntimeError("Failed to dlopen libcuda.so.1")


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    message = refusal(CudaDevice)
    assert message.startswith("CUDA needs the package cuda-bindings, which cannot be imported: ModuleNotFoundError")
    assert message.endswith("pip install 'stormdrop[cuda]'")


def test_no_driver() -> None:
    assert refusal(lambda: CudaDevice(0, NoDriver())) == (
        "there is no NVIDIA driver here, which CUDA needs: libcuda.so.1 does not load"
    )


class OldDriver(CudaDriver):
    def cuGraphUpload(self, executable: int, stream: int) -> Any:
        raise RuntimeError("function cuGraphUpload is not found")


def test_a_driver_that_is_too_old_for_the_package() -> None:
    assert refusal(lambda: executed(OldDriver(KERNELS, version=12_040))) == (
        "Stand-in: cannot upload a graph: the driver, which is for CUDA 12.4, is too old for this cuda-bindings"
        " (RuntimeError: function cuGraphUpload is not found): install a newer driver or an older cuda-bindings"
    )


def test_a_driver_that_is_too_old() -> None:
    assert refusal(lambda: CudaDevice(0, CudaDriver(version=11_080))) == (
        "the NVIDIA driver here is for CUDA 11.8, and CUDA 12 or newer is needed: install driver 525 or newer"
    )


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert refusal(lambda: CudaDevice(0, CudaDriver(gpus=0))) == "there is no NVIDIA GPU here"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert refusal(lambda: CudaDevice(0, CudaDriver(gpus=0))).endswith(
        "that CUDA_VISIBLE_DEVICES=7 lets this process use"
    )
    assert (
        refusal(lambda: CudaDevice(2, CudaDriver(gpus=2))) == "there is no GPU 2: this process has 2, numbered from 0"
    )


def test_a_driver_that_does_not_start() -> None:
    driver = CudaDriver()
    driver.refused["cuInit"] = CUresult.CUDA_ERROR_STUB_LIBRARY
    assert refusal(lambda: CudaDevice(0, driver)) == (
        "GPU 0: cannot start the driver: text of 34 (CUDA_ERROR_STUB_LIBRARY)"
    )


@pytest.mark.parametrize(
    ("capability", "images", "taken"),
    [
        ((8, 6), ["sm_80", "sm_75", "sm_86"], "sm_86"),  # the nearest
        ((8, 9), ["sm_80", "sm_90"], "sm_80"),  # of the same major version
        ((9, 0), ["sm_90a", "sm_80"], "sm_90a"),
        ((8, 7), ["sm_80", "sm_86", "compute_80"], "compute_80"),  # Tegra takes no machine code of others
        ((8, 9), ["sm_87", "sm_86"], "sm_86"),  # nor do others take Tegra's
        ((8, 7), ["sm_87", "compute_80"], "sm_87"),
        ((12, 1), ["sm_120", "sm_121f"], "sm_121f"),
        ((10, 3), ["sm_100a", "compute_80", "compute_90"], "compute_90"),  # portable code where nothing else fits
        ((9, 0), ["sm_86", "compute_100"], "Stand-in is an sm_90, and the kernels were made for sm_86, compute_100: "),
        ((7, 5), ["sm_80"], "Stand-in is an sm_75, and the kernels were made for sm_80: compile the model for sm_75"),
    ],
)
def test_the_code_that_fits_is_taken(capability: tuple[int, int], images: list[str], taken: str) -> None:
    seen: list[bytes] = []

    class Recorder(CudaDriver):
        def cuModuleLoadData(self, code: bytes) -> Any:
            seen.append(code)
            return super().cuModuleLoadData(PYTHON)

    made = [Image(PTX if arch.startswith("compute") else CUBIN, arch, arch.encode()) for arch in images]
    device = CudaDevice(0, Recorder(KERNELS, capability))
    if taken in images:
        assert device.load(made)("double_kernel")
        assert [code.rstrip(b"\0").decode() for code in seen] == [taken]
    else:
        assert refusal(lambda: device.load(made)).startswith(taken) and not seen


def test_code_that_cannot_be_loaded(driver: CudaDriver) -> None:
    device = CudaDevice(0, driver)
    assert refusal(lambda: device.load([Image(OPENCL_SOURCE, "", b"")])) == (
        "Stand-in: takes kernels of CUDA, and these are cl"
    )
    assert refusal(lambda: device.load([Image(CUBIN, "sm_80", b"damaged")])) == (
        "Stand-in: cannot load the kernels, which are damaged, or for a newer CUDA than the driver's 13.0 (cubin,"
        " sm_80): text of 200 (CUDA_ERROR_INVALID_IMAGE)"
    )
    assert refusal(lambda: device.load(CODE.images)("triple")) == "Stand-in: the code has no kernel triple"
    assert refusal(lambda: device.load([Image(CUBIN, "gfx90", PYTHON)])) == (
        "'gfx90' is no architecture of a GPU, as sm_80 is"
    )


def test_too_little_memory() -> None:
    device = CudaDevice(0, CudaDriver(memory=8_000_000))
    kept = device.allocate(5_000_000)
    assert refusal(lambda: device.allocate(4_000_000)) == (
        "Stand-in: cannot allocate 4.0 MB in one piece: there is not enough memory (CUDA_ERROR_OUT_OF_MEMORY); 3 MB of"
        " the GPU's 8 are free"
    )
    assert kept.size == 5_000_000


def test_a_kernel_that_does_not_fit(driver: CudaDriver) -> None:
    device = CudaDevice(0, driver)
    function, memory = device.load(CODE.images)("double_kernel"), device.allocate(BYTES)
    large = Launch("double_kernel", (0, 1), (1, 1, 1), (1024, 2, 1))
    assert refusal(lambda: device.prepare(function, large, [memory, memory])) == (
        "Stand-in: double_kernel has 2048 threads in a block; the GPU executes at most 1024 with what the kernel needs"
    )
    greedy = Launch("double_kernel", (0, 1), (1, 1, 1), (32, 1, 1), 200_000)
    assert refusal(lambda: device.prepare(function, greedy, [memory, memory])) == (
        "Stand-in: cannot give double_kernel 200,000 bytes of shared memory, of 102,400 that a block can have: text of"
        " 1 (CUDA_ERROR_INVALID_VALUE)"
    )


def test_a_kernel_that_fails_loses_the_context(x: Array) -> None:
    driver = CudaDriver({**KERNELS, "double_kernel": Kernel(2, fail)})
    execution = executed(driver)
    assert refusal(lambda: execution.run([x])) == (
        "Stand-in: cannot finish its work: a kernel has accessed memory that is not there"
        " (CUDA_ERROR_ILLEGAL_ADDRESS); CUDA's context is lost, and with it all that this process has on the GPU: start"
        " another one"
    )
    assert "CUDA's context is lost" in refusal(lambda: execution.run([x]))


def test_a_capture_that_fails_is_ended(driver: CudaDriver) -> None:
    queue = CudaDevice(0, driver).queue()
    with pytest.raises(ZeroDivisionError):
        queue.capture(lambda: 1 // 0)  # type: ignore[arg-type]
    queue.wait()


def test_memory_that_is_let_go_during_a_capture_is_freed_after_it(driver: CudaDriver) -> None:
    queue = CudaDevice(0, driver).queue()
    held = [CudaDevice(0, driver).allocate(BYTES) for _ in range(2)]  # of other models on the GPU

    def work() -> None:
        held.pop()
        with ThreadPoolExecutor(1) as pool:  # another thread waits for the end of the capture, too
            pool.submit(held.pop)
        gc.collect()
        assert driver.used == 2 * BYTES

    queue.capture(work)
    assert driver.used == 0


def test_a_capture_waits_until_memory_is_freed(driver: CudaDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, free, happened = CudaDevice(0, driver).queue(), driver.cuMemFree, list[str]()
    thread = Thread(target=lambda: queue.capture(lambda: happened.append("captured")))

    def slowly(address: int) -> Any:
        thread.start()
        thread.join(0.2)
        happened.append("freed")
        return free(address)

    monkeypatch.setattr(driver, "cuMemFree", slowly)
    memory = CudaDevice(0, driver).allocate(BYTES)
    del memory
    gc.collect()
    thread.join()
    assert happened == ["freed", "captured"]


def test_a_program_that_calls_a_kernel_with_other_parameters(driver: CudaDriver) -> None:
    program = program_of(Step("kernel", "double", (0, 2), (3,)))
    message = refusal(lambda: executed(driver, program), ArtifactError)
    assert message == "a kernel double of 3 parameters is not there"


# -------------------------------------------------------------------------------------------------------- the stand-in
def test_the_stand_in_has_the_names_and_parameters_of_the_package() -> None:
    real = pytest.importorskip("cuda.bindings.driver", reason="the package cuda-bindings is not installed")
    for name in dir(CudaDriver):
        if name.startswith(("cu", "CU")):
            assert hasattr(real, name)
            if name.startswith("cu"):
                ours, theirs = (inspect.signature(getattr(of, name)).parameters for of in (CudaDriver(), real))
                assert len(ours) == len(theirs), name
            members = getattr(CudaDriver, name)
            for member, value in getattr(members, "__dict__", {}).items():
                if member.startswith("CU"):
                    assert int(getattr(getattr(real, name), member)) == int(value)


def test_the_stand_in_refuses_what_is_wrong(driver: CudaDriver, x: Array) -> None:
    device = CudaDevice(0, driver)
    queue, memory = device.queue(), device.allocate(BYTES)
    function = device.load(CODE.images)("double_kernel")

    def misuse(act: Callable[[], Any], message: str) -> None:
        with pytest.raises(Misuse, match=message):
            act()

    misuse(lambda: queue.upload(np.zeros(100, np.float32), memory), "not inside of memory")
    misuse(lambda: queue.launch(device.prepare(function, DOUBLE.launches[0], [memory])), "takes 2 parameters, not 1")
    misuse(lambda: queue.capture(lambda: queue.upload(x, memory)), "needs pinned memory")
    misuse(lambda: queue.capture(queue.wait), "is being captured")
    misuse(lambda: driver.cuStreamSynchronize(1), "no context is current")
    misuse(lambda: in_context(driver, "cuStreamSynchronize", 999), "was destroyed")
    misuse(lambda: in_context(driver, "cuMemFree", memory.address + 1), "not allocated")


def test_the_stand_in_finds_what_is_written_beside_memory(x: Array) -> None:
    def beyond(groups: Any, items: Any, x: int, y: int) -> None:
        ctypes.memset(y + BYTES, 0, 4)

    driver = CudaDriver({"double_kernel": Kernel(2, beyond)})
    device = CudaDevice(0, driver)
    queue, memory = device.queue(), device.allocate(BYTES)
    queue.launch(device.prepare(device.load(CODE.images)("double_kernel"), DOUBLE.launches[0], [memory, memory]))
    queue.wait()
    del memory, queue, device
    gc.collect()
    assert driver.leaks() == [f"memory beside {BYTES} bytes was written"]


# ------------------------------------------------------------------------------------- TVM's kernels, executed by g++
@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")
def test_a_network_of_two_layers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = GPUS["a100"]
    shape, hidden = (8, 24), (8, 40)

    def function(work: Workload) -> Any:
        (sketch, space), *_ = sketches_for(work, gpu)
        return sketch.apply(work, gpu, space.config(space.origin)).main

    def compiled(source: str, _: Any) -> tuple[bytes, list[Any]]:
        return LIBRARY + str(library_of(source, tmp_path)).encode(), []

    monkeypatch.setattr(device_code, "compile_for", compiled)
    works = {"layer": operators.matmul(8, 40, 24), "softmax": operators.softmax(8, 40)}
    module = device_code.build_for_device({name: function(work) for name, work in works.items()}, gpu)
    views = (
        View("input", 0, 0, shape, "float32", 0),
        View("constant", 0, 0, (24, 40), "float32", 1),
        View("storage", 0, 0, hidden, "float32", 2),
        View("output", 0, 0, hidden, "float32", 3),
    )
    steps = (Step("kernel", "layer", (0, 1), (2,)), Step("kernel", "softmax", (2,), (3,)))
    infos = (TensorInfo("x", shape, "float32"),), (TensorInfo("y", hidden, "float32"),)
    program = Program((Constant(0, (24, 40), "float32"),), (SizeProgram(*infos, (8 * 40 * 4,), views, steps),))
    random = np.random.default_rng(0)
    weight = random.standard_normal((24, 40)).astype(np.float32)
    driver = CudaDriver()
    on_device = DeviceProgram(CudaDevice(0, driver), program, DeviceCode(module.kernels, module.images), [weight])

    def calls(seed: int) -> DeviceExecution:
        execution = DeviceExecution(on_device, 0)
        for x in np.random.default_rng(seed).standard_normal((2, *shape)).astype(np.float32):
            powers = np.exp(x.astype(np.float64) @ weight)
            expected = powers / powers.sum(1, keepdims=True)
            np.testing.assert_allclose(execution.run([x])[0], expected, rtol=1e-4, atol=1e-6)
        return execution

    with ThreadPoolExecutor(2) as pool:
        execution, _ = pool.map(calls, range(2))
    assert [name for name, _ in execution.profile([np.ones(shape, np.float32)])] == ["layer", "softmax"]
    launched = [call[1] for call in driver.graphs[0] if call[0] == "launch"]
    assert launched == [launch.entry for kernel in module.kernels.values() for launch in kernel.launches]
    assert re.fullmatch(r"layer\w*", launched[0])
