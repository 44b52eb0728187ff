"""The contract of a sketch: a family of schedules of a function, spanned by a space of knobs.

Sketch       gives the space for a workload, and the schedule at each configuration
Variant      one schedule
Estimator    a sketch that can also predict costs
Described    a sketch that can also compute features for a cost model
Bounded      a sketch that knows how much faster than a plain sum it may be
Yielding     a sketch that is of no use beside another one

`registry.sketches_for` lists the sketches that apply to a workload on a target, with the default first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..machine.contract import M

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from ..ir.workload import Workload
    from ..space import Space


@dataclass(frozen=True, repr=False)
class Variant:
    """One schedule of a function.

    Attributes:
        main: The scheduled function. It takes the workload's parameters in order. For each constant input `i` in
            `transforms` it takes the output of `transforms[i]` in place of the input.
        transforms: Maps the position of a constant input to the unscheduled function that packs it. Transforms run
            once, outside the timing; those of a model run when it is compiled.
        plain: Makes the same schedule with plain loops in place of instructions that only its target has, to check it
            elsewhere; None if `main` has no such instructions.
    """

    main: PrimFunc
    transforms: Mapping[int, PrimFunc] = field(default_factory=dict)
    plain: Callable[[], PrimFunc] | None = field(default=None, repr=False, compare=False)

    @property
    def anywhere(self) -> PrimFunc:
        """The scheduled function without instructions that only its target has."""
        return self.main if self.plain is None else self.plain()

    def arguments(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The workload's inputs as `main` takes them. NumPy lays out the constants."""
        from ..ir.reference import evaluate

        arrays = list(inputs)
        for position, transform in self.transforms.items():
            arrays[position] = evaluate(transform, [arrays[position]])[0]
        return arrays

    def __repr__(self) -> str:
        """One line. `print(variant.main)` shows the scheduled function."""
        prepared = ", ".join(map(str, sorted(self.transforms)))
        inputs = f"; inputs that are laid out ahead of time: {prepared}" if prepared else ""
        return f"Variant of {len(self.main.params)} parameters{inputs}"


@runtime_checkable
class Sketch(Protocol[M]):
    """A family of schedules for one kind of machine `M`: CPUs (`Cpu`) or GPUs (`Gpu`).

    A sketch is hashable and without state: the same workload, target and configuration give the same variant in any
    process.
    """

    @property
    def name(self) -> str:
        """The name under which measurements are recorded."""

    @property
    def max_error(self) -> float:
        """How far its schedules may differ from the reference: max|difference| / max|reference|.

        It is 0 for a sketch that only reorders, and more for one that computes in another way, such as Winograd's.
        """

    def __hash__(self) -> int: ...

    def space(self, workload: Workload, target: M) -> Space | None:
        """The space of this sketch for a workload.

        Args:
            workload: The function to schedule.
            target: The machine to schedule it for.

        Returns:
            A space that is named after the sketch. Every point in it can be scheduled, and its `origin` is the schedule
            of an untuned compile. None if the sketch does not apply.
        """

    def apply(self, workload: Workload, target: M, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration.

        Args:
            workload: The function to schedule.
            target: The machine to schedule it for.
            config: A value for each knob of the space.

        Raises:
            UnsupportedFunction: The sketch does not apply to the workload.
        """


AnySketch = Sketch[Any]
"""A sketch for any kind of machine, for code that treats all kinds alike."""


@runtime_checkable
class Estimator(Protocol[M]):
    """A sketch that predicts what its schedules cost."""

    def estimate(self, workload: Workload, target: M, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Expected cycles of n configurations, or seconds on a GPU.

        Only their order matters, and their ratio to those of other sketches for this kind of machine.

        Args:
            workload: The function to schedule.
            target: The machine to schedule it for.
            knobs: n values of each knob.

        Returns:
            Shape `(n,)`.
        """


@runtime_checkable
class Described(Protocol[M]):
    """A sketch that computes features of its schedules, on which their speed depends."""

    def features(self, workload: Workload, target: M, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The features of n configurations.

        Args:
            workload: The function to schedule.
            target: The machine to schedule it for.
            knobs: n values of each knob.

        Returns:
            Shape `(n, d)`.
        """


@runtime_checkable
class Stated(Protocol[M]):
    """A sketch that knows Ansor's features of its schedules' statements without making the schedules."""

    def statements(
        self, workload: Workload, target: M, knobs: Mapping[str, NDArray[Any]]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
        """The features of n configurations, equal to those that TVM extracts (`statement_features.py`).

        Args:
            workload: The function to schedule.
            target: The machine to schedule it for.
            knobs: n values of each knob.

        Returns:
            Shape `(n, stores, 164)`, and in which rows they are known, shape `(n,)`; None if they are in none.
        """


@runtime_checkable
class Bounded(Protocol[M]):
    """A sketch that knows how much faster than a plain sum it may be, because it computes in another way."""

    def speedup_bound(self, workload: Workload, target: M) -> float:
        """The most operations of the workload that its schedules do while lanes of float32 do one.

        If the bound is too low, the scheduler stops too early. If it is too high, that only costs time.

        Args:
            workload: The function to schedule.
            target: The machine to schedule it for.
        """


@runtime_checkable
class Yielding(Protocol[M]):
    """A sketch that another one may make superfluous, because that one does the same and more."""

    def yields(self, workload: Workload, target: M) -> bool:
        """Whether it is left out if a sketch before it applies.

        Args:
            workload: The function to schedule.
            target: The machine to schedule it for.
        """
