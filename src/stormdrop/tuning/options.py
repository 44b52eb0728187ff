"""How something is tuned: the options that kernels, models, callables and the command line share."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

from ..errors import InputError, OptionError, quoted
from .duration import seconds_of

if TYPE_CHECKING:
    from ..sketches.contract import AnySketch

FLOAT32, BF16, FP16, TF32, AUTO = "float32", "bf16", "fp16", "tf32", "auto"
PRECISIONS = (FLOAT32, BF16, FP16, TF32, AUTO)
"""What a model may compute in; see `model.precision.choice`."""

DEFAULT_SEARCH = "storm"
"""The search that is used if none is named."""

DEFAULT_SECONDS = 60.0
"""Wall time of a tuning that is given neither trials nor time."""

DEFAULT_MODEL_SECONDS = 600.0
"""Wall time of a model's tuning that is given neither trials nor time."""


@dataclass(frozen=True)
class TuneOptions:
    """The options of a tuning.

    Args:
        search: The name of the search.
        search_options: Options of that search, by name.
        trials: The most distinct candidates to measure; None is no bound.
        seconds: The most wall seconds, with everything in them; None is no bound.
        seed: The seed of everything that is random.
        resume: Continue the latest unfinished session of the same problem and setting, if there is one.
        fresh: Ignore all records.
        max_error: How far the results of a schedule may be from the reference, max|difference| / max|reference|; None
            is `sketches.registry.MAX_ERROR`. With 0 every schedule only reorders.
        sketches: The sketches to search, or the name of a source of sketches; None is the built-in ones.
        features: What cost models see of a schedule; see `sketches.knowledge.FEATURES`.
        precision: What a model computes in, one of `PRECISIONS`. With "auto", `max_error` is that of the model.
        transfer: Begin where records of other machines, and of other shapes of the operator, say (`tuning.transfer`).

    Raises:
        InputError: A number is out of its range, or two options contradict each other.
    """

    search: str = DEFAULT_SEARCH
    search_options: Mapping[str, Any] = field(default_factory=dict)
    trials: int | None = None
    seconds: float | None = None
    seed: int = 0
    resume: bool = False
    fresh: bool = False
    max_error: float | None = None
    sketches: Sequence[AnySketch] | str | None = None
    features: str = "knobs"
    precision: str = FLOAT32
    transfer: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.search, str):
            raise InputError(f"search={quoted(self.search)} must be the name of a search")
        if self.trials is not None:
            object.__setattr__(self, "trials", whole_number("trials", self.trials, 1))
        object.__setattr__(self, "seed", whole_number("seed", self.seed, 0))
        if self.resume and self.fresh:
            rule = "{resume} and {fresh} exclude each other: continue a session, or tune as if nothing were known"
            raise OptionError(rule, {"resume": True, "fresh": True})
        if self.precision not in PRECISIONS:
            raise InputError(
                f"precision {quoted(self.precision)}: must be {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}"
            )
        max_error: Any = self.max_error
        if max_error is not None and not (isinstance(max_error, Real) and 0 <= float(max_error) < 1):
            raise OptionError("{max_error} must be from 0 to less than 1", {"max_error": max_error})

    @classmethod
    def of(
        cls, *, time: float | str | None = None, options: Mapping[str, Any] | None = None, **others: Any
    ) -> TuneOptions:
        """The options as the public functions take them: `time` in seconds or as people write it ("3m")."""
        if options is not None and not (isinstance(options, Mapping) and all(isinstance(o, str) for o in options)):
            raise InputError(f"options={quoted(options)} must be the values of a search's options by name")
        return cls(seconds=seconds_of(time), search_options=dict(options or {}), **others)

    def budget(self, default: float) -> float | None:
        """The wall seconds that are granted; `default` if neither trials nor time are bounded."""
        return default if self.trials is None and self.seconds is None else self.seconds


def whole_number(name: str, value: Any, least: int) -> int:
    """The value of an option that is a whole number, for instance NumPy's, as Python's.

    Args:
        name: The name of the option.
        value: Its value.
        least: The smallest number that it may be.

    Raises:
        OptionError: It is no whole number, or too small.
    """
    try:
        number = int(operator.index(value))
    except TypeError:
        raise OptionError(f"{{{name}}} must be a whole number", {name: value}) from None
    if number < least:
        raise OptionError(f"{{{name}}} must be {least} or more", {name: number})
    return number
