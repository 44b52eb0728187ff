"""Writes the table of the operators from their declarations, while the site is built.

In every page, the line `<!-- operators -->` is replaced by a table of all operators, with what they compute and their
arguments.
"""

from __future__ import annotations

from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

from stormdrop import operators
from stormdrop.cli.guide import descriptions

MARKER = "<!-- operators -->"


class OperatorsTable(Extension):
    """The Markdown extension that `mkdocs.yml` names."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Marker(md), "operators_table", priority=200)  # before all others: it writes Markdown


class _Marker(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return [written for line in lines for written in (table() if line == MARKER else [line])]


def makeExtension(**options: Any) -> OperatorsTable:
    """Python-Markdown calls this."""
    return OperatorsTable(**options)


def table() -> list[str]:
    """The rows, in Markdown."""
    rows = ["| operator | what it computes | arguments |", "|---|---|---|"]
    for name, purpose in descriptions().items():
        rows.append(f"| `{name}` | {purpose} | `{operators.usage(name).removesuffix(' [dtype=float32]')}` |")
    return rows
