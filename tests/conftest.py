"""Settings for all tests: no test touches the user's own records and caches, and TVM uses all cores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stormdrop.machine import threads

# Before any test module loads TVM, which reads the number of threads once.
threads.configure()

_HOME = tempfile.TemporaryDirectory(prefix="stormdrop-tests-")
os.environ["XDG_DATA_HOME"] = str(Path(_HOME.name) / "data")
os.environ["XDG_CACHE_HOME"] = str(Path(_HOME.name) / "cache")


@pytest.fixture(scope="session", autouse=True)
def _clean_up() -> Iterator[None]:
    yield
    _HOME.cleanup()
