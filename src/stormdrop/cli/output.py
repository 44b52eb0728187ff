"""What the commands print: one JSON document or tables, with numbers in a readable form."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import without_passwords
from ..report.formatting import ascii_time, json_value, precision_in_words

seconds = ascii_time
"""A time with three significant digits and its unit."""


def emit(document: Mapping[str, Any]) -> None:
    """Prints a document as JSON on standard output. Numbers that JSON lacks (NaN, infinities) become null."""
    print(json.dumps(json_value(document), indent=2, allow_nan=False))


@contextlib.contextmanager
def stdout_for_json(active: bool) -> Iterator[None]:
    """While active, everything that is printed, also by libraries in C, goes to standard error."""
    if not active:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def say(text: str) -> None:
    """One plain line on standard error: notes and progress, never results and never passwords."""
    print(without_passwords(text), file=sys.stderr, flush=True)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Prints a table on standard output. The first column is aligned to the left, the others to the right.

    On a terminal the table is fitted to the width; elsewhere every row is one line.
    """
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for position, heading in enumerate(headings):
        shown.add_column(heading, justify="left" if position == 0 else "right", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))  # as text, because the brackets of a configuration are no markup
    console = Console()
    if not console.is_terminal:
        console = Console(width=400)
    with console.capture() as capture:
        console.print(shown)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def shapes(by_input: Mapping[str, Sequence[int]]) -> str:
    """Shapes as --shape takes them: ids=1x32,mask=1x32."""
    return ",".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in by_input.items())


def interval(pair: Sequence[float] | None, unit: str = "time") -> str:
    """A confidence interval of a time or of a ratio."""
    if pair is None or any(bound is None or not math.isfinite(bound) for bound in pair):
        return "-"
    low, high = pair
    if unit == "ratio":
        return f"{low:.2f} to {high:.2f}"
    return f"{seconds(low)} to {seconds(high)}"


def size(count: float) -> str:
    """Bytes with a binary unit; "unknown" for 0."""
    if count <= 0:
        return "unknown"
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:g} {unit}"
        count /= 1024
    return f"{count:g} GiB"


def phases(split: Mapping[str, float]) -> str:
    """The phases with their seconds, the longest first."""
    parts = sorted(split.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {value:.1f} s" for name, value in parts)


def precision(entry: Mapping[str, Any] | None) -> None:
    """Prints which layers of a model are in bfloat16, if any may be."""
    if entry is not None:
        print(f"precision: {precision_in_words(entry)}")


def foreign_parts(parts: Iterable[Mapping[str, Any]]) -> None:
    """Prints a line for each part that onnxruntime runs: its operators, and its share of the time if it is known."""
    for part in parts:
        operators = ", ".join(f"{count} {name}" for name, count in part["operators"].items())
        share = f": {part['share']:.0%} of the time" if "share" in part else ""
        print(f"onnxruntime runs {operators}{share} ({part['reason']})")
