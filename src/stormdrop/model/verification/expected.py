"""What the tensors of a model should be on a few samples of inputs, and how far off they may be.

`verify` says how this is found out; it compares a compiled model with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ...errors import ModelError, UnsupportedFunction
from ..artifact.artifact import CompiledModel
from ..graph.graph import Graph
from ..graph.onnx_origin import by_standard, origin_of, rounding_of_peer
from ..graph.origin import Outputs
from ..inputs.given import HINT
from ..inputs.samples import STANDARD_NORMAL, Feeds, Sample, random_feeds, samples
from ..tensors import Array
from .arrays import (
    error_of,
    exceeds_float32,
    has_nan,
    has_numbers,
    in_layout_of,
    mean_error,
    overflows,
    varies,
)
from .exact import ExactModel, output_name
from .parts import Compared, compared_by_parts, names_of_results
from .rounding import LEVEL, LEVEL_WITHOUT_EXACT, OF_SPREAD, Rounded, float32_runs
from .tensors import LastReads

_logger = logging.getLogger(__name__)

_OF_PEER = 10.0
_MORE = 5  # samples, at most, if the outputs of the first ones hold one value
_SLOW = 3.0  # seconds: if NumPy takes longer for the first sample that can be used, it remains the only one
_SHARE = 0.05  # of the time that is left: a sample takes it here, and again when the compiled model is verified


class WrongImport(ModelError):
    """The imported graph computes something else than the model does."""


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


@dataclass(frozen=True, eq=False)
class Expected:
    """What the tensors of one sample should be, by what they are called in messages.

    Attributes:
        sample: The inputs.
        tensors: The exact tensors; without `ExactModel`, those of the peer.
        peer: The error of the peer, for the tensors that it computes.
        imported: The error of the imported graph in float64 against its origin in float64, if both are known.
        rounded: Computes the error of a tensor that rounding explains, or less if less is enough (the second argument),
            and if its mean error (the third) is not larger than rounding explains; None if nothing is exact.
        means: The mean errors of the peer's tensors, if the model jumps.
        means_of_import: Those of the imported graph in float64 against its origin in float64, if the model jumps.
        jumps: Whether the model jumps, as one that rounds to integers. Then few elements may differ, and by much.
    """

    sample: Sample
    tensors: Mapping[str, Array]
    peer: Mapping[str, float]
    rounded: Callable[[str, float, float], float] | None
    imported: Mapping[str, float] = field(default_factory=dict)
    means: Mapping[str, float] = field(default_factory=dict)
    means_of_import: Mapping[str, float] = field(default_factory=dict)
    jumps: bool = False

    def allowed(self, name: str, error: float, mean: float = 0.0) -> float:
        """The error that a tensor may have. What rounding does is computed only if it matters for this error.

        Args:
            name: The tensor.
            error: The error that it has.
            mean: Its mean error, of a model that jumps; see `mean`.
        """
        allowed = LEVEL
        if mean <= _OF_PEER * self.means.get(name, 0.0):
            allowed = max(LEVEL, _OF_PEER * self.peer.get(name, 0.0))
        if self.rounded is None:
            return max(allowed, LEVEL_WITHOUT_EXACT)
        return allowed if error <= allowed else max(allowed, self.rounded(name, error, mean))

    @property
    def holds_nan(self) -> bool:
        """Whether a tensor holds NaN."""
        return any(map(has_nan, self.tensors.values()))


class Computing:
    """Computes what the tensors of a model should be on samples of inputs.

    Attributes:
        samples: The samples.
        last: What the last kernels read.
    """

    def __init__(self, graph: Graph, seed: int, given: Sequence[Feeds] = (), seconds: float | None = None) -> None:
        """Reads a graph.

        Args:
            graph: The model as it was imported.
            seed: Seeds the samples.
            given: Samples that the user gives.
            seconds: The wall seconds that are left for all that has to be done; None is no bound.
        """
        self.graph = graph
        self._slow = _SLOW if seconds is None else min(_SLOW, _SHARE * seconds)
        self.origin = origin_of(graph.source)
        self.samples, self.seed = samples(graph.inputs, self.origin.index_ranges(), seed, given), seed
        self.saturating = self.origin.before_saturation()
        self.names = [info.name for info in graph.outputs]
        self.parts = names_of_results(graph)
        try:
            self.exact: ExactModel | None = ExactModel(graph)
        except UnsupportedFunction:
            self.exact = None
        self.last = LastReads(graph, self.exact, self.saturating)

    def expected(self) -> tuple[list[Expected], str]:
        """What the tensors of each sample should be, for those samples that can be used, and who computed it.

        Raises:
            WrongImport: The imported graph computes something else than the model does.
            ModelError: The other runtime cannot run the model, or nothing could be verified.
        """
        made = [name for names in self.parts.values() for name in names]
        wanted = list(dict.fromkeys([*self.names, *self.saturating.values(), *made]))
        peers, against = self._by_origin(self.samples, wanted)
        expected: list[Expected] = []
        is_slow = False
        for position, sample in enumerate(self.samples):
            if self.exact is None and position >= len(peers):
                break
            begin = time.perf_counter()
            one = self._expected(sample, peers[position] if position < len(peers) else None)
            if one is None:
                continue
            expected.append(one)
            is_slow = len(expected) == 1 and time.perf_counter() - begin > self._slow
            if is_slow:
                break
        self._require_finite(expected, against)
        # At the border of what a function is defined for, rounding decides whether there is NaN.
        expected = [one for one in expected if not one.holds_nan] or expected
        expected += [] if is_slow else self._until_it_varies(expected, wanted)
        self._require_variation(expected)
        expected = [self._checked(one, against, is_slow) for one in expected]
        if self.exact is None:
            return expected, against
        errors = [error for one in expected for error in one.peer.values()]
        operators = dict.fromkeys(name for part in self.graph.foreign.reports for name in part.operators)
        ours = f", onnxruntime for its own parts ({', '.join(operators)})" if operators else ""
        return expected, f"NumPy in float64{ours} (error of {against}: {max(errors, default=0.0):.1e})"

    def _by_origin(self, samples: Sequence[Sample], wanted: Sequence[str]) -> tuple[list[Outputs], str]:
        """The tensors that are wanted of each sample, as the origin computes them, and who that is."""
        try:
            return self.origin.outputs([sample.feeds for sample in samples], wanted)
        except ModelError as error:
            raise ModelError(f"{error}; {HINT}") from error

    @property
    def by_parts(self) -> Callable[[CompiledModel, Feeds], Iterable[Compared]] | None:
        """Compares a model's tensors before and after the parts that onnxruntime runs; None if it has none."""
        return partial(compared_by_parts, self.exact) if self.exact and self.graph.foreign.reports else None

    def _expected(self, sample: Sample, peer: Mapping[str, Array] | None) -> Expected | None:
        """What the tensors of a sample should be; None if an output is NaN nearly everywhere or leaves float32's range.

        The peer leaves the range if it computes infinity or NaN where the exact value is finite.
        """
        if peer is not None and not all(has_numbers(peer[name]) for name in self.names):
            return None
        truth = self._truth(sample)
        if self.exact is None:
            assert peer is not None
            named = {output_name(name): peer[name] for name in self.names}
            errors = {name: error_of(named[name], right) for name, right in truth.items()}
            return Expected(sample, truth or named, errors, None)
        tensors = self.exact.tensors(sample.feeds, self.last.variables)
        if any(not has_numbers(value) or exceeds_float32(value) for value in tensors.values()):
            return None
        if peer is not None and any(overflows(peer[name], tensors[output_name(name)]) for name in self.names):
            return None
        errors, means = ({}, {}) if peer is None else self._peer_errors(peer, tensors)
        if peer is not None and self.parts and not max(errors.values(), default=0.0) <= LEVEL:
            # A part may jump: the exact model goes on from what the peer's parts have made.
            results = {part: [peer[name] for name in names] for part, names in self.parts.items()}
            after = self.exact.tensors(sample.feeds, self.last.variables, results=results)
            errors, means = self._peer_errors(peer, after)
        imported = {name: error_of(tensors[name], right) for name, right in truth.items()}
        jumps = self.exact.jumps
        of_import = {name: mean_error(tensors[name], right) for name, right in truth.items()} if jumps else {}
        rounded = Rounded(self.exact, self.last.variables, sample.feeds, tensors, float32_runs(jumps), jumps)
        return Expected(sample, tensors, errors, rounded, imported, means, of_import, jumps)

    def _truth(self, sample: Sample) -> dict[str, Array]:
        """The outputs as the origin computes them in float64; empty if it does not, or not all of them finite."""
        outputs = self.origin.exact(sample.feeds) or {}
        unusable = any(has_nan(value) or exceeds_float32(value) for value in outputs.values())
        return {} if unusable else {output_name(name): value for name, value in outputs.items()}

    def _peer_errors(
        self, peer: Mapping[str, Array], tensors: Mapping[str, Array]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """The largest and the mean error of each tensor that the peer makes."""
        made = {output_name(name): peer[name] for name in self.names}
        for output, before in self.saturating.items():
            for name in self.last.read_for(output):
                # The peer's tensor is the one that the kernel reads only if the kernel begins with it as it stands.
                is_direct = self.exact is not None and self.last.sites[name] in self.exact.direct
                value = in_layout_of(tensors[name], peer[before]) if is_direct else None
                if value is not None and value.dtype.kind == tensors[name].dtype.kind:
                    made[name] = value
        right = {**tensors, **self.last.after_saturation(made)}
        means = {name: mean_error(value, right[name]) for name, value in made.items()}
        return {name: error_of(value, right[name]) for name, value in made.items()}, means

    def _require_finite(self, expected: Sequence[Expected], against: str) -> None:
        if not expected:
            scales = ", ".join(sample.name for sample in self.samples)
            raise ModelError(
                f"{self.graph.name}: cannot be verified: its outputs hold NaN or leave the range of float32 on all "
                f"inputs that were tried ({scales}); {against} computes the same: this is in the model, its weights or "
                f"the inputs; {HINT}"
            )

    def _require_variation(self, expected: Sequence[Expected]) -> None:
        names = expected[0].tensors
        if not any(value.size for value in names.values()):
            raise ModelError(
                f"{self.graph.name}: cannot be verified: its outputs have no elements; if the size 0 of an input "
                f"stands for an open one, give the shape, as in --shape x=1x3x224x224 (shapes= in Python)"
            )
        if self.varies(expected):
            return
        if self.is_discrete(expected):
            _logger.warning(
                "%s: each output holds one value on all inputs that were tried, so a wrong kernel may not show; %s",
                self.graph.name,
                HINT,
            )
        else:
            raise ModelError(
                f"{self.graph.name}: cannot be verified: each output holds one value everywhere, so a wrong kernel "
                f"would not show; are its weights missing? (stormdrop.model.random_weights.seed_weights makes some); "
                f"or {HINT}"
            )

    def _until_it_varies(self, expected: Sequence[Expected], wanted: Sequence[str]) -> list[Expected]:
        """More samples, while each output holds one value, as the position of a maximum may."""
        more: list[Expected] = []
        inputs, ranges = self.graph.inputs, self.origin.index_ranges()
        for number in range(_MORE) if self.samples[0].drawn else ():
            if self.varies([*expected, *more]):
                break
            feeds = random_feeds(inputs, self.seed + len(self.samples) + number, ranges)
            sample = Sample(STANDARD_NORMAL, feeds, drawn=True)
            (peer, *_), _ = self._by_origin([sample], wanted)
            one = self._expected(sample, peer)
            more += [one] if one is not None and not one.holds_nan else []
        return more

    def varies(self, expected: Sequence[Expected]) -> bool:
        """Whether a tensor that the model computes, and that is compared, holds different values."""
        given = set(self.graph.mod["main"].params)
        inputs = {name for name, variable in self.last.variables.items() if variable in given}
        return any(varies([one.tensors[name] for one in expected]) for name in expected[0].tensors.keys() - inputs)

    def is_discrete(self, expected: Sequence[Expected]) -> bool:
        """Whether all outputs are integers or booleans: one value everywhere may then be what is right."""
        return all(expected[0].tensors[output_name(name)].dtype.kind in "iub" for name in self.names)

    def _checked(self, expected: Expected, against: str, is_slow: bool) -> Expected:
        """The same, without errors of the peer that are its own.

        Raises:
            WrongImport: The peer, or the origin, is further from the exact values than rounding explains.
        """
        if expected.rounded is None:
            return expected
        outputs = {output_name(name): name for name in self.names}
        of_peer = [(name, error, expected.means) for name, error in expected.peer.items()]
        of_import = [(name, error, expected.means_of_import) for name, error in expected.imported.items()]
        for name, error, means in (*of_peer, *of_import):
            mean = means.get(name, 0.0) if expected.jumps else 0.0
            if error <= LEVEL or error <= (allowed := max(LEVEL, expected.rounded(name, error, mean))):
                continue
            if name in outputs and expected.tensors[name].dtype.kind == "f":
                own = rounding_of_peer(self.origin, expected.sample.feeds, outputs[name])
                if error <= OF_SPREAD * own:
                    continue
                standard = None if is_slow else by_standard(self.origin, expected.sample.feeds, outputs[name])
                if standard is not None and (of_standard := error_of(standard, expected.tensors[name])) <= allowed:
                    expected = replace(expected, peer={**expected.peer, name: of_standard})
                    continue
                allowed = max(allowed, OF_SPREAD * own)
            fault = Fault(name, expected.sample, error, allowed)
            raise WrongImport(
                f"{self.graph.name}: the imported graph and {against} compute different results, before any kernel "
                f"was chosen: {fault}"
            )
        return expected
