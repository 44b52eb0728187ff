"""How far off the tensors of a model may be because of rounding: the worst of a few executions that round.

`expected` says what the tensors should be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ...ir.reference import NEAR_A_TIE
from ..inputs.samples import Feeds
from ..tensors import Array
from .arrays import error_of, mean_error
from .exact import ExactModel

LEVEL = 1e-4
"""An error (max|difference| / max|exact|) up to this is right. Reordered sums stay below it in deep networks; a
misplaced weight makes an error of 0.1 and more, a sum in bfloat16 of 0.002."""

LEVEL_WITHOUT_EXACT = 1e-3
"""The level if there are no exact values: both sides are rounded then, and nothing tells how much the network makes of
it."""

OF_SPREAD = 3.0
"""Two ways to round differ by as much as each of them is wrong, or by twice as much."""

_OF_ROUNDING = 100.0
_DRAWS = 4  # of noise


class Rounded:
    """The error of each tensor of a sample that rounding explains.

    It is the largest error of a few executions of the model by NumPy that round, each multiplied by a factor. An
    execution is done only if the errors so far do not explain the one that is asked for. If the model jumps, the
    largest error says little: a number below an integer and one above it differ by a whole step. So the mean error of
    the executions is a bound, too.

    Args:
        exact: The model.
        variables: Variables whose values are tensors beside the outputs, by what they are called.
        feeds: The inputs by name.
        tensors: The exact tensors.
        runs: For each execution the factor, and the arguments of `ExactModel.run` that make it round.
        jumps: Whether the model jumps.
    """

    def __init__(
        self,
        exact: ExactModel,
        variables: Mapping[str, Any],
        feeds: Feeds,
        tensors: Mapping[str, Array],
        runs: Iterable[tuple[float, Mapping[str, Any]]],
        jumps: bool = False,
    ) -> None:
        self._exact, self._variables, self._feeds, self._tensors = exact, variables, feeds, tensors
        self._errors = dict.fromkeys(tensors, 0.0)
        self._means = dict.fromkeys(tensors, 0.0)
        self._runs, self._jumps = iter(runs), jumps

    def __call__(self, name: str, enough: float, mean: float = 0.0) -> float:
        """The error of a tensor that rounding explains, or less if less is enough.

        Args:
            name: The tensor.
            enough: The error that is to be explained.
            mean: The mean error. If rounding does not explain it, it explains no error.
        """

        def explained() -> bool:
            return self._errors[name] >= enough and self._means[name] >= mean

        while not explained() and (run := next(self._runs, None)) is not None:
            factor, arguments = run
            values = self._exact.tensors(self._feeds, self._variables, **arguments)
            for key, right in self._tensors.items():
                error = error_of(values[key], right)
                # Noise that leaves the range of numbers explains nothing.
                if np.isfinite(error) or "noise" not in arguments:
                    self._errors[key] = max(self._errors[key], factor * error)
                    if self._jumps:
                        self._means[key] = max(self._means[key], factor * mean_error(values[key], right))
        return self._errors[name] if self._means[name] >= mean else 0.0


def float32_runs(jumps: bool) -> Iterator[tuple[float, dict[str, Any]]]:
    """The executions that show how much a model in float32 makes of rounding, as `Rounded` takes them.

    The error is 100 times what rounding each tensor once does, or 3 times what noise does that is as large as the error
    of a long sum. Noise does more if a network jumps: a gate whose sigmoid takes logits of 100,000 opens or closes with
    the last bits of its input. A model that rounds numbers to integers, as a quantised one does, may jump by a whole
    step where a number lies between two integers, and all that follows with it. There it is 3 times what rounding does,
    or what happens if each of these numbers is moved up or down a little. If such a network is deep or recurrent, two
    ways to round go apart step by step: therefore it is rounded with noise, too, as one in bfloat16 is.
    """
    if jumps:
        yield OF_SPREAD, {"rounded": True}
        yield OF_SPREAD, {"nudge": NEAR_A_TIE}
        yield OF_SPREAD, {"nudge": -NEAR_A_TIE}
        for noise in draws():
            yield OF_SPREAD, {"rounded": True, "noise": noise}
        return
    yield _OF_ROUNDING, {"rounded": True}
    for noise in draws():
        yield OF_SPREAD, {"noise": noise}


def draws() -> Iterator[np.random.Generator]:
    """Generators of noise; several, because the direction of the noise decides what it does to a few numbers."""
    return map(np.random.default_rng, range(_DRAWS))
