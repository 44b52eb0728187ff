"""Programs with their syntax highlighted: TensorIR, which reads as Python, and command lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from markupsafe import Markup, escape
from pygments import lex
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Literal, Name, Token

_CLASSES: tuple[tuple[Any, str], ...] = (
    (Comment, "c"),
    (Keyword, "k"),
    (Literal.String, "s"),
    (Literal.Number, "n"),
    (Name.Function, "f"),
    (Name.Decorator, "d"),
)
"""What is marked, by its class in the style sheet. Everything else is plain text: a page stays light."""


def highlighted(program: str, most: int) -> Markup:
    """A program as HTML.

    Args:
        program: Python or TensorIR.
        most: Characters after which the rest is left out, at the end of a line.

    Returns:
        Escaped text with spans.

    Example:
        >>> highlighted("x = 1  # <one>", 100)
        Markup('x = <span class="n">1</span>  <span class="c"># &lt;one&gt;</span>')
    """
    shown = program if len(program) <= most else program[: program.rfind("\n", 0, most) + 1]
    pieces = [_span(kind, text) for kind, text in _joined(_marks(shown))]
    left = program.count("\n", len(shown))
    if left:
        pieces.append(_span("c", f"# ... and {left} more lines\n"))
    return Markup("").join(pieces).rstrip()


def _marks(program: str) -> Iterator[tuple[str, str]]:
    for token, text in lex(program, PythonLexer(stripnl=False)):
        yield next((name for kind, name in _CLASSES if token in kind and token is not Token), ""), text


def _joined(marks: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Neighbours of one class as one."""
    kind, text = "", ""
    for next_kind, piece in marks:
        if next_kind == kind:
            text += piece
        else:
            yield kind, text
            kind, text = next_kind, piece
    yield kind, text


def _span(kind: str, text: str) -> Markup:
    return Markup('<span class="{}">{}</span>').format(kind, text) if kind else escape(text)
