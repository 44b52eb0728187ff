"""Whatever bytes a worker sends, its parent gets a message, a reason why it is none, or the news of its end."""

from __future__ import annotations

import pickle
import struct
from multiprocessing import Pipe

import pytest

from stormdrop.measure.pool.jobs import Ready, Step
from stormdrop.measure.pool.worker_messages import Unreadable, receive


class _Unknown:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return __import__, ("no_such_module",)


def test_messages_arrive() -> None:
    ours, theirs = Pipe()
    theirs.send(Ready())
    theirs.send(Step("run"))
    theirs.close()
    assert receive(ours) == Ready()
    assert receive(ours) == Step("run")
    assert receive(ours) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("!i", 8) + b"garbage!", "UnpicklingError"),
        (struct.pack("!i", 0), "EOFError"),
        (b"this is no message", "OSError"),
        (struct.pack("!i", -1) + struct.pack("!Q", 1 << 40), "OSError"),
        (struct.pack("!i", len(pickle.dumps({}))) + pickle.dumps({}), "a dict"),
        (struct.pack("!i", len(pickle.dumps(_Unknown()))) + pickle.dumps(_Unknown()), "ModuleNotFoundError"),
    ],
)
def test_bytes_that_are_no_message(data: bytes, reason: str) -> None:
    ours, theirs = Pipe()
    import os

    os.write(theirs.fileno(), data)
    message = receive(ours)
    assert isinstance(message, Unreadable) and message.reason.startswith(reason), message


def test_half_a_message_and_then_the_end() -> None:
    ours, theirs = Pipe()
    import os

    os.write(theirs.fileno(), struct.pack("!i", 100) + b"only this")
    theirs.close()
    message = receive(ours)
    assert message is None or isinstance(message, Unreadable)
