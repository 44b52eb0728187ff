"""A file that is written line by line while something more important goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ...errors import InputError


class LinesFile:
    """A file of lines, each of which is in the hands of the operating system when `write` returns.

    If the disk is full, or fails in another way, that is said once, and later lines are dropped: no tuning ends because
    it cannot be watched any more.
    """

    def __init__(self, path: Path, complain: Callable[[str], None], *, append: bool) -> None:
        """Opens the file.

        Args:
            path: The file.
            complain: Is called with one line when the file fails.
            append: Whether the file keeps what it holds.

        Raises:
            InputError: The file cannot be opened.
        """
        self._path, self._complain, self._failed = path, complain, False
        try:
            self._file = path.open("ab" if append else "wb", buffering=0)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None

    @property
    def empty(self) -> bool:
        """Whether the file holds nothing, as far as that can be known of it."""
        return self._file.tell() == 0

    def write(self, text: bytes) -> None:
        """Writes a line, which ends with what it is given."""
        if self._failed:
            return
        try:
            while text:
                text = text[self._file.write(text) :]
        except OSError as error:
            self._failed = True
            self._complain(f"{self._path}: cannot be written any more: {error.strerror or error}; the rest is dropped")

    def close(self) -> None:
        """Closes the file. Closing twice is harmless."""
        try:
            self._file.close()
        except OSError as error:
            if not self._failed:
                self._complain(f"{self._path}: {error.strerror or error}")


def encoded(document: Any) -> bytes:
    """A document as JSON in one line. Numbers that JSON lacks become null, and what is no JSON value becomes text."""
    return msgspec.json.encode(document, enc_hook=_plain)


def _plain(value: Any) -> Any:
    return value.item() if getattr(value, "shape", None) == () else str(value)
