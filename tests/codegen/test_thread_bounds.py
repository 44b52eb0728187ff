"""Accesses of a GPU's threads out of bounds, found without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from across_threads import reduced_across_threads

from stormdrop import operators
from stormdrop.codegen.thread_bounds import accesses_out_of_bounds
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.gpu.streaming import GpuStreaming
from stormdrop.sketches.registry import sketches_for

A100 = GPUS["a100"]


def create(case: str) -> Workload:
    name, *words = case.split()
    return operators.create(name, dict(word.split("=") for word in words))


def test_tvm_does_not_guard_the_result_of_a_reduction_across_threads() -> None:
    assert accesses_out_of_bounds(reduced_across_threads(10), A100) == []
    (line,) = accesses_out_of_bounds(reduced_across_threads(8), A100)
    assert line == "main_kernel stores y0[0] to [55], which has 50 elements"


@pytest.mark.parametrize("kind", ["sum", "mean"])
@pytest.mark.parametrize(("threads", "lanes"), [(256, 32), (64, 16), (1024, 32), (32, 1), (512, 8)])
def test_rows_that_do_not_divide(kind: str, threads: int, lanes: int) -> None:
    work, sketch = create(f"reduce shape=50x96 axis=1 kind={kind}"), GpuStreaming()
    config = {"threads": threads, "lanes": lanes, "unroll": 16}
    assert accesses_out_of_bounds(sketch.apply(work, A100, config).main, A100) == []


def test_every_point_of_an_average_over_few_channels_schedules() -> None:
    work, sketch = create("pool2d n=1 h=8 w=8 c=12 kh=3 kw=3 pad=1 kind=avg"), GpuStreaming()
    space = sketch.space(work, A100)
    assert space is not None
    pairs = [(threads, lanes) for threads in (32, 64, 128, 256, 512, 1024) for lanes in (1, 8)]
    for threads, lanes in pairs:
        function = sketch.apply(work, A100, {"threads": threads, "lanes": lanes, "unroll": 0}).main
        assert accesses_out_of_bounds(function, A100) == []


@pytest.mark.parametrize(
    "case",
    [
        "conv2d n=1 h=7 w=7 ci=8 co=16 kh=3 kw=3 pad=1 bias=1 act=relu",
        "softmax m=6 n=50",
        "elementwise shape=7x11 kind=relu",
        "concatenate shape=3x5 shape2=3x7 axis=1",
    ],
)
def test_sketches_stay_within_their_buffers(case: str) -> None:
    work, rng = create(case), np.random.default_rng(0)
    for sketch, space in sketches_for(work, A100):
        for point in (space.origin, space.sample(rng)):
            assert accesses_out_of_bounds(sketch.apply(work, A100, space.config(point)).main, A100) == []


def test_roundings_to_bfloat16_by_several_instructions() -> None:
    """Before sm_80 no instruction rounds, and a variable of an expression has the bits."""
    work, t4 = create("dense m=5 n=7 k=9 bias=1 dtype=bfloat16"), GPUS["t4"]
    for sketch, space in sketches_for(work, t4):
        assert accesses_out_of_bounds(sketch.apply(work, t4, space.config(space.origin)).main, t4) == []


def test_an_input_that_is_too_short_is_named() -> None:
    """A function that reads one element beyond its input, at every fourth thread."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def shifted(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("s"):
                j = T.axis.spatial(64, i)
                y[j] = T.if_then_else(j % 4 == 3, x[j + 1], T.float32(0))

    (line,) = accesses_out_of_bounds(shifted, A100)
    assert "loads x" in line and "[64], which has 64 elements" in line
