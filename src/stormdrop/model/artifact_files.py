"""The files of a saved model: their names, checksums, and writing a folder of them whole or not at all.

The command line checks a path with `check_free` before it tunes anything, so this module does not load TVM.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ArtifactError

METADATA, PROGRAM, KERNELS, NATIVE = "metadata.json", "model.vm", "kernels.bc", "kernels.so"
"""The names of the files; `artifact` says what they hold."""


def check_free(path: Path) -> None:
    """Check that a model can be saved in a folder without the loss of anything else.

    Args:
        path: A path that does not exist, an empty folder, or a folder that holds nothing but an older model.

    Raises:
        ArtifactError: The path holds something else.
    """
    if not path.exists():
        return
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else None
    if names is None or (names and METADATA not in names):
        raise ArtifactError(f"{path}: exists and is no stormdrop model; it is left as it is")
    if foreign := sorted(names - {METADATA, PROGRAM, KERNELS, NATIVE}):
        raise ArtifactError(f"{path}: is a stormdrop model, and holds {foreign[0]}, too; it is left as it is")


def replace_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Write a folder whole or not at all.

    The files are written into a temporary folder beside `path`, which then takes its name. What was there before is
    put back if that fails.

    Args:
        path: The folder to write or to replace.
        write: Writes the files into the folder that it is given.

    Raises:
        OSError: The folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
        new, old = Path(scratch) / "new", Path(scratch) / "old"
        new.mkdir()
        write(new)
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(new, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise


def write_module(module: Any, kind: str, file: Path) -> None:
    """Write a TVM module to a file by way of memory, so that a full disk is an error.

    TVM's own writer ends the process or writes an incomplete file without an error if the disk is full.

    Args:
        module: The module.
        kind: TVM's name of the format: "vm", "bc" or "o".
        file: Where to write it.

    Raises:
        OSError: The file cannot be written.
    """
    if not hasattr(os, "memfd_create"):  # systems other than Linux
        module.write_to_file(str(file), kind)
        return
    with os.fdopen(os.memfd_create(file.name), "rb") as memory, file.open("wb") as disk:
        module.write_to_file(f"/proc/self/fd/{memory.fileno()}", kind)
        shutil.copyfileobj(memory, disk)


def checksum(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
