"""Native models whose programs are written by hand, and whose kernels are C: no TVM is needed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from stormdrop.model.native.link import INTERFACE, link_model
from stormdrop.model.program.check import check_program
from stormdrop.runtime.program import Constant, Program, SizeProgram, Step, View
from stormdrop.runtime.sizes import TensorInfo

KERNELS = """
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#include "program.h"

typedef int (*launch_function)(int (*)(int, void *, void *), void *, int);
extern launch_function __TVMBackendParallelLaunch;
extern void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
extern int (*__TVMBackendFreeWorkspace)(int, int, void *);
void TVMFFIErrorSetRaisedFromCStr(const char *, const char *);

static const sd_dl_tensor *tensor(const sd_any *arguments, int i) { return arguments[i].value.pointer; }

static int64_t count(const sd_dl_tensor *of) {
  int64_t all = 1;
  for (int i = 0; i < of->rank; i++) all *= of->shape[i];
  return all;
}

/* y = a + b */
int __tvm_ffi_add(void *self, const sd_any *arguments, int32_t n, sd_any *result) {
  const sd_dl_tensor *a = tensor(arguments, 0), *b = tensor(arguments, 1), *y = tensor(arguments, 2);
  if (n != 3 || (size_t)a->data % 64 || (size_t)b->data % 64 || (size_t)y->data % 64) return -1;
  for (int64_t i = 0; i < count(y); i++) ((float *)y->data)[i] = ((float *)a->data)[i] + ((float *)b->data)[i];
  return 0;
}

typedef struct { int32_t (*unused)(void); int32_t tasks; } group;
typedef struct { const float *x; float *y; int64_t count; } job;

static int doubled(int id, void *of, void *data) {
  const job *each = data;
  const int64_t tasks = ((group *)of)->tasks;
  const int64_t begin = each->count * id / tasks, end = each->count * (id + 1) / tasks;
  float *memory = __TVMBackendAllocWorkspace(1, 0, sizeof(float) * (size_t)(end - begin + 1), 2, 32);
  if (!memory || (size_t)memory % 64) return -1;
  for (int64_t i = begin; i < end; i++) memory[i - begin] = 2 * each->x[i];
  memcpy(each->y + begin, memory, sizeof(float) * (size_t)(end - begin));
  return __TVMBackendFreeWorkspace(1, 0, memory);
}

/* y = 2 x, in all threads, with memory of the runtime */
int __tvm_ffi_twice(void *self, const sd_any *arguments, int32_t n, sd_any *result) {
  job here = {tensor(arguments, 0)->data, tensor(arguments, 1)->data, count(tensor(arguments, 1))};
  return __TVMBackendParallelLaunch(doubled, &here, 0);
}

/* Three pieces of memory at a time, each larger than the first chunk of it. */
int __tvm_ffi_spacious(void *self, const sd_any *arguments, int32_t n, sd_any *result) {
  const sd_dl_tensor *x = tensor(arguments, 0), *y = tensor(arguments, 1);
  char *memory[3];
  for (int i = 0; i < 3; i++) {
    memory[i] = __TVMBackendAllocWorkspace(1, 0, (uint64_t)(i + 1) << 17, 2, 32);
    if (!memory[i]) return -1;
    memset(memory[i], i, (size_t)(i + 1) << 17);
  }
  memcpy(y->data, x->data, 4 * (size_t)count(x));
  for (int i = 3; i-- > 0;) {
    if (memory[i][0] != i || __TVMBackendFreeWorkspace(1, 0, memory[i])) return -1;
  }
  return 0;
}

/* y = 0.5 x, of the smallest normal number: a denormal. */
int __tvm_ffi_halve(void *self, const sd_any *arguments, int32_t n, sd_any *result) {
  const volatile float *x = tensor(arguments, 0)->data;
  float *y = tensor(arguments, 1)->data;
  for (int64_t i = 0; i < count(tensor(arguments, 1)); i++) y[i] = 0.5f * x[i];
  return 0;
}

static _Atomic int busy, most;

static int crowd(int id, void *of, void *data) {
  const int now = ++busy;
  for (int before = most; before < now && !atomic_compare_exchange_weak(&most, &before, now);) {
  }
  usleep(200);
  busy--;
  return 0;
}

/* y = the most threads that were in this kernel at one time */
int __tvm_ffi_crowded(void *self, const sd_any *arguments, int32_t n, sd_any *result) {
  __TVMBackendParallelLaunch(crowd, NULL, 0);
  for (int64_t i = 0; i < count(tensor(arguments, 1)); i++) ((float *)tensor(arguments, 1)->data)[i] = (float)most;
  return 0;
}

extern int (*__TVMFFIFunctionCall)(void *, void *, int, void *);
int __tvm_ffi_calls_tvm(void *self, const sd_any *arguments, int32_t n, sd_any *result) {
  return __TVMFFIFunctionCall(NULL, NULL, 0, NULL);
}

static int failing(int id, void *of, void *data) {
  if (id) return 0;
  TVMFFIErrorSetRaisedFromCStr("ValueError", "a task has failed");
  return -1;
}

int __tvm_ffi_fail(void *self, const sd_any *arguments, int32_t n, sd_any *result) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", "this kernel fails\\nalways");
  return -1;
}

int __tvm_ffi_fail_inside(void *self, const sd_any *arguments, int32_t n, sd_any *result) {
  return __TVMBackendParallelLaunch(failing, NULL, 0);
}

int __tvm_ffi_nothing(void *self, const sd_any *arguments, int32_t n, sd_any *result) { return 0; }
"""

DTYPE = "float32"
FILES = ("model.so", "weights.bin")


def compiler() -> str | None:
    """A C compiler, if there is one."""
    return shutil.which("cc")


def kernels_object(folder: Path, flags: Sequence[str] = ()) -> Path:
    """The kernels as an object file."""
    source, made = folder / "kernels.c", folder / "kernels.o"
    source.write_text(KERNELS)
    command = ["cc", "-std=gnu11", "-O1", "-fPIC", *flags, f"-I{INTERFACE.parent}", "-c", str(source), "-o", str(made)]
    subprocess.run(command, check=True)
    return made


def chain(names: Sequence[str], rows: Sequence[int] = (1,), width: int = 16, constant: bool = False) -> Program:
    """A program that passes its input through kernels of one input and one output; `add` adds the constant."""
    sizes = []
    for count in rows:
        shape = (count, width)
        views = [View("input", 0, 0, shape, DTYPE, 0)]
        if constant:
            views.append(View("constant", 0, 0, (count, width), DTYPE, -1))
        steps = []
        last = 0
        for place, name in enumerate(names):
            end = place == len(names) - 1
            memory, index = ("output", 0) if end else ("storage", place % 2)
            views.append(View(memory, index, 0, shape, DTYPE, place + 1))  # type: ignore[arg-type]
            reads = (last, 1) if name == "add" else (last,)
            kind, name = ("part", "0") if name == "part" else ("copy", "") if name == "copy" else ("kernel", name)
            steps.append(Step(kind, name, reads, (len(views) - 1,)))  # type: ignore[arg-type]
            last = len(views) - 1
        infos = ((TensorInfo("x", shape, DTYPE),), (TensorInfo("y", shape, DTYPE),))
        sizes.append(SizeProgram(*infos, (4 * count * width,) * 2, tuple(views), tuple(steps)))
    constants = (Constant(0, (max(rows), width), DTYPE),) if constant else ()
    program = Program(constants, tuple(sizes))
    if len(rows) == 1:
        check_program(program)
    return program


def write_model(
    folder: Path,
    program: Program,
    objects: Sequence[Path],
    constants: NDArray[Any] | None = None,
    *,
    name: str = "by hand",
    features: Sequence[str] = (),
    units: Sequence[str] = (),
    keep_denormals: bool = False,
    batched: Sequence[str] = (),
    parts: Sequence[bytes] = (),
    flags: Sequence[str] = (),
) -> Path:
    """Writes the folder of a native model."""
    folder.mkdir(exist_ok=True)
    if constants is not None:
        (folder / "weights.bin").write_bytes(constants.tobytes())
    link_model(
        program,
        objects,
        folder / "model.so",
        name=name,
        features=features,
        units=units,
        constants=folder / "weights.bin" if constants is not None else None,
        keep_denormals=keep_denormals,
        flags=["-Wall", "-Wextra", "-Werror", *flags],
    )
    names = [f"foreign_{index}.onnx" for index in range(len(parts))]
    for file, part in zip(names, parts, strict=True):
        (folder / file).write_bytes(part)
    infos = [
        {
            side: [{"name": i.name, "shape": i.shape, "dtype": i.dtype} for i in getattr(size, side)]
            for side in ("inputs", "outputs")
        }
        for size in program.sizes
    ]
    document = {
        "format": 2,
        "digest": "0" * 64,
        "name": name,
        **infos[0],
        "target": {"keep_denormals": keep_denormals},
        "cpu": "any",
        "features": list(features),
        "stormdrop": "0.3",
        "tvm": "none",
        "batched": list(batched),
        "foreign": [{"file": file, "operators": {"Any": 1}, "reason": "a test"} for file in names],
        "checksums": {each.name: _sha256(each) for each in folder.iterdir() if each.name in [*FILES, *names]},
    }
    if len(infos) > 1:
        document["sizes"] = infos
    text = json.dumps(document)
    text = text.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest(), 1)
    (folder / "metadata.json").write_text(text)
    return folder


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
