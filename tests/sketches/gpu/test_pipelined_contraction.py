"""Contractions in two stages: how the next step is fetched, what that asks for, and that its barriers are right."""

from __future__ import annotations

import re
import shutil
from typing import Any

import numpy as np
import pytest

from stand_ins.cuda_on_host import SANITIZERS, execute_on_host
from stand_ins.opencl_execution import EMULATED, Job, execute, without_barrier
from stormdrop import operators
from stormdrop.codegen.cuda import cuda_source
from stormdrop.codegen.opencl import build_opencl
from stormdrop.errors import SpaceError
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS
from stormdrop.machine.opencl import opencl_devices
from stormdrop.sketches.gpu.contraction import GpuContraction, find_fused_contraction
from stormdrop.sketches.gpu.limits import widest_fetches

A100, T4 = GPUS["a100"], GPUS["t4"]
SKETCH = GpuContraction()
MATMUL = operators.matmul(16, 16, 24)
PADDED = operators.conv2d(1, 5, 5, 8, 12, 3, 3, pad=1, bias=1)
TILES = {"space0": (2, 1, 8, 1, 1), "space1": (2, 1, 8, 1, 1), "reduce0": (3, 1, 8), "parts": 1}


def config_of(work: Workload, device: Any, **knobs: Any) -> dict[str, Any]:
    space = SKETCH.space(work, device)
    assert space is not None
    return space.config(space.point({**space.config(space.origin), **knobs}))


def shared_words(source: str) -> list[int]:
    return [int(words) for words in re.findall(r"__shared__ .*?\w+_shared_ptr\[(\d+)\]", source)]


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("work", "device", "knobs", "asynchronous"),
    [
        (MATMUL, A100, TILES, True),
        (MATMUL, T4, TILES, False),  # the device has no such copies
        (PADDED, A100, {"reduce0": (3, 1, 1)}, False),  # padding is computed while it is fetched
        (operators.create("matmul", {"m": "16", "n": "16", "k": "24", "dtype": "float16"}), T4, TILES, False),
    ],
    ids=["copies", "sm_75", "padding", "float16"],
)
def test_the_next_step_is_fetched_into_a_second_half(
    work: Workload, device: Any, knobs: dict[str, Any], asynchronous: bool
) -> None:
    single, double = (
        cuda_source(SKETCH.apply(work, device, config_of(work, device, **knobs, stages=stages)).main, device)
        for stages in (1, 2)
    )
    assert shared_words(double) == [2 * words for words in shared_words(single)] != []
    assert ("cp_async" in double) == asynchronous and "cp_async" not in single
    assert ("_shared_local_ptr" in double) != asynchronous, "else it waits in registers"


@pytest.mark.compiles
def test_vectors_that_no_copy_takes_wait_in_registers() -> None:
    work = operators.create("matmul", {"m": "16", "n": "16", "k": "24", "dtype": "float16"})
    for width, asynchronous in ((1, False), (2, True)):  # of 2 and of 4 bytes
        knobs = {**TILES, "fetch0": width, "fetch1": width, "stages": 2}
        source = cuda_source(SKETCH.apply(work, A100, config_of(work, A100, **knobs)).main, A100)
        assert ("cp_async" in source) == asynchronous


def test_stages_need_steps_and_shared_memory() -> None:
    config_of(MATMUL, A100, **TILES, stages=2)
    with pytest.raises(SpaceError, match="as many steps as stages"):
        config_of(MATMUL, A100, **{**TILES, "reduce0": (1, 1, 24)}, stages=2)
    with pytest.raises(SpaceError, match="as many steps as stages"):  # a part has one step
        config_of(MATMUL, A100, **{**TILES, "reduce0": (2, 1, 12), "parts": 2}, stages=2)
    large = operators.matmul(256, 256, 256)
    tiles = {"space0": (2, 1, 16, 1, 8), "space1": (2, 1, 16, 1, 8), "reduce0": (8, 1, 32), "parts": 1}
    config_of(large, A100, **tiles, stages=1)  # 32 KiB
    with pytest.raises(SpaceError, match="49152 bytes shared"):
        config_of(large, A100, **tiles, stages=2)


def test_vectors_of_the_second_stage_are_aligned() -> None:
    """TVM takes room for 29 rows of 5 where 36 threads fetch 18 rows by twos: stages would be 145 words apart."""
    work = operators.create("batch_matmul", {"b": "36", "m": "24", "n": "5", "k": "3"})
    tiles = {"space0": (2, 1, 9, 2, 1), "space1": (1, 3, 4, 1, 2), "space2": (1, 1, 1, 1, 5), "reduce0": (3, 1, 1)}
    config_of(work, A100, **tiles, fetch0=1, fetch1=2, parts=1, stages=1)
    config_of(work, A100, **tiles, fetch0=1, fetch1=1, parts=1, stages=2)
    with pytest.raises(SpaceError, match="vectors that are aligned"):
        config_of(work, A100, **tiles, fetch0=1, fetch1=2, parts=1, stages=2)


@pytest.mark.parametrize(
    ("work", "tiles"),
    [
        (  # a span of one column: neighbours of a tile are rows apart
            operators.matmul(128, 32, 64),
            {"space0": (1, 1, 32, 1, 4), "space1": (1, 1, 1, 1, 32), "reduce0": (64, 1, 1), "fetch0": 4},
        ),
        (  # windows that begin at odd pixels
            operators.conv1d(1, 66, 3, 32, 3),
            {
                "space1": (1, 1, 8, 1, 8),
                "space2": (4, 1, 8, 1, 1),
                "reduce0": (3, 1, 1),
                "reduce1": (1, 1, 3),
                "fetch0": 2,
            },
        ),
    ],
    ids=["apart", "odd"],
)
def test_no_vector_is_copied_that_is_not_contiguous_and_aligned(work: Workload, tiles: dict[str, Any]) -> None:
    config_of(work, A100, **tiles, parts=1, stages=1)
    config_of(work, A100, **{**tiles, "fetch0": 1}, parts=1, stages=2)
    with pytest.raises(SpaceError, match="vectors that are aligned"):
        config_of(work, A100, **tiles, parts=1, stages=2)


def test_the_default_has_two_stages_where_copies_are_asynchronous_and_that_pays() -> None:
    matmul = operators.matmul(1024, 1024, 1024)
    config = config_of(matmul, A100)
    assert config["stages"] == 2 and (config["fetch0"], config["fetch1"]) == (4, 4)
    space = SKETCH.space(matmul, A100)
    assert space is not None
    one_stage = space.point({**config, "stages": 1})
    two, one = SKETCH.estimate(matmul, A100, space.columns([space.origin, one_stage]))
    assert two < one
    assert config_of(matmul, T4)["stages"] == 1
    assert config_of(operators.conv2d(1, 14, 14, 256, 256, 3, 3, pad=1), A100)["stages"] == 1


def test_default_fetches_are_vectors_that_are_contiguous_and_keep_all_threads_busy() -> None:
    tiling = {"space0": (1, 1, 8, 1, 2), "space1": (1, 1, 8, 1, 2), "reduce0": (3, 1, 8)}
    axes = find_fused_contraction(MATMUL).axes
    assert widest_fetches(axes, tiling) == [2, 2]  # 16 x 8 elements, 64 threads
    assert widest_fetches(axes, {**tiling, "reduce0": (1, 1, 24)}) == [2, 2]
    assert widest_fetches(axes, {**tiling, "space0": (1, 1, 8, 2, 1), "space1": (1, 1, 4, 1, 4)}) == [4, 4]
    odd = find_fused_contraction(operators.matmul(16, 18, 24)).axes
    assert widest_fetches(odd, {**tiling, "space1": (1, 1, 3, 1, 6)})[1] == 2  # rows of 18 elements


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("work", "knobs"), [(MATMUL, TILES), (PADDED, {"reduce0": (3, 1, 1)})], ids=["copies", "padding"]
)
def test_it_is_right_and_free_of_races_as_cuda(work: Workload, knobs: dict[str, Any]) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ on the PATH")
    main = SKETCH.apply(work, A100, config_of(work, A100, **knobs, stages=2)).main
    (expected,) = evaluate_graph(work.graph, work.random_inputs(0))
    for execution in execute_on_host(main, A100, work.random_inputs(0), SANITIZERS):
        assert not execution.error and not execution.complaints
        np.testing.assert_allclose(execution.outputs[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.compiles
def test_it_is_right_as_opencl_and_a_missing_barrier_is_a_race() -> None:
    if not opencl_devices() or shutil.which("oclgrind") is None:
        pytest.skip("this needs OpenCL and oclgrind")
    config = config_of(MATMUL, EMULATED, **TILES, stages=2)
    module = build_opencl(SKETCH.apply(MATMUL, EMULATED, config).main, EMULATED.tvm())
    shapes = [(spec.shape, spec.dtype) for spec in MATMUL.outputs]
    jobs = [Job(each, MATMUL.random_inputs(0), shapes) for each in (module, without_barrier(module, 0))]
    right, faulty = execute(jobs, oclgrind=True)
    (expected,) = evaluate_graph(MATMUL.graph, MATMUL.random_inputs(0))
    np.testing.assert_allclose(right.outputs[0], expected, rtol=1e-4, atol=1e-5)
    assert not right.error and not right.complaints
    assert any("data race" in complaint for complaint in faulty.complaints)
