"""Knobs from their descriptions: the inverse of `Knob.describe`, for what was written to a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import SpaceError
from .knob import Knob
from .listed import Categorical, Ordinal
from .split import Split
from .tile import Tile

_KINDS: dict[str, type[Knob]] = {kind.kind: kind for kind in (Ordinal, Categorical, Tile, Split)}


def knob_from(description: Mapping[str, Any]) -> Knob:
    """The knob with this description. Raises `SpaceError` where there is none."""
    arguments = dict(description)
    kind = arguments.pop("kind", None)
    if kind not in _KINDS:
        raise SpaceError(f"there is no kind of knob {kind!r}; there is {', '.join(_KINDS)}")
    try:
        return _KINDS[kind](**arguments)
    except TypeError as error:
        raise SpaceError(f"no {kind} knob is described by {arguments}: {error}") from error
