"""Compiles the kernels of a model in several threads, and keeps their machine code for the next build.

The next build is one of the same model with other schedules, or of another model: the same decoder at the next length
has most of its kernels in common with it.

    scheduled functions --by their symbols-->  a few modules of LLVM code, each made and linked by one thread
    the next combination of schedules      ->  only what no module holds yet is compiled

A thread is as good as a process here: TVM's passes and LLVM run without Python's lock, and the code is linked into this
process anyway.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...codegen.compile import PASS_CONFIG
from ...codegen.device_code import build_for_device
from ...codegen.lowering import PIPELINE
from ...machine.contract import Machine
from ...machine.gpu import Gpu

_PER_CORE = 2
"""Modules per core: more of them balance the threads better, and each costs 10 ms for what TVM adds to it."""

_FEWEST = 4  # kernels of a module, at least


class KernelLibrary:
    """The compiled kernels of one model or of a few. Each has a symbol of its own, also if several share a name.

    Several threads may use it: they compile one after the other, each with all cores.

    Args:
        target: The machine to compile for.
        apart: Whether each kernel has a module of its own, so that a model that is saved holds its own kernels only.
            Otherwise one that another model has compiled brings those along that were compiled with it.
    """

    def __init__(self, target: Machine, *, apart: bool = False) -> None:
        self._target, self._apart = target, apart
        self._lock = threading.RLock()
        self._symbols: dict[tuple[str, tvm_ffi.StructuralKey], str] = {}
        self._functions: dict[str, tirx.PrimFunc] = {}  # by symbol
        self._modules: dict[str, Future[Any]] = {}  # by symbol

    def symbol(self, function: tirx.PrimFunc, name: str) -> str:
        """The symbol of a scheduled function: the same one whenever an equal function is asked for with this name.

        Args:
            function: The function. Its own symbol does not matter.
            name: What the symbol begins with.
        """
        plain = function.without_attr("global_symbol")
        key = (name, tvm_ffi.StructuralKey(plain))
        with self._lock:
            if key not in self._symbols:
                names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
                symbol = next(free for free in names if free not in self._functions)
                self._symbols[key], self._functions[symbol] = symbol, plain
            return self._symbols[key]

    def empty(self) -> KernelLibrary:
        """A library for the same target that holds nothing, each of whose kernels has a module of its own."""
        return KernelLibrary(self._target, apart=True)

    def function(self, symbol: str) -> tirx.PrimFunc:
        """The scheduled function of a symbol."""
        return self._functions[symbol]

    def modules(self, functions: Mapping[str, tirx.PrimFunc]) -> list[Any]:
        """Modules that hold the code of these functions, and perhaps of others: TVM's, or `DeviceModule`s for a GPU.

        Args:
            functions: The functions by their symbols. Those whose symbol is not of this library, as TVM makes some
                itself, are compiled for this call alone.

        Raises:
            Exception: Whatever TVM raises if it cannot compile a function.
        """
        with self._lock:
            return self._of(functions)

    def _of(self, functions: Mapping[str, tirx.PrimFunc]) -> list[Any]:
        foreign = {symbol: function for symbol, function in functions.items() if symbol not in self._functions}
        ours = [symbol for symbol in functions if symbol in self._functions]
        # A second Ctrl-C may have left what the first one cancelled.
        unknown = [name for name in ours if name not in self._modules or _has_failed(self._modules[name])]
        threads = ThreadPoolExecutor(self._target.cores)
        try:
            parts = [[name] for name in unknown] if self._apart else _parts(unknown, _PER_CORE * self._target.cores)
            for part in parts:
                compiling = threads.submit(self._compiled, {name: self._functions[name] for name in part})
                self._modules.update(dict.fromkeys(part, compiling))
            modules = [module.result() for module in dict.fromkeys(self._modules[symbol] for symbol in ours)]
        finally:
            # Ctrl-C does not wait for LLVM: what is under way is there for the next build.
            threads.shutdown(wait=False, cancel_futures=True)
            self._modules = {symbol: module for symbol, module in self._modules.items() if not _has_failed(module)}
        return [*modules, self._compiled(foreign)] if foreign or not modules else modules

    def _compiled(self, functions: Mapping[str, tirx.PrimFunc]) -> Any:
        if isinstance(self._target, Gpu):
            return build_for_device(functions, self._target)
        named = {symbol: function.with_attr("global_symbol", symbol) for symbol, function in functions.items()}
        # The context belongs to the thread. The model checks its inputs itself, and nothing else calls the kernels.
        with tvm.transform.PassContext(config=PASS_CONFIG):
            module = tirx.build(tvm.IRModule(named), self._target.tvm(), pipeline=PIPELINE)
        for symbol in list(named)[:1] if not self._target.runner else ():
            module[symbol]  # looking one up makes LLVM generate the machine code of all
        return module


def _has_failed(module: Future[Any]) -> bool:
    return module.cancelled() or (module.done() and module.exception() is not None)


def _parts(symbols: Sequence[str], most: int) -> list[Sequence[str]]:
    """The symbols in a few parts. Neighbours in a model take similar time, so they go to different parts."""
    count = max(1, min(most, len(symbols) // _FEWEST))
    return [symbols[first::count] for first in range(count)] if symbols else []
