"""The mode for denormals of the calling thread, set and restored, also from inside of another setting."""

from __future__ import annotations

import platform
import sys
import threading

import numpy as np
import pytest

from stormdrop.machine.denormals import denormals

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="the mode is not known here"
)


def keeps() -> bool:
    return bool(np.float32(1e-30) * np.float32(1e-10) > 0)


def test_each_setting_ends_with_its_block_and_holds_for_its_thread() -> None:
    assert keeps()
    seen: list[bool] = []
    with denormals(flushed=True):
        assert not keeps()
        with denormals(flushed=False):
            assert keeps()
        assert not keeps()
        thread = threading.Thread(target=lambda: seen.append(_in_a_block_of_its_own()))
        thread.start()
        thread.join()
        assert not keeps()
    assert keeps() and seen == [True]


def _in_a_block_of_its_own() -> bool:
    with denormals(flushed=False):
        return keeps()


def test_the_mode_is_restored_after_an_error() -> None:
    with pytest.raises(ValueError, match="inside"), denormals(flushed=True):
        raise ValueError("inside")
    assert keeps()
