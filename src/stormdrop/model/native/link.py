"""Links a program, the runtime and the kernels into a library that needs libc, libm and pthreads only."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import ArtifactError, shown
from ...machine.process.scratch import scratch_folder
from ...runtime.program import Program
from .source import PIECE, source_of

INTERFACE = Path(__file__).with_name("stormdrop.h")
"""The C interface of the library."""

_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread")
_LINUX = ("-Wl,-z,relro,-z,now,-z,noexecstack,--no-undefined,-Bsymbolic,--as-needed,--strip-debug", "-static-libgcc")


_LOOKUP = b"TVMFFIEnvModLookupFromImports"
"""The name by which kernels look functions of TVM up. It is in the object of those only that do."""


def link_model(
    program: Program,
    objects: Sequence[Path],
    library: Path,
    *,
    name: str,
    features: Sequence[str],
    units: Sequence[str],
    constants: Path | None,
    keep_denormals: bool,
    anywhere: Sequence[str] = (),
    compiler: str | None = None,
    flags: Sequence[str] = (),
) -> None:
    """Makes the library of a program.

    Args:
        program: The program.
        objects: The object files with its kernels.
        library: The file to make.
        name: The name of the model, for messages.
        features: The instruction set extensions that its kernels may use, by LLVM's names.
        units: The extensions of arithmetic units that some kernel cannot do without, by LLVM's names.
        constants: The file of the constants, if there are some.
        keep_denormals: Whether its kernels compute with denormals.
        anywhere: The inputs whose memory may begin at any element, by name.
        compiler: The C compiler; by default cc.
        flags: More flags for it.

    Raises:
        ArtifactError: There is no compiler, or it fails.
    """
    compiler = compiler or c_compiler()
    text = source_of(
        program,
        name=name,
        features=features,
        units=units,
        constants_digests=_digests(constants) if constants else (),
        keep_denormals=keep_denormals,
        anywhere=anywhere,
        needs_tvm=any(_LOOKUP in file.read_bytes() for file in objects),
    )
    runtime = INTERFACE.parent
    with scratch_folder() as folder:
        source, exported = Path(folder) / "model.c", Path(folder) / "exported"
        source.write_text(text)
        exported.write_text("{ global: stormdrop_*; __tvm_ffi_*; __TVM*; local: *; };\n")
        linux = (*_LINUX, f"-Wl,--version-script={exported}") if sys.platform == "linux" else ()
        sources = [*sorted(runtime.glob("*.c")), source]
        command = [compiler, *_FLAGS, *linux, *flags, f"-I{runtime}", "-o", library, *sources, *objects, "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise ArtifactError(f"{shown(name)}: {compiler} cannot be run: {error.strerror}") from error
        if done.returncode:
            raise ArtifactError(f"{shown(name)}: {compiler} does not link it: {_reason(done.stderr)}")


def c_compiler() -> str:
    """Finds the C compiler that links native models.

    Returns:
        Its path.

    Raises:
        ArtifactError: There is none on the PATH.
    """
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return found
    raise ArtifactError("a native model needs a C compiler, and there is no cc on the PATH")


def _digests(file: Path) -> list[str]:
    with file.open("rb") as stream:
        return [hashlib.sha256(piece).hexdigest() for piece in iter(lambda: stream.read(PIECE), b"")]


def _reason(text: str) -> str:
    """The line of a compiler's messages that says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "undefined" in line or "error" in line.lower()]
    return shown((telling or lines or ["it gives no reason"])[0], 200)
