"""The docstring of each package lists the modules of the package: a reader finds the file that does something."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import stormdrop

ROOT = Path(stormdrop.__file__).parent
PACKAGES = {path.parent.relative_to(ROOT).as_posix(): path.parent for path in ROOT.glob("*/**/__init__.py")}
_ROW = re.compile(r" *(?P<names>[\w/.]+(?:, [\w/.]+)*)  +\S")
"""A row of a table: names of modules and packages, at least two spaces, and what they are for."""


def listed(docstring: str) -> list[str]:
    """The names of files, and of folders with their slash, in the rows of a docstring's tables."""
    rows = filter(None, map(_ROW.match, docstring.splitlines()))
    names = [name for row in rows for name in row["names"].split(", ")]
    return [name for name in names if name.endswith((".py", "/"))]


def contents(folder: Path) -> list[str]:
    """The modules of a package, and the packages in it with a slash."""
    files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    return files + [f"{path.parent.name}/" for path in folder.glob("*/__init__.py")]


def test_rows_are_seen() -> None:
    text = "What it is for. See a.py  and\n\nb.py, c.py  two of them\n    d/  a package\nin e.py one space"
    assert listed(text) == ["b.py", "c.py", "d/"]


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_package_lists_its_modules_once(name: str) -> None:
    docstring = ast.get_docstring(ast.parse((PACKAGES[name] / "__init__.py").read_text())) or ""
    assert sorted(listed(docstring)) == sorted(contents(PACKAGES[name]))
