"""Saves a model that is verified as it was saved: loaded again from the files, before the folder takes its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ArtifactError
from .artifact import CompiledModel
from .artifact_files import METADATA, check_free
from .atomic_folder import replace_folder
from .builder import ModelBuilder
from .metadata import Metadata
from .selection import Choice
from .verify import Fault, Reference, Verification


class Verifier:
    """Verifies the models of combinations; if one is to be saved, as it was saved.

    Args:
        builder: Has built the models.
        reference: What they should compute.
        out: Where to save the first one that is right; None if it is not to be saved.
        native: Save machine code; see `CompiledModel.save`.

    Attributes:
        last: How exact the latest model is that passed.
        artifact: The folder that it was saved to; None if none is wanted.
    """

    def __init__(self, builder: ModelBuilder, reference: Reference, out: str | Path | None, native: bool) -> None:
        self._builder, self._reference, self._out, self._native = builder, reference, out, native
        self.last = Verification(math.inf, reference.against)
        self.artifact: Path | None = None

    def __call__(self, model: CompiledModel, combination: Mapping[int, Choice]) -> Fault | None:
        """Verify the model of a combination, and save it if it is right; what is wrong with it otherwise."""

        def provenance(loaded: CompiledModel) -> dict[str, Any]:
            self.last = self._reference.check(loaded)
            if self.last.fault is not None:
                raise _Wrong
            return self._builder.complete_provenance(combination, self.last)

        try:
            if self._out is None:
                model.metadata = replace(model.metadata, provenance=provenance(model))
            else:
                self.artifact = save_verified(model, self._out, self._native, provenance)
        except _Wrong:
            return self.last.fault
        return None


class _Wrong(Exception):
    """The loaded model is wrong: keeps it from being saved."""


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
        model.write_files(new, native)
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
