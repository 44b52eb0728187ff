"""Builds `_native_driver.c`, the program that calls a native model from C, and what goes with it: sanitizers, cases.

Tests use it, too.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stormdrop.model.native.link import INTERFACE

SANITIZERS = ("address,undefined", "thread")
SANITIZER_ENVIRONMENT = {"TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "halt_on_error=1"}
SOURCE = Path(__file__).with_suffix(".c")


def build_driver(folder: Path, flags: Sequence[str] = ()) -> Path:
    """Compiles the program into a folder, with more flags of the C compiler.

    Raises:
        subprocess.CalledProcessError: the compiler fails; its messages are in `stderr`.
    """
    made = folder / "native_driver"
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", *flags, f"-I{INTERFACE.parent}", "-o", made]
    subprocess.run([*map(str, command), str(SOURCE), "-ldl", "-pthread"], check=True, capture_output=True, text=True)
    return made


def sanitizer_flags(folder: Path, sanitizer: str) -> list[str] | None:
    """The flags for a driver and a library (`link_model`) with a sanitizer; None if such programs do not run here."""
    flags = [f"-fsanitize={sanitizer}", "-g", "-Wl,-z,undefs"]
    version = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True).stdout
    if "undefined" in sanitizer and "clang" in version:
        flags.append("-fno-sanitize=function")  # which needs what only code by clang has
    source, probe = folder / "probe.c", folder / "probe"
    source.write_text("int main(void) { return 0; }\n")
    built = subprocess.run(["cc", *flags, "-o", str(probe), str(source)], capture_output=True, check=False)
    runs = built.returncode == 0 and subprocess.run([probe], capture_output=True, check=False).returncode == 0
    return flags if runs else None


def drive(
    program: Sequence[Path | str],
    folder: Path | str,
    cases: Path | str,
    what: str,
    threads: int,
    count: int,
    **settings: str,
) -> subprocess.CompletedProcess[str]:
    """Runs the driver on a model; the comment in its source says how.

    Args:
        program: the driver, and before it what it runs in.
        folder: the model.
        cases: the file of inputs and right outputs.
        what: "calls" or "loads".
        threads: of the driver.
        count: the calls or loads.
        settings: more variables of the environment.
    """
    command = [*map(str, program), str(folder), str(cases), what, str(threads), str(count)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, check=False)
