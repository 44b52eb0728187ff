"""Templates: sketches that users write as one function, which schedules a kernel and declares knobs as it goes.

    @sd.template
    def blocked(schedule, knobs):
        block = knobs.reduction()
        i, j, k = schedule.get_loops(block)
        i0, i1 = schedule.split(i, knobs.tile("i", i, 2))
        ...

The function runs once with every knob at its default, which gives the space and its origin. Then it runs once per
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
from ..machine.contract import Machine
from ..space import Categorical, Constraint, Knob, Ordinal, Space, Split, Tile
from ..space.knob import Value
from .contract import Variant

Schedules = Callable[[Schedule, "Knobs"], object]


def template(function: Schedules) -> Template:
    """Makes a sketch of a function that schedules a kernel and declares knobs. It is used as a decorator.

    Args:
        function: A function of a `tvm.s_tir.Schedule` and `Knobs`. It changes the schedule and returns nothing.

    Returns:
        A sketch with the function's name. `tune(workload, sketches=[...])` takes it.

    Example:
        >>> import stormdrop as sd
        >>> @sd.template
        ... def unrolled(schedule, knobs):
        ...     i, j, k = schedule.get_loops(knobs.reduction())
        ...     j0, j1 = schedule.split(j, knobs.tile("j", j, levels=2, default=(8, 4)))
        ...     schedule.unroll(j1)
        ...     schedule.parallel(i)
        >>> space = unrolled.space(sd.operators.matmul(16, 32, 8), sd.parse_machine("cpu/x86-64-v3"))
        >>> space.config(space.origin)
        {'j': (8, 4)}
    """
    return Template(getattr(function, "__name__", type(function).__name__), function)


@dataclass(frozen=True, eq=False)
class Template:
    """A `Sketch` that is written as a function; `template` makes one.

    Attributes:
        name: The sketch's name.
        function: Schedules a kernel and declares knobs.
    """

    name: str
    function: Schedules
    max_error: ClassVar[float] = 0.0

    def __call__(self, schedule: Schedule, knobs: Knobs) -> None:
        """Runs the function, so that a template can be a step of another one."""
        self.function(schedule, knobs)

    def space(self, workload: Workload, target: Machine) -> Space | None:
        """The space of the declared knobs, whose origin holds their defaults.

        Args:
            workload: The function to schedule.
            target: The machine to schedule it for.

        Returns:
            The space; None if the function calls `knobs.unsupported`.

        Raises:
            SpaceError: The defaults do not satisfy a requirement, or a knob is declared twice in different ways.
            Exception: Whatever else the function raises.
        """
        try:
            return _space(self, workload, target)
        except UnsupportedFunction:
            return None

    def apply(self, workload: Workload, target: Machine, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration.

        Args:
            workload: The function to schedule.
            target: The machine to schedule it for.
            config: A value for each knob.

        Raises:
            SpaceError: The configuration is not in the space, or other knobs are declared than at the defaults.
            UnsupportedFunction: The template does not apply to the workload.
        """
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
        # A worker cannot import the script or prompt that this process runs, so a template from there goes by value.
        module, path = self.function.__module__, getattr(self.function, "__qualname__", "")
        if module != "__main__" and _lookup(module, path) is self:
            return _imported, (module, path)
        return Template, (self.name, self.function)


@lru_cache(maxsize=256)
def _space(sketch: Template, workload: Workload, target: Machine) -> Space:
    knobs = Knobs(sketch.name, workload, target, None)
    sketch.function(knobs.schedule, knobs)
    return Space(sketch.name, list(knobs.declared.values()), knobs.constraints, knobs.values)


@dataclass
class Knobs:
    """The second argument of a template: it declares the knobs, and answers questions about the function.

    Each declaration returns the knob's value. Which knobs there are, and what they range over, must not depend on their
    values. Declaring the same knob again returns the same value.

    Attributes:
        workload: The function that is scheduled.
        target: The machine that it is scheduled for: a `Cpu` for a CPU, a `Gpu` for a GPU.
        schedule: The schedule that the template changes.
        declared: The knobs that were declared so far, by name.
        values: Their values.
    """

    name: str
    workload: Workload
    target: Any
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
        """Declares a `Tile`: factors whose product is an extent.

        Args:
            name: The knob's name.
            extent: The extent, or the loop that has it.
            levels: The number of factors.
            default: The factors of the default schedule; by default the knob's first value.
            max_inner: The largest innermost factor; by default there is no bound.

        Returns:
            The factors, the outermost first, as `schedule.split` takes them.
        """
        factors: tuple[int, ...] = self._declare(Tile(name, self.extent(extent), levels, max_inner), default)
        return factors

    def split(
        self, name: str, extent: Any, choices: Sequence[Sequence[int]], default: Sequence[int] | None = None
    ) -> tuple[int, ...]:
        """Declares a `Split`: factors of an extent that need not divide it.

        Args:
            name: The knob's name.
            extent: The extent, or the loop that has it.
            choices: The factors to choose from, one list per inner level.
            default: The factors of the default schedule; by default the knob's first value.

        Returns:
            The factors, the outermost first. The outermost follows from the others.
        """
        factors: tuple[int, ...] = self._declare(Split(name, self.extent(extent), choices), default)
        return factors

    def ordinal(self, name: str, values: Sequence[int | float | str], default: Value | None = None) -> Any:
        """Declares an `Ordinal`: one of an ordered list of values.

        Args:
            name: The knob's name.
            values: The values in their order.
            default: The value of the default schedule; by default the first one.

        Returns:
            The value.
        """
        return self._declare(Ordinal(name, values), default)

    def categorical(self, name: str, values: Sequence[int | float | str], default: Value | None = None) -> Any:
        """Declares a `Categorical`: one of several values without an order.

        Args:
            name: The knob's name.
            values: The values.
            default: The value of the default schedule; by default the first one.

        Returns:
            The value.
        """
        return self._declare(Categorical(name, values), default)

    def require(self, names: Sequence[str], predicate: Callable[..., bool], reason: str) -> None:
        """Leaves points out of the space. Call this before the schedule does what needs the requirement.

        Args:
            names: Knobs that are declared already.
            predicate: A function of the values of these knobs. Points for which it is false are left out.
            reason: What is required, for error messages.

        Raises:
            SpaceError: A knob is not declared, or the values of this schedule do not satisfy the requirement.
        """
        constraint = Constraint(tuple(names), predicate, reason)
        undeclared = [name for name in names if name not in self.declared]
        if undeclared:
            raise SpaceError(f"template {self.name!r} requires {reason!r} of undeclared knob {undeclared[0]!r}")
        values = {name: self.values[name] for name in names}
        if not predicate(*values.values()):
            settings = ", ".join(f"{name}={value}" for name, value in values.items())
            raise SpaceError(f"template {self.name!r}: {settings} does not satisfy {reason!r}; give other defaults")
        self.constraints.append(constraint)

    # Blocks and loops

    def reduction(self) -> Any:
        """The block that reduces. If there is not exactly one, the template does not apply to the workload."""
        blocks = reductions(self.schedule)
        if len(blocks) != 1:
            self.unsupported(f"{len(blocks)} blocks reduce, not one")
        return blocks[0]

    def extent(self, loop: Any) -> int:
        """The extent of a loop. A number is its own extent."""
        return loop if isinstance(loop, int) else int(self.schedule.get(loop).extent)

    def unsupported(self, reason: str) -> NoReturn:
        """Says that the template does not apply to this workload or target, so that it has no space.

        Raises:
            UnsupportedFunction: Always.
        """
        raise UnsupportedFunction(f"template {self.name!r}: {reason}")

    def layout(self, block: Any, buffer: str, index_map: Callable[..., Sequence[Any]]) -> Any:
        """Changes the order in which a buffer that a block reads lies in memory.

        A constant input that only this block reads is laid out once, ahead of time (`Variant.transforms`). For any
        other buffer a new block copies it, before everything that uses it.

        Args:
            block: The block that reads the buffer.
            buffer: The buffer's name.
            index_map: A function from old indices to new ones, one to one.

        Returns:
            The block that copies, to be scheduled; None if the buffer is laid out ahead of time.

        Raises:
            SpaceError: The block does not read the buffer.
        """
        schedule = self.schedule
        buffers = {load.source.name: load.source for load in loads(schedule, block)}
        if buffer not in buffers:
            raise SpaceError(f"template {self.name!r}: the block reads no {buffer!r}; it reads {', '.join(buffers)}")
        source = buffers[buffer]
        mapping = IndexMap.from_func(index_map, ndim=len(source.shape), index_dtype="int32")
        inputs = [spec.name for spec in self.workload.inputs]
        position = inputs.index(buffer) if buffer in inputs else -1
        readers = sum(buffer in {load.source.name for load in loads(schedule, other)} for other in all_blocks(schedule))
        if position in self.workload.constants and position not in self.transforms and readers == 1:
            schedule.transform_layout(block, buffer, mapping)
            self.transforms[position] = _transform(source, mapping)
            return None
        regions = [region.source.name for region in schedule.get(block).reads]
        copy = schedule.cache_read(block, regions.index(buffer), "global")
        # In this order TVM simplifies the indices that the copy writes to, so that a loop along memory is seen as one.
        schedule.transform_block_layout(copy, mapping)
        schedule.transform_layout(copy, ("write", 0), mapping)
        return copy

    # Results

    def variant(self) -> Variant:
        """The current schedule as a variant."""
        return Variant(self.schedule.mod["main"], self.transforms)

    def changed(self, difference: str) -> SpaceError:
        """The error for knobs that depend on their values."""
        values = dict(self.values)
        return SpaceError(f"template {self.name!r}: its knobs depend on their values: at {values} {difference}")

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
    return [block for block in blocks if any(axis.iter_type == reduce for axis in schedule.get(block).iter_vars)]


def loads(schedule: Schedule, block: Any) -> list[Any]:
    """The loads of a block, without those of the element that it accumulates into."""
    store = schedule.get(block).body
    every = [node for node in walk(store.value) if isinstance(node, tvm.ir.TensorLoad)]
    return [load for load in every if not load.source.same_as(store.buffer)]


def _transform(source: Any, mapping: IndexMap) -> PrimFunc:
    """The function from a buffer to its new layout."""
    shape = shape_of(source)
    axes = tuple(Axis(variable(f"i{dimension}"), extent) for dimension, extent in enumerate(shape))
    index = tuple(axis.var for axis in axes)
    original = intermediate("given", shape, str(source.dtype))
    packed = intermediate("packed", [int(extent) for extent in mapping.map_shape(list(shape))], str(source.dtype))
    stage = Stage("layout", axes, packed, tuple(mapping.map_indices(list(index))), original[index])
    return StageGraph((original, packed), (stage,)).function()


def _lookup(module: str, path: str) -> Any:
    value: Any = sys.modules.get(module)
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _imported(module: str, path: str) -> Any:
    __import__(module)
    return _lookup(module, path)
