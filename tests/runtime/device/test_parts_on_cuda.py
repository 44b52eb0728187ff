"""Parts of models on CUDA devices: by onnxruntime's CUDA provider, and by its CPU provider with copies.

The provider and the driver are stand-ins.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from stormdrop.errors import DeviceError, InputError, ModelError
from stormdrop.runtime.device.code import CUBIN, DeviceCode, DeviceKernel, Image, Launch
from stormdrop.runtime.device.cuda import CudaDevice
from stormdrop.runtime.device.execution import DeviceExecution, DeviceProgram
from stormdrop.runtime.device.parts import ModelParts, copied_bytes
from stormdrop.runtime.parts import RunPart, part_options, session_of
from stormdrop.runtime.program import Program, SizeProgram, Step, View
from stormdrop.runtime.sizes import OPEN, TensorInfo

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from stand_ins import onnxruntime_cuda  # noqa: E402
from stand_ins.cuda_driver import PYTHON, CudaDriver, Kernel, in_context  # noqa: E402

Array = Any
SHAPE = (3, 8)
BYTES = 3 * 8 * 4
X, Y = TensorInfo("x", SHAPE, "float32"), TensorInfo("y", SHAPE, "float32")
WHERE = TensorInfo("where", (2, OPEN), "int64")
RELU, NONZERO = "stormdrop.onnxruntime.0", "stormdrop.onnxruntime.1"


def floats(address: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_float * (BYTES // 4)).from_address(address))


def double(groups: Any, items: Any, x: int, y: int) -> None:
    floats(y)[:] = floats(x) * 2


CODE = DeviceCode(
    {"double": DeviceKernel((Launch("double_kernel", (0, 1), (1, 1, 1), (32, 1, 1)),), 2)},
    [Image(CUBIN, "sm_80", PYTHON)],
)


def one_node(operator: str, output: int, shape: list[int | str]) -> bytes:
    """A model of one node."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, SHAPE)
    y = onnx.helper.make_tensor_value_info("y", output, shape)
    graph = onnx.helper.make_graph([onnx.helper.make_node(operator, ["x"], ["y"])], "part", [x], [y])
    opset = [onnx.helper.make_opsetid("", 17)]
    return bytes(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())


def program() -> Program:
    """Doubles x, takes Relu of it, which is a part, doubles it again, and finds what is not 0, which is a part, too."""
    memories = (("input", 0), ("storage", 0), ("storage", 1), ("output", 0))
    views = [View(memory, index, 0, SHAPE, "float32", at) for at, (memory, index) in enumerate(memories)]  # type: ignore[arg-type]
    views.append(View("output", 1, 0, (2, OPEN), "int64", 4))
    steps = (
        Step("kernel", "double", (0,), (1,)),
        Step("part", "0", (1,), (2,)),
        Step("kernel", "double", (2,), (3,)),
        Step("part", "1", (3,), (4,)),
    )
    return Program((), (SizeProgram((X,), (Y, WHERE), (BYTES, BYTES), tuple(views), steps),))


@pytest.fixture
def driver() -> Iterator[CudaDriver]:
    made = CudaDriver({"double_kernel": Kernel(2, double)})
    yield made
    gc.collect()
    assert made.leaks() == []


@pytest.fixture(scope="module")
def models() -> list[bytes]:
    float_, int_ = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    return [one_node("Relu", float_, list(SHAPE)), one_node("NonZero", int_, [2, "n"])]


def loaded(driver: CudaDriver, models: list[bytes]) -> DeviceProgram:
    def on_host() -> RunPart:
        sessions = [session_of(model, part_options(1, False), ["CPUExecutionProvider"]) for model in models]
        return lambda part, read, memory: sessions[part].run(None, {"x": read[0]})

    return DeviceProgram(CudaDevice(0, driver), program(), CODE, [], ModelParts(models, 1, False, on_host))


def drawn(seed: int) -> Array:
    return np.random.default_rng(seed).integers(-2, 3, SHAPE).astype(np.float32)


def check(results: list[Array], x: Array) -> None:
    y = np.maximum(x * 2, 0) * 2
    np.testing.assert_array_equal(results[0], y)
    np.testing.assert_array_equal(results[1], np.stack(np.nonzero(y)))


def test_the_provider_works_on_the_memory_of_the_program(
    driver: CudaDriver, models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = onnxruntime_cuda.install(monkeypatch, driver)
    execution = DeviceExecution(loaded(driver, models), 0)
    for seed in (1, 2):  # the second call makes another number of indices
        driver.calls.clear()
        x = drawn(seed)
        check(execution.run([x]), x)
        names = [call[0] for call in driver.calls]
        assert names[:5] == ["graph", "after", "part", "after", "graph"]  # nothing is waited for, and nothing copied
        assert "upload" not in names
    first, second = settings
    assert first == second == {**first, "device_id": "0", "use_tf32": "0"}  # in one stream of the GPU, in float32
    assert [name for name, _ in execution.profile([x])] == ["double", RELU, "double", NONZERO]


def test_arrays_of_the_gpu_go_through_parts(
    driver: CudaDriver, models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime_cuda.install(monkeypatch, driver)
    execution = DeviceExecution(loaded(driver, models), 0)
    device = CudaDevice(0, driver)
    queue = device.queue()
    given: list[tuple[Array, list[Any]]] = []
    for seed in (1, 2):
        x, memory = drawn(seed), device.allocate(BYTES)
        queue.upload(x, memory)
        queue.wait()
        foreign = type("Foreign", (), {})()
        foreign.__cuda_array_interface__ = {"shape": SHAPE, "typestr": "<f4", "data": (memory.address, False)}
        foreign.memory = memory
        given.append((x, execution.run_on_device([foreign])))
    for x, results in given:  # the second call has left the results of the first one alone
        arrays = [np.empty(each.shape, each.dtype) for each in results]
        in_context(driver, "cuStreamSynchronize", 1)
        for array, each in zip(arrays, results, strict=True):
            queue.download(device.at(each.__cuda_array_interface__["data"][0]), array)
        queue.wait()
        check(arrays, x)


def test_an_output_whose_shape_depends_on_data_is_written_to_no_given_array(
    driver: CudaDriver, models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime_cuda.install(monkeypatch, driver)
    execution = DeviceExecution(loaded(driver, models), 0)
    driver.calls.clear()
    with pytest.raises(InputError, match=r"^the shape of output where depends on data: "):
        execution.run_on_device([object()], into=[object(), object()])
    assert driver.calls == []


def test_threads_take_turns_in_the_sessions(
    driver: CudaDriver, models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime_cuda.install(monkeypatch, driver)
    on_device = loaded(driver, models)
    executions = [DeviceExecution(on_device, 0) for _ in range(4)]

    def call(number: int) -> None:
        for seed in range(5):
            x = drawn(10 * number + seed)
            check(executions[number].run([x]), x)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(call, range(4)))


def test_what_the_provider_refuses_is_said_in_one_line(
    driver: CudaDriver, models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime_cuda.install(monkeypatch, driver)

    def refuse(*_: Any) -> None:
        raise RuntimeError("it does not\nlike this")

    monkeypatch.setattr(onnxruntime_cuda.CudaSession, "run_with_iobinding", refuse)
    execution = DeviceExecution(loaded(driver, models), 0)
    with pytest.raises(ModelError, match=r"^onnxruntime does not run part 0: RuntimeError: it does not$"):
        execution.run([drawn(0)])


def test_a_part_that_cannot_be_opened_is_one_line(driver: CudaDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime_cuda.install(monkeypatch, driver)
    with pytest.raises(DeviceError, match=r"^Stand-in: onnxruntime cannot open a part of the model: ") as error:
        loaded(driver, [b"no model"])
    assert "\n" not in str(error.value)


def test_a_provider_that_fails_is_an_error(
    driver: CudaDriver, models: list[bytes], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    onnxruntime_cuda.install(monkeypatch, driver, error="CUDA failure 2: out of memory\nexpr=cudaMalloc")
    said = "^Stand-in: onnxruntime cannot open a part of the model: RuntimeError: CUDA failure 2: out of memory$"
    with pytest.raises(DeviceError, match=said):
        loaded(driver, models)
    assert capfd.readouterr().out == ""


def without_the_provider(monkeypatch: pytest.MonkeyPatch, driver: CudaDriver) -> None:
    """The onnxruntime that is here, which may have the provider."""
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])


def without_its_libraries(monkeypatch: pytest.MonkeyPatch, driver: CudaDriver) -> None:
    onnxruntime_cuda.install(monkeypatch, driver, loads=False)


def without_its_libraries_beside_cuda(monkeypatch: pytest.MonkeyPatch, driver: CudaDriver) -> None:
    onnxruntime_cuda.install(monkeypatch, driver, error="CUDA_PATH is set but CUDA wasnt able to be loaded.")


@pytest.mark.parametrize(
    ("lacking", "said"),
    [(without_the_provider, 0), (without_its_libraries, 1), (without_its_libraries_beside_cuda, 1)],
)
def test_the_cpu_runs_parts_between_copies_that_are_named_and_timed(
    lacking: Callable[[pytest.MonkeyPatch, CudaDriver], None],
    said: int,
    driver: CudaDriver,
    models: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lacking(monkeypatch, driver)
    execution = DeviceExecution(loaded(driver, models), 0)
    assert [record.name for record in caplog.records] == ["stormdrop.runtime.device.parts"] * said
    x = drawn(3)
    check(execution.run([x]), x)
    copies = copied_bytes(program().sizes[0])
    assert copies == {
        f"{RELU}: copy to the host": BYTES,
        f"{RELU}: copy to the GPU": BYTES,
        f"{NONZERO}: copy to the host": BYTES,
        f"{NONZERO}: copy to the GPU": 0,  # its shape depends on data: it is made on the host, and stays there
    }
    (relu_before, relu_after, nonzero_before, nonzero_after), times = copies, execution.profile([x])
    assert [name for name, _ in times] == [
        *("double", relu_before, RELU, relu_after),
        *("double", nonzero_before, NONZERO, nonzero_after),
    ]
    assert all(seconds >= 0 for _, seconds in times) and times[2][1] > 0
    with pytest.raises(InputError, match="onnxruntime runs a part of the model on this machine"):
        execution.run_on_device([x])
