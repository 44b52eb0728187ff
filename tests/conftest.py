"""Settings for all tests.

No test touches the user's own records and caches. TVM uses all cores. No process outlives the tests. Only tests with
the mark `compiles` compile kernels.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stormdrop.machine import threads

# Before any test module loads TVM, which reads the number of threads once.
threads.configure()

_HOME = tempfile.TemporaryDirectory(prefix="stormdrop-tests-")
os.environ["XDG_DATA_HOME"] = str(Path(_HOME.name) / "data")
os.environ["XDG_CACHE_HOME"] = str(Path(_HOME.name) / "cache")

_RUN = "STORMDROP_TEST_RUN"
"""The environment variable by which a process is known as one of this test run, even after its parent has ended."""
os.environ[_RUN] = _HOME.name

_COMPILING = ("bench", "codegen")
"""Folders whose tests have the mark `compiles`. Elsewhere modules or single tests carry it."""

_PATIENCE = 5.0
"""Seconds that a process may take to end after the last test."""


_SEARCHING = ("search", "space", "records")
_LONG = {
    "test_any_space_conforms",
    "test_it_goes_on_if_most_candidates_fail",
    "test_points_are_what_brute_force_finds",
    "test_random_sessions_survive_lines_and_databases",
    "test_resume_at_every_prefix",
    "test_starts_come_before_anything_else",
    "test_three_hundred_trials_of_a_large_space",
    "test_while_nothing_works_all_sketches_are_tried_equally",
}
"""Tests that compile nothing and still take seconds, many of them for each of the ten searches: they are `long`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        parts = item.path.relative_to(folder).parts
        if parts[0] in _COMPILING:
            item.add_marker(pytest.mark.compiles)
        if parts[0] in _SEARCHING and item.name.partition("[")[0] in _LONG:
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True)
def _only_marked_tests_compile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that compiles a kernel in this process without the mark, so that `make fast` stays fast."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("the test compiles a kernel: mark it with pytest.mark.compiles")

    if "tvm" in sys.modules and request.node.get_closest_marker("compiles") is None:
        monkeypatch.setattr("tvm.compile", refuse)
        monkeypatch.setattr("tvm.tirx.build", refuse)


@pytest.fixture(scope="session", autouse=True)
def _no_process_outlives_the_tests() -> Iterator[None]:
    """Fails after the last test if a process that a test started, directly or not, is still there; and ends it.

    The fixture is the first to be set up, so that it is the last to be torn down: pools that other fixtures hold are
    closed by then.
    """
    yield
    _, alive = psutil.wait_procs(_started_by_tests(), timeout=_PATIENCE)
    commands = [" ".join(_command(process)) for process in alive]
    for process in alive:
        process.kill()
    _HOME.cleanup()
    if commands:
        pytest.fail("processes outlive the tests:\n" + "\n".join(commands), pytrace=False)


def _started_by_tests() -> list[psutil.Process]:
    """The descendants of this process, and what carries the mark of this run because its parent has ended before."""
    this = psutil.Process()
    marked = [process for process in psutil.process_iter() if process != this and _is_marked(process)]
    started = {*this.children(recursive=True), *marked}
    return [process for process in started if not (_is_zombie(process) or _is_resource_tracker(process))]


def _is_marked(process: psutil.Process) -> bool:
    try:
        return process.environ().get(_RUN) == _HOME.name
    except (psutil.Error, OSError):  # another user's, or it has just ended
        return False


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _is_resource_tracker(process: psutil.Process) -> bool:
    """Whether Python started it for `multiprocessing`; it ends with the process that it belongs to."""
    return any("multiprocessing.resource_tracker" in word for word in _command(process))


def _command(process: psutil.Process) -> list[str]:
    try:
        return [str(process.pid), *process.cmdline()]
    except psutil.Error:
        return [str(process.pid)]
