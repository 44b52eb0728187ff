"""Writes the tables of all rooms from the docstrings of their packages, while the site is built.

In every page, the line `<!-- files of the rooms -->` is replaced by a section for each room: what it is for, and a
table of its files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

import stormdrop

MARKER = "<!-- files of the rooms -->"
PACKAGE = Path(stormdrop.__file__).parent
_ROW = re.compile(r" *(?P<names>[\w/.]+(?:, [\w/.]+)*)  +(?P<purpose>\S.*)")
"""A row of a docstring's table: names of files and rooms, at least two spaces, and what they are for."""


class Rooms(Extension):
    """The Markdown extension that `mkdocs.yml` names."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Marker(md), "rooms", priority=200)  # before all others: it writes Markdown


class _Marker(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return [written for line in lines for written in (sections().splitlines() if line == MARKER else [line])]


def makeExtension(**options: Any) -> Rooms:
    """Python-Markdown calls this."""
    return Rooms(**options)


def sections() -> str:
    """A section for each room, in Markdown; the rooms inside a room come after it."""
    folders = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
    return "\n\n".join(_section(folder) for folder in folders)


def _section(folder: Path) -> str:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    heading = f"### `{folder.relative_to(PACKAGE).as_posix()}/`"
    rows = list(rows_of(docstring))
    table = ["| file | what it is for |", "|---|---|", *(f"| {names} | {purpose} |" for names, purpose in rows)]
    return "\n\n".join(
        [heading, " ".join(docstring.partition("\n\n")[0].split()), *(["\n".join(table)] if rows else [])]
    )


def rows_of(docstring: str) -> Iterator[tuple[str, str]]:
    """The rows of a docstring's tables: the names as code, and what they are for."""
    for row in filter(None, map(_ROW.match, docstring.splitlines())):
        names = [name for name in row["names"].split(", ") if name.endswith((".py", "/"))]
        if names:
            yield ", ".join(f"`{name}`" for name in names), row["purpose"].replace("|", "\\|")
