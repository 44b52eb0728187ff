"""Contenders that call a native model: from Python by `stormdrop.runtime`, from a loop in C, and its kernels alone.

A contender in C does not return to Python after each call: `settings["calls"]` of them are one execution.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from stormdrop import runtime
from stormdrop.model.artifact.call_inputs import aligned
from stormdrop.model.artifact.loading import load_program
from stormdrop.model.native.link import c_compiler
from stormdrop.model.program.executor import Execution
from stormdrop.runtime.inputs import address_of
from stormdrop.runtime.library import Library, NativeModel

Array = NDArray[Any]

CALLS = 100

_LAUNCH = "__TVMBackendParallelLaunch"
"""Where kernels look up how to launch threads."""

_LOOPS = """
#include <stdint.h>

typedef struct { int32_t type; uint32_t zero; int64_t value; } any;
typedef int (*kernel)(void *self, const any *arguments, int32_t count, any *result);
typedef struct { kernel kernel; const any *arguments; uint64_t count; } step;
typedef int (*model_function)(void *model, int32_t size, const void *const *in, void *const *out, void *call);
typedef struct { void *sync; int32_t tasks; } group;

int run_model(model_function run, void *model, const void *const *in, void *const *out, int64_t calls) {
  int status = 0;
  while (calls--) status |= run(model, 0, in, out, 0);
  return status;
}

int run_kernels(const step *first, int64_t count, int64_t calls) {
  int status = 0;
  while (calls--) {
    for (const step *each = first, *end = first + count; each < end; each++) {
      any result = {0};
      status |= each->kernel(0, each->arguments, (int32_t)each->count, &result);
    }
  }
  return status;
}

int empty(void *self, const any *arguments, int32_t count, any *result) { return 0; }

int64_t launches;

typedef int (*task)(int id, group *of, void *data);

/* In place of the runtime's: a kernel that launches threads has the calling one alone. */
int launch_alone(task work, void *data, int tasks) {
  group alone = {0, 1};
  launches++;
  return work(0, &alone, data);
}

int (*launch_of_runtime)(task work, void *data, int tasks);

static int nothing(int id, group *of, void *data) { return 0; }

/* The threads are launched as ever, and do nothing. */
int launch_nothing(task work, void *data, int tasks) { return launch_of_runtime(nothing, data, tasks); }
"""


def compile_loops(library: Path) -> Path:
    """Compiles the loops. Raises `ArtifactError` if there is no C compiler."""
    command = [c_compiler(), "-O2", "-fPIC", "-shared", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=_LOOPS, text=True, check=True)
    return library


class CalledFromPython:
    """A native model, run by `stormdrop.runtime`."""

    def __init__(self, artifact: str, inputs: Mapping[str, Array], threads: int) -> None:
        self._model = runtime.load(artifact, threads=threads)
        self._inputs = {name: aligned(value) for name, value in inputs.items()}
        self.versions = {"stormdrop": self._model.metadata.stormdrop}
        self.settings = {"threads": threads}

    def run(self) -> object:
        return self._model.run(self._inputs)

    def outputs(self) -> list[Array]:
        return list(self._model.run(self._inputs).values())


class CalledFromC(CalledFromPython):
    """A native model, run by `stormdrop_run` in a loop in C. If `idle`, what its kernels launch does nothing."""

    def __init__(self, artifact: str, loops: str, inputs: Mapping[str, Array], threads: int, idle: bool) -> None:
        super().__init__(artifact, inputs, threads)
        self._outputs = [aligned(value) for value in super().outputs()]
        folder = Path(artifact)
        weights = folder / "weights.bin"
        library = Library(os.open(folder / "model.so", os.O_RDONLY))
        self._native = NativeModel(library, str(weights) if weights.exists() else None, threads, None)
        ordered = [self._inputs[info.name] for info in self._model.inputs]
        places = [list(map(address_of, arrays)) for arrays in (ordered, self._outputs)]
        self._arguments = [
            ctypes.cast(self._native.run, ctypes.c_void_p),
            ctypes.c_void_p(self._native.handle),
            *((ctypes.c_void_p * len(each))(*each) for each in places),
            ctypes.c_int64(CALLS),
        ]
        in_c = ctypes.CDLL(loops)
        self._loop = in_c.run_model
        if idle:
            place = ctypes.c_void_p.in_dll(ctypes.CDLL(f"{artifact}/model.so"), _LAUNCH)
            ctypes.c_void_p.in_dll(in_c, "launch_of_runtime").value = place.value
            place.value = _address(in_c.launch_nothing)
        self.settings = {"threads": threads, "calls": CALLS}

    def run(self) -> object:
        return _succeeded(self._loop(*self._arguments))

    def outputs(self) -> list[Array]:
        self.run()
        return [output.copy() for output in self._outputs]


class KernelsAlone:
    """The kernels of a native model in a loop in C, one after the other in one thread; or empty ones in their place."""

    def __init__(self, artifact: str, loops: str, inputs: Mapping[str, Array], threads: int, empty: bool) -> None:
        compiled, metadata, _, _ = load_program(Path(artifact))
        self._loops, self._kernels = ctypes.CDLL(loops), ctypes.CDLL(f"{artifact}/model.so")
        ctypes.c_void_p.in_dll(self._kernels, _LAUNCH).value = _address(self._loops.launch_alone)
        names = compiled.program.kernels
        found = [self._loops.empty if empty else getattr(self._kernels, f"__tvm_ffi_{name}") for name in names]
        self.addresses = dict(zip(names, map(_address, found), strict=True))
        kernels: Any = self  # an execution asks for `addresses` and `run_steps`
        self._execution = Execution(compiled, kernels, compiled.program.sizes[0])
        self._inputs = [aligned(inputs[info.name]) for info in metadata.inputs]
        self._places = list(map(address_of, self._inputs))
        self.run()
        count = ctypes.c_int64.in_dll(self._loops, "launches").value
        self.versions = {"stormdrop": metadata.stormdrop}
        self.settings = {"threads": 1, "calls": CALLS, "launches": count // CALLS}

    def run_steps(self, first: int, count: int) -> None:
        _succeeded(self._loops.run_kernels(ctypes.c_void_p(first), ctypes.c_int64(count), ctypes.c_int64(CALLS)))

    def run(self) -> object:
        return self._execution.run(self._places, self._inputs)

    def outputs(self) -> list[Array]:
        return [output.copy() for output in self._execution.run(self._places, self._inputs)]


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _succeeded(status: int) -> None:
    if status:
        raise RuntimeError("a kernel fails")
