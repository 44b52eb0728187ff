"""The hook of .pre-commit-config.yaml that refuses commits with long subjects, in a repository of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = Path(__file__).parents[1] / ".pre-commit-config.yaml"
IDENTITY = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")

pytestmark = pytest.mark.skipif(
    not CONFIG.is_file() or shutil.which("git") is None, reason="needs git, and the package in its repository"
)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository with the hooks that `pre-commit install` installs."""
    pytest.importorskip("pre_commit")
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):  # set where a hook of git runs the tests
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "no-configuration"))
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.copy(CONFIG, folder)
    for command in (("git", "init", "-q"), ("git", "add", "."), (sys.executable, "-m", "pre_commit", "install")):
        done = run(folder, *command)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def commit(repository: Path, message: str) -> subprocess.CompletedProcess[str]:
    return run(repository, "git", *IDENTITY, "commit", "--allow-empty", "-m", message)


def test_a_subject_of_73_characters_is_refused(repository: Path) -> None:
    refused = commit(repository, "x" * 73)
    assert refused.returncode != 0
    assert "at most 72 characters" in refused.stdout + refused.stderr
    assert run(repository, "git", "log").returncode != 0  # there is no commit


def test_a_subject_of_72_characters_with_a_long_body_is_taken(repository: Path) -> None:
    taken = commit(repository, "x" * 72 + "\n\n" + "y" * 100)
    assert taken.returncode == 0, taken.stdout + taken.stderr
