"""Saves a model that is verified as it was saved: loaded again from the files, before the folder takes its name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import InputError, ModelError
from ...ir.relative_error import relative_error
from ...machine.contract import CPU, Machine
from ...runtime.sizes import shapes_in_words
from ..artifact.artifact import CompiledModel
from ..artifact.artifact_files import METADATA, save_folder
from ..artifact.metadata import Metadata
from ..native.link import c_compiler
from ..verification.exact import output_name
from ..verification.expected import Fault
from ..verification.rows import inputs_with_rows
from ..verification.verify import Reference, Verification
from .builder import ModelBuilder
from .tuned_task import Choice

_OF_A_RANGE = 0.05
"""What an output of a range may be off that of the same size alone, whose kernels add up in another order. The kernels
were compared one by one; this finds memory that is planned wrongly, and constants that are cut wrongly."""


def check_native(machine: Machine) -> None:
    """Checks that a native model can be saved, before the work whose result is saved so.

    Args:
        machine: The machine that the model is for.

    Raises:
        InputError: It is a GPU.
        ArtifactError: There is no C compiler.
    """
    if machine.device != CPU:
        raise InputError(f"a model for the GPU {machine.name} needs no TVM to run as it is: leave native out")
    c_compiler()


class Verifier:
    """Verifies the models of combinations; if one is to be saved, as it was saved.

    Args:
        builder: Has built the models.
        references: What they should compute, at each size.
        seed: Seeds the inputs on which the independence of rows is checked.
        open_sizes: Make it run at each size between those of the references, too.
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
        open_sizes: bool = False,
    ) -> None:
        self._builder, self._references, self._out, self._native = builder, references, out, native
        self._seed, self._open = seed, open_sizes
        self.last = Verification(math.inf, references[0].against)
        self.by_size: Sequence[Verification] = ()
        self.artifact: Path | None = None

    def __call__(self, model: CompiledModel, combination: Mapping[int, Choice]) -> Fault | None:
        """Verifies the model of a combination, and saves it if it is right; what is wrong with it otherwise."""
        if self._open:
            self._builder.open(model, combination)

        def completed(loaded: CompiledModel) -> Metadata:
            self._check(loaded)
            if self.last.fault is not None:
                raise _Wrong
            provenance = self._builder.complete_provenance(combination, self.last)
            loaded.metadata = replace(loaded.metadata, provenance=provenance)
            batched = inputs_with_rows(loaded, self._builder.graph, self._seed) if len(loaded.sizes) > 1 else ()
            return replace(model.metadata, provenance=provenance, batched=batched)

        def write(new: Path) -> None:
            model.write_files(new, self._native)
            here = self._builder.executable(model, combination)
            model.metadata = completed(model.reloaded(new) if here is model else here)
            _, checksums, _ = Metadata.from_json((new / METADATA).read_bytes())
            text = model.metadata.to_json(checksums)
            (new / METADATA).write_text(text)
            model.digest = Metadata.from_json(text.encode())[2]

        try:
            if self._out is None:
                model.metadata = completed(self._builder.executable(model, combination))
            else:
                save_folder(Path(self._out), write)
                self.artifact = Path(self._out)
        except _Wrong:
            return self.last.fault
        return None

    @cached_property
    def _between(self) -> list[Reference]:
        """What the model should compute at sizes of its ranges that are not compiled."""
        return [Reference.compute(graph, self._seed) for graph in self._builder.graph.between]

    def _check(self, model: CompiledModel) -> None:
        """Verifies a model at each size."""
        by = f", {self._builder.executed_by}" if self._builder.executed_by else ""
        checked = [reference.check(model) for reference in self._references]
        for reference in self._references if model.opens else ():
            _check_range(model, reference.feeds)
        for reference in self._between if model.opens else ():
            _check_between(model, reference)
        self.by_size = [replace(each, against=each.against + by) for each in checked]
        faults = [each.fault for each in self.by_size if each.fault is not None]
        if len(self.by_size) == 1 or not faults:
            self.last = max(self.by_size, key=lambda each: each.max_error)
            return
        worst = max(faults, key=lambda fault: fault.error / fault.allowed)
        shapes = shapes_in_words({name: value.shape for name, value in worst.sample.feeds.items()})
        sample = replace(worst.sample, name=f"{worst.sample.name} ({shapes})")
        self.last = Verification(worst.error, self.last.against, replace(worst, sample=sample))


def _check_between(model: CompiledModel, reference: Reference) -> None:
    """Compares what a model computes at a size that is not compiled with what it should compute."""
    first = reference.expected[0]
    outputs = {output_name(name): value for name, value in model.run(first.sample.feeds).items()}
    for name, output in outputs.items():
        error = relative_error(output, first.tensors[name]) if name in first.tensors else 0.0
        if not error <= _OF_A_RANGE:
            where = shapes_in_words({name: value.shape for name, value in first.sample.feeds.items()})
            raise ModelError(
                f"{model.metadata.name}: has no open sizes: {where} makes an error of {error:.2g} in {name}"
            )


def _check_range(model: CompiledModel, feeds: Mapping[str, Any]) -> None:
    """Compares what a model computes at a size with what the range of this size computes, if it has one."""
    shapes = tuple(feeds[info.name].shape for info in model.inputs)
    if not any(each.parameters(shapes) for each in model.opens):
        return
    outputs, expected = model.by_ranges().run(feeds), model.run(feeds)
    for name, output in outputs.items():
        error = relative_error(output, expected[name])
        if error > _OF_A_RANGE:
            where = shapes_in_words(dict(zip(feeds, shapes, strict=True)))
            raise ModelError(
                f"{model.metadata.name}: as a size of a range, {where} makes an error of {error:.2g} in {name!r}"
            )


class _Wrong(Exception):
    """The loaded model is wrong: keeps it from being saved."""
