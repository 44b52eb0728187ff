"""Schedules for GPUs, where there is none: what they compute as serial loops, what is launched, what `ptxas` says."""

from __future__ import annotations

import math
import shutil
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from stormdrop import operators
from stormdrop.codegen.compile import compile_together
from stormdrop.codegen.cuda import cuda_source, launches, resources_of
from stormdrop.codegen.serial_loops import with_serial_loops
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.gpu.contraction import GpuContraction, find_fused_contraction
from stormdrop.sketches.gpu.limits import within_limits
from stormdrop.sketches.gpu.rows.sketch import GpuRows
from stormdrop.sketches.gpu.streaming import GpuStreaming
from stormdrop.sketches.gpu.tiling import Tilings
from stormdrop.sketches.gpu.times.tilings import expected_seconds
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Columnwise, Space

A100 = GPUS["a100"]
OPERATORS = operators.EXAMPLES
DIVIDED = ("groups", "groups_nchw", "groups_1d", "phases", "shuffled")
"""Contractions whose operands divide an axis of the results."""


@lru_cache
def workload(name: str) -> Workload:
    if name in OPERATORS:
        return operators.create(name, dict(word.split("=") for word in OPERATORS[name].split()))
    return {
        "groups": lambda: operators.conv2d(1, 14, 14, 48, 96, 3, 3, pad=1, groups=4, bias=1, act="relu"),
        "groups_nchw": lambda: operators.conv2d(1, 6, 7, 12, 24, 3, 3, pad=1, groups=3, residual=1, layout="NCHW"),
        "groups_1d": lambda: operators.conv1d(1, 20, 16, 32, 3, groups=4),
        "phases": phases,
        "shuffled": shuffled,
    }[name]()


def phases() -> Workload:
    """Rows of a product with one of two matrices in turns, as a convolution of an upsampled image has them."""
    x, w = te.placeholder((12, 16), name="x"), te.placeholder((2, 16, 40), name="w")
    k = te.reduce_axis((0, 16))
    y = te.compute((24, 40), lambda i, j: te.sum(x[i // 2, k] * w[i % 2, k, j], k), name="y")
    return Workload.create("phases", te.create_prim_func([x, w, y]), (1,))


def test_every_operator_has_an_example() -> None:
    assert set(OPERATORS) == set(operators.names())


def shuffled() -> Workload:
    """A grouped convolution of pixels whose channels are still to be shuffled, as in ShuffleNet."""
    x, w, k = te.placeholder((30, 24), name="x"), te.placeholder((48, 8), name="w"), te.reduce_axis((0, 8))

    def product(i: Any, j: Any) -> Any:
        channel = j // 16 * 8 + k
        return te.sum(x[i, channel % 3 * 8 + channel // 3] * w[j, k], k)

    y = te.compute((30, 48), product, name="y")
    return Workload.create("shuffled", te.create_prim_func([x, w, y]), (1,))


@pytest.mark.compiles
@pytest.mark.parametrize("name", [*OPERATORS, *DIVIDED])
def test_the_right_answer(name: str) -> None:
    work, rng = workload(name), np.random.default_rng(0)
    inputs = work.random_inputs(0)
    expected = evaluate_graph(work.graph, inputs)
    applicable = sketches_for(work, A100)
    assert applicable
    for sketch, space in applicable:
        points = [space.origin, *(space.sample(rng) for _ in range(3))]
        variants = [sketch.apply(work, A100, space.config(point)) for point in points]
        kernels = compile_together([with_serial_loops(variant.main) for variant in variants], Cpu.detect().tvm())
        for point, variant, kernel in zip(points, variants, kernels, strict=True):
            outputs = [tvm.runtime.empty(spec.shape, spec.dtype) for spec in work.outputs]
            kernel.call(*map(tvm.runtime.tensor, variant.arguments(inputs)), *outputs)
            for output, wanted in zip(outputs, expected, strict=True):
                error = np.abs(output.numpy() - wanted).max() / max(np.abs(wanted).max(), 1e-30)
                assert error < 1e-4, (sketch.name, space.config(point))


def residual(rows: int, columns: int) -> Workload:
    """x @ w + x: what follows the product reads one of its operands."""
    x, w = te.placeholder((rows, columns), name="x"), te.placeholder((columns, columns), name="w")
    k = te.reduce_axis((0, columns))
    product = te.compute((rows, columns), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="product")
    y = te.compute((rows, columns), lambda i, j: product[i, j] + x[i, j], name="y")
    return Workload.create("residual", te.create_prim_func([x, w, y]), (1,))


@pytest.mark.compiles
def test_what_follows_a_contraction_may_read_its_operand() -> None:
    work, rng = residual(24, 16), np.random.default_rng(0)
    inputs = work.random_inputs(0)
    (expected,) = evaluate_graph(work.graph, inputs)
    ((sketch, space),) = sketches_for(work, A100)
    assert sketch.name == GpuContraction.name
    points = [space.origin, *(space.sample(rng) for _ in range(3))]
    functions = [with_serial_loops(sketch.apply(work, A100, space.config(point)).main) for point in points]
    for kernel in compile_together(functions, Cpu.detect().tvm()):
        output = tvm.runtime.empty((24, 16), "float32")
        kernel.call(*(tvm.runtime.tensor(array) for array in inputs), output)
        np.testing.assert_allclose(output.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.compiles
@pytest.mark.parametrize("arch", ["t4", "a100", "rtx3080", "l4", "h100", "rtx5090"])
def test_nvcc_takes_every_operator(arch: str) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc on the PATH")
    device, sources = GPUS[arch], {}
    for name, work in ((name, workload(name)) for name in (*OPERATORS, *DIVIDED)):
        for sketch, space in sketches_for(work, device):
            function = sketch.apply(work, device, space.config(space.origin)).main
            sources[name, sketch.name] = cuda_source(function, device)
    for case, kernels in zip(sources, resources_of(list(sources.values()), device), strict=True):
        assert kernels, case
        assert all(0 < kernel.registers <= 255 for kernel in kernels), case
        assert all(kernel.shared <= device.shared_per_block for kernel in kernels), case


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["matmul", "conv2d", "dense", "groups"])
def test_what_is_predicted_is_what_is_launched(name: str) -> None:
    work, sketch = workload(name), GpuContraction()
    space = sketch.space(work, A100)
    assert space is not None
    contraction, rng = find_fused_contraction(work).axes, np.random.default_rng(1)
    axes = [axis for axis, _ in (*contraction.spatial, *contraction.reductions)]
    sources, shared = [], []
    for _ in range(5):
        config = space.config(space.sample(rng))
        tiling = Tilings(contraction, {axis: np.array([config[axis]]) for axis in axes})
        function = sketch.apply(work, A100, config).main
        launch, *adding = launches(function, A100)
        parts = config["parts"]
        assert isinstance(parts, int)
        assert (launch.blocks, launch.threads) == (tiling.blocks[0] * parts, tiling.threads[0])
        assert len(adding) == (parts > 1)
        sources.append(cuda_source(function, A100))
        shared.append(tiling.shared_bytes_in(config["stages"])[0])
    if shutil.which("nvcc"):
        assert [max(kernel.shared for kernel in kernels) for kernels in resources_of(sources, A100)] == shared


@pytest.mark.parametrize(("name", "device"), [("matmul", "a100"), ("conv2d", "h100"), ("depthwise_conv2d", "a100")])
def test_the_default_is_among_the_best_by_the_model_of_time(name: str, device: str) -> None:
    large = {
        "matmul": operators.matmul(512, 1024, 768),
        "conv2d": operators.conv2d(1, 56, 56, 64, 128, 3, 3, pad=1),
        "depthwise_conv2d": operators.depthwise_conv2d(1, 56, 56, 96, 3, 3, pad=1),
    }[name]
    space = GpuContraction().space(large, GPUS[device])
    assert space is not None
    contraction, rng = find_fused_contraction(large).axes, np.random.default_rng(4)
    columns = space.columns([space.origin, *(space.sample(rng) for _ in range(200))])
    names = [name for name, _ in (*contraction.spatial, *contraction.reductions)]
    tiling = Tilings(contraction, {name: np.asarray(columns[name], dtype=np.int64) for name in names})
    expected = expected_seconds(tiling, GPUS[device])
    assert (expected[0] < expected[1:]).mean() > 0.8
    assert tiling.outputs[0] > 1


def test_every_point_is_within_the_hardwares_limits() -> None:
    work = workload("conv2d")
    space = GpuContraction().space(work, A100)
    assert space is not None
    contraction, rng = find_fused_contraction(work).axes, np.random.default_rng(2)
    columns = space.columns([space.origin, *(space.sample(rng) for _ in range(200))])
    names = [name for name, _ in (*contraction.spatial, *contraction.reductions)]
    tiling = Tilings(contraction, {name: np.asarray(columns[name], dtype=np.int64) for name in names})
    assert within_limits(tiling, A100).all()
    assert (tiling.threads >= 32).all() and (tiling.threads <= 1024).all()
    assert (tiling.shared_bytes <= A100.shared_per_block).all()
    assert (
        A100.blocks_per_multiprocessor(tiling.threads, np.minimum(tiling.registers, 255), tiling.shared_bytes) > 0
    ).all()


def test_prime_extents_have_a_contraction() -> None:
    for work in (operators.batch_matmul(16, 257, 257, 64), operators.matmul(2, 509, 64)):
        assert GpuContraction().space(work, A100) is not None


@pytest.mark.parametrize(
    ("work", "threads"),
    [
        (operators.matmul(1, 1000, 512), (16, 32, 1)),  # neighbours along the columns of the weights, which are (k, n)
        (operators.dense(1, 1000, 512, bias=1), (32, 8, 1)),  # neighbours along the terms: the weights are (n, k)
        (operators.conv2d(1, 1, 1, 64, 32, 1, 1), (32, 8, 1)),
        (operators.batch_matmul(3, 1, 40, 64), (8, 32, 1)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_threads_share_the_terms_of_a_matrix_times_a_vector(work: Workload, threads: tuple[int, int, int]) -> None:
    assert {found.name for found, _ in sketches_for(work, A100)} <= {GpuRows.name, GpuStreaming.name}
    sketch = GpuStreaming()
    space = sketch.space(work, A100)
    assert space is not None
    (launch,) = launches(sketch.apply(work, A100, space.config(space.origin)).main, A100)
    assert launch.items == threads


@pytest.mark.parametrize(
    "work",
    [operators.matmul(2, 1000, 512), operators.depthwise_conv2d(1, 7, 7, 32, 3, 3, pad=1)],
    ids=lambda work: work.name,
)
def test_what_is_read_again_is_tiled(work: Workload) -> None:
    assert GpuContraction().space(work, A100) is not None


@pytest.mark.parametrize(
    ("name", "extents"),
    [
        ("groups", [1, 14, 14, 4, 24]),
        ("groups_nchw", [1, 3, 8, 6, 7]),
        ("groups_1d", [1, 18, 4, 8]),
        ("phases", [12, 2, 40]),
        ("shuffled", [30, 3, 16]),
    ],
)
def test_tiles_lie_within_a_group(name: str, extents: list[int]) -> None:
    ((sketch, _),) = sketches_for(workload(name), A100)
    assert sketch.name == GpuContraction.name
    axes = find_fused_contraction(workload(name)).axes
    assert [extent for _, extent in axes.spatial] == extents
    # A block with one group has only its part of both operands.
    whole = {axis: np.array([[extent, 1, 1, 1, 1]]) for axis, extent in axes.spatial}
    whole |= {axis: np.array([[1, 1, extent]]) for axis, extent in axes.reductions}
    terms = math.prod(extent for _, extent in axes.reductions)
    assert [int(elements[0]) for elements in Tilings(axes, whole).shared_elements] == [terms, terms]


def test_a_block_of_the_default_has_one_group() -> None:
    work = operators.conv2d(1, 14, 14, 480, 120, 1, 1, groups=3)
    space = GpuContraction().space(work, A100)
    assert space is not None
    assert space.config(space.origin)["space3"] == (3, 1, 1, 1, 1)


def test_limits_of_one_tiling_and_of_many_are_the_same() -> None:
    space = GpuContraction().space(operators.conv2d(1, 56, 56, 64, 64, 3, 3, pad=1), A100)
    assert space is not None
    free, rng = Space(space.name, space.knobs), np.random.default_rng(3)
    columns = free.columns([free.sample(rng) for _ in range(300)])
    for constraint in space.constraints:
        assert isinstance(constraint.predicate, Columnwise)
        values = [np.asarray(columns[name]) for name in constraint.knobs]
        rows = zip(*(map(as_value, value.tolist()) for value in values), strict=True)
        fits = [constraint.predicate(*row) for row in rows]
        assert constraint.predicate.columns(*values).tolist() == fits
        assert 0 < sum(fits) < 300


def as_value(listed: Any) -> Any:
    return tuple(listed) if isinstance(listed, list) else listed


@pytest.mark.compiles
def test_no_tanh_is_left_to_fast_mathematics() -> None:
    work, sketch = operators.dense(32, 32, 32, act="tanh"), GpuContraction()
    space = sketch.space(work, A100)
    assert space is not None
    source = cuda_source(sketch.apply(work, A100, space.config(space.origin)).main, A100)
    assert "tanh" not in source
    source = cuda_source(
        sketch.apply(operators.dense(32, 32, 32, act="gelu"), A100, space.config(space.origin)).main, A100
    )
    assert "erff(" in source
