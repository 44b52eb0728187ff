"""Temporary folders go when their context ends, and after a kill -9 with the next one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stormdrop.machine.process.scratch import locked_folder, remove_folder, scratch_folder

_HOLDS = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from stormdrop.machine.process.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "file").write_text("text")
    print(folder, flush=True)
    input()
"""


def test_the_next_one_removes_what_a_killed_process_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command = [sys.executable, "-c", _HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        with scratch_folder() as ours:
            assert theirs.exists(), "its process lives"
        process.kill()
    assert not ours.exists()
    assert theirs.exists()
    other = tmp_path / "stormdrop-scratch-link"
    other.symlink_to(tmp_path)
    with scratch_folder() as ours:
        assert sorted(tmp_path.iterdir()) == sorted([ours, other]), "what is no folder stays"


def test_an_error_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail() -> None:
        with scratch_folder() as folder:
            (folder / "file").write_text("text")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_signal_while_the_folder_is_removed_leaves_nothing(tmp_path: Path) -> None:
    calls = []

    def interrupted_once(folder: Path) -> None:
        calls.append(folder)
        if len(calls) == 1:
            (folder / "one").unlink()
            raise KeyboardInterrupt
        remove_folder(folder)

    def use() -> None:
        with locked_folder(tmp_path, "scratch-", interrupted_once) as folder:
            (folder / "one").touch()
            (folder / "two").touch()

    with pytest.raises(KeyboardInterrupt):
        use()
    assert len(calls) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_signal_while_the_folder_is_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def interrupted(folder: Path, mode: int) -> None:
        make(folder, mode)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)

    def use() -> None:
        with locked_folder(tmp_path, "scratch-"):
            raise AssertionError("the folder was not made")

    with pytest.raises(KeyboardInterrupt):
        use()
    assert list(tmp_path.iterdir()) == []
