"""Searches by name. To add a search, add a file to this package with a class that has its own `name` and `Options`."""

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
    """The search of this name on these spaces.

    Args:
        name: One of `names()`.
        spaces: The spaces to search, one per sketch.
        rng: The source of all randomness.
        knowledge: What else is known: features, a prior, candidates to start from.
        options: Values for fields of `options_of(name)`; the others have their defaults.

    Raises:
        SearchError: The name, an option or its value is unknown, or the search refuses the spaces or the knowledge.

    Example:
        >>> from stormdrop.space import Ordinal, Space
        >>> space = Space("square", [Ordinal("x", range(8))])
        >>> search = create("grid", [space], np.random.default_rng(0), repeats=1)
        >>> search.ask(2)  # doctest: +NORMALIZE_WHITESPACE
        [Request(candidate=Candidate(sketch='square', point=(0,)), repeats=1),
         Request(candidate=Candidate(sketch='square', point=(1,)), repeats=1)]
    """
    search_class = _class_of(name)
    known = [field.name for field in dataclasses.fields(search_class.Options)]
    for option in options:
        if option not in known:
            raise SearchError(f"search {name!r} has no option {option!r}; {hint(option, known)}")
    return search_class(spaces, rng, search_class.Options(**options), knowledge)


def names() -> list[str]:
    """The names of all searches, sorted."""
    return sorted(_classes())


def options_of(name: str) -> type[Options]:
    """The options dataclass of a search: names, types and defaults. Raises `SearchError` for an unknown name."""
    return _class_of(name).Options


def _class_of(name: str) -> type[GeneratorSearch]:
    classes = _classes()
    if name not in classes:
        raise SearchError(f"unknown search {name!r}; {hint(name, sorted(classes))}")
    return classes[name]


@lru_cache(maxsize=1)
def _classes() -> dict[str, type[GeneratorSearch]]:
    """The concrete searches in the modules of this package, by name."""
    package = __name__.rpartition(".")[0]
    path = importlib.import_module(package).__path__
    classes: dict[str, type[GeneratorSearch]] = {}
    for module in pkgutil.iter_modules(path):
        for cls in vars(importlib.import_module(f"{package}.{module.name}")).values():
            if not inspect.isclass(cls) or not {"name", "Options"} <= vars(cls).keys() or inspect.isabstract(cls):
                continue
            if issubclass(cls, GeneratorSearch) and classes.setdefault(cls.name, cls) is not cls:
                raise RuntimeError(f"two searches are named {cls.name!r}: {classes[cls.name]} and {cls}")
    return classes
