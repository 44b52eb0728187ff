"""Tune the compiler flags and the block sizes of a C program: `python examples/c_flags.py` (less than a minute).

The program, c_flags.c, multiplies two matrices and prints how long that took. The objective compiles it with the flags
of a configuration, runs it in a process of its own, compares its output with NumPy's, and returns the times.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import stormdrop as sd

SOURCE = Path(__file__).with_suffix(".c")
SIZE = 256  # N in the source
SAMPLES = 15

BLOCKS = [16, 32, 64, 128, 256]
KNOBS: list[sd.Ordinal | sd.Categorical] = [
    sd.Ordinal("optimize", ["-O1", "-O2", "-O3"]),
    sd.Categorical("machine", ["", "-march=native"]),
    sd.Categorical("unroll", ["", "-funroll-loops"]),
    sd.Categorical("arithmetic", ["", "-ffast-math"]),
    *(sd.Ordinal(block, BLOCKS) for block in ("BI", "BJ", "BK")),
]
if platform.machine() in {"x86_64", "AMD64"}:
    KNOBS.append(sd.Categorical("vectors", ["", *(f"-mprefer-vector-width={bits}" for bits in (128, 256, 512))]))

FLAGS = ("machine", "unroll", "arithmetic", "vectors")  # an empty flag leaves the choice to the compiler
ORIGIN = {"optimize": "-O2", "BI": 64, "BJ": 64, "BK": 64}
SPACE = sd.Space("matmul", KNOBS, origin={**{knob.name: "" for knob in KNOBS}, **ORIGIN})


class Program:
    """The program in its own folder; it is compiled once per configuration."""

    def __init__(self, compiler: str, folder: Path) -> None:
        self.compiler, self.folder = compiler, folder
        a, b = np.random.default_rng(0).random((2, SIZE, SIZE), dtype=np.float32)
        self.reference = a.astype(np.float64) @ b
        np.concatenate([a, b]).tofile(folder / "input")
        self.compiled = lru_cache(maxsize=None)(self._compile)

    def time(self, config: Mapping[str, Any]) -> list[float]:
        """Seconds of a few multiplications. Raises if it does not compile, does not end in 10 s, or is wrong."""
        program, output = self.compiled(tuple(words(config))), self.folder / "output"
        printed = run([program, str(self.folder / "input"), str(output), str(SAMPLES)])
        error = np.abs(np.fromfile(output, np.float32).reshape(SIZE, SIZE) - self.reference).max()
        if not error <= 1e-5 * np.abs(self.reference).max():
            raise ArithmeticError(f"the result is off by {error:.1e}")
        return [float(line) for line in printed.split()]

    def _compile(self, words: tuple[str, ...]) -> str:
        program = str(self.folder / f"program{self.compiled.cache_info().currsize}")
        run([self.compiler, *words, str(SOURCE), "-o", program])
        return program


def words(config: Mapping[str, Any]) -> list[str]:
    """The words of the compiler's command line for a configuration."""
    flags = [config["optimize"], *(config.get(flag) for flag in FLAGS)]
    return [*filter(None, flags), *(f"-D{block}={config[block]}" for block in ("BI", "BJ", "BK"))]


def run(command: list[str]) -> str:
    """What a command prints. Raises `RuntimeError` with its complaint if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune the compiler flags and the block sizes of c_flags.c.")
    parser.add_argument("--time", default="40s", help="stop after this time (default: 40s)")
    parser.add_argument("--trials", type=int, help="stop after this number of configurations")
    arguments = parser.parse_args()
    compiler = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    if compiler is None:
        sys.exit("c_flags: no C compiler found: install gcc or clang, or put it on your PATH")
    print(f"tuning {SOURCE.name} with {compiler}, {SPACE.size} configurations ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        program = Program(compiler, Path(folder))
        result = sd.minimize(SPACE, program.time, time=arguments.time, trials=arguments.trials)
    if result.best is None:
        sys.exit(f"c_flags: no configuration worked: {result.error}")
    best, default = result.best, SPACE.config(SPACE.origin)
    low, high = (1e3 * bound for bound in best.interval)
    print(f"\n{'':<10}{'time':>10}{'95% interval':>22}   compiled with")
    if result.baseline is not None:
        print(f"{'default':<10}{1e3 * result.baseline:>7.3f} ms{'':>22}   {' '.join(words(default))}")
    interval = f"{low:.3f} to {high:.3f} ms"
    print(f"{'best':<10}{1e3 * best.seconds:>7.3f} ms{interval:>22}   {' '.join(words(best.config))}")
    if best.speedup is None:
        print("\nnothing was significantly faster than the default")
    else:
        ratio, least, most = best.speedup
        print(f"\n{ratio:.2f} times faster (95% interval {least:.2f} to {most:.2f})")
    counts = f"{result.trials} configurations, {result.failed} failed, {result.seconds:.0f} s"
    print(f"{counts}; why the search ended: {result.end}")


if __name__ == "__main__":
    main()
