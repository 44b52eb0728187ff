"""OpenCL source, how it is launched, and what it computes where a device is."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from across_threads import reduced_across_threads
from tvm import te

from stormdrop import operators
from stormdrop.codegen.compile import TunedKernel, build_module
from stormdrop.codegen.opencl import OpenClModule
from stormdrop.errors import MeasureError
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.opencl import OpenCl, OpenClInfo, opencl_devices
from stormdrop.measure.worker.opencl_device import OpenClDevice
from stormdrop.sketches.contract import Variant
from stormdrop.sketches.gpu.streaming import GpuStreaming

SOME_GPU = OpenCl.of(OpenClInfo(0, "some GPU", "some maker", "1", False, 1024, 48 << 10, 16, 1500, True))


@pytest.fixture
def device() -> OpenCl:
    found = opencl_devices()
    if not found:
        pytest.skip("OpenCL finds no device here (it needs pyopencl and a driver such as PoCL)")
    return OpenCl.of(found[0])


def two_kernels() -> Workload:
    """A reduction over all elements after one over rows: they share no axis, so that each is a kernel of its own."""
    x = te.placeholder((50, 96), name="x")
    i, j = te.reduce_axis((0, 50)), te.reduce_axis((0, 96))
    rows = te.compute((50,), lambda row: te.sum(x[row, j], axis=j), name="rows")
    y = te.compute((96,), lambda column: te.sum(x[i, column] * rows[i], axis=i), name="y")
    return Workload.create("two", te.create_prim_func([x, y]))


def default(work: Workload, machine: OpenCl) -> Variant:
    sketch = GpuStreaming()
    space = sketch.space(work, machine)
    assert space is not None
    return sketch.apply(work, machine, space.config(space.origin))


def test_source_and_launch() -> None:
    module = build_module(default(operators.reduce(shape=(50, 96), axis=1), SOME_GPU).main, SOME_GPU.tvm())
    assert isinstance(module, OpenClModule)
    (launch,) = module.kernel.launches
    assert (launch.entry, launch.arguments) == ("main_kernel", (0, 1))
    assert (launch.groups, launch.items) == ((7, 1, 1), (32, 8, 1))
    assert module.sizes == (50 * 96 * 4, 50 * 4)
    assert "__kernel void main_kernel" in module.source and "barrier(CLK_LOCAL_MEM_FENCE)" in module.source


def test_what_kernels_hand_on() -> None:
    module = build_module(default(two_kernels(), SOME_GPU).main, SOME_GPU.tvm())
    assert isinstance(module, OpenClModule)
    first, second = (set(launch.arguments) - {0, 1} for launch in module.kernel.launches)
    assert first == second == {2} and module.kernel.scratch == (50 * 4,)


def test_two_parameters_of_one_name_are_refused() -> None:
    """Kernels name their arguments. `Workload.create` gives each its own name, and a function by hand need not."""
    x, again = te.placeholder((64,), name="x"), te.placeholder((64,), name="x")
    y = te.compute((64,), lambda i: x[i] - again[i], name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, again, y]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.bind(loop, "threadIdx.x")
    with pytest.raises(MeasureError, match=r"^two parameters have one name: x, x, y$"):
        build_module(schedule.mod["main"], SOME_GPU.tvm())


@pytest.mark.parametrize(
    "work",
    [operators.softmax(6, 50), operators.matmul(16, 48, 32), two_kernels()],
    ids=["softmax", "matmul", "two kernels"],
)
def test_the_right_answer(device: OpenCl, work: Workload) -> None:
    inputs = work.random_inputs(0)
    kernel = TunedKernel(work, device, default(work, device))
    for _ in range(2):
        np.testing.assert_allclose(kernel(*inputs), evaluate_graph(work.graph, inputs)[0], rtol=1e-4, atol=1e-6)


def test_writing_beyond_an_output_is_noticed(device: OpenCl) -> None:
    """TVM does not guard the result of a reduction across threads: 8 rows a block write 6 rows too many."""
    memory = OpenClDevice(device)
    rows = np.ones((50, 96), "float32")
    outputs, (view,) = memory.outputs([((50,), "float32")])
    for per_block, trespass in ((10, ""), (8, "the kernel writes to 24 bytes after output 0")):
        kernel = memory.load(build_module(reduced_across_threads(per_block), device.tvm()))
        call = memory.call(kernel, [[memory.tensor(rows), *outputs]])
        assert memory.time_calls(call, 2) > 0
        memory.pull(outputs, [view])
        assert (view == 96).all()
        assert memory.trespass() == trespass
        assert memory.trespass() == ""


def test_half_precision_needs_a_device_that_has_it(device: OpenCl) -> None:
    if device.info is not None and device.info.half:
        pytest.skip("this device computes in float16")
    work = operators.matmul(32, 32, 32, dtype="float16")
    with pytest.raises(MeasureError, match="does not compute in float16"):
        TunedKernel(work, device, default(work, device))
