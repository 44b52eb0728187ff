"""The pages of the documentation, and what stands in them."""

from __future__ import annotations

import re
from pathlib import Path

import stormdrop

PACKAGE = Path(stormdrop.__file__).parent
ROOT = PACKAGE.parents[1]
DOCS = ROOT / "docs"
AVAILABLE = (DOCS / "index.md").is_file()
"""False if the package is installed without its repository."""

_READMES = [ROOT / folder / "README.md" for folder in ("benchmarks", "examples")]
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *_READMES]) if AVAILABLE else []

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    """A page's path inside the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page that are marked as written in this language."""
    return [text for marked, text in _FENCE.findall(page.read_text()) if marked == language]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", page.read_text())


def pages_with(language: str) -> list[Path]:
    """The pages that have a code block in this language."""
    return [page for page in PAGES if blocks(page, language)]
