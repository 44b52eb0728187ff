"""Rebuild knobs from their descriptions, for instance from those in a file: the inverse of `Knob.describe`."""

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
    """The knob that a description describes.

    Args:
        description: What `Knob.describe` returned, possibly after a round trip through JSON.

    Raises:
        SpaceError: The kind is unknown, or the constructor refuses the other entries.

    Example:
        >>> knob_from({"kind": "ordinal", "name": "unroll", "values": [0, 16, 64]})
        Ordinal(name='unroll', values=[0, 16, 64])
    """
    arguments = dict(description)
    kind = arguments.pop("kind", None)
    if kind not in _KINDS:
        raise SpaceError(f"there is no kind of knob {kind!r}; choose from {', '.join(_KINDS)}")
    try:
        return _KINDS[kind](**arguments)
    except TypeError as error:
        raise SpaceError(f"no {kind} knob is described by {arguments}: {error}") from error
