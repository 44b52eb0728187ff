"""The files of a saved model: their names and checksums, where a model can be saved, writing and reading.

The command line checks a path with `check_writable` before it tunes anything, so this module does not load TVM.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import ArtifactError
from ...runtime.folder import DEVICE
from .atomic_folder import find_folder, probe, recover, replace_folder

METADATA, PROGRAM, KERNELS, NATIVE = "metadata.json", "program.json", "kernels.bc", "model.so"
WEIGHTS, TUNING, INTERFACE, OPENS = "weights.bin", "tuning.json.gz", "stormdrop.h", "opens.json"
"""The names of the files; `artifact` says what they hold."""

NO_MODEL = "no stormdrop model; give a folder that `stormdrop tune` or `stormdrop compile` wrote"
"""The end of a message about something else."""

_OLDER = ("model.vm", "kernels.so")  # of models that earlier versions saved, which a newer one may replace
_NAMES = (METADATA, PROGRAM, KERNELS, NATIVE, DEVICE, WEIGHTS, TUNING, INTERFACE, OPENS, *_OLDER)
_MORE_KERNELS = re.compile(r"kernels-\d+\.(bc|cl|(\w+\.)?(cubin|ptx))")
_FOREIGN = re.compile(r"foreign_\d+\.onnx")
_BLOCK = 1 << 20  # bytes
_IN_MEMORY = 1 << 28  # bytes of the largest file that is copied to memory
_TRIES = 100  # to open the files of one generation


def kernels_file(part: int) -> str:
    """The name of the file with a part of the kernels: "kernels.bc", "kernels-1.bc" and so on."""
    return KERNELS if part == 0 else f"kernels-{part}.bc"


def part_file(index: int) -> str:
    """The name of the file that holds a part of a model that onnxruntime runs."""
    return f"foreign_{index}.onnx"


def check_free(path: Path) -> None:
    """Checks that a model can be saved in a folder without the loss of anything else.

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
    if others := sorted(name for name in names if not _is_ours(name)):
        raise ArtifactError(f"{path}: is a stormdrop model, and holds {others[0]}, too; it is left as it is")


def save_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Save a model in a folder, whole or not at all.

    Args:
        path: The folder, as `check_free` takes it.
        write: Writes the files into the folder that it is given.

    Raises:
        ArtifactError: The folder holds something else than a model or cannot be written.
    """

    def write_if_free(new: Path) -> None:
        write(new)
        check_free(path)  # once more: somebody may have put a file there meanwhile

    try:
        check_free(path)
        replace_folder(path, write_if_free)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """Checks that a model can be saved at a path, before the work whose result is saved there.

    Args:
        path: Where the model will be saved. Its parent folders need not exist.

    Raises:
        ArtifactError: The path holds something else than a model, or this process may not write there.
    """
    try:
        recover(path)
        check_free(path)
        if os.path.ismount(path):
            raise ArtifactError(f"{path}: is a mount point, which cannot be replaced: name a folder inside it")
        if path.exists() and not os.access(path, os.W_OK):
            raise ArtifactError(f"{path}: is a folder that may not be written")
        absolute = path.absolute()
        parent = next(folder for folder in absolute.parents if os.path.lexists(folder))
        with probe(parent / absolute.name):
            pass
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


@contextmanager
def beside_older(path: Path) -> Iterator[Path]:
    """Finds where a model can be saved without the loss of an older one.

    Args:
        path: Where a model that is to replace an older one would be saved.

    Yields:
        `path` if no model is there, else a new, empty folder beside it: for `resnet50.sd` it is
        `resnet50.interrupted.sd`, or `resnet50.interrupted-2.sd` if that exists. The folder is removed if nothing is
        saved to it.

    Raises:
        ArtifactError: The folder cannot be created.
    """
    path = path if path.name else path.resolve()  # "." has no name
    if not (find_folder(path) / METADATA).exists():
        yield path
        return
    for number in count(1):
        ending = "interrupted" if number == 1 else f"interrupted-{number}"
        free = path.with_name(f"{path.stem}.{ending}{path.suffix}")
        try:
            free.mkdir()  # so that no other run takes the same name
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(free, error) from error
    try:
        yield free
    finally:
        with suppress(OSError):  # it holds a model now
            free.rmdir()


@contextmanager
def open_files(path: Path) -> Iterator[dict[str, BinaryIO]]:
    """Opens the files of a saved model. All of them are of one generation, even if another process replaces the folder.

    Args:
        path: The folder.

    Yields:
        The open files by name. Files that the folder does not have are left out.

    Raises:
        OSError: The folder cannot be opened, or one of the files.
        ArtifactError: One of them is no regular file, or the folder is replaced again and again.
    """
    for _ in range(_TRIES):
        with ExitStack() as stack:
            folder = os.open(find_folder(path), os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, folder)
            names = os.listdir(folder)  # noqa: PTH208  Path takes no descriptor
            found = {name: _open(path / name, folder) for name in names if _is_ours(name)}
            files = {name: stack.enter_context(file) for name, file in found.items() if file is not None}
            replaced = not os.path.samestat(find_folder(path).stat(), os.fstat(folder))
            if not replaced:
                yield files
                return
    raise ArtifactError(f"{path}: other processes replace it again and again; let them end first")


@contextmanager
def unchanging(file: BinaryIO) -> Iterator[tuple[str, str]]:
    """A large file where it is if no other user can change it; otherwise a private copy.

    Args:
        file: The open file, which is read once.

    Yields:
        The path of the file or its copy, which is valid in this process for now, and its SHA-256 in hexadecimal digits.

    Raises:
        OSError: The file cannot be read, or there is no room for a copy.
    """
    status = os.fstat(file.fileno())
    others = status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others or not hasattr(os, "memfd_create"):
        with private_copy(file) as copy:
            yield copy
    else:
        yield f"/proc/self/fd/{file.fileno()}", _digest(file)


@contextmanager
def private_copy(file: BinaryIO) -> Iterator[tuple[str, str]]:
    """Copies a file to where other users cannot change it, so that what was checked is what is loaded.

    Args:
        file: The open file, which is read once.

    Yields:
        The path of the copy, which is valid in this process for now, and its SHA-256 in hexadecimal digits.

    Raises:
        OSError: The file cannot be read, or there is no room for the copy.
    """
    digest = hashlib.sha256()
    with _temporary_file(os.fstat(file.fileno()).st_size) as copy:
        while block := file.read(_BLOCK):
            digest.update(block)
            copy.write(block)
        copy.flush()
        # On Linux it has no name, and stands in memory if it is small.
        yield (f"/proc/self/fd/{copy.fileno()}" if hasattr(os, "memfd_create") else copy.name), digest.hexdigest()


def write_module(module: Any, kind: str, file: Path) -> None:
    """Writes a TVM module to a file by way of memory, so that a full disk is an error.

    TVM's own writer ends the process or writes an incomplete file without an error if the disk is full.

    Args:
        module: The module.
        kind: TVM's name of the format: "bc" or "o".
        file: Where to write it.

    Raises:
        OSError: The file cannot be written.
    """
    if not hasattr(os, "memfd_create"):  # systems other than Linux
        module.write_to_file(str(file), kind)
    else:  # not a pipe: LLVM writes some places of an object file twice
        with os.fdopen(os.memfd_create(file.name), "rb") as memory, file.open("wb") as disk:
            module.write_to_file(f"/proc/self/fd/{memory.fileno()}", kind)
            shutil.copyfileobj(memory, disk)


def checksum(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with file.open("rb") as stream:
        return _digest(stream)


def _digest(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := stream.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()


def _is_ours(name: str) -> bool:
    return name in _NAMES or any(names.fullmatch(name) is not None for names in (_MORE_KERNELS, _FOREIGN))


def _unwritable(path: Path, error: OSError | ValueError) -> ArtifactError:
    return ArtifactError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}")


def _open(path: Path, folder: int) -> BinaryIO | None:
    """Opens a regular file of a folder; None if there is none. Anything else might be endless, or never open."""
    try:
        descriptor = os.open(path.name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise ArtifactError(f"{path}: is no regular file")


def _temporary_file(size: int) -> Any:
    if not hasattr(os, "memfd_create"):
        return tempfile.NamedTemporaryFile()
    return tempfile.TemporaryFile() if size > _IN_MEMORY else os.fdopen(os.memfd_create("stormdrop"), "w+b")
