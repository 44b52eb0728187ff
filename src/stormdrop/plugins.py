"""What other installed packages add, by their entry points: searches, sketches, operators, peers and stores.

    [project.entry-points."stormdrop.searches"]      in the package's pyproject.toml
    mine = "my_package.search:Mine"

An entry point is only read until somebody asks for its name. Then it is loaded. A plug-in that does not load costs
whoever asks for it one line, which names its package, and nobody else anything. Looking through all packages takes
milliseconds, and every kernel asks: a process does it once for each search path (`sys.path`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any

from .errors import PluginError, one_line

GROUPS = {
    "searches": "search",  # search/registry.py asks for them
    "cpu_sketches": "sketch",  # sketches/registry.py
    "gpu_sketches": "sketch",  # sketches/registry.py
    "operators": "operator",  # operators/declare.py
    "operator_peers": "peer",  # bench/peers/__init__.py
    "model_peers": "peer",  # bench/peers/__init__.py
    "stores": "store",  # records/sql/sql_store.py
}
"""The groups of entry points without "stormdrop.", and what each of them holds."""


@dataclass(frozen=True)
class Plugin:
    """Something that another package adds.

    Attributes:
        group: One of `GROUPS`.
        name: The name by which users ask for it.
        value: Where it is, as "module:name".
        package: The name and the version of the package.
    """

    group: str
    name: str
    value: str
    package: str

    def __str__(self) -> str:
        return f"plug-in {GROUPS[self.group]} {self.name!r} of the package {self.package}"

    def load(self) -> Any:
        """What the entry point names.

        Raises:
            PluginError: It cannot be imported.
        """
        try:
            return metadata.EntryPoint(self.name, self.value, f"stormdrop.{self.group}").load()
        except Exception as error:
            raise PluginError(f"{self} does not import: {one_line(error)}; repair or uninstall it") from error


def plugins(group: str) -> dict[str, Plugin]:
    """The plug-ins of a group by name, sorted. Nothing is loaded.

    A package that is installed while the process runs is not seen before the next process.

    Args:
        group: One of `GROUPS`.

    Raises:
        PluginError: Two packages add something of the same name.

    Example:
        >>> [str(plugin) for plugin in plugins("searches").values()]  # no package adds one here
        []
    """
    found: dict[str, Plugin] = {}
    for plugin in _installed(group, tuple(sys.path)):
        other = found.setdefault(plugin.name, plugin)
        if other != plugin:
            raise PluginError(f"{plugin} has the name of the {other}; uninstall one of them")
    return found


@lru_cache(maxsize=4 * len(GROUPS))
def _installed(group: str, _: tuple[str, ...]) -> tuple[Plugin, ...]:
    """The plug-ins of a group, sorted by name, in the packages on the search path, which is the second argument."""
    entries = sorted(metadata.entry_points(group=f"stormdrop.{group}"), key=lambda entry: entry.name)
    packages = ["?" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}" for entry in entries]
    return tuple(
        Plugin(group, entry.name, entry.value, package) for entry, package in zip(entries, packages, strict=True)
    )


def everything() -> list[Plugin]:
    """The plug-ins of all groups. Nothing is loaded.

    Raises:
        PluginError: Two packages add something of the same name.
    """
    return [plugin for group in GROUPS for plugin in plugins(group).values()]


def require(plugin: Plugin, fits: bool, what: str) -> None:
    """Raises `PluginError` unless a plug-in is what its group holds.

    Args:
        plugin: The plug-in.
        fits: Whether what it has loaded is that.
        what: What it should be, for the message.
    """
    if not fits:
        raise PluginError(f"{plugin}: {plugin.value} is not {what}")
