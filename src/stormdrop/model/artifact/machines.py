"""The machines of a model: one for each call that is in progress, with its own memory.

They execute a program by modules of TVM; see `in_process`.

All machines of a model share its code and its constants. What each has for itself is the memory between kernels, and
copies of inputs that cannot be read in place: those of a size are made by the first call of that size. A machine is
kept for the next call, so there are as many as there were calls at one time, and `CoreShares` lets no more calls run at
one time than there are cores.

TVM gives every thread that calls it a pool of threads of its own; `callers` says which threads do. How many of its
threads a call may use is set in the pool.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import tvm_ffi

from ...machine.sharing.core_shares import CoreShares
from ...machine.threads import thread_count
from ...runtime.inputs import Wanted
from ..program.executor import Execution
from .call_inputs import Copies
from .callers import run_elsewhere, runs_kernels

T = TypeVar("T")

_ALL_CORES = 1  # TVM's mode "big": any core, of those that the process may use
_this_thread = threading.local()


class Entry(NamedTuple):
    """One size of a model on a machine, ready for a call.

    Attributes:
        execution: Runs this size.
        copies: The memory for inputs that are copied.
    """

    execution: Execution
    copies: Copies


_KEPT = 8
"""How many sizes of ranges a machine keeps ready. Each has its own memory."""


class Machine:
    """A machine that is ready for a call. It makes what runs a size at the first call of the size.

    What runs a size that the model was compiled for is kept; of those of ranges, the ones that were used last.

    Args:
        make: Makes what runs a size.
        first: The size that is made now.
    """

    def __init__(self, make: Callable[[Wanted], Entry], first: Wanted) -> None:
        self._make = make
        self._listed: dict[int, Entry] = {first.index: make(first)}
        self._of_ranges: OrderedDict[Hashable, Entry] = OrderedDict()

    def __call__(self, wanted: Wanted) -> Entry:
        """What runs a size."""
        if wanted.opened is None:
            entry = self._listed.get(wanted.index)
            if entry is None:
                entry = self._listed[wanted.index] = self._make(wanted)
            return entry
        shapes = wanted.size.shapes
        entry = self._of_ranges.pop(shapes, None) or self._make(wanted)
        self._of_ranges[shapes] = entry
        if len(self._of_ranges) > _KEPT:
            self._of_ranges.popitem(last=False)
        return entry


class Machines:
    """The machines of a model. Several threads may use one object.

    Args:
        create: Makes another machine.

    Raises:
        Exception: Whatever `create` raises, which is called once to see that it works.
    """

    def __init__(self, create: Callable[[], Machine]) -> None:
        self._create = create
        self._idle = [create()]

    def call(self, threads: int, function: Callable[[Machine], T]) -> T:
        """Calls a function with a machine and a share of the cores.

        Args:
            threads: The most threads that the call may use.
            function: Gets a machine that no other call uses meanwhile. It may run in another thread; see `callers`.

        Returns:
            What the function returns.

        Raises:
            Exception: Whatever the function raises.
        """
        result: T = _shares().call(threads, self._call, function)
        return result

    def _call(self, share: int, function: Callable[[Machine], T]) -> T:
        if runs_kernels():
            return self._run(share, function)
        return run_elsewhere(lambda: self._run(share, function))

    def _run(self, share: int, function: Callable[[Machine], T]) -> T:
        _use_threads(share)
        try:
            machine = self._idle.pop()
        except IndexError:
            machine = self._create()
        try:
            return function(machine)
        finally:
            self._idle.append(machine)


@functools.cache
def _shares() -> CoreShares:
    """The cores of this process, for all of its models."""
    return CoreShares(thread_count())


def _use_threads(count: int) -> None:
    """Lets kernels that this thread calls use some threads of its pool, including itself."""
    if getattr(_this_thread, "count", None) != count:
        _configure_pool()(_ALL_CORES, count)
        _this_thread.count = count


@functools.cache
def _configure_pool() -> Any:
    return tvm_ffi.get_global_func("runtime.config_threadpool")
