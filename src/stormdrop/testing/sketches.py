"""The conformance suite of sketches: on a workload, points must schedule, compile and compute the right values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray

from ..codegen.compile import compile_together
from ..ir.dtypes import is_float
from ..ir.workload import Workload
from ..machine.cpu import Cpu
from ..measure.worker.output_check import difference
from ..sketches.contract import Sketch, Variant
from ..space import Space
from ..trial import Point

_LISTED = 10_000
"""The most points of a space of which `covering_points` looks at all."""

_DRAWN = 2_000
"""The random points that it looks at in a larger space."""


def check_sketch(
    sketch: Sketch[Cpu], workload: Workload, target: Cpu, samples: int | None = None, seed: int = 0
) -> None:
    """Checks the contract of `Sketch` at some points of its space.

    Args:
        sketch: The sketch.
        workload: A workload that the sketch applies to.
        target: The machine to compile for and to run on.
        samples: The number of random points, which are checked beside the origin and two far points. By default the
            points are those of `covering_points`.
        seed: The seed of the random points.

    Raises:
        AssertionError: If the sketch breaks a rule.

    Example:
        >>> from stormdrop import operators
        >>> from stormdrop.sketches.cpu.streaming import Streaming
        >>> check_sketch(Streaming(), operators.matmul(8, 8, 8), Cpu.detect(), samples=1)
    """
    space = sketch.space(workload, target)
    assert space is not None, f"{sketch.name} does not apply to {workload.name}"
    assert space.name == sketch.name
    again = sketch.space(workload, target)
    assert again is not None and again.fingerprint == space.fingerprint, "the space of a sketch must be deterministic"
    points = covering_points(space, seed=seed) if samples is None else some_points(space, samples, seed)
    check_points(sketch, workload, target, space, points)


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


def covering_points(space: Space, together: int = 1, seed: int = 0) -> list[Point]:
    """Few points that have every level of every knob, for tests that cannot take all points.

    A level is a value that one coordinate of the points has: a value of an `Ordinal`, the first factor of a `Tile`. The
    origin comes first. Then comes, again and again, the point with the most levels that no point before it has. Chance
    decides between equally good ones, so that the combinations of levels are random, too.

    Args:
        space: The space of a sketch.
        together: With 2, the points have every pair of levels of two coordinates that a point of the space has, with 3
            every triple.
        seed: The seed of the random choices.

    Returns:
        Distinct points. If the space has at most 10,000 points, each level (pair, triple) that one of them has is among
        these. In a larger space this holds for those that its origin and 2,000 random points have.

    Example:
        >>> from stormdrop.space import Ordinal, Space
        >>> space = Space("tiles", [Ordinal("rows", [1, 2, 4]), Ordinal("columns", [8, 16]), Ordinal("tasks", [1, 2])])
        >>> space.size, len(covering_points(space)), len(covering_points(space, together=2))
        (12, 3, 6)
    """
    if not space.origin:
        return [space.origin]
    rng = np.random.default_rng(seed)
    candidates = np.array(space.listed(_LISTED) or [space.sample(rng) for _ in range(_DRAWN)])
    candidates = np.vstack([[space.origin], rng.permutation(candidates)])
    columns, counts, numbers, first = candidates.T, candidates.max(axis=0) + 1, [], 0
    for some in itertools.combinations(range(len(columns)), min(together, len(columns))):
        combined = np.ravel_multi_index(tuple(columns[list(some)]), tuple(counts[list(some)]))
        distinct, number = np.unique(combined, return_inverse=True)
        numbers.append(first + number)
        first += len(distinct)
    levels, missing, chosen = np.stack(numbers, axis=1), np.ones(first, dtype=bool), list[int]()
    while missing.any():
        chosen.append(int(missing[levels].sum(axis=1).argmax()))
        missing[levels[chosen[-1]]] = False
    return [tuple(point) for point in candidates[chosen].tolist()]


def check_point(sketch: Sketch[Cpu], workload: Workload, target: Cpu, space: Space, point: Point) -> None:
    """Checks one point as `check_points` does."""
    check_points(sketch, workload, target, space, [point])


def check_points(sketch: Sketch[Cpu], workload: Workload, target: Cpu, space: Space, points: Sequence[Point]) -> None:
    """Checks that points schedule, compile, and compute what NumPy computes, in every element.

    Args:
        sketch: The sketch.
        workload: A workload that the sketch applies to.
        target: The machine to compile for and to run on.
        space: The space of the sketch for this workload and target.
        points: Points of the space. They are compiled together, which takes two thirds of the time.

    Raises:
        AssertionError: If an element is off by more than the workload and the sketch allow.
    """
    configs = [space.config(point) for point in points]
    variants = [sketch.apply(workload, target, config) for config in configs]
    inputs = workload.random_inputs(1)
    expected, ties = workload.reference_with_ties(inputs)
    tolerance = workload.tolerance_of(sketch.max_error, workload.tolerance(expected))
    cases = [f"{sketch.name} {config} on {workload.name}" for config in configs]
    try:
        results = run_all(variants, workload, target, inputs)
    except Exception:
        for case, variant in zip(cases, variants, strict=True):
            try:
                run(variant, workload, target, inputs)
            except Exception as error:
                raise AssertionError(f"{case}: {error}") from error
        raise
    for case, variant, actual in zip(cases, variants, results, strict=True):
        assert set(variant.transforms) <= set(workload.constants)
        for spec, ours, theirs, tie in zip(workload.outputs, actual, expected, ties or expected, strict=True):
            wrong = difference(spec.name, ours, theirs, tolerance, tie)
            assert not wrong, f"{case}: {wrong}"


def run(variant: Variant, workload: Workload, target: Cpu, inputs: list[Any], optimized: bool = True) -> list[Any]:
    """Compiles a variant and runs it once, as `run_all` does with several."""
    return run_all([variant], workload, target, inputs, optimized)[0]


def run_all(
    variants: Sequence[Variant], workload: Workload, target: Cpu, inputs: list[Any], optimized: bool = True
) -> list[list[NDArray[Any]]]:
    """Compiles variants together, and runs each of them once.

    Args:
        variants: What a sketch made of the workload.
        workload: The workload.
        target: The machine to compile for and to run on.
        inputs: The inputs of the workload. Constant inputs are transformed as the variant says.
        optimized: Whether LLVM optimizes the kernels.

    Returns:
        The outputs of each variant. An element that it does not write is NaN, or 85 in an output of integers.
    """
    machine = target.tvm()
    if not optimized:
        machine = tvm.target.Target({**machine.export(), "opt-level": 0})
    results = []
    for variant, kernel in zip(
        variants, compile_together([variant.main for variant in variants], machine), strict=True
    ):
        arguments = variant.arguments(inputs)
        filled = [np.full(spec.shape, _unwritten(spec.dtype), spec.dtype) for spec in workload.outputs]
        outputs = [tvm.runtime.tensor(array) for array in filled]
        kernel.call(*(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arguments), *outputs)
        results.append([output.numpy() for output in outputs])
    return results


def _unwritten(dtype: str) -> float:
    return float("nan") if is_float(dtype) else 85
