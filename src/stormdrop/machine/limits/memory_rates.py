"""How fast this machine reads and copies arrays, by their size, and how many bytes its last cache really holds.

A virtual machine reports the last cache of its host, of which it has a share that nobody states. So a loop reads arrays
of growing size again and again, on all cores. As long as they stay in a cache it is faster than memory is. The size at
which its rate falls to the geometric mean of the last cache's and the memory's is what the caches hold
(`MemoryRates.cached`). What decides whether a model's weights stay in the caches uses that (`cached_bytes`). The
sketches make their spaces for what is reported, so that a space and its records do not depend on a measurement.

The arrays have pages as the system gives them. The largest is read from huge pages, too. A chain of loads, each of
which needs the one before, gives the latency of the memory.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import MeasureError
from ..process.memory import available_memory
from ..sharing.lock import MachineLock
from .kept_measurements import keep, kept, kept_file
from .peak import affordable, best_window, compile_function, deadline_of, measured_in_child, shape_of

if TYPE_CHECKING:
    from ..contract import Machine
    from ..cpu import Target

_METHOD = 1  # part of the key of what is kept: raise it when what is measured changes
_LEAST, _MOST = 64 << 10, 1 << 30  # bytes of all cores' arrays together
_RATIO = math.sqrt(2)  # from one size to the next
_BEYOND = 4  # the largest array, in sizes of the reported last cache
_FAR = 128 << 20  # bytes that suffice to leave an ordinary cache
_DISTINCT = 1.25  # times as fast as memory: what is slower than that is no cache worth the name
_SURELY = 1.5  # times what all caches hold: such an array does not lie in them
_FARTHEST = 3  # sizes whose median rate is that of memory
_VECTORS = 8  # registers that add up what is read
_WINDOW = 1e-3  # seconds of a run, at least
_RUNS, _PATIENCE = 5, 0.1
_COST = 6.0  # seconds, about, of a measurement
_LINE = 64  # bytes that a cache loads at once
_LOADS = 100_000  # of the chain in a run
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")  # whether Linux gives huge pages to whoever asks


@dataclass(frozen=True)
class MemoryRates:
    """How fast the memory and the caches of a machine are.

    Attributes:
        sizes: Bytes of the arrays that are read, those of all cores together.
        read: Bytes/s of reading an array of each size again and again, on all cores.
        copy: Bytes/s of copying one array to another, read plus written, where both together have each size.
        huge_pages: Bytes/s of reading the largest size from huge pages; 0 if the system has none.
        latency: Seconds of a load from the largest array that waits for the load before it, on one core.
        cached: Bytes that the caches of all cores hold.
        undisturbed: False if something else used the cores in all windows of a size. The true rates are then higher.
    """

    sizes: tuple[int, ...]
    read: tuple[float, ...]
    copy: tuple[float, ...]
    huge_pages: float
    latency: float
    cached: int
    undisturbed: bool = True


_measured: dict[Path, MemoryRates] = {}
"""What this process has measured, by the file that keeps it."""


def memory_rates(target: Target, refresh: bool = False, deadline: float = math.inf) -> MemoryRates:
    """The rates of this machine's memory and caches.

    The measurement takes some three seconds and waits for the machine-wide lock. It is kept per machine, as the peak
    is. One that was disturbed takes the place of no other than such a one.

    Args:
        target: This machine, with the number of cores to use.
        refresh: Measure even if the rates are known.
        deadline: A reading of `time.perf_counter` after which the lock is not waited for any more.

    Raises:
        LockTimeout: The machine was not free before the deadline.
        MeasureError: The target is another machine, or the measuring process fails.
    """
    if target.runner or target.triple:
        raise MeasureError(f"the memory of {target.name} cannot be measured here: it is another machine")
    path = _path(target)
    known = _known(path)
    if known is not None and not refresh:
        return known
    shape = {**shape_of(target), "l2s": target.cores * target.l2, "l3s": target.l3s * target.l3}
    with contextlib.closing(MachineLock()) as lock, lock.exclusive(deadline):
        known = _known(path)
        if known is not None and not refresh:  # whoever had the lock before has measured them
            return known
        serve = f"{__name__}:serve_memory_rates"
        measured = measured_in_child(serve, shape, MemoryRates, "measuring this machine's memory")
    stands = known is not None and known.undisturbed and not measured.undisturbed
    rates = _measured[path] = known if known is not None and stands else measured
    with contextlib.suppress(OSError):  # without a folder that can be written, the next process measures again
        keep(path, asdict(rates))
    return rates


def measure_caches_within(target: Machine, seconds: float | None) -> None:
    """Measure what this machine's caches hold, unless it is known, if that takes a small part of a tuning's time.

    Args:
        target: The machine, with the number of cores to use. Another machine than this one is not measured.
        seconds: The wall seconds of the tuning; None is no bound.
    """
    from ..cpu import Target

    if not isinstance(target, Target) or target.runner or target.triple or not target.l3:
        return
    known = _known(_path(target))
    if affordable(_COST, seconds, known):
        with contextlib.suppress(MeasureError):  # a tuning does with what is reported
            memory_rates(target, refresh=known is not None, deadline=deadline_of(seconds))


def cached_bytes(target: Target) -> int:
    """The bytes that the caches of a machine hold: as measured, if it is this one and was measured, or as reported.

    What a tuning records does not depend on it: spaces are made for what is reported.

    Args:
        target: The machine, with the number of cores to use.
    """
    known = None if target.runner or target.triple else known_cached(target)
    return target.caches if known is None else min(known, target.caches)


def known_cached(target: Target) -> int | None:
    """The bytes that this machine's caches hold, if they were measured undisturbed; it measures nothing.

    Args:
        target: This machine, with the number of cores to use.
    """
    known = _known(_path(target))
    return known.cached if known is not None and known.undisturbed else None


def last_cache(sizes: Sequence[int], read: Sequence[float], second: int, third: int) -> int:
    """The bytes that the caches hold, by the rates at which arrays are read.

    Args:
        sizes: Bytes of the arrays, from small to large. The largest lie in memory.
        read: Bytes/s for each of them.
        second: Bytes of all second-level caches, which are those of the cores.
        third: Bytes of all third-level caches as they are reported; 0 if there are none.

    Returns:
        At least `second`, and at most what both levels are reported to hold. That is also the answer if the rates do
        not tell: if the largest array may lie in the caches, or the third level is smaller than the second.

    Example:
        >>> last_cache([1, 2, 4, 8, 16, 32], [9.0, 9.0, 8.0, 8.0, 2.0, 2.0], second=2, third=14)
        11
    """
    whole = second + third
    if third < second or sizes[-1] < _SURELY * whole:
        return whole
    inside_third = min(2 * second, math.sqrt(second * whole))  # bytes of an array that lies in the third level
    near = next(rate for size, rate in zip(sizes, read, strict=True) if size >= inside_third)
    far = statistics.median(read[-_FARTHEST:])
    if near < _DISTINCT * far:
        return second
    middle = math.sqrt(near * far)
    end = max(index for index, rate in enumerate(read) if rate >= middle)
    if end == len(read) - 1:  # one fast window in memory
        return whole
    steps = math.log(read[end] / middle) / math.log(read[end] / read[end + 1])
    inside: float = sizes[end] * (sizes[end + 1] / sizes[end]) ** steps
    return max(second, min(round(inside), whole))


def _path(target: Target) -> Path:
    return kept_file("memory", [_METHOD, target.cpu, target.cores, target.l1, target.l2, target.l3, target.l3s])


def _known(path: Path) -> MemoryRates | None:
    return _read(path) or _measured.get(path)


def _read(path: Path) -> MemoryRates | None:
    try:
        document = kept(path)
        lists = {name: tuple(document[name]) for name in ("sizes", "read", "copy")}
        rates = MemoryRates(**{**document, **lists})
        return rates if rates.cached >= 0 and len(rates.sizes) == len(rates.read) == len(rates.copy) else None
    except (TypeError, KeyError):
        return None  # never measured, or the file is damaged


# ---------------------------------------------------------------------------------------------- the kernels


def read_function(cores: int, length: int, lanes: int) -> Any:
    """A function in which each core adds up the first elements of its row of `x`, again and again, into `out[core]`.

    Its parameters are `x` of shape (cores, length), `out` of shape (cores, 8 * lanes), and `work` of two int32: how
    many blocks of 8 vectors a core reads, and how often.

    Args:
        cores: Parallel tasks, one per core.
        length: float32 values in a row.
        lanes: float32 values in a vector register.
    """
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    block = _VECTORS * lanes
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            x = T.arg("x", T.buffer((cores, length), "float32"))
            out = T.arg("out", T.buffer((cores, block), "float32"))
            work = T.arg("work", T.buffer((2,), "int32"))
            with T.parallel(cores) as core:
                r = T.alloc_buffer((block,), "float32", scope="local")
                with T.unroll(_VECTORS) as j, T.vectorized(lanes) as v:
                    T.buffer_store(r, T.float32(0), [j * lanes + v])
                with T.serial(work[1]), T.serial(work[0]) as i, T.unroll(_VECTORS) as j, T.vectorized(lanes) as v:
                    index = j * lanes + v
                    T.buffer_store(r, r[index] + x[core, i * block + index], [index])
                with T.unroll(_VECTORS) as j, T.vectorized(lanes) as v:
                    T.buffer_store(out, r[j * lanes + v], [core, j * lanes + v])
        return builder.get()


def copy_function(cores: int, length: int, lanes: int) -> Any:
    """A function in which each core copies the first elements of its row of `x` to `y`, again and again.

    Its parameters are `x` and `y` of shape (cores, length), and `work` as in `read_function`. What it copies it adds 1
    to: LLVM would otherwise call the C library's copy, which chooses its own stores.

    Args:
        cores: Parallel tasks, one per core.
        length: float32 values in a row.
        lanes: float32 values in a vector register.
    """
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    block = _VECTORS * lanes
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            x = T.arg("x", T.buffer((cores, length), "float32"))
            y = T.arg("y", T.buffer((cores, length), "float32"))
            work = T.arg("work", T.buffer((2,), "int32"))
            with (
                T.parallel(cores) as core,
                T.serial(work[1]),
                T.serial(work[0]) as i,
                T.unroll(_VECTORS) as j,
                T.vectorized(lanes) as v,
            ):
                index = i * block + j * lanes + v
                T.buffer_store(y, x[core, index] + T.float32(1), [core, index])
        return builder.get()


def chain_function(count: int, loads: int) -> Any:
    """A function that follows `chain` from `place[0]` on: `p = chain[p]`, so and so often; then `place[0] = p`.

    So the next call goes on where this one ended, and finds nothing in the caches.

    Args:
        count: int32 values in `chain`.
        loads: How many of them it loads.
    """
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            chain = T.arg("chain", T.buffer((count,), "int32"))
            place = T.arg("place", T.buffer((1,), "int32"))
            p = T.alloc_buffer((1,), "int32", scope="local")
            T.buffer_store(p, place[0], [0])
            with T.serial(loads):
                T.buffer_store(p, chain[p[0]], [0])
            T.buffer_store(place, p[0], [0])
        return builder.get()


# ------------------------------------------------------------------------------------- the measuring process


def serve_memory_rates(connection: Connection, shape: Mapping[str, Any]) -> None:
    """Measures in a child process, whose parent holds the machine-wide lock.

    Args:
        connection: Where the result goes.
        shape: The machine, as `shape_of` describes it, with `l2s` and `l3s`: the bytes of its second- and of its
            third-level caches, each in all.
    """
    import numpy as np
    import tvm

    cores, lanes = int(shape["cores"]), int(shape["lanes"])
    second, third = int(shape["l2s"]), int(shape["l3s"])
    block = 4 * _VECTORS * lanes  # bytes
    largest = max(_LEAST, min(max(_BEYOND * (second + third), _FAR), _MOST, available_memory() // 8))
    steps = max(1, round(math.log(largest / _LEAST, _RATIO)))
    rows = [max(1, round(largest / _RATIO**step / cores / block)) for step in range(steps, -1, -1)]  # blocks of a core
    length = rows[-1] * block // 4

    def compiled(function: Any) -> Any:
        return compile_function(function, shape["mcpu"], cores).jit()["main"]

    sums = tvm.runtime.tensor(np.zeros((cores, block // 4), "float32"))
    reads = compiled(read_function(cores, length, lanes))

    def read_rates(x: Any, rows: Sequence[int]) -> list[tuple[float, bool]]:
        return [_rate(lambda work: reads(x, sums, work), blocks, cores * blocks * block, cores) for blocks in rows]

    read = read_rates(tvm.runtime.tensor(np.ones((cores, length), "float32")), rows)
    pages = _huge_pages(cores, length)
    huge = 0.0 if pages is None else read_rates(pages, rows[-1:])[0][0]
    del pages  # the next arrays are as large
    half = max(1, length // 2 // (block // 4)) * (block // 4)
    copies = compiled(copy_function(cores, half, lanes))

    def copy_rates(x: Any, y: Any) -> list[tuple[float, bool]]:
        halves = [max(1, count // 2) for count in rows]
        return [_rate(lambda work: copies(x, y, work), blocks, 2 * cores * blocks * block, cores) for blocks in halves]

    copy = copy_rates(*(tvm.runtime.tensor(np.ones((cores, half), "float32")) for _ in range(2)))
    sizes = [cores * blocks * block for blocks in rows]
    rates = [rate for rate, _ in read]
    undisturbed = all(calm for _, calm in (*read, *copy))
    latency = _latency(compiled, largest)
    cached = last_cache(sizes, rates, second, third)
    copied = tuple(rate for rate, _ in copy)
    connection.send(MemoryRates(tuple(sizes), tuple(rates), copied, huge, latency, cached, undisturbed))


def _rate(run: Callable[[Any], object], blocks: int, size: int, cores: int) -> tuple[float, bool]:
    """Bytes/s of a kernel that takes `work`, and whether it ran undisturbed.

    Args:
        run: Calls the kernel with `work`.
        blocks: The blocks of each core.
        size: The bytes that it moves when it goes over its arrays once.
        cores: The number of cores.
    """
    import numpy as np
    import tvm

    def work(times: int) -> Any:
        return tvm.runtime.tensor(np.array([blocks, times], "int32"))

    times, given = 1, work(1)
    run(given)  # starts the threads
    while (seconds := _seconds(run, given)) < _WINDOW:
        times = max(2 * times, min(math.ceil(times * 1.2 * _WINDOW / seconds), 1 << 20))
        given = work(times)
    best, undisturbed = best_window(lambda: run(given), cores, fewest=_RUNS, patience=_PATIENCE)
    return times * size / best, undisturbed


def _seconds(run: Callable[[Any], object], given: Any) -> float:
    begin = time.perf_counter()
    run(given)
    return time.perf_counter() - begin


def _huge_pages(cores: int, length: int) -> Any:
    """An array of ones in huge pages, as `read_function` takes it; None if the system has no huge pages."""
    import numpy as np
    import tvm

    if not hasattr(mmap, "MADV_HUGEPAGE") or not _THP.exists() or "[never]" in _THP.read_text():
        return None
    pages = mmap.mmap(-1, 4 * cores * length)
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them
        return None
    array = np.frombuffer(pages, "float32").reshape(cores, length)
    array[:] = 1.0
    return tvm.runtime.from_dlpack(array)


def _latency(compiled: Callable[[Any], Any], size: int) -> float:
    """Seconds of a load that waits for the one before it, from an array of so many bytes."""
    import numpy as np
    import tvm

    per_line = _LINE // 4
    lines = size // _LINE
    order = np.random.default_rng(0).permutation(lines).astype("int32")
    chain = np.zeros(lines * per_line, "int32")
    chain[order * per_line] = np.roll(order, -1) * per_line
    kernel = compiled(chain_function(len(chain), _LOADS))
    given, place = tvm.runtime.tensor(chain), tvm.runtime.tensor(np.zeros(1, "int32"))
    return best_window(lambda: kernel(given, place), 1, fewest=_RUNS, patience=_PATIENCE)[0] / _LOADS
