"""What loading a model does to the process around it."""

from __future__ import annotations

import os
import threading

from stormdrop.model.artifact.loading import without_scope_warnings


def test_two_threads_that_load_leave_standard_error_as_it_was() -> None:
    before, inside, second_done = os.fstat(2), threading.Event(), threading.Event()

    def second() -> None:
        inside.wait(10)
        with without_scope_warnings():
            pass
        second_done.set()

    thread = threading.Thread(target=second, daemon=True)
    thread.start()
    with without_scope_warnings():
        inside.set()
        assert not second_done.wait(0.2)  # it waits for its turn
    thread.join(10)
    after = os.fstat(2)
    assert second_done.is_set() and (after.st_dev, after.st_ino) == (before.st_dev, before.st_ino)
