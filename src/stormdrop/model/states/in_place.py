"""The program of each size of a decoder that writes its states in place.

    kernel(new, past) -> present                     kernel_rows(new) -> present
    attention(query, present) -> ...       ->        attention(query, present) -> ...

The caller gives the memory of each such output. The former rows lie there already, at the beginning of their axis, and
the kernel writes the new ones behind them. Nothing reads the input any more.

If a kernel turns the whole output around for its only reader, what stays is what that makes:

    kernel(new, past) -> present                     kernel_rows(new) -> turned
    transpose(present) -> turned           ->
    attention(query, turned) -> ...                  attention(query, turned) -> ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tvm.tirx import PrimFunc

from ...runtime.program import InPlace, Program, SizeProgram, State, Step
from .written_rows import WrittenRows, written_rows

AddKernel = Callable[[PrimFunc, str], str]
"""Schedules a function and compiles it with the others. It returns the symbol of the kernel for a name."""


def with_states_in_place(
    program: Program, states: Sequence[State], functions: Mapping[str, PrimFunc], add: AddKernel
) -> Program:
    """The program with what writes its states in place.

    Args:
        program: The program.
        states: The states.
        functions: What kernels compute, by their symbols.
        add: Adds a kernel.

    Returns:
        The program; as it is if there are no states, or if one is not a concatenation at every size, whose input
        nothing else reads. A decoder then copies its cache in each step.
    """
    if not states:
        return program
    rows = _Rows(functions, add)
    sizes: Sequence[SizeProgram] = program.sizes
    placed = []
    for state in states:
        found = _at_all_sizes(sizes, state, rows, turned=True) or _at_all_sizes(sizes, state, rows, turned=False)
        if found is None:
            return program
        order, sizes = found
        placed.append(replace(state, order=order))
    return replace(program, in_place=InPlace(tuple(placed), tuple(map(_of_used_views, sizes))))


def _at_all_sizes(
    sizes: Sequence[SizeProgram], state: State, rows: _Rows, turned: bool
) -> tuple[tuple[int, ...], Sequence[SizeProgram]] | None:
    """The order of the axes of a state in memory, and the programs that write it there; None if they do not agree."""
    changed = [_changed(size, state, rows, turned) for size in sizes]
    known = [each for each in changed if each is not None]
    orders = {each.order for each in known}
    return (orders.pop(), [each.size for each in known]) if len(known) == len(sizes) and len(orders) == 1 else None


class _Changed(NamedTuple):
    """A program that writes a state in place, and the order of its axes there."""

    order: tuple[int, ...]
    size: SizeProgram


class _Rows:
    """The kernels that write rows, each made once."""

    def __init__(self, functions: Mapping[str, PrimFunc], add: AddKernel) -> None:
        self._functions, self._add = functions, add
        self._known: dict[tuple[str, int, int, str], tuple[str, WrittenRows] | None] = {}

    def kernel(self, kernel: str, past: int, axis: int, reader: str = "") -> tuple[str, WrittenRows] | None:
        """What writes the new rows of a kernel's output, or of what its reader makes of it, and its symbol.

        Args:
            kernel: The symbol of the kernel.
            past: The position of the former rows among its arguments.
            axis: Their axis.
            reader: The symbol of the reader, if it is to take part.
        """
        key = (kernel, past, axis, reader)
        if key not in self._known:
            functions = [self._functions[name] for name in (kernel, reader) if name in self._functions]
            complete = len(functions) == 1 + bool(reader)
            rows = written_rows(functions[0], past, axis, *functions[1:]) if complete else None
            name = f"{kernel}_{'turned_' if reader else ''}rows"
            self._known[key] = None if rows is None else (self._add(rows.function, name), rows)
        return self._known[key]


def _changed(size: SizeProgram, state: State, rows: _Rows, turned: bool) -> _Changed | None:
    """The program with the step that writes the new rows in place of the one that concatenates."""
    past = _views(size, "input", state.input)
    present = _views(size, "output", state.output)
    readers = [at for at, step in enumerate(size.steps) if past.intersection(step.reads)]
    writers = [at for at, step in enumerate(size.steps) if present.intersection(step.writes)]
    if len(readers) != 1 or readers != writers:
        return None
    (at,) = writers
    step, output = size.steps[at], size.outputs[state.output]
    places = [place for place, view in enumerate(step.reads) if view in past]
    whole = len(step.writes) == 1 and size.views[step.writes[0]].shape == output.shape
    if step.kind != "kernel" or len(places) != 1 or not whole:
        return None
    if size.views[step.reads[places[0]]].shape != size.inputs[state.input].shape:
        return None
    reads = (*step.reads[: places[0]], *step.reads[places[0] + 1 :])
    if not turned:
        found = rows.kernel(step.name, places[0], state.axis)
        if found is None or found[1].order != tuple(range(len(output.shape))):
            return None
        return _Changed((), _with_step(size, at, Step("kernel", found[0], reads, step.writes)))
    others = [at for at, other in enumerate(size.steps) if present.intersection(other.reads)]
    last = size.steps[others[0]] if len(others) == 1 else None
    if last is None or last.kind != "kernel" or len(last.reads) != 1 or len(last.writes) != 1:
        return None
    if size.views[last.reads[0]].shape != output.shape or size.views[last.writes[0]].memory != "storage":
        return None
    found = rows.kernel(step.name, places[0], state.axis, last.name)
    if found is None:
        return None
    tensor = size.views[last.writes[0]].tensor
    views = tuple(
        replace(view, memory="output", index=state.output, offset=0) if view.tensor == tensor else view
        for view in size.views
    )
    changed = _with_step(replace(size, views=views), at, Step("kernel", found[0], reads, last.writes))
    return _Changed(found[1].order, replace(changed, steps=changed.steps[: others[0]] + changed.steps[others[0] + 1 :]))


def _views(size: SizeProgram, memory: str, index: int) -> set[int]:
    return {at for at, view in enumerate(size.views) if (view.memory, view.index) == (memory, index)}


def _with_step(size: SizeProgram, at: int, step: Step) -> SizeProgram:
    return replace(size, steps=(*size.steps[:at], step, *size.steps[at + 1 :]))


def _of_used_views(size: SizeProgram) -> SizeProgram:
    """The program without views that no step has as an argument, as those of inputs that are no longer read."""
    used = sorted({view for step in size.steps for view in step.arguments})
    place = {old: new for new, old in enumerate(used)}
    steps = tuple(
        replace(
            step, reads=tuple(map(place.__getitem__, step.reads)), writes=tuple(map(place.__getitem__, step.writes))
        )
        for step in size.steps
    )
    return replace(size, views=tuple(size.views[view] for view in used), steps=steps)
