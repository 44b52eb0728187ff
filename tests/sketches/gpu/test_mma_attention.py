"""Attention in 16 bits on tensor cores: what its instructions compute on this machine's cores; `nvcc` takes it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te

from stand_ins.cuda_on_host import SANITIZERS, execute_on_host
from stormdrop import operators
from stormdrop.codegen.compile import compile_together
from stormdrop.codegen.cuda import cuda_source, launches, resources_of
from stormdrop.codegen.serial_loops import with_serial_loops
from stormdrop.codegen.thread_bounds import accesses_out_of_bounds
from stormdrop.ir.dtypes import limits
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.operators.rows import softmax_of
from stormdrop.sketches.gpu.attention.mma import GpuMmaAttention
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Space

A100 = GPUS["a100"]
HOST = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")
Array = NDArray[Any]
Config = tuple[int, ...]
"""Fragments of rows of a warp, warps, fragments of keys of a tile, stages; more than one part of the keys."""

WORKS = {
    "whole": operators.attention(2, 32, 64, 32, 16, dtype="float16"),
    "ragged": operators.attention(2, 19, 45, 16, 32, mask=1, dtype="bfloat16"),
    "pairs": operators.attention(1, 19, 38, 16, 16, mask=1, dtype="float16"),
    "one query": operators.attention(3, 1, 40, 16, 16, dtype="float16"),
    "one key": operators.attention(1, 20, 1, 16, 16, dtype="bfloat16"),
    "long": operators.attention(1, 5, 300, 16, 16, mask=1, dtype="float16"),
}


def expected(work: Workload, inputs: Sequence[Array]) -> Array:
    """The attention of an operator by NumPy in float64."""
    queries, keys, *mask, values = (array.astype(np.float64) for array in inputs)
    scores = queries @ keys.transpose(0, 2, 1) / math.sqrt(queries.shape[-1])
    scores = scores + mask[0] if mask else scores
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ values)


def space_of(work: Workload) -> Space:
    space = GpuMmaAttention().space(work, A100)
    assert space is not None
    return space


def scheduled(work: Workload, config: Config | None = None) -> Any:
    """The schedule at a configuration, or the default one."""
    space = space_of(work)
    names = [knob.name for knob in space.knobs]
    chosen = space.config(space.origin) if config is None else dict(zip(names, (*config, 1)[: len(names)], strict=True))
    return GpuMmaAttention().apply(work, A100, chosen).main


def assert_close(work: Workload, output: Array, wanted: Array) -> None:
    step = float(limits(work.inputs[0].dtype).eps)
    np.testing.assert_allclose(output.astype("f8"), wanted, rtol=0, atol=2 * step * float(np.nanmax(np.abs(wanted))))


@HOST
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("name", "config", "sanitizers"),
    [
        ("whole", (1, 2, 2, 1), SANITIZERS),
        ("ragged", (2, 1, 2, 1), ("thread",)),
        ("ragged", (1, 2, 1, 2), SANITIZERS),
        ("pairs", (1, 1, 1, 2), SANITIZERS),
        ("one query", None, ("thread",)),
        ("one key", None, SANITIZERS),
        ("ragged", (1, 1, 1, 1, 2), SANITIZERS),
        ("pairs", (1, 1, 1, 2, 8), ("thread",)),
        ("long", (1, 1, 4, 1), ("thread",)),
    ],
)
def test_the_right_answer_by_its_instructions(name: str, config: Config | None, sanitizers: Sequence[str]) -> None:
    work = WORKS[name]
    inputs = work.random_inputs(0)
    queries = inputs[0]
    inputs = [(queries.astype("f4") * 8).astype(queries.dtype), *inputs[1:]]  # so that the largest score matters
    for execution in execute_on_host(scheduled(work, config), A100, inputs, sanitizers):
        assert (execution.error, execution.complaints) == ("", ())
        assert execution.bank_conflicts == 0
        assert_close(work, execution.outputs[0], expected(work, inputs))


@HOST
@pytest.mark.compiles
@pytest.mark.parametrize("stages", [1, 2])
def test_masks_of_whole_tiles_and_of_whole_rows(stages: int) -> None:
    """A row without a key is no number, as it is where the softmax stands alone; other rows do not notice."""
    work = WORKS["ragged"]
    queries, keys, mask, values = work.random_inputs(0)
    mask = np.where(np.arange(45)[None, :] <= np.arange(19)[:, None], mask, -np.inf).astype(np.float32)
    mask[3], mask[4], mask[5, :32] = -np.inf, np.finfo(np.float32).min, -np.inf
    mask[5, 33] = 1.0
    inputs = [queries, keys, mask, values]
    wanted = expected(work, inputs)
    assert np.isnan(wanted[:, 3]).all() and np.isfinite(wanted[:, [4, 5]]).all()
    (execution,) = execute_on_host(scheduled(work, (1, 1, 1, stages)), A100, inputs)
    assert_close(work, execution.outputs[0], wanted)


@HOST
@pytest.mark.compiles
@pytest.mark.parametrize(("stages", "barriers"), [(1, 3), (2, 2)])
def test_each_barrier_is_needed(stages: int, barriers: int) -> None:
    """One of them is before the walk along the keys, where queries are loaded."""
    work = operators.attention(1, 32, 48, 16, 16, dtype="float16")
    function, inputs = scheduled(work, (1, 2, 1, stages)), work.random_inputs(0)
    source = cuda_source(function, A100)
    assert source.count("__syncthreads();") == barriers

    def without(position: int) -> Callable[[str], str]:
        def edit(source: str) -> str:
            before = source.split("__syncthreads();")
            return "__syncthreads();".join(before[: position + 1]) + "__syncthreads();".join(before[position + 1 :])

        return edit

    for position in range(barriers):
        (execution,) = execute_on_host(function, A100, inputs, ("thread",), without(position))
        assert "data race" in execution.complaints, position


@pytest.mark.compiles
@pytest.mark.parametrize("name", WORKS)
def test_the_same_tiles_with_plain_loops(name: str) -> None:
    work, space, rng = WORKS[name], space_of(WORKS[name]), np.random.default_rng(0)
    inputs = work.random_inputs(0)
    variants = [GpuMmaAttention().apply(work, A100, space.config(point)) for point in (space.origin, space.sample(rng))]
    assert not [line for variant in variants for line in accesses_out_of_bounds(variant.main, A100)]
    functions = [with_serial_loops(variant.anywhere) for variant in variants]
    for kernel in compile_together(functions, Cpu.detect().tvm()):
        output = tvm.runtime.empty(work.outputs[0].shape, work.outputs[0].dtype)
        kernel.call(*map(tvm.runtime.tensor, inputs), output)
        assert_close(work, output.numpy(), expected(work, inputs))


@pytest.mark.compiles
def test_one_kernel_of_tensor_cores_fed_by_copies() -> None:
    function = scheduled(operators.attention(12, 512, 512, 64, 64, mask=1, dtype="float16"), (1, 4, 4, 2))
    source = cuda_source(function, A100)
    (launch,) = launches(function, A100)
    assert launch.threads == 128 and launch.blocks == 12 * 8
    assert launch.shared == 2 * (64 + 2 * 2 * 64) * 72
    loop = source[source.index("for (int tile") :]
    assert loop.count("mma.sync.aligned.m16n8k16") == 2 * 4 * (4 + 4), "of 64 keys, for scores and outputs of 64"
    assert loop.count("ldmatrix.sync.aligned.m8n8.x4.trans") == 4 * 4 and "cp_async" in loop


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on the PATH")
@pytest.mark.parametrize("device", ["a100", "rtx3080", "h100"])
def test_default_schedules_do_not_spill(device: str) -> None:
    machine = GPUS[device]
    sources = []
    for heads, rows, size, dtype in [
        (12, 128, 64, "float16"),
        (96, 197, 64, "bfloat16"),
        (16, 2048, 64, "float16"),
        (8, 1024, 128, "bfloat16"),
        (12, 1, 80, "float16"),
    ]:
        work = operators.attention(heads, rows, max(rows, 200), size, size, mask=1, dtype=dtype)
        (sketch, space), *_ = sketches_for(work, machine)
        assert sketch.name == "gpu_mma_attention"
        sources.append(cuda_source(sketch.apply(work, machine, space.config(space.origin)).main, machine))
    kernels = [kernel for of_source in resources_of(sources, machine) for kernel in of_source]
    assert len(kernels) == len(sources) + 1, "one of them has parts"
    assert {kernel.spilled for kernel in kernels} == {0}


def attention(
    scores: Callable[..., Any] = lambda product, *i: product[i],
    output: Callable[[Any], Any] = lambda sums: sums,
    key_of: Callable[..., Any] = lambda keys, b, j, d: keys[b, j, d],
    shape_of_keys: tuple[int, ...] = (2, 20, 16),
) -> Workload:
    """Attention of two sequences with 3 heads of 16, which stand beside one another and share keys and values."""
    queries = te.placeholder((2, 17, 48), "float16", name="q")
    keys, values = te.placeholder(shape_of_keys, "float16", name="k"), te.placeholder((2, 20, 16), "float16", name="v")
    step, key = te.reduce_axis((0, 16), name="d"), te.reduce_axis((0, 20), name="s")

    def product(b: Any, h: Any, i: Any, j: Any) -> Any:
        query = queries[b, i, h * 16 + step].astype("float32")
        return te.sum(query * key_of(keys, b, j, step).astype("float32"), axis=step)

    products = te.compute((2, 3, 17, 20), product)
    weights = softmax_of(te.compute((2, 3, 17, 20), lambda *i: scores(products, *i)))
    rounded = te.compute((2, 3, 17, 20), lambda *i: weights[i].astype("float16"))
    sums = te.compute(
        (2, 3, 17, 16),
        lambda b, h, i, c: te.sum(
            rounded[b, h, i, key].astype("float32") * values[b, key, c].astype("float32"), axis=key
        ),
    )
    return Workload.create("attention", te.create_prim_func([queries, keys, values, output(sums)]))


@HOST
@pytest.mark.compiles
@pytest.mark.parametrize(
    "work",
    [
        attention(),
        attention(lambda product, *i: te.if_then_else(i[2] >= i[3], product[i] * 0.25, -1e9)),
        attention(output=lambda sums: te.compute((2, 3, 17, 16), lambda *i: te.tanh(sums[i]))),
        attention(
            output=lambda sums: te.compute((2, 17, 3, 16), lambda b, i, h, c: sums[b, h, i, c].astype("float16"))
        ),
        attention(key_of=lambda keys, b, j, d: keys[b, d, j], shape_of_keys=(2, 16, 20)),
    ],
    ids=["shared keys", "causal", "epilogue", "other layout", "keys by columns"],
)
def test_other_layouts_and_scores(work: Workload) -> None:
    inputs = work.random_inputs(0)
    (wanted,) = evaluate_graph(work.graph, inputs)
    for stages in (1, 2):
        for execution in execute_on_host(scheduled(work, (1, 1, 1, stages)), A100, inputs, ("thread",)):
            assert (execution.error, execution.complaints) == ("", ())
            assert_close(work, execution.outputs[0], wanted.astype("f8"))


@pytest.mark.parametrize(
    ("work", "device"),
    [
        (operators.attention(2, 32, 32, 24, 16, dtype="float16"), "a100"),
        (operators.attention(2, 32, 32, 16, 144, dtype="float16"), "a100"),
        (operators.attention(2, 32, 32, 16, 16), "a100"),
        (operators.attention(2, 32, 32, 16, 16, dtype="float16"), "t4"),
    ],
    ids=["24 elements", "144 elements", "float32", "no cp.async"],
)
def test_others_stay_on_cuda_cores(work: Workload, device: str) -> None:
    assert GpuMmaAttention().space(work, GPUS[device]) is None
    assert [sketch.name for sketch, _ in sketches_for(work, GPUS[device])] == ["gpu_attention"]
