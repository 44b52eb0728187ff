"""The measured limits of this machine: FLOP/s from registers, and bytes/s of a copy in memory.

`flops` is what fused multiply-adds on registers reach on all cores. The loop holds as many vector accumulators as fill
the pipelines, and neither loads nor stores. `bandwidth` is what a copy of arrays much larger than the last cache
reaches on all cores. It counts the bytes read plus the bytes written, but not the lines that a cache fetches before it
writes them. Both are the best of several windows, measured while nobody else measures.

The kernels are written in TensorIR and compiled in-process, so a user needs no C compiler. They run in a process of
their own, because the number of threads is fixed when TVM is loaded. The result is cached per machine. One that was
disturbed is cached, too, with this caveat: on a machine that others use, each tuning would otherwise measure again. A
tuning with enough time tries to better it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...errors import MeasureError, TargetError
from ..process.child_process import ChildProcess
from ..process.memory import available_memory
from ..sharing.lock import MachineLock
from .kept_measurements import keep, kept, kept_file

if TYPE_CHECKING:
    from ..contract import Machine
    from ..cpu import Target

WINDOWS = 60
"""Windows per figure, a few milliseconds each. On a shared machine the best window is an undisturbed one."""

_PATIENCE = 2.0  # seconds to wait for an undisturbed window
_FULL_SHARE = 0.9  # of the cores' time: with less, something else ran on them

_FEWEST = 5  # windows, however long they are
_SHARE = 0.2  # of a tuning's time
_SHARE_AGAIN = 0.03  # of a tuning's time, if there is a figure already
_COST = 3.0  # seconds, about, of a measurement

_METHOD = 1  # part of the cache's key: raise it when what is measured changes
LOADS = ("numpy", "tvm")
"""What takes most of the time of a measuring process's start."""

_TIMEOUT = 60.0  # seconds; the two figures take about 2 s, and up to 4 s more beside other work
T = TypeVar("T")


@dataclass(frozen=True)
class Peak:
    """The limits of a machine.

    Attributes:
        flops: FLOP/s in float32.
        bandwidth: Bytes/s, read plus written.
        undisturbed: False if something else used the cores in all windows. The true limits are then higher.
    """

    flops: float
    bandwidth: float
    undisturbed: bool = True


_measured: dict[Path, Peak] = {}
"""What this process has measured, by the file that caches it: whatever becomes of the file, once is enough."""


def peak(target: Machine, refresh: bool = False, deadline: float = math.inf) -> Peak:
    """The limits of a machine: those that its maker states for a GPU, measured ones for the CPU of this machine.

    The measurement takes some 2 s and waits for the machine-wide lock. The result is cached in the user's cache folder.
    What other work has disturbed is too low: the best of such figures stands until one is undisturbed.

    Args:
        target: The machine, with the number of cores to use.
        refresh: Measure even if the limits are known.
        deadline: A reading of `time.perf_counter` after which the lock is not waited for any more.

    Raises:
        LockTimeout: The machine was not free before the deadline.
        MeasureError: The measuring process fails, or a runner measures, whose limits are not known here.

    Example:
        >>> import stormdrop as sd
        >>> sd.peak(sd.Target.parse("cuda/a100")).flops
        19500000000000.0
    """
    if target.stated_limits is not None:
        return Peak(*target.stated_limits)
    from ..cpu import require_cpu

    cpu = require_cpu(target, f"the limits of {target.name} are not known")
    if target.runner:
        raise MeasureError(f"the limits of the machine at {target.runner} are not known")
    known = known_peak(cpu)
    if known is not None and not refresh:
        return known
    path = cache_path(cpu)
    with contextlib.closing(MachineLock()) as lock, lock.exclusive(deadline):
        known = known_peak(cpu)
        if known is not None and not refresh:  # whoever had the lock before has measured it
            return known
        measured = _measured[path] = _better(known, _measure_in_child(shape_of(cpu)))
    with contextlib.suppress(OSError):  # without a cache that can be written, the next process measures again
        _write(path, cpu, measured)
    return measured


def _better(known: Peak | None, measured: Peak) -> Peak:
    """What is known of the limits after a measurement."""
    if known is None or measured.undisturbed:
        return measured
    if known.undisturbed:
        return known
    return Peak(max(known.flops, measured.flops), max(known.bandwidth, measured.bandwidth), undisturbed=False)


def known_peak(target: Machine) -> Peak | None:
    """The limits of a machine if they are stated, cached, or measured by this process before; it measures nothing.

    Args:
        target: The machine, with the number of cores to use.

    Example:
        >>> import stormdrop as sd
        >>> known_peak(sd.Target.parse("cuda/a100")).flops
        19500000000000.0
    """
    if target.stated_limits is not None:
        return Peak(*target.stated_limits)
    from ..cpu import Target

    if not isinstance(target, Target) or target.runner:
        return None
    path = cache_path(target)
    return _read(path) or _measured.get(path)


def peak_within(target: Machine, seconds: float | None) -> Peak | None:
    """The limits of a machine if they are known, or if they can be measured in a small part of a tuning's time.

    Args:
        target: The machine, with the number of cores to use.
        seconds: The wall seconds of the tuning; None is no bound.
    """
    known = known_peak(target)
    if not affordable(_COST, seconds, known):
        return known
    try:
        return peak(target, refresh=known is not None, deadline=deadline_of(seconds))
    except (MeasureError, TargetError):  # a tuning does without them
        return known


class Judged(Protocol):
    """A measurement that says whether something else used the machine meanwhile."""

    @property
    def undisturbed(self) -> bool:
        """False if it did."""


def affordable(cost: float, seconds: float | None, known: Judged | None) -> bool:
    """Whether a tuning measures the machine at its beginning: it takes a small part of its time.

    Args:
        cost: Seconds of the measurement.
        seconds: Those of the tuning; None is no bound.
        known: What was measured before. If it was undisturbed, it stands. If not, a new one may be better, and is worth
            less of the tuning's time.
    """
    if known is None:
        return seconds is None or cost <= seconds * _SHARE
    return not known.undisturbed and seconds is not None and cost <= seconds * _SHARE_AGAIN


def deadline_of(seconds: float | None) -> float:
    """Until when a tuning waits for the machine to measure it: a reading of `time.perf_counter`.

    Args:
        seconds: The wall seconds of the tuning; None is no bound.
    """
    return math.inf if seconds is None else time.perf_counter() + _SHARE * seconds


def cache_path(target: Target) -> Path:
    """The file that keeps the limits of this machine, one per CPU model, core count and vector unit."""
    return kept_file("peak", [_METHOD, target.cpu, target.mcpu, target.cores, target.lanes, target.registers])


def _write(path: Path, target: Target, measured: Peak) -> None:
    keep(path, {"cpu": target.cpu, "cores": target.cores, **asdict(measured)})


def _read(path: Path) -> Peak | None:
    try:
        cached = kept(path)
        known = Peak(float(cached["flops"]), float(cached["bandwidth"]), cached.get("undisturbed", True) is True)
    except (ValueError, KeyError, TypeError):
        return None  # never measured, or the file is damaged
    return known if 0 < known.flops < math.inf and 0 < known.bandwidth < math.inf else None


# ---------------------------------------------------------------------------------------------- the kernels


def accumulators(registers: int) -> int:
    """The number of vectors that the multiply-add loop accumulates side by side.

    A fused multiply-add has a latency of 4 to 5 cycles and two pipelines, so 10 in flight keep both busy. The loop uses
    16 if the register file holds them beside the two operands, and 12 of the 16 registers of AVX2.

    Args:
        registers: The number of vector registers.
    """
    return max(1, min(16, registers - 4))


def fma_function(cores: int, vectors: int, lanes: int, steps: int) -> Any:
    """A function that repeats `r = r * x[0] + x[1]` on registers, then stores `out[core] = r`.

    Its parameters are `x` of shape (2, lanes) and `out` of shape (cores, vectors * lanes). It performs
    `2 * cores * vectors * lanes * steps` floating-point operations.

    Args:
        cores: Parallel tasks, one per core.
        vectors: The vector registers that `r` consists of.
        lanes: float32 values in a vector register.
        steps: Repetitions.
    """
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            x = T.arg("x", T.buffer((2, lanes), "float32"))
            out = T.arg("out", T.buffer((cores, vectors * lanes), "float32"))
            with T.parallel(cores) as core:
                r = T.alloc_buffer((vectors * lanes,), "float32", scope="local")

                def on_registers(statement: Callable[[Any, Any, Any], None]) -> None:
                    with T.unroll(vectors) as j, T.vectorized(lanes) as v:
                        statement(j * lanes + v, j, v)

                # The start values differ, so that LLVM cannot merge two registers into one.
                on_registers(lambda index, j, v: T.buffer_store(r, x[0, v] * T.Cast("float32", j), [index]))
                with T.serial(steps):
                    on_registers(lambda index, j, v: T.buffer_store(r, r[index] * x[0, v] + x[1, v], [index]))
                on_registers(lambda index, j, v: T.buffer_store(out, r[index], [core, index]))
        return builder.get()


def copy_function(chunks: int, length: int, lanes: int) -> Any:
    """A function that copies `a` to `b`, chunk by chunk in parallel. It moves `8 * chunks * length` bytes.

    Args:
        chunks: Parallel tasks: the rows of `a` and `b`.
        length: float32 values in a chunk.
        lanes: float32 values in a vector register; `length` is a multiple of it.
    """
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            a = T.arg("a", T.buffer((chunks, length), "float32"))
            b = T.arg("b", T.buffer((chunks, length), "float32"))
            with T.parallel(chunks) as chunk, T.serial(length // lanes) as i, T.vectorized(lanes) as v:
                T.buffer_store(b, a[chunk, i * lanes + v], [chunk, i * lanes + v])
        return builder.get()


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


# ------------------------------------------------------------------------------------- the measuring process


def shape_of(target: Target) -> dict[str, Any]:
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
        serve: the function that measures and sends the result, as `ChildProcess` names it.
        shape: the machine, as `shape_of` describes it; the function's argument.
        kind: the type of the result.
        what: what is done, for the message of an error.

    Raises:
        MeasureError: the process fails or takes too long.
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


def _measure_in_child(shape: Mapping[str, Any]) -> Peak:
    return measured_in_child(f"{__name__}:serve_peak", shape, Peak, "measuring this machine's peak")


def serve_peak(connection: Connection, shape: Mapping[str, Any]) -> None:
    """Measures the peak in a child process, whose parent holds the machine-wide lock."""
    flops, calm_flops = measure_flops(shape)
    bandwidth, calm_copy = _measure_bandwidth(shape)
    connection.send(Peak(flops, bandwidth, undisturbed=calm_flops and calm_copy))


def measure_flops(shape: Mapping[str, Any], steps: int = 400_000) -> tuple[float, bool]:
    """Measures the multiply-add loop in this process, which must use as many threads as the machine has cores.

    Args:
        shape: the machine, as `shape_of` describes it.
        steps: how often each register is multiplied and added to in a window.

    Returns:
        FLOP/s, and whether the best window ran undisturbed.
    """
    import numpy as np
    import tvm

    cores, lanes = int(shape["cores"]), int(shape["lanes"])
    vectors = accumulators(int(shape["registers"]))
    kernel = compile_function(fma_function(cores, vectors, lanes, steps), shape["mcpu"], cores).jit()["main"]
    # With a factor just above 1 and a small addend the sums neither overflow nor become denormal.
    factors = np.stack([np.full(lanes, 1.0000001), np.full(lanes, 1e-9)]).astype("float32")
    x = tvm.runtime.tensor(factors)
    out = tvm.runtime.tensor(np.zeros((cores, vectors * lanes), "float32"))
    seconds, undisturbed = best_window(lambda: kernel(x, out), cores)
    return 2.0 * cores * vectors * lanes * steps / seconds, undisturbed


def _measure_bandwidth(shape: Mapping[str, Any]) -> tuple[float, bool]:
    """Bytes/s of the copy, and whether it ran undisturbed.

    An array has four times the size of the last cache, at least 64 MiB and at most 1 GiB.
    """
    import numpy as np
    import tvm

    cores, lanes = int(shape["cores"]), int(shape["lanes"])
    size = min(max(4 * int(shape["l3"]), 64 << 20), 1 << 30, available_memory() // 4)
    length = max(1, size // 4 // cores // lanes) * lanes
    kernel = compile_function(copy_function(cores, length, lanes), shape["mcpu"], cores).jit()["main"]
    a = tvm.runtime.tensor(np.ones((cores, length), "float32"))
    b = tvm.runtime.tensor(np.zeros((cores, length), "float32"))
    seconds, undisturbed = best_window(lambda: kernel(a, b), cores)
    return 8.0 * cores * length / seconds, undisturbed


def best_window(
    run: Callable[[], object], cores: int, fewest: int = WINDOWS, patience: float = _PATIENCE
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
