"""Searches by name, and with options as people write them.

To add a search, add a file to this package with a class that has its own `name` and `Options`.
Other packages add searches by entry points of the group `stormdrop.searches`; see `plugins.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, cast

import numpy as np

from .. import optional_packages
from ..errors import SearchError, hint, quoted
from ..plugins import plugins, require
from ..space import Space
from .contract import GeneratorSearch, Knowledge, Options, Search
from .presets import DEFAULT, PRESETS

_OPTIONAL = {"optuna": "optuna_samplers"}
"""Searches that need a package of their own name, each with its module in `search/optional`. They are not among
`names()`, because they may not work here."""


def create(
    name: str, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None, **options: Any
) -> Search:
    """The search of this name on these spaces.

    Args:
        name: One of `names()`.
        spaces: The spaces to search, one per sketch.
        rng: The source of all randomness.
        knowledge: What else is known: features, a prior, candidates to start from.
        options: Values for fields of `options_of(name)`. The others have the values of the preset that `preset` names,
            or their defaults.

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
    return _class_of(name)(spaces, rng, options_with(name, options), knowledge)


def names() -> list[str]:
    """The names of all searches, sorted: those of this package, and those of plug-ins, which are not loaded."""
    return sorted({*_classes(), *plugins("searches")})


def needs_prior(name: str) -> bool:
    """Whether a search is not itself without a prior. Raises `SearchError` for an unknown name."""
    return _class_of(name).needs_prior


def options_of(name: str) -> type[Options]:
    """The options dataclass of a search: names, types and defaults. Raises `SearchError` for an unknown name."""
    return _class_of(name).Options


def presets(name: str) -> list[str]:
    """The names of a search's presets, "default" first. Raises `SearchError` for an unknown search."""
    _class_of(name)
    return [DEFAULT, *PRESETS.get(name, {})]


def names_with(preset: str) -> list[str]:
    """The names of the searches of this package that have a preset, sorted. No plug-in is loaded."""
    return sorted(name for name, by_preset in PRESETS.items() if preset in by_preset)


def options_with(name: str, given: Mapping[str, Any]) -> Options:
    """The options of a search: the given ones, then those of the preset that is given, then the defaults.

    Args:
        name: One of `names()`.
        given: Values by the names of the options; `preset` is one of `presets(name)`.

    Raises:
        SearchError: The search, its preset, an option or its value is unknown.

    Example:
        >>> options_with("grid", {"preset": "paper", "repeats": 1})
        GridOptions(preset='paper', repeats=1, order='autotvm')
    """
    options_class = options_of(name)
    known = [field.name for field in dataclasses.fields(options_class)]
    for option in given:
        if option not in known:
            raise SearchError(f"search {name!r} has no option {option!r}; {hint(option, known)}")
    preset = given.get("preset", DEFAULT)
    if preset not in presets(name):
        raise SearchError(f"search {name!r} has no preset {preset!r}; its presets are {', '.join(presets(name))}")
    return options_class(**{**PRESETS.get(name, {}).get(preset, {}), **_of_their_types(name, options_class, given)})


def parse_search(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a search that is written as `name` or `name:option=value:option=value`.

    Args:
        text: What a user has written.

    Returns:
        The name and the options that were written, for `create`.

    Raises:
        SearchError: The search, an option, its value or the preset is unknown, or an option is given twice.

    Example:
        >>> parse_search("droplet:preset=paper:confidence=0.99")
        ('droplet', {'preset': 'paper', 'confidence': 0.99})
    """
    name, *settings = text.strip().split(":")
    hints = typing.get_type_hints(options_of(name))
    options: dict[str, Any] = {}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not (option and equals and value):
            raise SearchError(f"{text}: write an option as name=value, not {setting!r}")
        if option not in hints:
            raise SearchError(f"search {name!r} has no option {option!r}; {hint(option, hints)}")
        if option in options:
            raise SearchError(f"{text}: option {option} is given twice")
        options[option] = _value(text, option, value, hints[option])
    try:
        options_with(name, options)
    except TypeError as error:
        raise SearchError(f"{text}: {error}") from error
    return name, options


_KINDS: dict[str, tuple[type, Callable[[Any], Any], str]] = {
    "int": (Integral, int, "a whole number"),
    "float": (Real, float, "a number"),
    "bool": (Integral, bool, "true or false"),
    "str": (str, str, "text"),
}
"""By the annotation of an option's field: what its values are, Python's own type for them, and that in words."""


def _of_their_types(search: str, options_class: type[Options], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options as Python's own numbers and texts. Raises `SearchError` if one is of another type."""
    annotations = {field.name: str(field.type) for field in dataclasses.fields(options_class)}
    values = dict(given)
    for option, value in given.items():
        kind, _, optional = annotations[option].partition(" | ")
        if kind not in _KINDS or (value is None and optional == "None"):
            continue
        abstract, own, words = _KINDS[kind]
        if not isinstance(value, abstract) or (isinstance(value, bool) and kind != "bool"):
            raise SearchError(f"search {search!r}: {option}={quoted(value)} must be {words}")
        if type(value) not in (int, float, bool, str):
            values[option] = own(value)
    return values


def _class_of(name: str) -> type[GeneratorSearch]:
    classes = _classes()
    if name in classes:
        return classes[name]
    if name in _OPTIONAL:
        optional_packages.require([name], f"search {name!r}", SearchError)
        module = importlib.import_module(f"{__name__.rpartition('.')[0]}.optional.{_OPTIONAL[name]}")
        return cast(type[GeneratorSearch], module.SEARCH)
    if plugin := plugins("searches").get(name):
        found = plugin.load()
        fits = inspect.isclass(found) and issubclass(found, GeneratorSearch) and not inspect.isabstract(found)
        require(plugin, fits and found.name == name, f"a class derived from GeneratorSearch whose name is {name!r}")
        return cast(type[GeneratorSearch], found)
    raise SearchError(f"unknown search {name!r}; {hint(name, names())}")


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


def _value(label: str, option: str, text: str, declared: Any) -> Any:
    """The value of an option, by its declared type. Raises `SearchError`."""
    kinds = typing.get_args(declared) if typing.get_origin(declared) in (typing.Union, types.UnionType) else (declared,)
    if type(None) in kinds and text.lower() == "none":
        return None
    if bool in kinds and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for kind in (int, float, str):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    wanted = " or ".join("none" if kind is type(None) else getattr(kind, "__name__", str(kind)) for kind in kinds)
    raise SearchError(f"{label}: option {option} must be {wanted}, not {text!r}")
