"""Templates: sketches that users write as one function of a schedule, declaring knobs as it goes.

    @sd.template
    def blocked(schedule, knobs):
        block = knobs.reduction()
        i, j, k = schedule.get_loops(block)
        i0, i1 = schedule.split(i, knobs.tile("i", i, 2))
        ...

The function runs once with every knob at its default, which tells the space and its origin; then once per
configuration. docs/how-to/write-a-schedule.md says how to write one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NoReturn

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import IndexMap, PrimFunc

from ..errors import SpaceError, UnsupportedFunction
from ..ir.expressions import walk
from ..ir.stages import Axis, Stage, StageGraph, intermediate, shape_of, variable
from ..ir.workload import Workload
from ..machine.cpu import Target
from ..space import Categorical, Constraint, Knob, Ordinal, Space, Split, Tile
from ..space.knob import Value
from .contract import Variant

Schedules = Callable[[Schedule, "Knobs"], object]


def template(function: Schedules) -> Template:
    """Makes a sketch of a function of a schedule and its knobs, named after the function."""
    return Template(getattr(function, "__name__", type(function).__name__), function)


@dataclass(frozen=True, eq=False)
class Template:
    """A `Sketch` written as a function; see the module."""

    name: str
    function: Schedules
    max_error: ClassVar[float] = 0.0

    def __call__(self, schedule: Schedule, knobs: Knobs) -> None:
        """Runs the function: a template can be a step of another one."""
        self.function(schedule, knobs)

    def space(self, workload: Workload, target: Target) -> Space | None:
        """The declared knobs, with their defaults as origin; None where the function says `knobs.unsupported`.

        Raises `SpaceError` where the defaults do not satisfy the requirements, and what the function raises.
        """
        try:
            return _space(self, workload, target)
        except UnsupportedFunction:
            return None

    def apply(self, workload: Workload, target: Target, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration. Raises `SpaceError` where the knobs differ from those of the defaults."""
        space = _space(self, workload, target)
        values = space.config(space.point(config))
        knobs = Knobs(self.name, workload, target, values)
        self.function(knobs.schedule, knobs)
        if set(knobs.declared) != set(values):
            raise knobs.changed(f"{', '.join(sorted(set(values) - set(knobs.declared)))} missing")
        for knob in space.knobs:
            if knobs.declared[knob.name] != knob:
                raise knobs.changed(f"{knobs.declared[knob.name]}, not {knob}")
        return knobs.variant()

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker cannot import the script or the prompt that this process runs: from there it goes by value.
        module, path = self.function.__module__, getattr(self.function, "__qualname__", "")
        if module != "__main__" and _lookup(module, path) is self:
            return _imported, (module, path)
        return Template, (self.name, self.function)


@lru_cache(maxsize=256)
def _space(sketch: Template, workload: Workload, target: Target) -> Space:
    knobs = Knobs(sketch.name, workload, target, None)
    sketch.function(knobs.schedule, knobs)
    return Space(sketch.name, list(knobs.declared.values()), knobs.constraints, knobs.values)


@dataclass
class Knobs:
    """What a template declares, and asks about: each knob's declaration returns its value.

    `workload` and `target` say what is scheduled and for which machine. Which knobs there are, and what they range
    over, must not depend on their values. Declaring the same knob again returns the same value.
    """

    name: str
    workload: Workload
    target: Target
    config: Mapping[str, Value] | None
    declared: dict[str, Knob] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    constraints: list[Constraint] = field(default_factory=list)
    transforms: dict[int, PrimFunc] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.schedule = Schedule(tvm.IRModule({"main": self.workload.function}), debug_mask=0)

    # Knobs

    def tile(
        self,
        name: str,
        extent: Any,
        levels: int,
        default: Sequence[int] | None = None,
        max_inner: int | None = None,
    ) -> tuple[int, ...]:
        """A perfect factorisation of an extent (a number, or a loop), the outermost factor first."""
        factors: tuple[int, ...] = self._declare(Tile(name, self.extent(extent), levels, max_inner), default)
        return factors

    def split(
        self, name: str, extent: Any, choices: Sequence[Sequence[int]], default: Sequence[int] | None = None
    ) -> tuple[int, ...]:
        """Factors that need not divide; one list of choices per inner level. The outermost factor comes first."""
        factors: tuple[int, ...] = self._declare(Split(name, self.extent(extent), choices), default)
        return factors

    def ordinal(self, name: str, values: Sequence[int | float | str], default: Value | None = None) -> Any:
        """One of an ordered list of values."""
        return self._declare(Ordinal(name, values), default)

    def categorical(self, name: str, values: Sequence[int | float | str], default: Value | None = None) -> Any:
        """One of some values without an order."""
        return self._declare(Categorical(name, values), default)

    def require(self, names: Sequence[str], predicate: Callable[..., bool], reason: str) -> None:
        """Leaves out the points where `predicate`, called with the values of these knobs, is false.

        Declare the knobs before, and say what is required before doing what needs it.
        """
        constraint = Constraint(tuple(names), predicate, reason)
        unknown = [name for name in names if name not in self.declared]
        if unknown:
            raise SpaceError(f"template {self.name!r} requires {reason!r} of undeclared knob {unknown[0]!r}")
        values = {name: self.values[name] for name in names}
        if not predicate(*values.values()):
            told = ", ".join(f"{name}={value}" for name, value in values.items())
            raise SpaceError(f"template {self.name!r}: {told} does not satisfy {reason!r}; give other defaults")
        self.constraints.append(constraint)

    # Blocks and loops

    def reduction(self) -> Any:
        """The block that reduces. Where there is not exactly one, the template does not apply."""
        found = reductions(self.schedule)
        if len(found) != 1:
            self.unsupported(f"{len(found)} blocks reduce, not one")
        return found[0]

    def extent(self, loop: Any) -> int:
        """The extent of a loop; a number is its own extent."""
        return loop if isinstance(loop, int) else int(self.schedule.get(loop).extent)

    def unsupported(self, reason: str) -> NoReturn:
        """Says that the template does not apply to this workload or target: it then has no space."""
        raise UnsupportedFunction(f"template {self.name!r}: {reason}")

    def layout(self, block: Any, buffer: str, index_map: Callable[..., Sequence[Any]]) -> Any:
        """Lays out anew what a block reads from a buffer; `index_map` takes old indices to new ones, one to one.

        A constant input that only this block reads is laid out once, ahead of time (`Variant.transforms`): the result
        is None. For any other buffer it is the block that makes the copy, before everything that uses it.
        """
        schedule = self.schedule
        read = {load.source.name: load.source for load in loads(schedule, block)}
        if buffer not in read:
            raise SpaceError(f"template {self.name!r}: the block reads no {buffer!r}; it reads {', '.join(read)}")
        source = read[buffer]
        mapping = IndexMap.from_func(index_map, ndim=len(source.shape), index_dtype="int32")
        inputs = [spec.name for spec in self.workload.inputs]
        position = inputs.index(buffer) if buffer in inputs else -1
        readers = sum(buffer in {load.source.name for load in loads(schedule, each)} for each in all_blocks(schedule))
        if position in self.workload.constants and position not in self.transforms and readers == 1:
            schedule.transform_layout(block, buffer, mapping)
            self.transforms[position] = _transform(source, mapping)
            return None
        regions = [region.source.name for region in schedule.get(block).reads]
        copy = schedule.cache_read(block, regions.index(buffer), "global")
        # In this order TVM simplifies the indices that the copy writes to: a loop along memory is seen to be one.
        schedule.transform_block_layout(copy, mapping)
        schedule.transform_layout(copy, ("write", 0), mapping)
        return copy

    # What comes of it

    def variant(self) -> Variant:
        """The schedule as it is now."""
        return Variant(self.schedule.mod["main"], self.transforms)

    def changed(self, what: str) -> SpaceError:
        """The error that says that the knobs depend on their values."""
        return SpaceError(f"template {self.name!r}: its knobs depend on their values: at {dict(self.values)} {what}")

    def _declare(self, knob: Knob, default: Any) -> Any:
        known = self.declared.get(knob.name)
        if known is not None:
            if known != knob:
                raise SpaceError(f"template {self.name!r} declares knob {knob.name!r} twice: {known}, then {knob}")
            return self.values[knob.name]
        if self.config is not None:
            if knob.name not in self.config:
                raise self.changed(f"there is also {knob.name!r}")
            value = self.config[knob.name]
        else:
            value = knob.value(next(iter(knob)) if default is None else knob.coordinates(default))
        self.declared[knob.name], self.values[knob.name] = knob, value
        return value


def all_blocks(schedule: Schedule) -> list[Any]:
    """All blocks of a function in the order of its text."""
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def reductions(schedule: Schedule) -> list[Any]:
    """The blocks that reduce, in the order of the function's text."""
    reduce = tvm.tirx.IterVar.CommReduce
    blocks = all_blocks(schedule)
    return [block for block in blocks if any(each.iter_type == reduce for each in schedule.get(block).iter_vars)]


def loads(schedule: Schedule, block: Any) -> list[Any]:
    """What a block reads, but for the element that it accumulates into."""
    store = schedule.get(block).body
    found = [node for node in walk(store.value) if isinstance(node, tvm.ir.TensorLoad)]
    return [load for load in found if not load.source.same_as(store.buffer)]


def _transform(source: Any, mapping: IndexMap) -> PrimFunc:
    """The function that lays a buffer out anew."""
    shape = shape_of(source)
    axes = tuple(Axis(variable(f"i{at}"), extent) for at, extent in enumerate(shape))
    at = tuple(axis.var for axis in axes)
    given = intermediate("given", shape, str(source.dtype))
    packed = intermediate("packed", [int(extent) for extent in mapping.map_shape(list(shape))], str(source.dtype))
    stage = Stage("layout", axes, packed, tuple(mapping.map_indices(list(at))), given[at])
    return StageGraph((given, packed), (stage,)).function()


def _lookup(module: str, path: str) -> Any:
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _imported(module: str, path: str) -> Any:
    __import__(module)
    return _lookup(module, path)
