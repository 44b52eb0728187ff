"""Saves a model that is verified as it was saved: loaded again from the files, before the folder takes its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..artifact.artifact import CompiledModel
from ..artifact.artifact_files import METADATA, save_folder
from ..artifact.metadata import Metadata, shapes_in_words
from ..verification.expected import Fault
from ..verification.rows import inputs_with_rows
from ..verification.verify import Reference, Verification
from .builder import ModelBuilder
from .tuned_task import Choice


class Verifier:
    """Verifies the models of combinations; if one is to be saved, as it was saved.

    Args:
        builder: Has built the models.
        references: What they should compute, at each size.
        seed: Seeds the inputs on which the independence of rows is checked.
        out: Where to save the first one that is right; None if it is not to be saved.
        native: Save machine code; see `CompiledModel.save`.

    Attributes:
        last: How exact the latest model is, at its worst size.
        by_size: How exact it is at each size.
        artifact: The folder that it was saved to; None if none is wanted.
    """

    def __init__(
        self,
        builder: ModelBuilder,
        references: Sequence[Reference],
        out: str | Path | None,
        native: bool,
        seed: int = 0,
    ) -> None:
        self._builder, self._references, self._out, self._native = builder, references, out, native
        self._seed = seed
        self.last = Verification(math.inf, references[0].against)
        self.by_size: Sequence[Verification] = ()
        self.artifact: Path | None = None

    def __call__(self, model: CompiledModel, combination: Mapping[int, Choice]) -> Fault | None:
        """Verifies the model of a combination, and saves it if it is right; what is wrong with it otherwise."""

        def found(loaded: CompiledModel) -> dict[str, Any]:
            self._check(loaded)
            if self.last.fault is not None:
                raise _Wrong
            provenance = self._builder.complete_provenance(combination, self.last)
            loaded.metadata = replace(loaded.metadata, provenance=provenance)
            batched = inputs_with_rows(loaded, self._seed) if len(loaded.sizes) > 1 else ()
            return {"provenance": provenance, "batched": batched}

        try:
            if self._out is None:
                model.metadata = replace(model.metadata, **found(model))
            else:
                self.artifact = save_verified(model, self._out, self._native, found)
        except _Wrong:
            return self.last.fault
        return None

    def _check(self, model: CompiledModel) -> None:
        """Verifies a model at each size."""
        self.by_size = [reference.check(model) for reference in self._references]
        faults = [each.fault for each in self.by_size if each.fault is not None]
        if len(self.by_size) == 1 or not faults:
            self.last = max(self.by_size, key=lambda each: each.max_error)
            return
        worst = max(faults, key=lambda fault: fault.error / fault.allowed)
        shapes = shapes_in_words({name: value.shape for name, value in worst.sample.feeds.items()})
        sample = replace(worst.sample, name=f"{worst.sample.name} ({shapes})")
        self.last = Verification(worst.error, self.last.against, replace(worst, sample=sample))


class _Wrong(Exception):
    """The loaded model is wrong: keeps it from being saved."""


def save_verified(
    model: CompiledModel, folder: str | Path, native: bool, verified: Callable[[CompiledModel], Mapping[str, Any]]
) -> Path:
    """Writes a model to a folder, whole and right, or not at all.

    Args:
        model: The model. It gets the new metadata.
        folder: Where to write it. What is there stays until the new model is verified.
        native: Write machine code; see `CompiledModel.save`.
        verified: Is called with the model as it was loaded from the files. Returns the fields of its metadata that are
            known now, by name, or raises whatever keeps the model from being saved.

    Returns:
        The folder.

    Raises:
        ArtifactError: The folder holds something else than a model or cannot be written.
    """
    path = Path(folder)

    def write(new: Path) -> None:
        model.write_files(new, native)
        model.metadata = replace(model.metadata, **verified(model.reloaded(new)))
        _, checksums, _ = Metadata.from_json((new / METADATA).read_bytes())
        text = model.metadata.to_json(checksums)
        (new / METADATA).write_text(text)
        model.digest = Metadata.from_json(text.encode())[2]

    save_folder(path, write)
    return path
