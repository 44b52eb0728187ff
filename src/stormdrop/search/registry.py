"""Searches by name. Adding a search is adding one file to this package: a class with its own `name` and `Options`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import SearchError, hint
from ..space import Space
from .contract import GeneratorSearch, Knowledge, Options, Search


def create(
    name: str, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None, **options: Any
) -> Search:
    """The search of this name on these spaces. Raises `SearchError` for an unknown name, option or value."""
    found = _found()
    if name not in found:
        raise SearchError(f"unknown search {name!r}; {hint(name, sorted(found))}")
    cls = found[name]
    known = [field.name for field in dataclasses.fields(cls.Options)]
    for option in options:
        if option not in known:
            raise SearchError(f"search {name!r} has no option {option!r}; {hint(option, known)}")
    return cls(spaces, rng, cls.Options(**options), knowledge)


def names() -> list[str]:
    """The names of all searches, sorted."""
    return sorted(_found())


def options_of(name: str) -> type[Options]:
    """The options dataclass of a search: names, types and defaults. Raises `SearchError` for an unknown name."""
    found = _found()
    if name not in found:
        raise SearchError(f"unknown search {name!r}; {hint(name, sorted(found))}")
    return found[name].Options


@lru_cache(maxsize=1)
def _found() -> dict[str, type[GeneratorSearch]]:
    package = __name__.rpartition(".")[0]
    path = importlib.import_module(package).__path__
    found: dict[str, type[GeneratorSearch]] = {}
    for module in pkgutil.iter_modules(path):
        for cls in vars(importlib.import_module(f"{package}.{module.name}")).values():
            if not inspect.isclass(cls) or not {"name", "Options"} <= vars(cls).keys() or inspect.isabstract(cls):
                continue
            if issubclass(cls, GeneratorSearch) and found.setdefault(cls.name, cls) is not cls:
                raise RuntimeError(f"two searches are named {cls.name!r}: {found[cls.name]} and {cls}")
    return found
