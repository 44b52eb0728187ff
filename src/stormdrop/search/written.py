"""A search with options as people write it: `droplet:preset=paper:speculation=false`."""

from __future__ import annotations

import types
import typing
from typing import Any

from ..errors import SearchError, hint
from .registry import options_of, options_with


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
