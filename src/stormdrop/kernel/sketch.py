"""The contract of a sketch: a family of schedules of one function, spanned by a space of knobs.

A sketch is found by name in a registry; `sketches_for` lists those that apply to a workload on a target, best
first. Applying one to a configuration gives a `Variant`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from ..space import Space
    from .target import Target
    from .workload import Workload


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
class Sketch(Protocol):
    """A family of schedules.

    Stateless: the same workload, target and configuration give the same variant, in any process.
    """

    name: ClassVar[str]

    def space(self, workload: Workload, target: Target) -> Space | None:
        """The space of this sketch for a workload, named after the sketch, or None where it does not apply.

        Every point in it schedules; its `origin` is the schedule that an untuned compile would take.
        """

    def apply(self, workload: Workload, target: Target, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration. Raises `UnsupportedFunction` where `space` is None."""


def revision(*modules: str) -> str:
    """A digest of the code of some modules, comments and layout aside: it enters a space's fingerprint.

    A sketch whose code changed may give another schedule for the same configuration, so its old records do not
    count for it any more.
    """
    digest = hashlib.sha256()
    for module in modules:
        source = inspect.getsource(importlib.import_module(module))
        digest.update(ast.dump(ast.parse(source)).encode())
    return digest.hexdigest()[:16]
