"""`stormdrop operators`: what can be tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import PluginError
from .. import output
from ..guide import descriptions
from ..options import JsonOption

if TYPE_CHECKING:
    from ...plugins import Plugin


def operators(as_json: JsonOption = False) -> None:
    """List the operators with their arguments; those in brackets have the default that is shown."""
    from ...operators import names, usage

    rows = [(name, usage(name), _computes(name)) for name in names()]
    if as_json:
        output.emit({"operators": [dict(zip(("name", "arguments", "computes"), row, strict=True)) for row in rows]})
    else:
        output.table(["operator", "computes", "arguments"], [[name, what, words] for name, words, what in rows])


def _computes(name: str) -> str:
    """What an operator computes, in a line; for that of a plug-in the first line of its docstring."""
    from ...operators import find

    documentation = find(name).__doc__ or ""
    return descriptions().get(name) or next(iter(documentation.strip().splitlines()), "")


def plugin_status(plugin: Plugin) -> dict[str, Any]:
    """What `stormdrop doctor` says of a plug-in: its parts, and why it does not load; None if it does."""
    error = None
    try:
        plugin.load()
    except PluginError as reason:
        error = str(reason)
    return {"group": plugin.group, "name": plugin.name, "package": plugin.package, "error": error}
