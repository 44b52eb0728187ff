"""A native model in the forms in which `native_stress.py` looks at it: for other CPUs, with sanitizers, another one."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path

from _native_driver import SANITIZERS, build_driver, sanitizer_flags
from _native_in_python import in_process, write_cases

OTHER = "other"


class Failed(Exception):
    """A check fails."""


class Skipped(Exception):
    """What a check needs is not here."""


class Subject:
    """A model, in the forms that checks need; each is made once.

    Args:
        name: a name of `_graphs.py`, or a folder.
        folder: where everything is written.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = Path(name).name, folder
        self._given = Path(name).resolve() if Path(name).is_dir() else None

    @cached_property
    def model(self) -> Path:
        """The model for this CPU."""
        return self._given or self._made["plain"]

    @cached_property
    def model_for_v3(self) -> Path:
        """The model for x86-64-v3, which valgrind and QEMU know. A folder is what it is."""
        if self._given or platform.machine() != "x86_64":
            return self.model
        return _compiled(self.name, self.folder, {"v3": []}, STORMDROP_CPU="x86-64-v3")["v3"]

    def sanitized(self, sanitizer: str) -> tuple[Path, Path]:
        """The model whose runtime has a sanitizer, and a driver with it."""
        if self._given:
            raise Skipped("a folder has no object files to link again: give the name of a model")
        if sanitizer not in self._flags:
            raise Skipped(f"the C compiler has no -fsanitize={sanitizer}")
        if f"__{sanitizer[0]}san_".encode() not in (self._made[sanitizer] / "model.so").read_bytes():
            raise Failed(f"{sanitizer}: the library was linked without the sanitizer")
        folder = self._new_folder(sanitizer)
        return self._made[sanitizer], build_driver(folder, self._flags[sanitizer])

    @cached_property
    def driver(self) -> Path:
        """The program in C that calls a model."""
        return build_driver(self._new_folder("driver"))

    @cache  # noqa: B019  there are few subjects
    def cases(self, model: Path) -> Path:
        """The file of inputs and right outputs of one of the forms."""
        path = self.folder / f"{model.name}.cases"
        if (found := in_process(write_cases, model, path)) != ["written"]:
            raise Failed(f"stormdrop.runtime does not run it: {found}")
        return path

    @cached_property
    def other(self) -> Path:
        """Another model: SqueezeNet with other weights."""
        return _compiled("squeezenet", self.folder, {OTHER: []})[OTHER]

    @cached_property
    def _flags(self) -> dict[str, list[str]]:
        found = {each: sanitizer_flags(self.folder, each) for each in SANITIZERS}
        return {name: flags for name, flags in found.items() if flags is not None}

    @cached_property
    def _made(self) -> dict[str, Path]:
        return _compiled(self.name, self.folder, {"plain": [], **self._flags})

    def _new_folder(self, name: str) -> Path:
        (folder := self.folder / f"{name} driver").mkdir()
        return folder


def _compiled(name: str, folder: Path, forms: Mapping[str, Sequence[str]], **settings: str) -> dict[str, Path]:
    """A model, compiled in a process of its own and linked with the flags of each form."""
    paths = {form: folder / f"{form.replace(',', '-')}.sd" for form in forms}
    if in_process(_compile, name, {paths[form]: flags for form, flags in forms.items()}, settings) != ["done"]:
        raise Failed(f"{name} is not compiled: the reason stands above")
    return paths


def _compile(name: str, forms: Mapping[Path, Sequence[str]], settings: Mapping[str, str]) -> Iterator[str]:
    os.environ.update(settings)  # before TVM is loaded
    from _graphs import graph

    from stormdrop.model import untuned
    from stormdrop.model.native import link
    from stormdrop.model.random_weights import seed_weights

    source = graph(name)
    if any(path.stem == OTHER for path in forms):
        source = seed_weights(source, seed=1)
    model, link_model = untuned.compile_model(source, fresh=True), link.link_model
    for path, flags in forms.items():
        link.link_model = partial(link_model, flags=flags)
        model.save(path, native=True)
    yield "done"
