"""Standard output and standard error that do not end a command because nobody reads them, and text for a terminal.

What standard error does not take is dropped: progress is worth no result. What standard output does not take is
dropped if its reader has gone, as `head` does; if it fails in another way, as on a full disk, that is an error.
"""

from __future__ import annotations

import errno
import io
import os
import select
import shutil
import sys
import textwrap
from typing import Any, TextIO

from ..errors import StormdropError

_GONE = {errno.EPIPE, errno.EIO}  # the reader of a pipe, and the terminal


def guard() -> None:
    """Replaces the standard streams of this process. One that is closed becomes the null device."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if stream is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this stream's
    sys.stdin = sys.stdin or io.StringIO()
    sys.stdout = _guarded(1, sys.stdout, what="standard output")
    sys.stderr = _guarded(2, sys.stderr)


def filled(text: str, stream: TextIO) -> str:
    """A text as a stream shows it: on a terminal its lines are broken between words, elsewhere they are left alone.

    Args:
        text: One line or several.
        stream: Where it is written.
    """
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = (
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) if len(line) > width else line
        for line in text.split("\n")
    )
    return "\n".join(lines)


def _guarded(number: int, stream: TextIO | None, what: str = "") -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(number, what)),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=getattr(stream, "errors", "backslashreplace"),
        line_buffering=getattr(stream, "line_buffering", False),
        write_through=getattr(stream, "write_through", False),
    )


class _Descriptor(io.FileIO):
    """The file descriptor of a standard stream, which stays open.

    Args:
        number: The descriptor.
        what: The name of the stream in an error; empty if whatever cannot be written is dropped.
    """

    def __init__(self, number: int, what: str) -> None:
        super().__init__(number, "w", closefd=False)
        self._what = what

    def write(self, data: Any) -> int:
        try:
            while (written := super().write(data)) is None:  # it does not block, and its reader is behind
                if not self._what:
                    return memoryview(data).nbytes
                select.select([], [self], [])
            return written
        except OSError as error:
            if self._what and error.errno not in _GONE:
                what, self._what = self._what, ""  # once: what is buffered is written again at exit
                raise StormdropError(f"{what} cannot be written: {error.strerror}") from None
            return memoryview(data).nbytes
