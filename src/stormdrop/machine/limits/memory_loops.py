"""The loops that measure memory and caches: reads and copies of arrays of growing size, and a chain of loads."""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..process.memory import available_memory
from .measuring import best_window, compile_function, main_function
from .memory_rates import Caches, MemoryRates, last_cache

_LEAST, _MOST = 64 << 10, 1 << 30  # bytes of all cores' arrays together
_RATIO = math.sqrt(2)  # from one size to the next
_BEYOND = 4  # the largest array, in sizes of the reported last cache
_FAR = 128 << 20  # bytes that suffice to leave an ordinary cache
_VECTORS = 8  # registers that add up what is read
_WINDOW = 1e-3  # seconds of a run, at least
_RUNS, _PATIENCE = 5, 0.1
_STRIDE = 256  # bytes between two places of the chain: more than a cache loads at once
_LOADS = 100_000  # of the chain in a run
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")  # whether Linux gives huge pages to whoever asks


def serve_memory_rates(connection: Connection, shape: Mapping[str, Any]) -> None:
    """Measures in a child process, whose parent holds the machine-wide lock.

    Args:
        connection: Where the result goes.
        shape: The machine, as `shape_of` describes it, with `l2s` and `l3s`: the bytes of its second- and of its
            third-level caches, each in all.
    """
    loops = _Loops(shape)
    rows = loops.rows
    read = loops.read(_ones(loops.cores, loops.length), rows)
    huge = loops.read(_ones(loops.cores, loops.length, huge_pages=True), rows[-1:])[0][0] if _has_huge_pages() else 0.0
    copy = loops.copy()
    sizes, rates = loops.sizes(rows), [rate for rate, _ in read]
    undisturbed = all(calm for _, calm in (*read, *copy))
    latency = _latency(loops.compiled, loops.largest)
    cached = last_cache(sizes, rates, loops.second, loops.third)
    copied = tuple(rate for rate, _ in copy)
    connection.send(MemoryRates(tuple(sizes), tuple(rates), copied, huge, latency, cached, undisturbed))


def serve_caches(connection: Connection, shape: Mapping[str, Any]) -> None:
    """Measures only what the caches hold: by reading arrays that are larger than a half of the second level.

    Args:
        connection: Where the result goes.
        shape: As in `serve_memory_rates`.
    """
    loops = _Loops(shape)
    rows = [blocks for blocks, size in zip(loops.rows, loops.sizes(loops.rows), strict=True) if 2 * size > loops.second]
    read = loops.read(_ones(loops.cores, loops.length), rows)
    cached = last_cache(loops.sizes(rows), [rate for rate, _ in read], loops.second, loops.third)
    connection.send(Caches(cached, all(calm for _, calm in read)))


class _Loops:
    """The kernels that read and copy, and the arrays that they go over.

    Args:
        shape: As in `serve_memory_rates`.
    """

    def __init__(self, shape: Mapping[str, Any]) -> None:
        self.cores, self._lanes, self._mcpu = int(shape["cores"]), int(shape["lanes"]), shape["mcpu"]
        self.second, self.third = int(shape["l2s"]), int(shape["l3s"])
        self._block = block = 4 * _VECTORS * self._lanes  # bytes
        beyond = max(_BEYOND * (self.second + self.third), _FAR)
        self.largest = largest = max(_LEAST, min(beyond, _MOST, available_memory() // 8))
        steps = max(1, round(math.log(largest / _LEAST, _RATIO)))
        self.rows = [max(1, round(largest / _RATIO**step / self.cores / block)) for step in range(steps, -1, -1)]
        """The blocks that a core goes over, from few to many."""
        self.length = self.rows[-1] * block // 4

    def compiled(self, function: Any) -> Any:
        """A function that can be called."""
        return compile_function(function, self._mcpu, self.cores).jit()["main"]

    def sizes(self, rows: Sequence[int]) -> list[int]:
        """Bytes of the arrays of all cores together."""
        return [self.cores * blocks * self._block for blocks in rows]

    def read(self, x: Any, rows: Sequence[int]) -> list[tuple[float, bool]]:
        """Bytes/s of reading, and whether it ran undisturbed, for some numbers of blocks."""
        import numpy as np
        import tvm

        sums = tvm.runtime.tensor(np.zeros((self.cores, self._block // 4), "float32"))
        reads = self.compiled(read_function(self.cores, self.length, self._lanes))
        given = zip(rows, self.sizes(rows), strict=True)
        return [_rate(lambda work: reads(x, sums, work), blocks, size, self.cores) for blocks, size in given]

    def copy(self) -> list[tuple[float, bool]]:
        """Bytes/s of copying, and whether it ran undisturbed, where both arrays together have each of the sizes."""
        half = max(1, self.length // 2 // (self._block // 4)) * (self._block // 4)
        copies = self.compiled(copy_function(self.cores, half, self._lanes))
        x, y = (_ones(self.cores, half) for _ in range(2))
        halves = [max(1, blocks // 2) for blocks in self.rows]
        given = zip(halves, self.sizes(halves), strict=True)
        return [_rate(lambda work: copies(x, y, work), blocks, 2 * size, self.cores) for blocks, size in given]


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


def _has_huge_pages() -> bool:
    """Whether the system gives huge pages to whoever asks."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or not _THP.exists() or "[never]" in _THP.read_text():
        return False
    try:
        mmap.mmap(-1, mmap.PAGESIZE).madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them
        return False
    return True


def _ones(cores: int, length: int, huge_pages: bool = False) -> Any:
    """An array of ones as `read_function` takes it, whose pages are written once."""
    import numpy as np
    import tvm

    pages = mmap.mmap(-1, 4 * cores * length)
    if huge_pages:
        pages.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(pages, "float32").reshape(cores, length)
    array[:] = 1.0
    return tvm.runtime.from_dlpack(array)


def _latency(compiled: Callable[[Any], Any], size: int) -> float:
    """Seconds of a load that waits for the one before it, from an array of so many bytes."""
    import numpy as np
    import tvm

    count, step = size // _STRIDE, _STRIDE // 4
    order = np.random.default_rng(0).permutation(np.arange(count, dtype="int32"))
    chain = np.frombuffer(mmap.mmap(-1, count * _STRIDE), "int32")
    chain[order * step] = np.roll(order, -1) * step
    kernel = compiled(chain_function(len(chain), _LOADS))
    given, place = tvm.runtime.from_dlpack(chain), tvm.runtime.tensor(np.zeros(1, "int32"))
    return best_window(lambda: kernel(given, place), 1, fewest=_RUNS, patience=_PATIENCE)[0] / _LOADS


def read_function(cores: int, length: int, lanes: int) -> Any:
    """A function in which each core adds up the first elements of its row of `x`, again and again, into `out[core]`.

    Its parameters are `x` of shape (cores, length), `out` of shape (cores, 8 * lanes), and `work` of two int32: how
    many blocks of 8 vectors a core reads, and how often.

    Args:
        cores: Parallel tasks, one per core.
        length: float32 values in a row.
        lanes: float32 values in a vector register.
    """
    from tvm.script.ir_builder import tirx as T

    block = _VECTORS * lanes
    with main_function() as builder:
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
    from tvm.script.ir_builder import tirx as T

    block = _VECTORS * lanes
    with main_function() as builder:
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
    from tvm.script.ir_builder import tirx as T

    with main_function() as builder:
        chain = T.arg("chain", T.buffer((count,), "int32"))
        place = T.arg("place", T.buffer((1,), "int32"))
        p = T.alloc_buffer((1,), "int32", scope="local")
        T.buffer_store(p, place[0], [0])
        with T.serial(loads):
            T.buffer_store(p, chain[p[0]], [0])
        T.buffer_store(place, p[0], [0])
    return builder.get()
