"""Verifies a compiled model: is what it computes as right as float32 can be?

    imported graph  --NumPy, float64-->   exact tensors
    its origin      --another runtime-->  a peer's tensors     the import is right if these are near the exact ones
    compiled model  --its own kernels-->  our tensors          the kernels are right if these are near the exact ones

The origin is an ONNX model, which onnxruntime computes, or a torch module or a Relax module (`Origin`).
torch also computes a module in float64, which shows a wrong import more sharply.

Compared are the outputs, and what the kernel that computes an output reads. The latter matters if that kernel is a
softmax: it hides errors where it saturates, and turns an error of 1e-6 in logits of 1800 into one of 1e-3. These
tensors are taken from the running model, so that they come from the very kernels that are saved.

"Near" is `LEVEL`, or more if the network itself makes more of rounding: 10 times the error of the peer, 100 times what
rounding each tensor to float32 once does to the exact values, or 3 times what the noise of long sums does. So a network
that amplifies rounding is neither refused nor let pass with whatever it computes: sums in bfloat16 are 65,000 times as
coarse as those in float32.

A model that rounds to integers, as a quantised one does, may differ by a whole step at a tie: see `float32_runs` of
`verification/rounding.py`. Then the mean error has a bound, too, so that few elements differ, and each kernel has to be
right by itself, on what it reads while the model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from ..artifact.artifact import CompiledModel
from ..graph.graph import Graph
from ..inputs.samples import Feeds
from ..program.memory import release_pages
from .arrays import error_of, mean_error
from .exact import Site, output_name
from .expected import Computing, Expected, Fault
from .kernels import errors_by_name, observed
from .parts import Compared
from .rounding import LEVEL


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
class Reference:
    """What a model should compute on a few samples of inputs.

    Attributes:
        feeds: The inputs of the first sample.
        against: Who computed it, in words.
        expected: The tensors of each sample that can be used.
        sites: Where the compiled model's kernels read the tensors that are no outputs, by what they are called.
        by_parts: Compares a model's tensors before and after the parts that onnxruntime runs; None if it has none.
        kernels: Finds the error of each kernel by itself, on what it reads while the model runs on a sample, by its
            name; None if the outputs are enough.
        always_kernels: Whether `kernels` is asked even if all tensors are near the exact ones.
        given: The samples that the user gave.
        varies: Whether a tensor that is compared holds different values; otherwise only `kernels` can tell a fault.
        after_saturation: What outputs behind a softmax should be, given what its kernel reads; see `LastReads`.
    """

    feeds: Feeds
    against: str
    expected: Sequence[Expected]
    sites: Mapping[str, Site] = field(default_factory=dict)
    by_parts: Callable[[CompiledModel, Feeds], Iterable[Compared]] | None = None
    kernels: Callable[[CompiledModel, Feeds], Mapping[str, float]] | None = None
    given: Sequence[Feeds] = ()
    always_kernels: bool = False
    varies: bool = True
    after_saturation: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]] = lambda _: {}

    @classmethod
    def compute(
        cls, graph: Graph, seed: int = 0, given: Sequence[Feeds] = (), seconds: float | None = None
    ) -> Reference:
        """Computes the tensors of a model, and checks that the import has not changed it.

        Args:
            graph: The model as it was imported.
            seed: Seeds the random inputs.
            given: Samples that the user gives, in place of random inputs.
            seconds: The wall seconds that are left for all that has to be done, of which each sample but the first may
                take a small share; None is no bound.

        Raises:
            WrongImport: The imported graph computes something else than the model does.
            ModelError: The other runtime cannot run the model; an output holds NaN whatever the inputs; or all outputs
                are constant, so that nothing could be verified.
        """
        computing = Computing(graph, seed, given, seconds)
        expected, against = computing.expected()
        release_pages()
        varies = computing.varies(expected)
        return cls(
            feeds=computing.samples[0].feeds,
            against=against,
            expected=expected,
            sites=computing.last.sites,
            by_parts=computing.by_parts,
            kernels=partial(errors_by_name, graph, every=not varies) if not varies or expected[0].jumps else None,
            given=given,
            varies=varies,
            after_saturation=computing.last.after_saturation,
        )

    def check(self, model: CompiledModel) -> Verification:
        """Runs a compiled model on the samples and compares its tensors.

        Args:
            model: The model. If its `symbols` are known, the inputs of its last kernels are compared as well.

        Returns:
            The errors. The error of a tensor is infinite if a value is finite on one side only.

        Raises:
            ModelError: No tensor varies, and a kernel cannot be compared by itself.
        """
        largest, worst = 0.0, None
        for expected in self.expected:
            outputs, inside = observed(model, expected.sample.feeds, list(self.sites.values()))
            ours = {output_name(name): value for name, value in outputs.items()}
            ours |= {name: inside[site] for name, site in self.sites.items() if site in inside}
            tensors = {**expected.tensors, **self.after_saturation(ours)}
            compared = [
                Compared(name, ours[name], right, expected.allowed) for name, right in tensors.items() if name in ours
            ]
            errors = [error_of(each.ours, each.right) for each in compared]
            if self.by_parts is not None and not max(errors, default=0.0) <= LEVEL:
                # After a part that jumps, rounding may make any error: it says nothing about what is right.
                compared = list(self.by_parts(model, expected.sample.feeds))
                errors = [error_of(each.ours, each.right) for each in compared]
            for each, error in zip(compared, errors, strict=True):
                largest = max(largest, error)
                mean = mean_error(each.ours, each.right) if expected.jumps else 0.0
                allowed = each.allowed(each.name, error, mean)
                if not error <= allowed and (worst is None or error / allowed > worst.error / worst.allowed):
                    worst = Fault(each.name, expected.sample, error, allowed)
        if worst is None and (self.always_kernels or not self.varies or not largest <= LEVEL):
            worst = self._worst_kernel(model)
        return Verification(largest, self.against, worst)

    def _worst_kernel(self, model: CompiledModel) -> Fault | None:
        """The kernel with the largest error by itself, if one is wrong.

        If tensors tell something, the first sample is enough. A kernel that takes the remainder of a sum makes more of
        rounding by itself the larger the numbers are, and those of the first sample are not large.
        """
        if self.kernels is None:
            return None
        worst = None
        for expected in self.expected[:1] if self.varies else self.expected:
            for name, error in self.kernels(model, expected.sample.feeds).items():
                if not error <= LEVEL and (worst is None or error > worst.error):
                    worst = Fault(f"kernel {name} on what it reads", expected.sample, error, LEVEL)
        return worst
