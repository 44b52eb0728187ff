"""What this machine can do at most: measured, not looked up.

`flops` is what register-only fused multiply-adds reach on all cores: as many vector accumulators as fill the
pipelines, no load and no store in the loop. `bandwidth` is what a copy of arrays much larger than the last
cache reaches on all cores, counted as bytes read plus bytes written (the lines that a cache fetches before it
writes them are not counted). Both are the best of several windows, measured while nobody else measures.

The kernels are TensorIR, compiled in-process: a user needs no C compiler. They run in a process of their own,
because the number of threads is settled once, when TVM is loaded. The result is kept per machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from ..errors import MeasureError
from .gpu import Device

if TYPE_CHECKING:
    from .cpu import Machine, Target

WINDOWS = 60
"""Windows per figure, each a few milliseconds: on a shared machine the best one is the undisturbed one."""

_PATIENCE = 2.0  # seconds to wait for an undisturbed window
_FULL_SHARE = 0.9  # of the cores' time: less means that something else ran on them

_METHOD = 1  # part of the cache's key: raise it when what is measured changes
_TIMEOUT = 180.0  # seconds; the two figures take about 2 s plus the wait for the machine-wide lock


@dataclass(frozen=True)
class Peak:
    """Measured limits of a machine: `flops` in FLOP/s (float32), `bandwidth` in bytes/s (read plus written).

    Not `undisturbed`: something else used the cores all the while, and the true limits are higher.
    """

    flops: float
    bandwidth: float
    undisturbed: bool = True


def peak(target: Machine, refresh: bool = False) -> Peak:
    """The measured limits of this machine, with the cores of `target`.

    Taken from the user's cache where it was measured before, unless `refresh`. The measurement waits for the
    machine-wide lock; what was measured beside another process's load is returned and not kept. Raises
    `MeasureError` when the measuring process fails. Of a GPU they are those that its data sheet states.
    """
    if isinstance(target, Device):
        return Peak(target.flops, target.bandwidth)
    if target.runner:
        raise MeasureError(f"the limits of the machine at {target.runner} are not known")
    path = cache_path(target)
    if not refresh:
        known = _read(path)
        if known is not None:
            return known
    measured = _measure_in_child(_shape(target))
    if measured.undisturbed:
        with contextlib.suppress(OSError):  # a home that cannot be written: they are measured again next time
            _write(path, target, measured)
    return measured


def cache_path(target: Target) -> Path:
    """Where the figures of this machine are kept: one JSON file per CPU model, core count and vector width."""
    identity = json.dumps([_METHOD, target.cpu, target.mcpu, target.cores, target.lanes, target.registers])
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("stormdrop", appauthor=False)) / "peak" / f"{name}.json"


def _write(path: Path, target: Target, measured: Peak) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(
        json.dumps({"cpu": target.cpu, "cores": target.cores, "flops": measured.flops, "bandwidth": measured.bandwidth})
        + "\n"
    )
    draft.replace(path)  # whole or not at all: another process may be reading


def _read(path: Path) -> Peak | None:
    try:
        kept = json.loads(path.read_text())
        return Peak(float(kept["flops"]), float(kept["bandwidth"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # never measured, or a file that is no longer ours to trust: measure


# ---------------------------------------------------------------------------------------------- the kernels


def accumulators(registers: int) -> int:
    """Vectors that are accumulated side by side.

    A fused multiply-add has a latency of 4 to 5 cycles and two pipelines: 10 in flight keep both busy. 16 are
    used where the register file holds them with the two operands; 12 of the 16 registers of AVX2.
    """
    return max(1, min(16, registers - 4))


def fma_function(cores: int, vectors: int, lanes: int, steps: int) -> Any:
    """`out[core, :] = steps times (r = r * x[0] + x[1])`, `r` being `vectors` registers of `lanes` floats.

    Parameters `x` (2, lanes) and `out` (cores, vectors * lanes). It does `2 * cores * vectors * lanes * steps`
    floating-point operations.
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

                def on_registers(value: Callable[[Any, Any, Any], None]) -> None:
                    with T.unroll(vectors) as j, T.vectorized(lanes) as v:
                        value(j * lanes + v, j, v)

                # Different start values, so that no two registers can be merged into one.
                on_registers(lambda at, j, v: T.buffer_store(r, x[0, v] * T.Cast("float32", j), [at]))
                with T.serial(steps):
                    on_registers(lambda at, j, v: T.buffer_store(r, r[at] * x[0, v] + x[1, v], [at]))
                on_registers(lambda at, j, v: T.buffer_store(out, r[at], [core, at]))
        return builder.get()


def copy_function(chunks: int, length: int, lanes: int) -> Any:
    """`b = a` for two arrays of shape (chunks, length), chunks in parallel; it moves `8 * chunks * length` bytes."""
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
    """The executable of a TensorIR function `main` for a CPU."""
    import tvm

    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": cores})
    return tvm.compile(tvm.IRModule({"main": function}), target)


# ------------------------------------------------------------------------------------- the measuring process


def _shape(target: Target) -> dict[str, Any]:
    return {
        "mcpu": target.mcpu,
        "cores": target.cores,
        "lanes": target.lanes,
        "registers": target.registers,
        "l3": target.l3,
    }


def _measure_in_child(shape: Mapping[str, Any]) -> Peak:
    environment = {**os.environ, "TVM_NUM_THREADS": str(shape["cores"])}
    command = [sys.executable, "-m", "stormdrop.machine.peak", json.dumps(shape)]
    # The child must find this very package, also where it is not installed.
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    try:
        child = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False, encoding="utf-8"
        )
    except subprocess.TimeoutExpired as error:
        raise MeasureError(f"measuring this machine's peak took longer than {_TIMEOUT:.0f} s") from error
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise MeasureError(f"measuring this machine's peak failed: {last}")
    figures = json.loads(child.stdout.strip().splitlines()[-1])
    return Peak(**figures)


def _main(argument: str) -> None:
    from .lock import MachineLock

    shape = json.loads(argument)
    with contextlib.closing(MachineLock()) as lock, lock.exclusive():
        flops, calm_flops = _measure_flops(shape)
        bandwidth, calm_copy = _measure_bandwidth(shape)
    print(json.dumps(asdict(Peak(flops, bandwidth, undisturbed=calm_flops and calm_copy))))


def _measure_flops(shape: Mapping[str, Any], steps: int = 400_000) -> tuple[float, bool]:
    """FLOP/s of the multiply-add loop, and whether nothing disturbed it."""
    import numpy as np
    import tvm

    cores, lanes = int(shape["cores"]), int(shape["lanes"])
    vectors = accumulators(int(shape["registers"]))
    kernel = compile_function(fma_function(cores, vectors, lanes, steps), shape["mcpu"], cores).jit()["main"]
    # A factor just above 1 and a small addend: the sums neither overflow nor become denormal.
    factors = np.stack([np.full(lanes, 1.0000001), np.full(lanes, 1e-9)]).astype("float32")
    x = tvm.runtime.tensor(factors)
    out = tvm.runtime.tensor(np.zeros((cores, vectors * lanes), "float32"))
    seconds, undisturbed = _best_window(lambda: kernel(x, out), cores)
    return 2.0 * cores * vectors * lanes * steps / seconds, undisturbed


def _measure_bandwidth(shape: Mapping[str, Any]) -> tuple[float, bool]:
    """Bytes/s of the copy, and whether nothing disturbed it; arrays of four times the last cache, 64 MiB to 1 GiB."""
    import numpy as np
    import psutil
    import tvm

    cores, lanes = int(shape["cores"]), int(shape["lanes"])
    size = min(max(4 * int(shape["l3"]), 64 << 20), 1 << 30, psutil.virtual_memory().available // 4)
    length = max(1, size // 4 // cores // lanes) * lanes
    kernel = compile_function(copy_function(cores, length, lanes), shape["mcpu"], cores).jit()["main"]
    a = tvm.runtime.tensor(np.ones((cores, length), "float32"))
    b = tvm.runtime.tensor(np.zeros((cores, length), "float32"))
    seconds, undisturbed = _best_window(lambda: kernel(a, b), cores)
    return 8.0 * cores * length / seconds, undisturbed


def _best_window(run: Callable[[], object], cores: int) -> tuple[float, bool]:
    """Seconds of the fastest of at least `WINDOWS` runs, and whether it had the cores for itself.

    A run that competes for a core uses less CPU time than wall time times cores. While the fastest run is such
    a one, more windows are tried for `_PATIENCE` seconds.
    """
    run()  # first touch of memory, start of the threads
    best, undisturbed = float("inf"), False
    begin = time.perf_counter()
    windows = 0
    while windows < WINDOWS or (not undisturbed and time.perf_counter() - begin < _PATIENCE):
        cpu, start = time.process_time(), time.perf_counter()
        run()
        wall = time.perf_counter() - start
        share = (time.process_time() - cpu) / (wall * cores)
        windows += 1
        if wall < best:
            best, undisturbed = wall, share > _FULL_SHARE
    return best, undisturbed


if __name__ == "__main__":
    _main(sys.argv[1])
