"""Calls of a program whose kernels are modules of TVM, executed step by step in this process."""

from __future__ import annotations

from functools import cached_property

from ...machine.process.forks import check_threads
from ...runtime.calls import ModelCalls, Observer
from ...runtime.inputs import Array, Given, Wanted
from ...runtime.open_size import Cut
from ...runtime.parts import RunPart
from ...runtime.program import SizeProgram
from ..program.compiled import CompiledProgram
from ..program.executor import Execution, Kernels
from .call_inputs import placed
from .machines import Entry, Machine, Machines
from .metadata import Metadata


class InProcessCalls(ModelCalls):
    """Calls a program.

    Args:
        compiled: The program, with modules of its kernels.
        metadata: What the model says about itself.
        threads: The most threads that a call uses.
        run_part: Runs its parts, if it has some.
        observer: Is told of each step before and after it.

    Attributes:
        machines: Its machines.

    Raises:
        Exception: Whatever TVM raises if the code cannot be linked into this process.
    """

    def __init__(
        self,
        compiled: CompiledProgram,
        metadata: Metadata,
        threads: int,
        run_part: RunPart | None,
        observer: Observer | None = None,
    ) -> None:
        self._anywhere, self._threads = metadata.anywhere, threads
        self._made_of = compiled, metadata, threads, run_part
        kernels = Kernels(compiled)

        def entry(wanted: Wanted) -> Entry:
            program, cuts = _program_of(compiled, wanted)
            return Entry(Execution(compiled, kernels, program, cuts, run_part, observer), {})

        first = Wanted(0, metadata.all_sizes[0])

        def machine() -> Machine:
            return Machine(entry, first)

        self.machines = Machines(machine)
        in_place = compiled.program.in_place
        if in_place is None:
            return
        self.states = in_place.states

        def stepping(wanted: Wanted) -> Entry:
            program = in_place.sizes[wanted.index]
            return Entry(Execution(compiled, kernels, program, (), run_part, observer, in_place.states), {})

        def stepping_machine() -> Machine:
            return Machine(stepping, first)

        self._stepping_machine, self._unread = stepping_machine, {state.input for state in in_place.states}

    @cached_property
    def _stepping(self) -> Machines:
        """The machines of steps, which most models never take."""
        return Machines(self._stepping_machine)

    def observed(self, observer: Observer) -> InProcessCalls:
        return InProcessCalls(*self._made_of, observer)

    def __call__(self, given: Given) -> list[Array]:
        check_threads()
        wanted, rows, arrays = given
        infos = wanted.size.inputs

        def call(machine: Machine) -> list[Array]:
            execution, copies = machine(wanted)
            places = [placed(info, one, self._anywhere, copies) for info, one in zip(infos, arrays, strict=True)]
            values = execution.run([address for address, _ in places], [array for _, array in places])
            return [(value if rows is None else value[:rows]).copy() for value in values]

        return self.machines.call(self._threads, call)

    def step(self, given: Given, memory: list[Array]) -> list[Array]:
        check_threads()
        wanted, _, arrays = given
        infos = wanted.size.inputs

        def call(machine: Machine) -> list[Array]:
            execution, copies = machine(wanted)
            execution.place(memory)
            places = [
                (0, one) if index in self._unread else placed(info, one, self._anywhere, copies)
                for index, (info, one) in enumerate(zip(infos, arrays, strict=True))
            ]
            values = execution.run([address for address, _ in places], [array for _, array in places])
            return [value.copy() for value in values]

        return self._stepping.call(self._threads, call)


def _program_of(compiled: CompiledProgram, wanted: Wanted) -> tuple[SizeProgram, list[Cut]]:
    """The program of a size, and the constants that it needs besides those of the model."""
    if wanted.opened is None:
        return compiled.program.sizes[wanted.index], []
    opened, parameters = wanted.opened
    return opened.at(parameters, len(compiled.program.constants))
