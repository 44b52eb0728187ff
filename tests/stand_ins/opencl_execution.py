"""Executes OpenCL kernels on a CPU, in a process of their own: by PoCL for real, or by Oclgrind, which watches them.

PoCL runs the work-items of a work-group one after the other between two barriers, so it may not notice a missing one.
Oclgrind is a simulator. It reports data races, accesses out of bounds, and barriers that not all work-items reach.

`without_barrier` and `without_guard` put faults into sources on purpose, which a check has to find.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stormdrop.codegen.opencl import OpenClModule
from stormdrop.errors import MeasureError, one_line
from stormdrop.machine.opencl import OpenCl, OpenClInfo

Array = NDArray[Any]

EMULATED = OpenCl.of(OpenClInfo(0, "GPU on a CPU", "emulated", "", True, 1024, 48 << 10, 16, 1500, False))
"""The device that kernels are scheduled for, with limits as CUDA has them: 1,024 work-items and 48 KiB."""

BARRIER = "barrier(CLK_LOCAL_MEM_FENCE);"

_OCLGRIND = (
    *("oclgrind", "--data-races", "--uniform-writes", "--max-errors", "1000", "--local-mem-size", str(64 << 10)),
    # Optimised code may hold integers of three bits, with which Oclgrind 21.10 computes wrong addresses.
    *("--build-options", "-cl-opt-disable"),
)
_HEADLINE = re.compile(r"^(?!Oclgrind)(\w.*?)(?: at \w+ memory address|$)", re.MULTILINE)
_SECONDS = 600.0  # of one module, at most


@dataclass(frozen=True)
class Execution:
    """What an execution has shown.

    Attributes:
        outputs: The outputs; empty if it failed.
        error: One line if it failed; empty otherwise.
        complaints: What Oclgrind complained of, each kind once.
        bank_conflicts: How many more passes over the banks of shared memory `ldmatrix` took than it read matrices. Only
            the execution of CUDA source counts them.
    """

    outputs: tuple[Array, ...]
    error: str
    complaints: tuple[str, ...]
    bank_conflicts: int = 0


@dataclass(frozen=True)
class Job:
    """A module with its arguments.

    Attributes:
        module: The kernels.
        inputs: The arrays that its first parameters take.
        outputs: The shape and the dtype of each output.
    """

    module: OpenClModule
    inputs: Sequence[Array]
    outputs: Sequence[tuple[tuple[int, ...], str]]


def execute(jobs: Sequence[Job], oclgrind: bool = False) -> list[Execution]:
    """Executes modules in another process, which is started again if a kernel ends it.

    Args:
        jobs: The modules.
        oclgrind: Whether Oclgrind executes them; if not, the first device that OpenCL finds here.

    Raises:
        MeasureError: There is no `oclgrind` on the PATH, or the process cannot execute anything.
    """
    if oclgrind and shutil.which("oclgrind") is None:
        raise MeasureError("there is no oclgrind on the PATH")
    done: list[Execution] = []
    while len(done) < len(jobs):
        executed, last = _in_child(jobs[len(done) :], oclgrind)
        done += executed
        if len(done) < len(jobs):
            done.append(Execution((), last, ()))
    return done


def _in_child(jobs: Sequence[Job], oclgrind: bool) -> tuple[list[Execution], str]:
    """The executions of a process until it ended, and one line that says how it ended."""
    with tempfile.TemporaryDirectory(prefix="stormdrop-") as name:
        folder = Path(name)
        with (folder / "jobs").open("wb") as file:
            for job in jobs:
                pickle.dump(job, file)
        script = f"from {__name__} import serve; serve({name!r})"
        command = [*(_OCLGRIND if oclgrind else ()), sys.executable, "-c", script]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with (folder / "stderr").open("wb") as errors:
            ended = subprocess.run(
                command, stdout=errors, stderr=errors, env=environment, timeout=_SECONDS * len(jobs), check=False
            )
        executed: list[Execution] = []
        with (folder / "results").open("ab+") as file:
            file.seek(0)
            while (execution := _load(file)) is not None:
                executed.append(execution)
        tail = (folder / "stderr").read_text(errors="replace").strip().splitlines()[-1:]
        return executed, f"the process ended with {ended.returncode}: {' '.join(tail)}"


def without_barrier(module: OpenClModule, position: int) -> OpenClModule:
    """The module without one of its barriers.

    Args:
        module: The module.
        position: Which barrier, from 0.

    Raises:
        ValueError: There are fewer barriers.
    """
    parts = module.source.split(BARRIER)
    if position + 1 >= len(parts):
        raise ValueError(f"there are {len(parts) - 1} barriers")
    source = BARRIER.join(parts[: position + 1]) + BARRIER.join(parts[position + 1 :])
    return replace(module, source=source)


def without_guard(module: OpenClModule, position: int) -> OpenClModule:
    """The module with one of its conditions always true, so that all work-items do what only some may do.

    Args:
        module: The module.
        position: Which `if`, from 0.

    Raises:
        ValueError: There are fewer conditions.
    """
    guards = list(re.finditer(r"^(\s*)if \(.*\) \{$", module.source, re.MULTILINE))
    if position >= len(guards):
        raise ValueError(f"there are {len(guards)} conditions")
    guard = guards[position]
    source = f"{module.source[: guard.start()]}{guard[1]}if (true) {{{module.source[guard.end() :]}"
    return replace(module, source=source)


def _load(file: BinaryIO) -> Any:
    """The next pickled object; None at the end of the file, or if the rest was not written."""
    try:
        return pickle.load(file)
    except (EOFError, pickle.UnpicklingError):
        return None


def serve(name: str) -> None:
    """Executes the jobs of a folder one after the other, and writes each result before the next one begins.

    Args:
        name: The folder's path. `execute` starts a process for it.
    """
    from stormdrop.codegen.opencl_runtime import OpenClRuntime
    from stormdrop.machine.opencl import _found

    folder, devices = Path(name), list(_found().values())
    if not devices:
        raise SystemExit("OpenCL finds no device here")
    runtime = OpenClRuntime(devices[0])
    with (folder / "jobs").open("rb") as jobs, (folder / "results").open("wb") as results:
        while (job := _load(jobs)) is not None:
            told = (folder / "stderr").stat().st_size
            outputs: tuple[Array, ...] = ()
            error = ""
            try:
                outputs = _run(runtime, job)
            except Exception as raised:  # noqa: BLE001  whatever a kernel raises is what is to be found out
                error = one_line(raised)
            sys.stderr.flush()
            with (folder / "stderr").open("rb") as log:
                log.seek(told)
                text = log.read().decode(errors="replace")
            complaints = tuple(sorted(set(_HEADLINE.findall(text)))) if runtime.simulated else ()
            pickle.dump(Execution(outputs, error, complaints), results)
            results.flush()


def _run(runtime: Any, job: Job) -> tuple[Array, ...]:
    kernel = runtime.load(job.module)
    inputs = [runtime.tensor(array) for array in job.inputs]
    outputs = [runtime.tensor(np.full(shape, 77, dtype)) for shape, dtype in job.outputs]
    kernel(*inputs, *outputs)
    return tuple(output.numpy() for output in outputs)
