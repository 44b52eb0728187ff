"""How this machine is measured: kernels of TVM in a process of their own, and the best of several windows.

The kernels are written in TensorIR and compiled in-process, so a user needs no C compiler. They run in a process of
their own, because the number of threads is fixed when TVM is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import MeasureError
from ..process.child_process import ChildProcess

if TYPE_CHECKING:
    from ..cpu import Cpu

T = TypeVar("T")

LOADS = ("numpy", "tvm")
"""What takes most of the time of a measuring process's start."""

WINDOWS = 60
"""Windows per figure, a few milliseconds each. On a shared machine the best window is an undisturbed one."""

PATIENCE = 2.0
"""Seconds to wait for an undisturbed window."""

_FULL_SHARE = 0.9  # of the cores' time: with less, something else ran on them
_FEWEST = 5  # windows, however long they are
_TIMEOUT = 60.0  # seconds; the two figures of the peak take about 2 s, and up to 4 s more beside other work


def shape_of(target: Cpu) -> dict[str, Any]:
    """What a measuring process has to know of the machine: cores, vector unit, last cache."""
    return {
        "mcpu": target.mcpu,
        "cores": target.cores,
        "lanes": target.lanes,
        "registers": target.registers,
        "l3": target.l3,
    }


def measured_in_child(serve: str, shape: Mapping[str, Any], kind: type[T], what: str) -> T:
    """What a child process with this machine's threads measures.

    Args:
        serve: The function that measures and sends the result, as `ChildProcess` names it.
        shape: The machine, as `shape_of` describes it; the function's argument.
        kind: The type of the result.
        what: What is done, for the message of an error.

    Raises:
        MeasureError: The process fails or takes too long.
    """
    child = ChildProcess(serve, (shape,), {"TVM_NUM_THREADS": str(shape["cores"])}, LOADS)
    try:
        measured = child.answer(_TIMEOUT)
        if not isinstance(measured, kind):
            raise MeasureError(f"{what} failed ({child.wait()}): {child.last_line()}")
        return measured
    except TimeoutError as error:
        raise MeasureError(f"{what} took longer than {_TIMEOUT:.0f} s") from error
    finally:
        child.close()


@contextmanager
def main_function() -> Iterator[Any]:
    """The parameters and statements that TVM's builder is told of in this context are those of a function "main".

    Yields:
        The builder, whose `get` returns the function after the context.
    """
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        yield builder


def compile_function(function: Any, mcpu: str, cores: int) -> Any:
    """TVM's executable of a TensorIR function, under the name "main".

    Args:
        function: The function.
        mcpu: LLVM's name of the processor.
        cores: The number of cores that it uses.
    """
    import tvm

    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": cores})
    return tvm.compile(tvm.IRModule({"main": function}), target)


def best_window(
    run: Callable[[], object], cores: int, fewest: int = WINDOWS, patience: float = PATIENCE
) -> tuple[float, bool]:
    """Seconds of the fastest of some runs, and whether it had the cores for itself.

    A run that competes for a core uses less CPU time than wall time times cores. While the fastest run is such a run,
    more windows are measured.

    Args:
        run: Keeps all cores busy for a millisecond or more.
        cores: The number of cores that it uses.
        fewest: Runs to make at least, if there is patience.
        patience: Seconds after which no more runs are made than five.
    """
    run()  # touches the memory for the first time and starts the threads
    best, undisturbed = float("inf"), False
    begin = time.perf_counter()
    windows = 0
    while windows < min(fewest, _FEWEST) or (
        (windows < fewest or not undisturbed) and time.perf_counter() - begin < patience
    ):
        cpu, start = time.process_time(), time.perf_counter()
        run()
        wall = time.perf_counter() - start
        share = (time.process_time() - cpu) / (wall * cores)
        windows += 1
        if wall < best:
            best, undisturbed = wall, share > _FULL_SHARE
    return best, undisturbed
