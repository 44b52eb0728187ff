"""Verifies a compiled model: is what it computes as right as float32 can be?

    imported graph  --NumPy, float64-->   exact tensors
    its origin      --another runtime-->  a peer's tensors     the import is right if these are near the exact ones
    compiled model  --its own kernels-->  our tensors          the kernels are right if these are near the exact ones

The origin is an ONNX model, which onnxruntime computes, or a torch module or a Relax module (`importer/origin.py`).
torch also computes a module in float64, which shows a wrong import more sharply.

Compared are the outputs, and what the kernel that computes an output reads. The latter matters if that kernel is a
softmax: it hides errors where it saturates, and turns an error of 1e-6 in logits of 1800 into one of 1e-3. These
tensors are taken from the running model, so that they come from the very kernels that are saved.

"Near" is `LEVEL`, or more if the network itself makes more of rounding: 10 times the error of the peer, or 100 times
what rounding each tensor to float32 once does to the exact values. So a network that amplifies rounding is neither
refused nor let pass with whatever it computes: sums in bfloat16 are 65,000 times as coarse as those in float32.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ..errors import ModelError, UnsupportedFunction
from ..ir.relative_error import relative_error
from .artifact import CompiledModel
from .importer.graph import Graph
from .importer.origin import Origin
from .verification.exact import ExactModel, Site
from .verification.kernels import observed
from .verification.origins import origin_of, rounding_of_peer
from .verification.parts import Compared, compared_by_parts, names_of_results
from .verification.samples import Feeds, Sample, random_feeds, sample_feeds, samples

__all__ = ["Fault", "Feeds", "Reference", "Verification", "WrongImport", "random_feeds", "sample_feeds", "verify"]

LEVEL = 1e-4
"""An error (max|difference| / max|exact|) up to this is right. Reordered sums stay below it in deep networks; a
misplaced weight makes an error of 0.1 and more, a sum in bfloat16 of 0.002."""

LEVEL_WITHOUT_EXACT = 1e-3
"""The level if there are no exact values: both sides are rounded then, and nothing tells how much the network makes of
it."""

_OF_PEER = 10.0
_OF_ROUNDING = 100.0
_OF_SPREAD = 3.0  # two ways to round differ by as much as each of them is wrong, or by twice as much
_SLOW = 3.0  # seconds: if NumPy takes longer for the first sample, it remains the only one
_LEAST = 1e-30  # a tensor whose largest value is less: kernels take denormals for zero, and sums lose many of them
_CONSTANT = 1e-6  # values that differ by less, relative to the largest, are one value

Array = NDArray[Any]


@dataclass(frozen=True)
class Fault:
    """A tensor that differs more than rounding explains.

    Attributes:
        tensor: The tensor, in words.
        sample: The sample that shows it.
        error: Its error.
        allowed: The largest error that would have been right.
    """

    tensor: str
    sample: Sample
    error: float
    allowed: float

    def __str__(self) -> str:
        """For example "the error of output 'y' is 2.0e-03 on inputs of 0 to 255, and 1.0e-04 is allowed"."""
        return (
            f"the error of {self.tensor} is {self.error:.1e} on inputs of {self.sample.name}, and "
            f"{self.allowed:.1e} is allowed"
        )


@dataclass(frozen=True)
class Verification:
    """How exact a compiled model is.

    Attributes:
        max_error: The largest `relative_error` of a tensor that was compared.
        against: What it was compared with, in words.
        fault: The worst tensor, if one is wrong.
    """

    max_error: float
    against: str
    fault: Fault | None = None


@dataclass(frozen=True, eq=False)
class _Expected:
    """What the tensors of one sample should be, by what they are called in messages.

    Attributes:
        sample: The inputs.
        tensors: The exact tensors; without `ExactModel`, those of the peer.
        peer: The error of the peer, for the tensors that it computes.
        imported: The error of the imported graph in float64 against its origin in float64, if both are known.
        rounded: Computes the error that rounding each tensor once makes; None if nothing is exact.
    """

    sample: Sample
    tensors: Mapping[str, Array]
    peer: Mapping[str, float]
    rounded: Callable[[str], float] | None
    imported: Mapping[str, float] = field(default_factory=dict)

    def allowed(self, name: str, error: float) -> float:
        """The error that a tensor may have. What rounding does is computed only if it matters for this error."""
        allowed = max(LEVEL, _OF_PEER * self.peer.get(name, 0.0))
        if self.rounded is None:
            return max(allowed, LEVEL_WITHOUT_EXACT)
        return allowed if error <= allowed else max(allowed, _OF_ROUNDING * self.rounded(name))


@dataclass(frozen=True, eq=False)
class Reference:
    """What a model should compute on a few samples of inputs.

    Attributes:
        feeds: The inputs of the first sample.
        against: Who computed it, in words.
        expected: The tensors of each sample that can be used.
        sites: Where the compiled model's kernels read the tensors that are no outputs, by what they are called.
        by_parts: Compares a model's tensors before and after the parts that onnxruntime runs; None if it has none.
    """

    feeds: Feeds
    against: str
    expected: Sequence[_Expected]
    sites: Mapping[str, Site] = field(default_factory=dict)
    by_parts: Callable[[CompiledModel, Feeds], Iterable[Compared]] | None = None

    @classmethod
    def compute(cls, graph: Graph, seed: int = 0) -> Reference:
        """Compute the tensors of a model, and check that the import has not changed it.

        Args:
            graph: The model as it was imported.
            seed: Seeds the random inputs.

        Raises:
            WrongImport: The imported graph computes something else than the model does.
            ModelError: The other runtime cannot run the model; an output holds NaN whatever the inputs; or all outputs
                are constant, so that nothing could be verified.
        """
        return _Computing(graph, seed).reference()

    def check(self, model: CompiledModel) -> Verification:
        """Run a compiled model on the samples and compare its tensors.

        Args:
            model: The model. If its `symbols` are known, the inputs of its last kernels are compared as well.

        Returns:
            The errors. The error of a tensor is infinite if a value is finite on one side only.
        """
        largest, worst = 0.0, None
        for expected in self.expected:
            outputs, inside = observed(model, expected.sample.feeds, list(self.sites.values()))
            ours = {_output(name): value for name, value in outputs.items()}
            ours |= {name: inside[site] for name, site in self.sites.items() if site in inside}
            pairs = {name: (ours[name], right) for name, right in expected.tensors.items() if name in ours}
            errors = {name: _error(value, right) for name, (value, right) in pairs.items()}
            by_parts = self.by_parts is not None and not max(errors.values(), default=0.0) <= LEVEL
            if self.by_parts is not None and by_parts:
                compared = self.by_parts(model, expected.sample.feeds)
                errors = {name: _error(value, right) for name, value, right in compared}
            for name, error in errors.items():
                largest = max(largest, error)
                # After a part that jumps, rounding may make any error: it says nothing about what is right.
                allowed = LEVEL_WITHOUT_EXACT if by_parts else expected.allowed(name, error)
                if not error <= allowed and (worst is None or error / allowed > worst.error / worst.allowed):
                    worst = Fault(name, expected.sample, error, allowed)
        return Verification(largest, self.against, worst)


def verify(model: CompiledModel, source: onnx.ModelProto | Origin, seed: int = 0) -> Verification:
    """Compare the outputs of a compiled model with those of another runtime on standard normal inputs.

    Args:
        model: The compiled model.
        source: The model that it was made from: `Graph.source`.
        seed: Seeds the random inputs.

    Raises:
        ModelError: The other runtime cannot run the model.
    """
    origin = origin_of(source)
    feeds = random_feeds(model.inputs, seed, origin.index_ranges())
    (expected,), against = origin.outputs([feeds], [info.name for info in model.outputs])
    outputs = model.run(feeds)
    return Verification(max(_error(outputs[name], right) for name, right in expected.items()), against)


class WrongImport(ModelError):
    """The imported graph computes something else than the model does."""


class _Computing:
    """Computes a `Reference`."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph = graph
        self.origin = origin_of(graph.source)
        self.samples = samples(graph.inputs, self.origin.index_ranges(), seed)
        self.saturating = self.origin.before_saturation()
        self.names = [info.name for info in graph.outputs]
        self.parts = names_of_results(graph)
        try:
            self.exact: ExactModel | None = ExactModel(graph)
        except UnsupportedFunction:
            self.exact = None
        # What the last kernels read, by what it is called: the variable in the graph, and where it is read.
        self.inside: dict[str, tuple[Any, Site]] = {
            f"input {site.argument} of {graph.tasks[site.task].name} for output {output!r}": (
                variable,
                site,
            )
            for output, read in (self.exact.before if self.exact else {}).items()
            for variable, site in read
        }

    def reference(self) -> Reference:
        made = [name for names in self.parts.values() for name in names]
        wanted = list(dict.fromkeys([*self.names, *self.saturating.values(), *made]))
        peers, against = self.origin.outputs([sample.feeds for sample in self.samples], wanted)
        expected: list[_Expected] = []
        begin = time.perf_counter()
        for position, sample in enumerate(self.samples):
            if self.exact is None and position >= len(peers):
                break
            peer = peers[position] if position < len(peers) else None
            one = self._expected(sample, peer)
            if one is not None:
                expected.append(one)
            if position == 0 and time.perf_counter() - begin > _SLOW:
                break
        self._require_finite(expected, against)
        self._require_variation(expected)
        for one in expected:
            self._check_import(one, against)
        if self.exact is None:
            return Reference(self.samples[0].feeds, against, expected)
        errors = [error for one in expected for error in one.peer.values()]
        operators = dict.fromkeys(name for part in self.graph.foreign.reports for name in part.operators)
        ours = f", onnxruntime for its own parts ({', '.join(operators)})" if operators else ""
        text = f"NumPy in float64{ours} (error of {against}: {max(errors, default=0.0):.1e})"
        sites = {name: site for name, (_, site) in self.inside.items()}
        by_parts = partial(compared_by_parts, self.exact) if self.graph.foreign.reports else None
        return Reference(self.samples[0].feeds, text, expected, sites, by_parts)

    def _expected(self, sample: Sample, peer: Mapping[str, Array] | None) -> _Expected | None:
        """What the tensors of a sample should be; None if the model computes NaN for it, or leaves float32's range.

        The peer leaves the range if it computes infinity where the exact value is finite.
        """
        if peer is not None and any(_has_nan(peer[name]) for name in self.names):
            return None
        truth = self._truth(sample)
        if self.exact is None:
            assert peer is not None
            named = {_output(name): peer[name] for name in self.names}
            errors = {name: _error(named[name], right) for name, right in truth.items()}
            return _Expected(sample, truth or named, errors, None)
        keep = [variable for variable, _ in self.inside.values()]
        tensors = self._named(*self.exact.run(sample.feeds, keep))
        unknown = peer is None and any(_has_nan(value) for value in tensors.values())
        if unknown or any(_exceeds_float32(value) for value in tensors.values()):
            return None
        if peer is not None and any(_overflows(peer[name], tensors[_output(name)]) for name in self.names):
            return None
        errors = {} if peer is None else self._peer_errors(peer, tensors)
        if peer is not None and self.parts and not max(errors.values(), default=0.0) <= LEVEL:
            # A part may jump: the exact model goes on from what the peer's parts have made.
            results = {part: [peer[name] for name in names] for part, names in self.parts.items()}
            errors = self._peer_errors(peer, self._named(*self.exact.run(sample.feeds, keep, results=results)))
        imported = {name: _error(tensors[name], right) for name, right in truth.items()}
        return _Expected(sample, tensors, errors, _Rounded(self, sample, tensors), imported)

    def _truth(self, sample: Sample) -> dict[str, Array]:
        """The outputs as the origin computes them in float64; empty if it does not, or not all of them finite."""
        outputs = self.origin.exact(sample.feeds) or {}
        unusable = any(_has_nan(value) or _exceeds_float32(value) for value in outputs.values())
        return {} if unusable else {_output(name): value for name, value in outputs.items()}

    def _named(self, outputs: Mapping[str, Array], kept: Mapping[Any, Array]) -> dict[str, Array]:
        inside = {name: kept[variable] for name, (variable, _) in self.inside.items() if variable in kept}
        return {**{_output(name): value for name, value in outputs.items()}, **inside}

    def _peer_errors(self, peer: Mapping[str, Array], tensors: Mapping[str, Array]) -> dict[str, float]:
        errors = {_output(name): _error(peer[name], tensors[_output(name)]) for name in self.names}
        for output, before in self.saturating.items():
            for name, (_, site) in self.inside.items():
                read = self.exact.before[output] if self.exact else []
                value = _in_layout_of(tensors[name], peer[before]) if site in [other for _, other in read] else None
                if value is not None:
                    errors[name] = _error(value, tensors[name])
        return errors

    def _require_finite(self, expected: Sequence[_Expected], against: str) -> None:
        if not expected:
            scales = ", ".join(sample.name for sample in self.samples)
            raise ModelError(
                f"{self.graph.name}: cannot be verified: its outputs hold NaN or leave the range of float32 on all "
                f"inputs that were tried ({scales}); {against} computes the same: this is in the model or its weights"
            )

    def _require_variation(self, expected: Sequence[_Expected]) -> None:
        names = expected[0].tensors
        if not any(value.size for value in names.values()):
            raise ModelError(
                f"{self.graph.name}: cannot be verified: its outputs have no elements; if the size 0 of an input "
                f"stands for an open one, give the shape, as in --shape x=1x3x224x224 (shapes= in Python)"
            )
        if not any(_varies([one.tensors[name] for one in expected]) for name in names):
            raise ModelError(
                f"{self.graph.name}: cannot be verified: each output holds one value everywhere, so a wrong kernel "
                f"would not show; are its weights missing? (stormdrop.model.random_weights.seed_weights makes some)"
            )

    def _check_import(self, expected: _Expected, against: str) -> None:
        """Raise `ModelError` if the peer, or the origin, is further from the exact values than rounding explains."""
        if expected.rounded is None:
            return
        for name, error in (*expected.peer.items(), *expected.imported.items()):
            if error <= LEVEL or error <= (allowed := max(LEVEL, _OF_ROUNDING * expected.rounded(name))):
                continue
            for output in self.names if expected.tensors[name].dtype.kind == "f" else ():
                if name == _output(output):
                    allowed = max(allowed, _OF_SPREAD * rounding_of_peer(self.origin, expected.sample.feeds, output))
            if not error <= allowed:
                fault = Fault(name, expected.sample, error, allowed)
                raise WrongImport(
                    f"{self.graph.name}: the imported graph and {against} compute different results, before any kernel "
                    f"was chosen: {fault}"
                )


class _Rounded:
    """The error of each tensor of a sample if every tensor is rounded to float32 once; computed at the first call."""

    def __init__(self, computing: _Computing, sample: Sample, tensors: Mapping[str, Array]) -> None:
        self._computing, self._sample, self._tensors = computing, sample, tensors
        self._errors: dict[str, float] | None = None

    def __call__(self, name: str) -> float:
        if self._errors is None:
            computing = self._computing
            assert computing.exact is not None
            keep = [variable for variable, _ in computing.inside.values()]
            rounded = computing._named(*computing.exact.run(self._sample.feeds, keep, rounded=True))
            self._errors = {key: _error(rounded[key], right) for key, right in self._tensors.items()}
        return self._errors[name]


def _output(name: str) -> str:
    return f"output {name!r}"


def _error(value: Array, right: Array) -> float:
    """The `relative_error` of numbers; of integers and booleans, which may be positions, the share that differs."""
    if right.dtype.kind in "iub" and value.shape == right.shape:
        return float(np.mean(value != right)) if right.size else 0.0
    return relative_error(value, right, _LEAST)


def _overflows(value: Array, exact: Array) -> bool:
    """Whether a value is infinite somewhere where the exact one is not."""
    if np.size(value) != exact.size:
        return False  # of a part that onnxruntime runs, whose shape depends on data
    return bool((np.isinf(value) & np.isfinite(exact).reshape(np.shape(value))).any())


def _has_nan(value: Array) -> bool:
    return value.dtype.kind == "f" and bool(np.isnan(value).any())


def _exceeds_float32(value: Array) -> bool:
    """Whether a value is finite in float64 and would not be so in float32."""
    finite = np.abs(value[np.isfinite(value)]) if value.dtype.kind == "f" else np.zeros(0)
    return float(finite.max(initial=0.0)) >= float(np.finfo(np.float32).max)


def _varies(values: Sequence[Array]) -> bool:
    """Whether a tensor holds different values in one sample; or, if it is a single value, over the samples."""
    parts = values if values[0].size > 1 else [np.concatenate([np.ravel(value) for value in values])]
    for part in parts:
        finite = np.asarray(part[np.isfinite(part)], np.float64) if part.dtype.kind == "f" else part.astype(np.float64)
        if finite.size and np.ptp(finite) > _CONSTANT * np.abs(finite).max():
            return True
    return False


def _in_layout_of(like: Array, value: Array) -> Array | None:
    """A peer's tensor in the shape of ours: equal, without axes of one element, or channels-last; None otherwise."""
    if value.shape == like.shape:
        return value
    if np.squeeze(value).shape == np.squeeze(like).shape:
        return value.reshape(like.shape)
    moved = np.moveaxis(value, 1, -1) if value.ndim == like.ndim > 2 else value
    return moved if moved.shape == like.shape else None
