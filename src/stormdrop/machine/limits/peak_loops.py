"""The loops that measure the peak: multiply-adds on registers, and a copy in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from ..process.memory import available_memory
from .measuring import PATIENCE, best_window, compile_function, main_function
from .peak import Peak

_STEPS = 400_000  # multiplications and additions to each register in a window
_COPIES = 10
"""Windows of the copy: each takes up to a tenth of a second, if the last cache is a large one."""


def serve_peak(connection: Connection, shape: Mapping[str, Any]) -> None:
    """Measures the peak in a child process, whose parent holds the machine-wide lock.

    Args:
        connection: Where the result goes.
        shape: The machine, as `shape_of` describes it, with `patience`: the seconds to wait for undisturbed windows.
    """
    end = time.perf_counter() + float(shape["patience"])
    flops, calm_flops = measure_flops(shape, patience=_left(end) / 2)
    bandwidth, calm_copy = _measure_bandwidth(shape, _left(end))
    connection.send(Peak(flops, bandwidth, undisturbed=calm_flops and calm_copy))


def _left(end: float) -> float:
    return max(0.0, end - time.perf_counter())


def measure_flops(shape: Mapping[str, Any], patience: float = PATIENCE) -> tuple[float, bool]:
    """Measures the multiply-add loop in this process, which must use as many threads as the machine has cores.

    Args:
        shape: The machine, as `shape_of` describes it.
        patience: Seconds to wait for an undisturbed window.

    Returns:
        FLOP/s, and whether the best window ran undisturbed.
    """
    import numpy as np
    import tvm

    cores, lanes = int(shape["cores"]), int(shape["lanes"])
    vectors = accumulators(int(shape["registers"]))
    kernel = compile_function(fma_function(cores, vectors, lanes, _STEPS), shape["mcpu"], cores).jit()["main"]
    # With a factor just above 1 and a small addend the sums neither overflow nor become denormal.
    factors = np.stack([np.full(lanes, 1.0000001), np.full(lanes, 1e-9)]).astype("float32")
    x = tvm.runtime.tensor(factors)
    out = tvm.runtime.tensor(np.zeros((cores, vectors * lanes), "float32"))
    seconds, undisturbed = best_window(lambda: kernel(x, out), cores, patience=patience)
    return 2.0 * cores * vectors * lanes * _STEPS / seconds, undisturbed


def _measure_bandwidth(shape: Mapping[str, Any], patience: float) -> tuple[float, bool]:
    """Bytes/s of the copy, and whether it ran undisturbed.

    An array has four times the size of the last cache, at least 64 MiB and at most 512 MiB. The copies themselves touch
    its pages for the first time, on all cores.
    """
    import tvm

    cores, lanes = int(shape["cores"]), int(shape["lanes"])
    size = min(max(4 * int(shape["l3"]), 64 << 20), 1 << 29, available_memory() // 4)
    length = max(1, size // 4 // cores // lanes) * lanes
    kernel = compile_function(copy_function(cores, length, lanes), shape["mcpu"], cores).jit()["main"]
    a, b = (tvm.runtime.empty((cores, length), "float32") for _ in range(2))
    kernel(b, a)  # what was never written would be read from one page of zeros
    seconds, undisturbed = best_window(lambda: kernel(a, b), cores, _COPIES, patience)
    return 8.0 * cores * length / seconds, undisturbed


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
    from tvm.script.ir_builder import tirx as T

    with main_function() as builder:
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
    from tvm.script.ir_builder import tirx as T

    with main_function() as builder:
        a = T.arg("a", T.buffer((chunks, length), "float32"))
        b = T.arg("b", T.buffer((chunks, length), "float32"))
        with T.parallel(chunks) as chunk, T.serial(length // lanes) as i, T.vectorized(lanes) as v:
            T.buffer_store(b, a[chunk, i * lanes + v], [chunk, i * lanes + v])
    return builder.get()
