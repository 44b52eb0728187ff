"""What the commands print: one JSON document or tables, with numbers in a readable form."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import without_passwords
from ..report import formatting
from ..report.formatting import ascii_time, json_value, pieces_in_words, precision_in_words
from ..report.layer_label import labels_of
from .streams import filled

LABEL = 48
"""Characters of the layers of a kernel."""

_SHORT = 9
"""Characters of a cell up to which it is not broken between words."""

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
    print(filled(without_passwords(text), sys.stderr), file=sys.stderr, flush=True)


def line(text: str) -> None:
    """Prints a line on standard output; on a terminal it is broken between words."""
    print(filled(text, sys.stdout))


def on_terminal() -> bool:
    """Whether standard output is a terminal, and tables are fitted to its width."""
    return Console().is_terminal


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None, spare: Sequence[str] = ()
) -> None:
    """Prints a table on standard output. Columns of figures are aligned to the right, columns of words to the left.

    On a terminal the table is fitted to the width: columns that can be spared go, and long cells are broken between
    words. Elsewhere all columns are shown, and every row is one line.

    Args:
        headings: The headings of the columns.
        rows: The cells, as text.
        title: A line above the table.
        spare: Headings of columns that a narrow terminal does not show, the first to go first.
    """
    console = Console()
    columns = list(zip(headings, *rows, strict=True))
    if console.is_terminal:
        columns = _fitting(columns, spare, console.width)
    else:
        console = Console(width=max(400, _width(columns)))
    if title is not None:
        line(title)  # rich would break it at the width of the columns, also where nothing has to fit
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for (heading, *cells), width in zip(columns, _widths(columns, console.width), strict=True):
        shown.add_column(
            heading,
            justify="right" if cells and all(map(_is_figure, cells)) else "left",
            overflow="fold",
            width=width,
        )
    for row in zip(*(cells for _, *cells in columns), strict=True):
        shown.add_row(*map(Text, row))  # as text, because the brackets of a configuration are no markup
    _print(shown, console)


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Prints names and what belongs to each on standard output: on a terminal fitted to its width, else a line each."""
    shown = Table.grid(padding=(0, 2, 0, 0))
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    lines = list(rows)
    for name, value in lines:
        shown.add_row(Text(name), Text(value))
    console = Console()
    if not console.is_terminal:
        console = Console(width=sum(max(cell_len(line[side]) for line in lines) + 2 for side in (0, 1)))
    _print(shown, console)


def _print(shown: Table, console: Console) -> None:
    with console.capture() as capture:
        console.print(shown)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _fitting(columns: Sequence[tuple[str, ...]], spare: Sequence[str], width: int) -> list[tuple[str, ...]]:
    """The columns without those spare ones that do not fit into the width beside the others."""
    kept = list(columns)
    for heading in spare:
        if _width(kept) <= width:
            break
        kept = [column for column in kept if column[0] != heading]
    return kept


def _widths(columns: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """The widths of columns in a room. The widest ones give way, down to their longest word if that is enough."""
    widths = [max(map(cell_len, column)) for column in columns]
    words = [max(map(_unbroken, column)) for column in columns]
    for _ in range(_width(columns) - width):
        breakable = [index for index, longest in enumerate(words) if widths[index] > longest]
        widest = max(breakable or range(len(widths)), key=widths.__getitem__)
        widths[widest] = max(1, widths[widest] - 1)
    return widths


def _unbroken(cell: str) -> int:
    """The characters of a cell that stay together: its longest word, or all of a short one, as a time with its unit."""
    return cell_len(cell) if cell_len(cell) <= _SHORT else max(map(cell_len, cell.split()), default=0)


def _width(columns: Sequence[tuple[str, ...]]) -> int:
    """The characters of a row if no cell is broken, with two spaces between columns."""
    return sum(max(map(cell_len, column)) for column in columns) + 2 * (len(columns) - 1)


def _is_figure(cell: str) -> bool:
    return cell in {"", "-", "nan", "unknown", "different"} or cell.lstrip("-")[:1].isdigit()


def shapes(by_input: Mapping[str, Sequence[int]]) -> str:
    """Shapes as --shape takes them: ids=1x32,mask=1x32."""
    return ",".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in by_input.items())


def interval(pair: Sequence[float] | None, unit: str = "time") -> str:
    """A confidence interval of a time or of a ratio."""
    return formatting.in_ascii(formatting.ratios(pair) if unit == "ratio" else formatting.interval(pair))


def size(count: float) -> str:
    """Bytes with a binary unit; "unknown" for 0."""
    if count <= 0:
        return "unknown"
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:g} {unit}"
        count /= 1024
    return f"{count:g} GiB"


def megabytes(count: float) -> str:
    """Bytes of files, in MB: "12.3 MB"."""
    return f"{count / 1e6:.1f} MB"


def phases(split: Mapping[str, float]) -> str:
    """The phases with their seconds, the longest first."""
    parts = sorted(split.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {value:.1f} s" for name, value in parts)


def precision(entry: Mapping[str, Any] | None) -> None:
    """Prints which layers of a model are in bfloat16, if any may be."""
    if entry is not None:
        line(f"precision: {precision_in_words(entry)}")


def fallbacks(document: Mapping[str, Any]) -> None:
    """Prints which kernels of a model have a plain schedule, by their layers, if any has."""
    if document.get("fallbacks"):
        kernels = labels_of(document["fallbacks"], document.get("layers") or (), LABEL)
        line(f"without a good sketch: {'; '.join(kernels)}")


def foreign_parts(parts: Iterable[Mapping[str, Any]]) -> None:
    """Prints a line for each part that onnxruntime runs: its operators, and what is known of its time."""
    for part in parts:
        operators = ", ".join(f"{count} {name}" for name, count in part["operators"].items())
        share = f": {part['share']:.0%} of the time" if "share" in part else ""
        line(f"onnxruntime runs {operators}{share} ({part['reason']}){formatting.in_ascii(pieces_in_words(part))}")
