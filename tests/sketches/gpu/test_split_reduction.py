"""Reductions in parts: when the default has them, what is launched, and what older configurations mean."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from stand_ins.opencl_execution import EMULATED, Job, execute
from stormdrop import operators
from stormdrop.codegen.cuda import launches
from stormdrop.codegen.opencl import build_opencl
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS
from stormdrop.machine.opencl import opencl_devices
from stormdrop.sketches.gpu.contraction import GpuContraction, find_fused_contraction
from stormdrop.sketches.gpu.split_reduction import PARTS
from stormdrop.space import Space

A100 = GPUS["a100"]
OURS, PAPERS = GpuContraction(), GpuContraction(listing_1=True)
DENSE = operators.dense(4, 24, 2048, bias=1, act="relu")


def space_of(work: Workload, sketch: GpuContraction = OURS, device: Any = A100) -> Space:
    space = sketch.space(work, device)
    assert space is not None
    return space


def default(work: Workload, sketch: GpuContraction = OURS) -> dict[str, Any]:
    space = space_of(work, sketch)
    return space.config(space.origin)


@pytest.mark.parametrize(
    ("work", "splits"),
    [
        (operators.conv2d(1, 7, 7, 512, 512, 3, 3, pad=1), True),
        (operators.dense(8, 1000, 2048), True),
        (operators.matmul(64, 64, 8192), True),  # a gradient of weights
        (operators.matmul(2048, 2048, 2048), False),
        (operators.matmul(64, 64, 32), False),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_default_splits_reductions_of_few_outputs(work: Workload, splits: bool) -> None:
    config = default(work)
    assert (config["parts"] > 1) == splits
    if splits:
        whole, in_parts = (
            float(sketch.estimate(work, A100, space.columns([space.origin]))[0])
            for sketch in (PAPERS, OURS)
            if (space := sketch.space(work, A100)) is not None
        )
        assert in_parts < whole


def test_a_split_reduction_is_two_launches() -> None:
    config = default(DENSE)
    parts, tile = config["parts"], config["reduce0"]
    assert parts > 1 and tile[0] % parts == 0
    whole, split = (OURS.apply(DENSE, A100, {**config, "parts": count}).main for count in (1, parts))
    (alone,) = launches(whole, A100)
    partial, adding = launches(split, A100)
    assert (partial.blocks, partial.threads) == (parts * alone.blocks, alone.threads)
    assert adding.threads * adding.blocks >= 4 * 24
    (handed_on,) = set(partial.arguments) & set(adding.arguments)
    assert handed_on not in alone.arguments


@pytest.mark.compiles
def test_partial_sums_add_up_without_races() -> None:
    if not opencl_devices() or shutil.which("oclgrind") is None:
        pytest.skip("this needs OpenCL and oclgrind")
    works = [
        operators.dense(3, 10, 16, bias=1, act="relu"),
        operators.matmul(4, 12, 16),
        operators.conv2d(1, 5, 5, 12, 12, 3, 3, pad=1, groups=3, bias=1, layout="NCHW"),
    ]
    jobs = []
    for work in works:
        space, axes = space_of(work, device=EMULATED), find_fused_contraction(work).axes
        steps = {axes.longest: (dict(axes.reductions)[axes.longest], 1, 1)}
        config = {**space.config(space.origin), **steps, "parts": 4, "stages": 1}
        module = build_opencl(OURS.apply(work, EMULATED, config).main, EMULATED.tvm())
        assert len(module.kernel.launches) == 2
        jobs.append(Job(module, work.random_inputs(0), [(spec.shape, spec.dtype) for spec in work.outputs]))
    for work, execution in zip(works, execute(jobs, oclgrind=True), strict=True):
        (expected,) = evaluate_graph(work.graph, work.random_inputs(0))
        assert not execution.error and not execution.complaints, work.name
        np.testing.assert_allclose(execution.outputs[0], expected, rtol=1e-4, atol=1e-5)


def test_configurations_of_versions_without_parts_and_stages_are_points() -> None:
    space = space_of(DENSE)
    former = default(DENSE, PAPERS)
    assert "parts" not in former
    assert space.config(space.point(former)) == {**former, "parts": 1, "stages": 1}


def test_the_papers_space_has_the_knobs_of_listing_1() -> None:
    names = [knob.name for knob in space_of(DENSE, PAPERS).knobs]
    assert names == ["space0", "space1", "reduce0", "fetch0", "fetch1", "unroll"]


def test_partial_sums_take_little_memory() -> None:
    large = operators.matmul(2048, 2048, 2048)
    (knob,) = (knob for knob in space_of(large).knobs if knob.name == "parts")
    assert [knob.value(coordinates) for coordinates in knob] == [1, 2]
    (knob,) = (knob for knob in space_of(DENSE).knobs if knob.name == "parts")
    assert [knob.value(coordinates) for coordinates in knob] == list(PARTS)


def test_features_count_the_blocks_of_all_parts() -> None:
    space, config = space_of(DENSE), {**default(DENSE), "reduce0": (32, 1, 64)}
    points = [space.point({**config, "parts": parts}) for parts in (1, 32)]
    whole, split = OURS.features(DENSE, A100, space.columns(points))
    assert split[2] * 32 == whole[2]  # operations per element that is written
    assert split[-1] >= whole[-1]
