"""The contract of a sketch: a family of schedules of one function, spanned by a space of knobs.

A sketch is found by name in a registry; `sketches_for` lists those that apply to a workload on a target, best
first. Applying one to a configuration gives a `Variant`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..machine.contract import M

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from ..ir.workload import Workload
    from ..space import Space


@dataclass(frozen=True)
class Variant:
    """One schedule of a function.

    `main` takes the workload's parameters in order, except that each constant input `i` in `transforms` is
    replaced by the output of `transforms[i]`, an unscheduled function of one input and one output (packing of
    a weight). Transforms run once, outside the timing; a model folds them at compile time.
    """

    main: PrimFunc
    transforms: Mapping[int, PrimFunc] = field(default_factory=dict)


@runtime_checkable
class Sketch(Protocol[M]):
    """A family of schedules.

    A sketch is for one kind of machine `M`: a CPU (`Target`) or a GPU (`Gpu`). It is hashable and without
    state: the same workload, target and configuration give the same variant, in any process. `max_error` is what its
    schedules may differ from the reference (max|difference| / max|reference|) because they compute in another way,
    such as Winograd's; 0 if they only reorder.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_error(self) -> float: ...

    def __hash__(self) -> int: ...

    def space(self, workload: Workload, target: M) -> Space | None:
        """The space of this sketch for a workload, named after the sketch, or None where it does not apply.

        Every point in it schedules; its `origin` is the schedule that an untuned compile would take.
        """

    def apply(self, workload: Workload, target: M, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration. Raises `UnsupportedFunction` where `space` is None."""


AnySketch = Sketch[Any]
"""A sketch for whatever kind of machine: where sketches for several are handled alike."""


@runtime_checkable
class Estimator(Protocol[M]):
    """A sketch that knows what to expect of its schedules before any is measured."""

    def estimate(self, workload: Workload, target: M, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Expected cycles, shape `(n,)`, of n configurations given as n values of each knob.

        All that matters is their order, and between sketches of the same function their ratio.
        """


@runtime_checkable
class Described(Protocol[M]):
    """A sketch that says of its schedules what their speed depends on."""

    def features(self, workload: Workload, target: M, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Shape `(n, d)`, of n configurations given as n values of each knob."""
