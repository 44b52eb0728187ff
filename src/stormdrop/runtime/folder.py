"""The files of a saved model: opened once, checked, and used as they were checked."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from ..errors import ArtifactError, InputError, one_line
from .metadata import Metadata, read_metadata

METADATA, LIBRARY, WEIGHTS = "metadata.json", "model.so", "weights.bin"
PROGRAM, DEVICE = "program.json", "device.json"
"""The names of the files."""

_NO_MODEL = "no stormdrop model; give a folder that `stormdrop tune` or `stormdrop compile` wrote"
_NOT_NATIVE = "is no native model and none for a GPU: save it with native=True, or tune it with --native"
_NAMES = (METADATA, LIBRARY, WEIGHTS, PROGRAM, DEVICE)
_NUMBERED = re.compile(r"foreign_\d+\.onnx|kernels-\d+\.(cl|(\w+\.)?(cubin|ptx))")
_BLOCK = 1 << 20  # bytes
_TRIES = 100  # to open the files of one generation


class OpenFolder:
    """The open files of a saved model. Close it when they have been used.

    Args:
        path: The folder.
        digest: The digest that the model must have.

    Attributes:
        metadata: What the model says about itself.

    Raises:
        ArtifactError: The folder holds no native model or one with another digest, or a file cannot be read.
        InputError: `digest` is no digest.
    """

    def __init__(self, path: Path, digest: str | None) -> None:
        if digest is not None and not re.fullmatch("[0-9a-fA-F]{64}", digest):
            raise InputError(f"digest {digest[:80]!r}: must be 64 hexadecimal digits, as `stormdrop tune` prints them")
        self._path, self._stack = path, ExitStack()
        try:
            self._files = self._opened()
            self.metadata = self._read_metadata(digest)
        except (OSError, ValueError) as error:  # Python raises ValueError for a path with a NUL
            self.close()
            exists, is_folder = os.path.exists(path), os.path.isdir(path)  # noqa: PTH110, PTH112  these never raise
            if not is_folder:
                raise ArtifactError(f"{path}: " + (_NO_MODEL if exists else "no such folder")) from None
            raise ArtifactError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
        except BaseException:
            self.close()
            raise

    def library(self) -> tuple[int, str]:
        """A private copy of the library, which nobody can change: its file descriptor, and its SHA-256.

        Raises:
            ArtifactError: It is missing or damaged, or cannot be copied.
        """
        data = self.read(LIBRARY)
        try:
            copy = os.memfd_create("stormdrop", getattr(os, "MFD_CLOEXEC", 0))
            with open(copy, "wb", closefd=False) as file:
                file.write(data)
        except OSError as error:
            raise ArtifactError(f"{self._path}: {LIBRARY} cannot be copied: {error.strerror}") from error
        return copy, self.metadata.checksums[LIBRARY]

    def weights(self) -> str | None:
        """The path of the constants, which are not checked yet, while the folder is open; None if there are none.

        It is that of a copy if another user could change them after they have been checked.

        Raises:
            ArtifactError: They are missing, or cannot be copied.
        """
        if WEIGHTS not in self.metadata.checksums:
            return None
        file = self._file(WEIGHTS)
        status = os.fstat(file.fileno())
        others = status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not others:
            return f"/proc/self/fd/{file.fileno()}"
        try:
            copy = self._stack.enter_context(os.fdopen(os.memfd_create("stormdrop"), "w+b"))
            while block := file.read(_BLOCK):
                copy.write(block)
            copy.flush()
        except OSError as error:
            raise ArtifactError(f"{self._path}: {WEIGHTS} cannot be copied: {error.strerror}") from error
        return f"/proc/self/fd/{copy.fileno()}"

    def read(self, name: str) -> bytes:
        """The content of a file that has the checksum of the metadata.

        Raises:
            ArtifactError: It is missing, damaged, or cannot be read.
        """
        try:
            data = self._file(name).read()
        except OSError as error:
            raise ArtifactError(f"{self._path}: {name} cannot be read: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != self.metadata.checksums.get(name):
            raise ArtifactError(f"{self._path}: {name} is damaged: its checksum differs")
        return data

    def close(self) -> None:
        """Closes all files."""
        self._stack.close()

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _file(self, name: str) -> BinaryIO:
        if name not in self._files:
            raise ArtifactError(f"{self._path}: {name} is missing")
        return self._files[name]

    def _opened(self) -> dict[str, BinaryIO]:
        """The files of one generation of the folder, even if another process replaces it meanwhile."""
        for _ in range(_TRIES):
            with ExitStack() as stack:
                folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, folder)
                files = {}
                for name in os.listdir(folder):  # noqa: PTH208  Path takes no descriptor
                    if name in _NAMES or _NUMBERED.fullmatch(name):
                        file = self._opened_file(name, folder)
                        if file is not None:
                            files[name] = stack.enter_context(file)
                if os.path.samestat(self._path.stat(), os.fstat(folder)):
                    self._stack = stack.pop_all()
                    return files
        raise ArtifactError(f"{self._path}: other processes replace it again and again; let them end first")

    def _opened_file(self, name: str, folder: int) -> BinaryIO | None:
        """A regular file of the folder; None if there is none. Anything else might be endless, or never open."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)
        except FileNotFoundError:
            return None
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
        raise ArtifactError(f"{self._path / name}: is no regular file")

    def _read_metadata(self, digest: str | None) -> Metadata:
        if METADATA not in self._files:
            raise ArtifactError(f"{self._path}: {_NO_MODEL}")
        try:
            metadata = read_metadata(self._files[METADATA].read())
        except ValueError as error:
            raise ArtifactError(f"{self._path}: {METADATA} cannot be read: {one_line(error)}") from error
        if digest is not None and digest.lower() != metadata.digest:
            raise ArtifactError(
                f"{self._path}: has the digest {metadata.digest}, not {digest}: "
                "this is another model than the one meant"
            )
        if LIBRARY not in metadata.checksums and not metadata.device:
            raise ArtifactError(f"{self._path}: {_NOT_NATIVE}")
        return metadata
