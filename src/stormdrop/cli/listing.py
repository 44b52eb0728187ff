"""`stormdrop operators`: what can be tuned."""

from __future__ import annotations

from . import output
from .guide import OPERATORS
from .options import JsonOption


def operators(as_json: JsonOption = False) -> None:
    """List the operators with their arguments; those in brackets have the default that is shown."""
    from ..operators import names, usage

    rows = [(name, usage(name), OPERATORS[name]) for name in names()]
    if as_json:
        output.emit({"operators": [dict(zip(("name", "arguments", "computes"), row, strict=True)) for row in rows]})
    else:
        output.table(["operator", "computes", "arguments"], [[name, what, words] for name, words, what in rows])
