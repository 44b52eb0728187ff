"""Compiled models that are kept from one process to the next, in the user's cache folder, by the key of what they are.

folder/KEY/
  entry.json   the model's name and digest, what the records said when its schedules were chosen, what it computes
  model/       the model, as `CompiledModel.save` writes it

An entry is written whole or not at all, so several processes may keep and load models at the same time. What is
damaged, what the records say otherwise now, and what computes something else than it did is not loaded. If the folder
becomes too large, the models that nobody has used for the longest time go.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import platformdirs
from numpy.typing import NDArray

from ..errors import ArtifactError, DeviceError, StoreError, StormdropError, one_line
from ..machine.process.scratch import abandoned_folders, remove_folder
from ..records import Problem, Store

if TYPE_CHECKING:
    from .artifact.artifact import CompiledModel
    from .tuning.result import CompileResult

_logger = logging.getLogger(__name__)

MOST_BYTES = 4_000_000_000
"""The most bytes of all models that are kept."""

_ENTRY, _MODEL = "entry.json", "model"
_KEY = re.compile("[0-9a-f]{64}")
_SEED = 0  # of the inputs on which a model is run when it is kept, and when it is loaded
_LEVEL = 1e-4  # the difference of two runs that counts as none: as in `verification`
_ELEMENTS = 256  # of each output that are compared, at most


@dataclass(frozen=True)
class KeptModel:
    """A model that is kept.

    Attributes:
        key: Its key, 64 hexadecimal digits.
        name: Its name.
        bytes: The size of its files.
        used: When it was kept or loaded last, in seconds since 1970.
    """

    key: str
    name: str
    bytes: int
    used: float


class _Entry(msgspec.Struct, frozen=True):
    """What stands in `entry.json`.

    Attributes:
        name: The name of the model.
        digest: The digest of the model's files.
        records: The fields of the problem of each kernel, and the finished sessions that the records had for it.
        outputs: Some elements of each output for inputs of a fixed seed, as the hexadecimal digits of float64.
    """

    name: str
    digest: str
    records: list[tuple[tuple[str, str, str, str, str], list[str]]]
    outputs: dict[str, str]


class KeptModels:
    """The models that are kept in a folder.

    Args:
        folder: The folder. It is made if it does not exist.
        most_bytes: The most bytes of all models.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self._most_bytes = folder, most_bytes

    @classmethod
    def of_user(cls) -> KeptModels | None:
        """Those of this user; None if the system does not know a folder for caches."""
        try:
            return cls(Path(platformdirs.user_cache_dir("stormdrop", appauthor=False)) / "graphs")
        except RuntimeError:  # the system does not know this user
            return None

    def load(self, key: str, store: Store | None) -> CompiledModel | None:
        """The model that is kept under a key, if it is what would be compiled now.

        Args:
            key: The key.
            store: The records that choose schedules; None if they were not asked.
        """
        folder = self.folder / key
        try:
            entry = msgspec.json.decode((folder / _ENTRY).read_bytes(), type=_Entry)
            if not self._is_safe() or not _is_current(entry, store):
                return None
            model = _loaded(folder / _MODEL, entry)
            os.utime(folder / _ENTRY)
        except FileNotFoundError:
            return None
        except DeviceError as error:  # such as memory that another process holds: the model is as it was
            _logger.warning("a kept model is not loaded: %s", one_line(error))
            return None
        except _failures() as error:
            _logger.warning("a kept model is compiled anew: %s", one_line(error))
            remove_folder(folder)
            return None
        return model

    def keep(self, key: str, result: CompileResult, store: Store | None) -> bool:
        """Keeps a model that was compiled.

        Args:
            key: Its key.
            result: The model, and how it was made.
            store: The records that chose its schedules; None if they were not asked.

        Returns:
            Whether it is kept. It is not if the folder cannot be written, or is not this user's alone, if the model is
            larger than all may be, and if it cannot be written or run.
        """
        from .artifact.atomic_folder import replace_folder

        def write(new: Path) -> None:
            (new / _MODEL).mkdir()
            digest = result.model.write_files(new / _MODEL, native=False)
            entry = _Entry(result.name, digest, _records(result, store), _outputs(result.model))
            (new / _ENTRY).write_bytes(msgspec.json.encode(entry))
            if (size := _size(new)) > self._most_bytes:
                raise ArtifactError(f"it has {size} bytes, and all that are kept {self._most_bytes} at most")

        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_safe():
                raise ArtifactError(f"{self.folder} can be written by other users")
            replace_folder(self.folder / key, write)
            self._make_room()
        except _failures() as error:  # the user has the model all the same
            _logger.warning("%s is not kept for the next process: %s", result.name, one_line(error))
            return False
        return (self.folder / key / _ENTRY).exists()

    def listed(self) -> list[KeptModel]:
        """All models that are kept, the one that was used last first."""
        return sorted(self._found(), key=lambda model: -model.used)

    def clear(self) -> list[KeptModel]:
        """Removes all models. Returns those that it has removed."""
        removed = self.listed()
        for model in removed:
            remove_folder(self.folder / model.key)
        return removed

    def _found(self) -> Iterator[KeptModel]:
        for folder in self.folder.glob("*") if self.folder.is_dir() else ():
            if not _KEY.fullmatch(folder.name):
                continue
            try:
                used = (folder / _ENTRY).stat().st_mtime
                size = _size(folder)
                name = msgspec.json.decode((folder / _ENTRY).read_bytes(), type=_Entry).name
            except OSError:  # another process removes it
                continue
            except msgspec.DecodeError:
                name = "damaged"
            yield KeptModel(folder.name, name, size, used)

    def _make_room(self) -> None:
        """Removes what killed processes have left, and the models that were not used for the longest time."""
        for scratch in abandoned_folders(self.folder, "."):
            remove_folder(scratch)
        total = 0
        for model in self.listed():
            total += model.bytes
            if total > self._most_bytes:
                remove_folder(self.folder / model.key)

    def _is_safe(self) -> bool:
        """Whether nobody but this user can put a model there: a model is code."""
        status = self.folder.stat()
        return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _failures() -> tuple[type[Exception], ...]:
    """What is raised if a model cannot be written, read or run. Only an error needs TVM, which takes long to import."""
    from tvm.error import InternalError

    return OSError, ValueError, msgspec.DecodeError, StormdropError, InternalError


def _size(folder: Path) -> int:
    """The bytes of the files of a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _loaded(folder: Path, entry: _Entry) -> CompiledModel:
    """The model of an entry. Raises `ArtifactError` if it is damaged, or computes something else than it did."""
    from ..ir.relative_error import relative_error
    from .artifact.artifact import CompiledModel

    model = CompiledModel.load(folder, entry.digest)
    before, now = ({name: _values(text) for name, text in each.items()} for each in (entry.outputs, _outputs(model)))
    if before.keys() != now.keys() or any(relative_error(now[name], before[name]) > _LEVEL for name in before):
        raise ArtifactError(f"{folder}: computes something else than when it was kept")
    return model


def _outputs(model: CompiledModel) -> dict[str, str]:
    """Some elements of what a model computes for inputs of a fixed seed."""
    from .inputs.samples import sample_feeds

    outputs = model.run(sample_feeds(model.metadata, _SEED))
    return {name: _elements(value).tobytes().hex() for name, value in outputs.items()}


def _elements(output: NDArray[Any]) -> NDArray[np.float64]:
    flat = output.reshape(-1)
    return flat[:: max(1, -(-flat.size // _ELEMENTS))].astype(np.float64)


def _values(text: str) -> NDArray[np.float64]:
    return np.frombuffer(bytes.fromhex(text), np.float64)


def _records(result: CompileResult, store: Store | None) -> list[tuple[tuple[str, str, str, str, str], list[str]]]:
    """The problem of each kernel of a model, with the finished sessions that the records have for it."""
    from .tuning.scheduler import has_identity

    kernels = [task.kernel for task in result.tasks if task.kernel is not None]
    if store is None or not all(has_identity(kernel.target) for kernel in kernels):
        return []
    return [(astuple(kernel.problem), _sessions(kernel.problem, store)) for kernel in kernels]


def _is_current(entry: _Entry, store: Store | None) -> bool:
    """Whether the records say what they said when an entry was made."""
    if store is None:
        return not entry.records
    try:
        return all(_sessions(Problem(*fields), store) == sessions for fields, sessions in entry.records)
    except StoreError:
        return False  # the compilation says what is wrong


def _sessions(problem: Problem, store: Store) -> list[str]:
    return [session.id for session in store.finished(problem)]
