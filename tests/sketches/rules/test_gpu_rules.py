"""Sketches that the rules derive for GPUs: which there are, and that their points compute the right answer.

Without a GPU they run as serial loops on the CPU, PoCL executes them as OpenCL kernels, and they are lowered to CUDA
source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tvm import te
from tvm.topi.utils import const_matrix

import stormdrop as sd
from stand_ins.opencl_execution import EMULATED, Job, execute
from stormdrop import operators
from stormdrop.codegen.cuda import cuda_source, launches
from stormdrop.codegen.gpu_check import cross_check
from stormdrop.codegen.opencl import build_opencl
from stormdrop.errors import SpaceError, TargetError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS, Gpu
from stormdrop.machine.opencl import opencl_devices
from stormdrop.sketches.registry import sketches_for
from stormdrop.sketches.rules import CPU_RULES, GPU_RULES, derive
from stormdrop.space import Space
from stormdrop.testing.sketches import check_sketch
from stormdrop.trial import Point

A100 = GPUS["a100"]
WINOGRAD_B = [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]  # B^T of F(2 x 2, 3 x 3)


def gated() -> Workload:
    """A user's own function: two contractions of the same operand, an activation, and the square sums of its rows."""
    x, w, v = (te.placeholder(shape, name=name) for name, shape in (("x", (12, 20)), ("w", (20, 48)), ("v", (20, 48))))
    r, s = te.reduce_axis((0, 20), name="r"), te.reduce_axis((0, 20), name="s")
    first = te.compute((12, 48), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), name="first")
    second = te.compute((12, 48), lambda i, j: te.sum(x[i, s] * v[s, j], axis=s), name="second")
    gate = te.compute((12, 48), lambda i, j: te.max(first[i, j], 0.0) * second[i, j], name="gate")
    t = te.reduce_axis((0, 48), name="t")
    y = te.compute((12,), lambda i: te.sum(gate[i, t] * gate[i, t], axis=t), name="y")
    return Workload.create("gated", te.create_prim_func([x, w, v, y]))


def transform() -> Workload:
    """Winograd's transform of the input as TE templates write it, of tiles that lie in the last two dimensions."""
    tiles = te.placeholder((4, 4, 6, 32), name="tiles")
    matrix = const_matrix(np.array(WINOGRAD_B, "float32"), "B")
    r, s = te.reduce_axis((0, 4), name="r"), te.reduce_axis((0, 4), name="s")

    def entry(e: object, n: object, p: object, c: object) -> object:
        return te.sum(tiles[r, s, p, c] * matrix[e, r] * matrix[n, s], axis=[r, s])

    y = te.compute((4, 4, 6, 32), entry, name="y", attrs={"auto_scheduler_simplify_const_tensor_indices": ["e", "n"]})
    return Workload.create("transform", te.create_prim_func([tiles, y]))


def names(workload: Workload, target: Gpu = A100) -> list[str]:
    return [sketch.name for sketch in derive(workload, target)]


def rules_of(workload: Workload) -> list[set[str]]:
    """The rules that are applied in each sketch."""
    return [{rule.name for rule, _ in sketch.function.steps} for sketch in derive(workload, A100)]  # type: ignore[attr-defined]


def points_of(space: Space, random: int) -> list[Point]:
    """The default, each knob at its ends, and random points."""
    points, rng = [space.origin], np.random.default_rng(0)
    for knob in space.knobs:
        values = list(knob)
        for coordinates in (values[0], values[-1]):
            try:
                points.append(space.point({**space.config(space.origin), knob.name: knob.value(coordinates)}))
            except SpaceError:  # a constraint excludes it
                continue
    return list(dict.fromkeys([*points, *(space.sample(rng) for _ in range(random))]))


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (operators.matmul(64, 64, 64), ["rules"]),
        (operators.conv2d(1, 14, 14, 16, 32, 3, 3, pad=1, bias=1, act="relu"), ["rules"]),
        (operators.matmul(2, 2, 96), ["rules.cross_thread", "rules.cache_write.tile.cache_read"]),
        (operators.reduce((64, 96), 1), ["rules.cross_thread", "rules"]),
        (operators.reduce((64, 24), 1), ["rules"]),
        (operators.softmax(32, 50), ["rules.cross_thread_s2.cross_thread_s0", "rules.cross_thread_s0", "rules"]),
        (operators.elementwise((64, 33)), ["rules"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_workload_has_these_sketches_for_a_gpu(workload: Workload, expected: list[str]) -> None:
    assert names(workload) == expected
    assert names(workload, EMULATED) == expected


def test_each_rule_applies_to_what_it_is_for() -> None:
    assert rules_of(operators.matmul(64, 64, 64)) == [{"cache_write", "tile", "cache_read", "unroll"}]
    fused = operators.conv2d(1, 14, 14, 16, 32, 3, 3, pad=1, bias=1, act="relu")
    assert rules_of(fused) == [{"inline", "tile", "cache_read", "unroll"}]
    assert rules_of(operators.pool2d(1, 8, 8, 12, 3, 3, pad=1, kind="avg")) == [{"inline", "fuse", "bind", "unroll"}]
    assert rules_of(transform()) == [{"cache_write", "simplify", "inline", "unroll"}]


def test_users_ask_for_them_by_the_name_of_the_source() -> None:
    workload = operators.matmul(64, 64, 64)
    assert [sketch.name for sketch, _ in sketches_for(workload, A100, "rules")] == ["rules"]
    assert [sketch.name for sketch, _ in sketches_for(workload, EMULATED, "rules")] == ["rules"]


def test_rules_of_the_wrong_kind_of_machine_are_refused() -> None:
    workload = operators.matmul(64, 64, 64)
    with pytest.raises(TargetError, match="a rule for CPUs is applied for target a100"):
        derive(workload, A100, CPU_RULES)
    with pytest.raises(TargetError, match="a rule for GPUs is applied for target cpu"):
        derive(workload, Cpu.detect(), GPU_RULES)


@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [
        operators.matmul(24, 32, 16),
        operators.conv2d(1, 7, 7, 8, 16, 3, 3, pad=1, bias=1, act="relu"),
        operators.conv2d(1, 6, 6, 8, 8, 3, 3, pad=1, groups=2),
        operators.softmax(6, 50),
        operators.reduce((6, 50, 5), 1, "max"),
        operators.pool2d(1, 8, 8, 12, 3, 3, pad=1, kind="avg"),
        gated(),
        transform(),
    ],
    ids=lambda workload: workload.name,
)
def test_points_are_right_as_serial_loops_and_stay_in_bounds(workload: Workload) -> None:
    check = cross_check(workload, A100, schedules=4, sketches="rules")
    assert check.right == check.schedules and check.built == check.schedules, check


@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [
        operators.matmul(8, 16, 8),
        operators.conv2d(1, 5, 5, 4, 8, 3, 3, pad=1, bias=1, act="relu"),
        operators.softmax(3, 40),
        operators.reduce((10, 40), 1),
        gated(),
        transform(),
    ],
    ids=lambda workload: workload.name,
)
def test_pocl_computes_the_default_corners_and_random_points(workload: Workload) -> None:
    if not opencl_devices():
        pytest.skip("OpenCL finds no device here (it needs pyopencl and a driver such as PoCL)")
    inputs = workload.random_inputs(0)
    expected = workload.reference(inputs)
    shapes = [(spec.shape, spec.dtype) for spec in workload.outputs]
    for sketch, space in sketches_for(workload, EMULATED, "rules"):
        points = points_of(space, random=1)
        points = [*points[:: -(-len(points) // 3)], points[-1]]  # PoCL takes seconds to compile a kernel
        functions = [sketch.apply(workload, EMULATED, space.config(point)).main for point in points]
        jobs = [Job(build_opencl(function, EMULATED.tvm()), inputs, shapes) for function in functions]
        for point, execution in zip(points, execute(jobs), strict=True):
            assert not execution.error, (sketch.name, space.config(point), execution.error)
            for output, wanted in zip(execution.outputs, expected, strict=True):
                np.testing.assert_allclose(output, wanted, 1e-4, 1e-4, err_msg=f"{sketch.name} {space.config(point)}")


def test_what_the_limits_allow_is_launched() -> None:
    workload = operators.conv2d(1, 14, 14, 16, 32, 3, 3, pad=1, bias=1, act="relu")
    ((sketch, space),) = sketches_for(workload, A100, "rules")
    rng = np.random.default_rng(0)
    for _ in range(5):
        config: Mapping[str, Any] = space.config(space.sample(rng))
        (launch,) = launches(sketch.apply(workload, A100, config).main, A100)
        spatial = [tuple(value) for name, value in config.items() if name.startswith("s1_i")]
        assert launch.blocks == np.prod([tile[0] for tile in spatial])
        assert launch.threads == np.prod([tile[2] for tile in spatial])
        assert 32 <= launch.threads <= A100.threads_per_block


@pytest.mark.compiles
def test_the_cuda_source_stages_operands_and_shares_reductions() -> None:
    def source(workload: Workload) -> str:
        sketch, space = sketches_for(workload, A100, "rules")[0]
        return str(cuda_source(sketch.apply(workload, A100, space.config(space.origin)).main, A100))

    matmul = source(operators.matmul(64, 64, 64))
    assert "__shared__" in matmul and "__syncthreads" in matmul
    assert "__shfl_down" in source(operators.reduce((64, 96), 1))


@pytest.mark.compiles
def test_constant_matrices_become_numbers_on_both_kinds_of_machine() -> None:
    workload, target = transform(), Cpu.detect()
    (sketch,) = sd.rules.derive(workload, target)
    assert "simplify" in {rule.name for rule, _ in sketch.function.steps}  # type: ignore[attr-defined]
    check_sketch(sketch, workload, target, samples=5)
    ((on_gpu, space),) = sketches_for(workload, A100, "rules")
    text = cuda_source(on_gpu.apply(workload, A100, space.config(space.origin)).main, A100)
    assert "?" not in text  # no entry of a matrix is looked up
    nonzero = np.count_nonzero(np.kron(WINOGRAD_B, WINOGRAD_B))
    assert text.count("x0_ptr[") == nonzero == 64  # of 256 terms
