"""Searches with their options, as people write them: `droplet,droplet:test=student:speculation=false`."""

from __future__ import annotations

import types
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InputError, SearchError, hint
from ..search import Search, create, options_of
from ..space import Space


@dataclass(frozen=True)
class SearchSpec:
    """A search with options.

    Attributes:
        label: the text that it was written as.
        name: the name of the search.
        options: its options by name.
    """

    label: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def create(self, spaces: Sequence[Space], seed: int) -> Search:
        """The search on these spaces."""
        return create(self.name, spaces, np.random.default_rng(seed), **self.options)


def parse_searches(text: str) -> list[SearchSpec]:
    """Searches separated by commas, each `name` or `name:option=value:option=value`.

    Raises:
        SearchError: a search, an option or a value is unknown.
        InputError: no search is named, or one is given twice.

    Example:
        >>> [spec.options for spec in parse_searches("droplet,droplet:test=student")]
        [{}, {'test': 'student'}]
    """
    labels = [label.strip() for label in text.split(",") if label.strip()]
    if not labels:
        raise InputError("no search is named: write, for example, droplet,random")
    for label, count in Counter(labels).items():
        if count > 1:
            raise InputError(f"search {label} is given twice")
    return [_spec(label) for label in labels]


def _spec(label: str) -> SearchSpec:
    name, *settings = label.split(":")
    hints = typing.get_type_hints(options_of(name))
    options: dict[str, Any] = {}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not (option and equals and value):
            raise SearchError(f"{label}: write an option as name=value, not {setting!r}")
        if option not in hints:
            raise SearchError(f"search {name!r} has no option {option!r}; {hint(option, hints)}")
        if option in options:
            raise SearchError(f"{label}: option {option} is given twice")
        options[option] = _value(label, option, value, hints[option])
    try:
        options_of(name)(**options)
    except TypeError as error:
        raise SearchError(f"{label}: {error}") from error
    return SearchSpec(label, name, options)


def _value(label: str, option: str, text: str, hint: Any) -> Any:
    """The value of an option, by its declared type. Raises `SearchError`."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
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
