"""The conformance suite of sketches: on a workload, points must schedule, compile and compute the right values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tvm

from ..codegen.compile import compile_kernel
from ..ir.dtypes import is_float
from ..ir.reference import evaluate
from ..ir.workload import Workload
from ..machine.cpu import Target
from ..measure.output_check import difference
from ..sketches.contract import Sketch, Variant
from ..space import Space
from ..trial import Point


def check_sketch(sketch: Sketch[Target], workload: Workload, target: Target, samples: int, seed: int = 0) -> None:
    """Checks the contract of `Sketch` at the origin, at two far points of the space and at random points.

    Args:
        sketch: The sketch.
        workload: A workload that the sketch applies to.
        target: The machine to compile for and to run on.
        samples: The number of random points.
        seed: The seed of the random points.

    Raises:
        AssertionError: If the sketch breaks a rule.

    Example:
        >>> from stormdrop import operators
        >>> from stormdrop.testing.faults import Plain
        >>> check_sketch(Plain(), operators.matmul(8, 8, 8), Target.detect(), samples=1)
    """
    space = sketch.space(workload, target)
    assert space is not None, f"{sketch.name} does not apply to {workload.name}"
    assert space.name == sketch.name
    again = sketch.space(workload, target)
    assert again is not None and again.fingerprint == space.fingerprint, "the space of a sketch must be deterministic"
    for point in some_points(space, samples, seed):
        check_point(sketch, workload, target, space, point)


def some_points(space: Space, samples: int, seed: int = 0) -> list[Point]:
    """Points to check a sketch at.

    Args:
        space: The space of the sketch.
        samples: The number of random points.
        seed: The seed of the random points.

    Returns:
        The origin, the first point of the space, its 20,000th point (or its last), and the random points, each once.
    """
    rng = np.random.default_rng(seed)
    first = next(iter(space.points()))
    *_, last = itertools.islice(space.points(), 20_000)
    return list(dict.fromkeys([space.origin, first, last, *(space.sample(rng) for _ in range(samples))]))


def check_point(sketch: Sketch[Target], workload: Workload, target: Target, space: Space, point: Point) -> None:
    """Checks that a point schedules, compiles, and computes what NumPy computes, in every element.

    Args:
        sketch: The sketch.
        workload: A workload that the sketch applies to.
        target: The machine to compile for and to run on.
        space: The space of the sketch for this workload and target.
        point: A point of the space.

    Raises:
        AssertionError: If an element is off by more than the workload and the sketch allow.
    """
    config = space.config(point)
    variant = sketch.apply(workload, target, config)
    assert set(variant.transforms) <= set(workload.constants)
    inputs = workload.random_inputs(1)
    expected, ties = workload.reference_with_ties(inputs)
    actual = run(variant, workload, target, inputs)
    tolerance = workload.tolerance_of(sketch.max_error, workload.tolerance(expected))
    case = f"{sketch.name} {config} on {workload.name}"
    for spec, ours, theirs, tie in zip(workload.outputs, actual, expected, ties or expected, strict=True):
        wrong = difference(spec.name, ours, theirs, tolerance, tie)
        assert not wrong, f"{case}: {wrong}"


def run(variant: Variant, workload: Workload, target: Target, inputs: list[Any], optimized: bool = True) -> list[Any]:
    """Compiles a variant and runs it once.

    Args:
        variant: What a sketch made of the workload.
        workload: The workload.
        target: The machine to compile for and to run on.
        inputs: The inputs of the workload. Constant inputs are transformed as the variant says.
        optimized: Whether LLVM optimizes the kernel, which takes most of the time.

    Returns:
        The outputs. An element that the variant does not write is NaN, or 85 in an output of integers.
    """
    arguments = [
        evaluate(variant.transforms[position], [array])[0] if position in variant.transforms else array
        for position, array in enumerate(inputs)
    ]
    outputs = [tvm.runtime.tensor(np.full(spec.shape, _unwritten(spec.dtype), spec.dtype)) for spec in workload.outputs]
    machine = target.tvm()
    if not optimized:
        machine = tvm.target.Target({**machine.export(), "opt-level": 0})
    kernel = compile_kernel(variant.main, machine)
    kernel.call(*(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arguments), *outputs)
    return [output.numpy() for output in outputs]


def _unwritten(dtype: str) -> float:
    return float("nan") if is_float(dtype) else 85
