"""Other libraries' errors in one line."""

from __future__ import annotations


def first_line(error: Exception) -> str:
    """The first line of an error's text that says something, or its type's name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
