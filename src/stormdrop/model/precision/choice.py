"""A model in the precision that its user asks for, and which of its layers are in fewer bits.

    float32    every layer as it is
    bf16       every layer in bfloat16 but the last ones
    fp16       every layer in float16 but the last ones, on NVIDIA's GPUs: finer than bfloat16, up to 65,504 only
    tf32       layers in TF32 on tensor cores of NVIDIA's GPUs, whose tensors stay in float32: the digits of float16
    auto       the most expensive layers in bfloat16, as many as the error allows

The error of a choice of layers is found out before anything is compiled: NumPy computes the model as rounded as it
would be, and in float64, on the first sample of the first size.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import InputError, ModelError
from ...ir.contractions.contraction import is_contraction
from ...ir.dtypes import BFLOAT16, FLOAT16
from ...ir.stages import StageGraph
from ...machine.contract import CUDA, Machine
from ...machine.cpu import Cpu
from ...machine.gpu import Gpu
from ...report.formatting import precision_in_words
from ...sketches.knowledge import multiplies_bfloat16
from ...tuning.options import AUTO, BF16, FLOAT32, FP16, TF32, TuneOptions
from ..artifact.artifact import CompiledModel
from ..graph.graph import Graph
from ..graph.tasks import Task
from ..passes.attention import with_attention
from ..verification.verify import Reference
from .mixed import MixedPrecision, in_mixed_precision
from .reference import Accuracy, accuracy_of, expected_error, mixed_reference
from .tf32 import with_tf32

_logger = logging.getLogger(__name__)

MAX_ERROR = 1e-2
"""The error that `auto` allows by default, max|mixed - exact| / max|exact| of an output."""


@dataclass(frozen=True, eq=False)
class PrecisionChoice:
    """A model in a precision.

    Attributes:
        graph: The model.
        references: What it should compute, at each size.
        options: How it is tuned.
        original: The model in float32.
        layers: The names of the tasks of its layers, at all of its sizes.
        low: Those of the layers that are in 16 bits or TF32.
        computed: The names of the layers of the user's model that each of these tasks computes.
    """

    graph: Graph
    references: list[Reference]
    options: TuneOptions
    original: Graph
    layers: tuple[str, ...] = ()
    low: tuple[str, ...] = ()
    computed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def provenance(self) -> dict[str, Any]:
        """What the saved model says of its precision; nothing if all of it is in float32."""
        return {"precision": self.options.precision} if self.low else {}

    def of_kernels(self) -> TuneOptions:
        """The options of the kernels' tunings: what `auto` allows the model says nothing about a kernel."""
        return replace(self.options, max_error=None) if self.options.precision == AUTO else self.options

    def report(self, model: CompiledModel) -> PrecisionReport | None:
        """What the precision costs; None if float32 was asked for.

        Args:
            model: The compiled model.

        Raises:
            ModelError: The runtime that computes the model in float32 cannot run it.
        """
        if self.options.precision == FLOAT32:
            return None
        accuracy = accuracy_of(model, self.original, self.options.seed, self.references[0].given)
        if self.options.precision == AUTO and accuracy.error > (allowed := _allowed(self.options)):
            _logger.warning(
                "the error on random inputs is %.1e, and %.1e was allowed: it was found out on one input",
                accuracy.error,
                allowed,
            )
        return PrecisionReport(self.options.precision, self.layers, self.low, accuracy, self.computed)


@dataclass(frozen=True)
class PrecisionReport:
    """Which layers of a model are in bfloat16, float16 or TF32, and what that costs.

    Attributes:
        precision: What was asked for.
        layers: The names of the tasks of the model's layers, at all of its sizes.
        low: Those of the layers that are in this type.
        accuracy: How far the model is from the one in float32.
        computed: The names of the layers of the user's model that each of these tasks computes.
    """

    precision: str
    layers: tuple[str, ...]
    low: tuple[str, ...]
    accuracy: Accuracy
    computed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        """For example "52 of 53 layers in bfloat16; error 3.1e-03 against float32; in float32: classifier.1"."""
        return precision_in_words(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The entry `precision` of the documents of `stormdrop tune` and `compile`."""
        dtype = _dtype_of(self.precision)
        return {
            "asked": self.precision,
            "layers": len(self.layers),
            dtype: len(self.low),
            "tasks": sorted(set(self.low)),
            f"in_{dtype}": self._kernels(self.low),
            "in_float32": self._kernels(Counter(self.layers) - Counter(self.low)),
            "error": self.accuracy.error,
            "agreement": self.accuracy.agreement,
        }

    def _kernels(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """The tasks of these names, each once, with the layers of the user's model that they compute."""
        return [{"name": name, "layers": list(self.computed.get(name, ()))} for name in dict.fromkeys(names)]


def in_precision(graph: Graph, references: list[Reference], options: TuneOptions, machine: Machine) -> PrecisionChoice:
    """A model in the precision that the options ask for.

    Args:
        graph: The model in float32.
        references: What it should compute, at each size.
        options: How it is tuned. `max_error` is the error that `auto` allows.
        machine: What it is for. A warning is logged if it multiplies bfloat16 no faster than float32.

    Raises:
        InputError: The machine has no kernels for this precision.
        ModelError: The model cannot be verified in this precision: NumPy does not know one of its functions, it leaves
            the range of float16, or onnxruntime runs a part of it, which may jump with the last bits of what it reads.
    """
    if options.precision == FLOAT32:
        return PrecisionChoice(graph, references, options, graph)
    if graph.foreign.reports:
        operators = sorted({name for part in graph.foreign.reports for name in part.operators})
        raise ModelError(
            f"{graph.name}: onnxruntime runs {', '.join(operators)}: such a model cannot be verified in fewer bits; "
            "leave out --precision (precision= in Python)"
        )
    _check(options.precision, machine)
    dtype = _dtype_of(options.precision)
    if options.precision == TF32:
        assert isinstance(machine, Gpu)
        chosen = with_tf32(graph, machine)
    else:
        chosen = in_mixed_precision(graph, dtype=dtype)
    if options.precision == AUTO:
        chosen = _most_expensive(graph, references[0], chosen, _allowed(options))
    if options.precision == FP16 and chosen.low and not math.isfinite(expected_error(chosen.graph, references[0])):
        raise ModelError(f"{graph.name}: in float16 it exceeds the largest number, 65,504; take --precision {BF16}")
    names = {task.index: task.name for task in graph.tasks}
    low = with_attention(chosen.graph if chosen.low else graph, machine, options, lowered=True)
    pairs = zip(low.sizes, references, strict=True)
    return PrecisionChoice(
        low,
        [mixed_reference(size, reference, dtype) for size, reference in pairs] if chosen.low else references,
        options,
        graph,
        tuple(names[index] for index in chosen.layers),
        tuple(names[index] for index in chosen.low),
        {task.name: task.layers for task in graph.tasks if task.index in chosen.layers},
    )


def _dtype_of(precision: str) -> str:
    """The type of factors that a precision stands for."""
    return {FP16: FLOAT16, TF32: TF32}.get(precision, BFLOAT16)


def _check(precision: str, machine: Machine) -> None:
    """Refuses a precision for which a machine has no kernels, and warns if they multiply no faster than in float32."""
    tensor_cores = isinstance(machine, Gpu) and machine.asynchronous_copies
    if precision == TF32:
        if not tensor_cores:
            raise InputError(f"precision {TF32} is for NVIDIA's GPUs since sm_80, not {machine.name}; take {FLOAT32}")
        return
    if precision == FP16:
        if machine.device != CUDA:
            raise InputError(f"precision {FP16} is for NVIDIA's GPUs (--target cuda), not {machine.name}; take {BF16}")
        return
    if not isinstance(machine, Cpu):
        if not tensor_cores:
            _logger.warning(
                "kernels for %s multiply bfloat16 no faster than float32: they move half of the bytes", machine.name
            )
    elif not multiplies_bfloat16(machine):
        _logger.warning(
            "%s has no fast unit for bfloat16 (stormdrop doctor): the model will be smaller, but hardly faster",
            machine.name,
        )


def _allowed(options: TuneOptions) -> float:
    """The error that `auto` may make of a model."""
    return MAX_ERROR if options.max_error is None else options.max_error


def _most_expensive(graph: Graph, reference: Reference, everything: MixedPrecision, allowed: float) -> MixedPrecision:
    """The model with its most expensive layers in bfloat16, as many as the error allows.

    Args:
        graph: The model in float32.
        reference: What it should compute at its first size.
        everything: The model with all layers in bfloat16 that can be.
        allowed: The largest error.
    """

    def fits(tried: MixedPrecision) -> bool:
        return not tried.low or expected_error(tried.graph, reference) <= allowed

    if fits(everything):
        return everything
    costs = {task.index: task.weight * _products(task) for task in graph.tasks if task.index in everything.low}
    order = sorted(costs, key=costs.__getitem__, reverse=True)
    fewest, most = 0, len(order) - 1  # so many tasks are known to be allowed, and more are known not to be
    best = in_mixed_precision(graph, everything.layers)
    while fewest < most:
        count = math.ceil((fewest + most) / 2)
        tried = in_mixed_precision(graph, set(everything.layers) - set(order[:count]))
        if fits(tried):
            fewest, best = count, tried
        else:
            most = count - 1
    return best


def _products(task: Task) -> int:
    """The multiplications of a task's contractions."""
    stages = StageGraph.parse(task.function).stages
    return sum(math.prod(axis.extent for axis in stage.axes) for stage in stages if is_contraction(stage))
