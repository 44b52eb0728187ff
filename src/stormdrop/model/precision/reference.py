"""What a model in mixed precision should compute, and how far that is from the model in float32.

    mixed-precision graph  --NumPy, float64-->   exact tensors, for the weights that the model has
    compiled model         --its kernels-->      our tensors    the kernels are right if these are near the exact ones
    model in float32       --another runtime-->  the error of the mixed-precision model, which its user has to accept

"Near" is 1e-4, or 3 times what rounding each tensor between two kernels to its type does to the exact ones, in the
worst of up to five executions: two ways to round differ by about as much as each of them is wrong. Behind the rounding
of a deep network one coarse kernel could hide. Therefore each kernel that reads or writes such a type is compared by
itself as well, on what it reads while the model runs: it may be off by 1e-4 and one step of its result's type.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ModelError, UnsupportedFunction
from ...ir.dtypes import BFLOAT16
from ..artifact.artifact import CompiledModel
from ..graph.graph import Graph
from ..graph.onnx_origin import origin_of
from ..inputs.samples import Feeds, Sample, feeds_in_turn
from ..verification.arrays import error_of, exceeds_float32, has_numbers, same_top
from ..verification.exact import ExactModel
from ..verification.expected import Expected
from ..verification.kernels import errors_by_name
from ..verification.rounding import OF_SPREAD, Rounded, draws
from ..verification.tensors import LastReads
from ..verification.verify import Reference
from .tf32 import multiplies_tf32

_ROWS = 32  # inputs on which the model is compared with that in float32


@dataclass(frozen=True)
class Accuracy:
    """How far a mixed-precision model is from the one in float32.

    Attributes:
        error: The median over random inputs of max|mixed - float32| / max|float32|, for the worst output.
        agreement: The share of the rows of the outputs whose largest element is at the same place ("top-1 agreement");
            None if the outputs have no rows of several numbers.
    """

    error: float
    agreement: float | None


def mixed_reference(graph: Graph, original: Reference, dtype: str = BFLOAT16) -> Reference:
    """What a mixed-precision model should compute.

    Args:
        graph: The mixed-precision model, at one size.
        original: What the model in float32 should compute at this size.
        dtype: The type of 16 bits in it, or "tf32".

    Raises:
        ModelError: The model cannot be verified: NumPy does not know one of its functions, or its outputs hold NaN or
            leave the range of numbers.
    """
    exact = exact_model(graph)
    last = LastReads(graph, exact, origin_of(graph.source).before_saturation())

    def expected(sample: Sample) -> Expected | None:
        tensors = exact.tensors(sample.feeds, last.variables)
        if any(not has_numbers(value) or exceeds_float32(value) for value in tensors.values()):
            return None
        rounded = Rounded(exact, last.variables, sample.feeds, tensors, _runs(), exact.jumps)
        return Expected(sample, tensors, {}, rounded, jumps=exact.jumps)

    usable = [one for one in (expected(each.sample) for each in original.expected) if one is not None]
    if not usable:
        raise ModelError(f"{graph.name}: in {dtype} its outputs hold NaN or leave the range of numbers")
    usable = [one for one in usable if not one.holds_nan] or usable
    low = {
        task.described
        for task in graph.tasks
        if any(str(parameter.dtype) == dtype for parameter in task.function.params) or multiplies_tf32(task)
    }

    def kernels(model: CompiledModel, feeds: Feeds) -> dict[str, float]:
        errors = errors_by_name(graph, model, feeds, every=not original.varies)
        return {name: error for name, error in errors.items() if name in low or not original.varies}

    return Reference(
        feeds=original.feeds,
        against=f"NumPy in float64, for weights in {dtype}",
        expected=usable,
        sites=last.sites,
        kernels=kernels,
        given=original.given,
        always_kernels=True,
        varies=original.varies,
        after_saturation=last.after_saturation,
    )


def _runs() -> Iterator[tuple[float, dict[str, Any]]]:
    """The executions that show how much a mixed-precision model makes of rounding, as `Rounded` takes them.

    Sums in float32 that differ in their last bits are rounded to other numbers of 16 bits now and then, so that two
    right executions of a deep network round independently in the end. A softmax of two large logits depends on little
    else than how these are rounded: a single execution may have been lucky.
    """
    yield OF_SPREAD, {"rounded": True}
    for noise in draws():
        yield OF_SPREAD, {"rounded": True, "noise": noise}


def exact_model(graph: Graph) -> ExactModel:
    """The model by NumPy.

    Args:
        graph: The model, at one size.

    Raises:
        ModelError: NumPy does not know one of its functions.
    """
    try:
        return ExactModel(graph)
    except UnsupportedFunction as error:
        raise ModelError(f"{graph.name}: cannot be verified in this precision: {error}; tune it in float32") from error


def expected_error(graph: Graph, original: Reference) -> float:
    """The error that a mixed-precision model will have against the one in float32, found out by NumPy.

    Args:
        graph: The mixed-precision model, at one size.
        original: What the model in float32 should compute.

    Returns:
        max|mixed - exact| / max|exact| of the worst output on the first sample.

    Raises:
        ModelError: NumPy does not know one of the model's functions.
    """
    one = original.expected[0]
    rounded = exact_model(graph).tensors(one.sample.feeds, {}, rounded=True)
    return max(error_of(value, one.tensors[name]) for name, value in rounded.items())


def accuracy_of(model: CompiledModel, graph: Graph, seed: int, given: Sequence[Feeds] = ()) -> Accuracy:
    """Compares a mixed-precision model with the one in float32, which another runtime computes.

    Args:
        model: The mixed-precision model.
        graph: The model in float32.
        seed: Seeds the inputs.
        given: Samples that the user gives, in place of random inputs.

    Returns:
        The accuracy on 32 inputs of the first size, or on those that are given; on one if only onnx's own evaluator
        computes the model.

    Raises:
        ModelError: The other runtime cannot run the model.
    """
    origin = origin_of(graph.source)
    feeds = feeds_in_turn(graph.inputs, origin.index_ranges(), seed, _ROWS, given)
    names = [info.name for info in graph.outputs]
    theirs, _ = origin.outputs(feeds, names)
    ours = [model.run(one) for one in feeds[: len(theirs)]]
    errors, same = [], list[bool]()
    for name in names:
        pairs = [(mine[name], other[name]) for mine, other in zip(ours, theirs, strict=True)]
        errors.append(statistics.median(error_of(mine, other) for mine, other in pairs))
        same += [each for mine, other in pairs for each in same_top(mine, other)]
    return Accuracy(max(errors, default=0.0), statistics.mean(same) if same else None)
