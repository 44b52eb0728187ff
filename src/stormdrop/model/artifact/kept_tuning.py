"""Reads what the folder of a model says about its tuning; `tuning/tuning_file.py` writes it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import ArtifactError, one_line
from .artifact_files import METADATA, NO_MODEL, TUNING, checksum, open_files
from .metadata import Metadata

FORMAT = 1
"""Version of the document."""

_MOST_BYTES = 1 << 27
"""A document that unpacks to more is refused: no tuning writes one."""


def read_tuning(folder: Path) -> tuple[Metadata, str, dict[str, Any] | None]:
    """Reads what the folder of a saved model says about the model. Nothing of it runs.

    Args:
        folder: The folder.

    Returns:
        The metadata, the digest that covers all files, and the document of the tuning; None if the folder has none,
        because the model was compiled without tuning or by an earlier version.

    Raises:
        ArtifactError: It is no model, or damaged.
    """
    try:
        with open_files(folder) as files:
            if METADATA not in files:
                raise ArtifactError(f"{folder}: {NO_MODEL}")
            metadata, checksums, digest = Metadata.from_json(files[METADATA].read())
            if TUNING not in checksums:
                return metadata, digest, None
            if TUNING not in files:
                raise ArtifactError(f"{folder}: {TUNING} is missing")
            if checksum(folder / TUNING) != checksums[TUNING]:
                raise ArtifactError(f"{folder}: {TUNING} is damaged: its checksum differs")
            return metadata, digest, _read(folder, files[TUNING])
    except (NotADirectoryError, FileNotFoundError):
        raise ArtifactError(f"{folder}: {NO_MODEL if folder.exists() else 'no such folder'}") from None
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ArtifactError(f"{folder}: {METADATA} cannot be read: {one_line(error)}") from error


def _read(folder: Path, file: BinaryIO) -> dict[str, Any]:
    try:
        with gzip.open(file) as unpacked:
            data = unpacked.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ArtifactError(f"{folder}: {TUNING} is larger than any tuning writes it")
        document: Any = json.loads(data)
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{folder}: {TUNING} cannot be read: {one_line(error)}") from error
    form = document.get("format") if isinstance(document, dict) else None
    if form != FORMAT:
        raise ArtifactError(f"{folder}: {TUNING} is of format {form!r}, not {FORMAT}")
    return dict(document)
