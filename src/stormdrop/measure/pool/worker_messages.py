"""Messages from a worker, which may be damaged: a candidate can write anything to the pipe of its worker."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from multiprocessing.connection import Connection

from ...errors import one_line
from .jobs import Answer, NoDevice, Ready, Step

_LARGEST = 64 << 20  # bytes of a message: samples and one line of text


@dataclass(frozen=True)
class Unreadable:
    """Bytes that are no message.

    Args:
        reason: One line.
    """

    reason: str


def receive(connection: Connection) -> Ready | Step | Answer | NoDevice | Unreadable | None:
    """The next message, part of which must have arrived; None if the sender has died instead."""
    try:
        data = connection.recv_bytes(_LARGEST)
    except (EOFError, ConnectionResetError):
        return None
    except OSError as error:  # the length cannot be true, or the rest has not come for `STALL_SECONDS`
        return Unreadable(one_line(error))
    try:
        message = pickle.loads(data)
    except Exception as error:  # noqa: BLE001  damaged bytes raise whatever they lead to
        return Unreadable(one_line(error))
    if isinstance(message, Ready | Step | Answer | NoDevice):
        return message
    return Unreadable(f"a {type(message).__name__}")
