"""Many threads that call a native model at once, with and without what finds faults of memory and of threads."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import native_models
from native_models import chain, kernels_object, write_model
from stormdrop.machine.threads import usable_cores
from stormdrop.model.native.link import INTERFACE
from stormdrop.runtime import load

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(native_models.compiler() is None, reason="there is no C compiler"),
]

MAIN = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "stormdrop.h"

enum { THREADS = 8, WIDTH = 16 };
static stormdrop_model *model;
static int calls;

/* y = 2 (2 x + c), where c counts from 0: calls with other values in each thread. */
static void *caller(void *argument) {
  long seed = (long)argument, wrong = 0;
  float *x = aligned_alloc(64, 64 * WIDTH), *y = aligned_alloc(64, 64 * WIDTH + 64);
  for (int call = 0; call < calls; call++) {
    int size = (int)(seed + call) % stormdrop_sizes(model), rows = size + 1, off = call % 3 == 2;
    const void *in[] = {x + (rows < 4 ? off : 0)};
    void *out[] = {y + off};
    for (int i = 0; i < rows * WIDTH; i++) ((float *)in[0])[i] = (float)((seed * 131 + call * 17 + i) % 1000);
    if (stormdrop_run(model, size, in, out, NULL)) {
      printf("%s\\n", stormdrop_error());
      wrong++;
    }
    for (int i = 0; i < rows * WIDTH; i++) wrong += ((float *)out[0])[i] != 2 * (2 * ((float *)in[0])[i] + (float)i);
  }
  free(x);
  free(y);
  return (void *)wrong;
}

int main(int count, char **arguments) {
  calls = atoi(arguments[2]);
  for (int round = 0; round < 3; round++) {
    stormdrop_options options = {.interface = STORMDROP_INTERFACE};
    model = stormdrop_open(arguments[1], &options);
    if (!model) return printf("%s\\n", stormdrop_error()), 1;
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(threads + i, NULL, caller, (void *)i);
    long wrong = 0;
    for (int i = 0; i < THREADS; i++) {
      void *found;
      pthread_join(threads[i], &found);
      wrong += (long)found;
    }
    stormdrop_close(model);
    if (wrong) return printf("%ld wrong values\\n", wrong), 1;
  }
  return 0;
}
"""


def program(tmp_path: Path, flags: Sequence[str] = ()) -> list[str]:
    """A C program that calls a model, and its first argument."""
    constants = np.arange(4 * 16, dtype=np.float32)
    model = chain(("twice", "add", "copy", "spacious", "twice"), rows=(1, 2, 3, 4), constant=True)
    folder = write_model(tmp_path / "m", model, [kernels_object(tmp_path, flags)], constants, flags=flags)
    (tmp_path / "main.c").write_text(MAIN)
    made, source = str(tmp_path / "main"), str(tmp_path / "main.c")
    command = ["cc", "-std=gnu11", "-O1", *flags, f"-I{INTERFACE.parent}", "-o", made, source]
    subprocess.run([*command, str(folder / "model.so"), f"-Wl,-rpath,{folder}", "-pthread"], check=True)
    return [str(tmp_path / "main"), str(folder)]


def test_eight_threads_get_the_right_values(tmp_path: Path) -> None:
    done = subprocess.run([*program(tmp_path), "5000"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_calls_together_have_no_more_threads_than_there_are_cores(tmp_path: Path) -> None:
    model = load(write_model(tmp_path / "m", chain(["crowded"]), [kernels_object(tmp_path)]))
    most: list[float] = []

    def call() -> None:
        most.extend(model(np.zeros((1, 16), np.float32))[0, 0] for _ in range(200))

    threads = [threading.Thread(target=call) for _ in range(2 * usable_cores() + 3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(most) == 200 * len(threads), "no call waits for ever"
    assert 1 <= max(most) <= usable_cores()


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str) -> None:
    flags = [f"-fsanitize={sanitizer}", "-g"]
    if not sanitizer_works(tmp_path, flags):
        pytest.skip(f"this compiler has no sanitizer of {sanitizer}")
    flags += ["-fno-sanitize=function"] if "undefined" in sanitizer and is_clang() else []
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "halt_on_error=1"}
    command = [*program(tmp_path, [*flags, "-Wl,-z,undefs"]), "300"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def sanitizer_works(folder: Path, flags: Sequence[str]) -> bool:
    (folder / "probe.c").write_text("int main(void) { return 0; }\n")
    command = ["cc", *flags, "-o", str(folder / "probe"), str(folder / "probe.c")]
    built = subprocess.run(command, capture_output=True, check=False)
    return (
        built.returncode == 0 and subprocess.run([folder / "probe"], capture_output=True, check=False).returncode == 0
    )


def is_clang() -> bool:
    return "clang" in subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True).stdout
