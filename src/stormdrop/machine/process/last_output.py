"""The end of what a child process writes. However much it writes, only the last part is kept."""

from __future__ import annotations

import os
import threading

_KEPT = 1 << 16  # bytes
_PATIENCE = 1.0  # seconds that the rest of a process's output may take after its end


class LastOutput:
    """Reads a pipe to its end in a thread, and keeps the last part.

    A file would fill the disk if a process writes without end, and a pipe that nobody reads would block a process that
    writes much. The thread costs nothing while nothing is written.
    """

    def __init__(self, descriptor: int) -> None:
        """Begins to read.

        Args:
            descriptor: The end of the pipe to read. The thread closes it.
        """
        self._last = b""
        self._reader = threading.Thread(target=self._read, args=(descriptor,), name="output of a child", daemon=True)
        self._reader.start()

    @classmethod
    def of_pipe(cls) -> tuple[LastOutput, int]:
        """A reader of a new pipe, and the end of the pipe to write to, which the caller closes."""
        ours, theirs = os.pipe()
        return cls(ours), theirs

    def text(self, ended: bool) -> str:
        """The last part of what was written so far.

        Args:
            ended: Whether the process has ended. What it has written is then read to the end first.
        """
        if ended:
            # A process that the child has started may still hold the pipe open.
            self._reader.join(_PATIENCE)
        return self._last.decode(errors="replace")

    def last_line(self, ended: bool) -> str:
        """The last line that was written so far; nothing if there is none. `ended` is as in `text`."""
        lines = self.text(ended).strip().splitlines()
        return lines[-1] if lines else ""

    def _read(self, descriptor: int) -> None:
        while block := os.read(descriptor, _KEPT):
            self._last = (self._last + block)[-_KEPT:]
        os.close(descriptor)
