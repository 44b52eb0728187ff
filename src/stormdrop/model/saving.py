"""Saves a model that is verified as it was saved: loaded again from the files, before the folder takes its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ArtifactError
from .artifact import CompiledModel
from .artifact_files import METADATA, check_free
from .atomic_folder import replace_folder
from .metadata import Metadata


def save_verified(
    model: CompiledModel, folder: str | Path, native: bool, verified: Callable[[CompiledModel], Mapping[str, Any]]
) -> Path:
    """Write a model to a folder, whole and right, or not at all.

    Args:
        model: The model. It gets the new provenance.
        folder: Where to write it. What is there stays until the new model is verified.
        native: Write machine code; see `CompiledModel.save`.
        verified: Is called with the model as it was loaded from the files. Returns the provenance to store with it, or
            raises whatever keeps the model from being saved.

    Returns:
        The folder.

    Raises:
        ArtifactError: The folder holds something else than a model or cannot be written.
    """
    path = Path(folder)

    def write(new: Path) -> None:
        model.save(new, native)
        loaded = CompiledModel.load(new)
        loaded.symbols = model.symbols
        model.metadata = replace(model.metadata, provenance=verified(loaded))
        _, checksums, _ = Metadata.from_json((new / METADATA).read_bytes())
        text = model.metadata.to_json(checksums)
        (new / METADATA).write_text(text)
        model.digest = Metadata.from_json(text.encode())[2]
        check_free(path)  # once more: somebody may have put a file there meanwhile

    try:
        check_free(path)
        replace_folder(path, write)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path
