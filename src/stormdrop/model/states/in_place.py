"""The program of each size of a decoder that writes its states in place.

    kernel(new, past) -> present                     kernel_rows(new) -> present
    attention(query, present) -> ...       ->        attention(query, present) -> ...

The caller gives the memory of each such output. The former rows lie there already, at the beginning of their axis, and
the kernel writes the new ones behind them. Nothing reads the input any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tvm.tirx import PrimFunc

from ...runtime.decoding.states import states_by_name
from ...runtime.program import InPlace, Program, SizeProgram, State, Step
from ...runtime.sizes import Size
from .written_rows import written_rows

AddKernel = Callable[[PrimFunc, str], str]
"""Schedules a function and compiles it with the others. It returns the symbol of the kernel for a name."""


def with_states_in_place(program: Program, functions: Mapping[str, PrimFunc], add: AddKernel) -> Program:
    """The program with what writes its states in place, if it has states by their names.

    Args:
        program: The program.
        functions: What kernels compute, by their symbols.
        add: Adds a kernel.

    Returns:
        The program; as it is if a tensor of another name is a state, or if a state is not one concatenation at every
        size whose input nothing else reads. A decoder then copies its cache in each step.
    """
    states = states_by_name([Size(size.inputs, size.outputs) for size in program.sizes])
    if not states:
        return program
    rows = _Rows(functions, add)
    sizes = []
    for size in program.sizes:
        changed = _in_place(size, states, rows)
        if changed is None:
            return program
        sizes.append(changed)
    return replace(program, in_place=InPlace(states, tuple(sizes)))


class _Rows:
    """The kernels that write rows, each made once."""

    def __init__(self, functions: Mapping[str, PrimFunc], add: AddKernel) -> None:
        self._functions, self._add = functions, add
        self._known: dict[tuple[str, int, int], str | None] = {}

    def kernel(self, kernel: str, past: int, axis: int) -> str | None:
        """The symbol of what writes the new rows of a kernel's output, without its argument `past`."""
        key = (kernel, past, axis)
        if key not in self._known:
            function = self._functions.get(kernel)
            rows = None if function is None else written_rows(function, past, axis)
            self._known[key] = None if rows is None else self._add(rows, f"{kernel}_rows")
        return self._known[key]


def _in_place(size: SizeProgram, states: tuple[State, ...], rows: _Rows) -> SizeProgram | None:
    steps = list(size.steps)
    for state in states:
        past = {at for at, view in enumerate(size.views) if (view.memory, view.index) == ("input", state.input)}
        present = {at for at, view in enumerate(size.views) if (view.memory, view.index) == ("output", state.output)}
        readers = [at for at, step in enumerate(steps) if past.intersection(step.reads)]
        writers = [at for at, step in enumerate(steps) if present.intersection(step.writes)]
        if len(readers) != 1 or readers != writers:
            return None
        changed = _changed(size, steps[readers[0]], past, state, rows)
        if changed is None:
            return None
        steps[readers[0]] = changed
    return _of_used_views(replace(size, steps=tuple(steps)))


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


def _changed(size: SizeProgram, step: Step, past: set[int], state: State, rows: _Rows) -> Step | None:
    """The step that writes the new rows in place of one that concatenates."""
    places = [at for at, view in enumerate(step.reads) if view in past]
    whole = len(step.writes) == 1 and size.views[step.writes[0]].shape == size.outputs[state.output].shape
    if step.kind != "kernel" or len(places) != 1 or not whole:
        return None
    if size.views[step.reads[places[0]]].shape != size.inputs[state.input].shape:
        return None
    kernel = rows.kernel(step.name, places[0], state.axis)
    return None if kernel is None else Step("kernel", kernel, _without(step.reads, places[0]), step.writes)


def _without(values: tuple[int, ...], place: int) -> tuple[int, ...]:
    return values[:place] + values[place + 1 :]
