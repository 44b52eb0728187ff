"""CUDA source that g++ compiles and this machine's cores execute; faults in it that have to be found."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from stand_ins.cuda_on_host import UNWRITTEN, execute_on_host
from stand_ins.opencl_execution import Execution
from stormdrop import operators
from stormdrop.codegen.cuda import cuda_source
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.gpu.mma import GpuMma
from stormdrop.sketches.gpu.streaming import GpuStreaming
from stormdrop.sketches.registry import sketches_for

A100 = GPUS["a100"]
ROWS = operators.softmax(m=3, n=40)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")


STREAMING = GpuStreaming()


def run(
    work: Workload,
    sanitizer: str = "",
    find: str = "",
    put: str = "",
    sketch: GpuStreaming | GpuMma = STREAMING,
    **knobs: Any,
) -> Execution:
    """Executes a schedule with these knobs, after the first `find` in its source was replaced."""
    space = sketch.space(work, A100)
    assert space is not None
    config = {**space.config(space.origin), **knobs}

    def edit(source: str) -> str:
        assert find in source
        return source.replace(find, put, 1)

    function = sketch.apply(work, A100, config).main
    (execution,) = execute_on_host(function, A100, work.random_inputs(0), (sanitizer,), edit)
    return execution


def is_right(work: Workload, execution: Execution) -> bool:
    (expected,) = evaluate_graph(work.graph, work.random_inputs(0))
    return bool(np.allclose(execution.outputs[0], expected, rtol=1e-3, atol=1e-5))


def test_shuffles_and_barriers() -> None:
    execution = run(ROWS, "thread", threads=64)
    assert is_right(ROWS, execution) and not execution.complaints


def test_a_shuffle_mask_without_the_last_lane_is_found() -> None:
    execution = run(ROWS, find="__activemask()", put="(__activemask() & 0x7fffffff)", threads=64)
    assert execution.complaints == ("host fault: a lane is not in its own mask",)


def test_a_removed_barrier_is_found() -> None:
    find = "__syncthreads();\n  if (((int)threadIdx.x) < 2)"
    execution = run(ROWS, "thread", find=find, put=find.partition("\n")[2], threads=64)
    assert execution.complaints == ("data race",)


def test_a_removed_guard_is_found() -> None:
    work = operators.elementwise(shape=(7, 11), kind="relu")
    assert run(work, "address", threads=32).complaints == ()
    execution = run(work, "address", find="if (", put="if (true || ", threads=32)
    assert execution.complaints == ("heap-buffer-overflow on address",)


def test_a_vector_that_is_not_aligned_is_found() -> None:
    work = operators.elementwise(shape=(16, 32), kind="relu")
    knobs: dict[str, Any] = {"threads": 32, "vector": 4}
    assert run(work, "address", **knobs).complaints == ()
    execution = run(work, "address", "(float4*)(x0_ptr + ", "(float4*)(x0_ptr + 1 + ", **knobs)
    assert execution.complaints == ("misaligned address",)


def test_tensor_cores_in_half_precision() -> None:
    work, t4 = operators.matmul(32, 32, 32, dtype="float16"), GPUS["t4"]
    (sketch, space), *_ = sketches_for(work, t4)
    (execution,) = execute_on_host(sketch.apply(work, t4, space.config(space.origin)).main, t4, work.random_inputs(0))
    assert is_right(work, execution) and not execution.complaints


PIPELINE = operators.matmul(64, 64, 96, dtype="float16")
LANES = "((((int)threadIdx.x) >> 4) * 8)));"
WAIT = "tvm_builtin_ptx_cp_async_wait_group_async_wait_group"
NOT_ALIGNED = "host fault: an address in shared memory is not aligned"
TILES: dict[str, Any] = {
    "sketch": GpuMma(),
    "rows": (2, 2, 1),
    "columns": (1, 2, 2),
    "steps": (6, 1),
    "stages": 3,
    "panel": 1,
}


def test_copies_beside_products_of_whole_warps() -> None:
    for sanitizer in ("", "thread", "address"):
        execution = run(PIPELINE, sanitizer, **TILES)
        assert is_right(PIPELINE, execution) and not execution.complaints


@pytest.mark.parametrize(
    ("find", "put"),
    [
        (f"{WAIT}_2();", ""),
        ("wait_group 2;", "wait_group 3;"),
        ("__syncthreads();", ""),
        ("+ 0))[1])", "+ 0))[2])"),
    ],
    ids=["no wait", "a wait for one group too few", "no barrier", "the wrong register of a fragment"],
)
def test_a_wrong_pipeline_has_a_wrong_answer(find: str, put: str) -> None:
    execution = run(PIPELINE, find=find, put=put, **TILES)
    assert not execution.error and not is_right(PIPELINE, execution)


@pytest.mark.parametrize(
    ("find", "put", "fault"),
    [
        (f"{WAIT}_0();", "", "host fault: copies that nobody waits for"),
        ("(buf_dyn_shmem_ptr, (", "(buf_dyn_shmem_ptr, 4 + (", NOT_ALIGNED),
        (f"* 24) + {LANES}", f"* 20) + {LANES}", NOT_ALIGNED),
    ],
    ids=["the last wait", "a copy", "rows with another padding"],
)
def test_a_fault_of_a_pipeline_is_named(find: str, put: str, fault: str) -> None:
    assert run(PIPELINE, "", find, put, **TILES).complaints == (fault,)


def test_a_race_between_a_copy_and_its_readers_is_found() -> None:
    waits = f"{WAIT}_2();\n    __syncthreads();"
    assert "data race" in run(PIPELINE, "thread", waits, f"{WAIT}_2();", **TILES).complaints


def test_a_copy_beyond_shared_memory_is_found() -> None:
    # The first copies fill 760 of 5,760 elements. Here the last of them is the first one behind the end.
    find, put = "(buf_dyn_shmem_ptr, (", "(buf_dyn_shmem_ptr, 5008 + ("
    assert "global-buffer-overflow on address" in run(PIPELINE, "address", find, put, **TILES).complaints


def test_bfloat16_is_staged_as_its_bits() -> None:
    work, t4 = operators.matmul(24, 40, 36, dtype="bfloat16"), GPUS["t4"]
    (sketch, space), *_ = sketches_for(work, t4)
    function = sketch.apply(work, t4, space.config(space.origin)).main
    source = cuda_source(function, t4)
    kernel = source[source.index("__global__") :]
    assert "ushort x0_shared_ptr" in kernel and "bfloat" not in kernel
    (execution,) = execute_on_host(function, t4, work.random_inputs(0), ("thread",))
    (expected,) = evaluate_graph(work.graph, work.random_inputs(0))
    assert not execution.complaints
    np.testing.assert_allclose(execution.outputs[0].astype("f4"), expected.astype("f4"), rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("writes", [False, True])
def test_bool_is_read_and_written_one_by_one_in_vectors(writes: bool) -> None:
    """TVM's CUDA code takes a vector of bool for one of 16-bit integers, and would leave the buffer."""
    x, mask = te.placeholder((8, 64), name="x"), te.placeholder((8, 64), "bool", name="mask")
    if writes:
        y = te.compute((8, 64), lambda i, j: x[i, j] > 0.5, name="y")
    else:
        y = te.compute((8, 64), lambda i, j: tirx.Select(mask[i, j], x[i, j], tirx.const(-1.0, "float32")), name="y")
    work = Workload.create("masked", te.create_prim_func([x, y] if writes else [x, mask, y]))
    execution = run(work, "address", threads=32, vector=4)
    assert is_right(work, execution) and not execution.complaints


def test_some_blocks_of_a_grid() -> None:
    work = operators.elementwise(shape=(9, 32), kind="relu")
    space = STREAMING.space(work, A100)
    assert space is not None
    function = STREAMING.apply(work, A100, {**space.config(space.origin), "threads": 32, "vector": 1}).main
    (execution,) = execute_on_host(function, A100, work.random_inputs(0), blocks=3)
    written = (execution.outputs[0] != UNWRITTEN).all(axis=1)
    assert written.nonzero()[0].tolist() == [0, 4, 8]
    assert (execution.outputs[0][~written] == UNWRITTEN).all()


def test_patience_with_a_kernel_ends() -> None:
    work = operators.matmul(64, 64, 512)
    (sketch, space), *_ = sketches_for(work, A100)
    function = sketch.apply(work, A100, space.config(space.origin)).main

    def endless(source: str) -> str:
        begin = source.index("{", source.rindex("__global__")) + 1
        return f"{source[:begin]} for (volatile int i = 0;; i = i) {{}} {source[begin:]}"

    (execution,) = execute_on_host(function, A100, work.random_inputs(0), seconds=0.001, edit=endless)
    assert execution.error == "takes more than 0 s"
