"""What every sketch promises, checked on one workload: all points schedule, compile, and compute the right thing."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tvm

from ..codegen.compile import compile_kernel
from ..ir.reference import evaluate
from ..ir.workload import Workload
from ..machine.cpu import Target
from ..sketches.contract import Sketch, Variant
from ..space import Space
from ..trial import Point


def check_sketch(sketch: Sketch, workload: Workload, target: Target, samples: int, seed: int = 0) -> None:
    """Asserts the promises of `Sketch` at the origin, at two far points of the space and at random ones."""
    space = sketch.space(workload, target)
    assert space is not None, f"{sketch.name} does not apply to {workload.name}"
    assert space.name == sketch.name
    again = sketch.space(workload, target)
    assert again is not None and again.fingerprint == space.fingerprint, "a space is not deterministic"
    for point in some_points(space, samples, seed):
        check_point(sketch, workload, target, space, point)


def some_points(space: Space, samples: int, seed: int = 0) -> list[Point]:
    """The origin, the first point of the space and its 20,000th (or its last), and random ones."""
    rng = np.random.default_rng(seed)
    first = next(iter(space.points()))
    *_, last = itertools.islice(space.points(), 20_000)
    return list(dict.fromkeys([space.origin, first, last, *(space.sample(rng) for _ in range(samples))]))


def check_point(sketch: Sketch, workload: Workload, target: Target, space: Space, point: Point) -> None:
    """Asserts that one point schedules and computes what NumPy computes, every element of it."""
    config = space.config(point)
    variant = sketch.apply(workload, target, config)
    assert set(variant.transforms) <= set(workload.constants)
    inputs = workload.random_inputs(1)
    expected = workload.reference(inputs)
    actual = run(variant, workload, target, inputs)
    tolerance = max(workload.tolerance(expected), sketch.max_error)
    where = f"{sketch.name} {config} on {workload.name}"
    for ours, theirs in zip(actual, expected, strict=True):
        finite = np.isfinite(theirs)
        np.testing.assert_array_equal(ours[~finite], theirs[~finite], err_msg=where)
        gap = float(np.max(np.abs(ours[finite].astype(np.float64) - theirs[finite]), initial=0.0))
        scale = float(np.max(np.abs(theirs[finite]), initial=0.0))
        assert gap <= tolerance * scale, f"{where}: off by {gap}"


def run(variant: Variant, workload: Workload, target: Target, inputs: list[Any]) -> list[Any]:
    """The outputs of a variant; NaN (in integers 85) where it does not write."""
    arguments = [
        evaluate(variant.transforms[position], [array])[0] if position in variant.transforms else array
        for position, array in enumerate(inputs)
    ]
    outputs = [tvm.runtime.tensor(np.full(spec.shape, _unwritten(spec.dtype), spec.dtype)) for spec in workload.outputs]
    kernel = compile_kernel(variant.main, target.tvm())
    kernel.call(*(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arguments), *outputs)
    return [output.numpy() for output in outputs]


def _unwritten(dtype: str) -> float:
    return float("nan") if dtype.startswith("float") else 85
