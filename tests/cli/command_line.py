"""Running commands in tests.

Most tests call the command line in this process: loading TVM in another one takes longer than most commands. What
depends on the process, such as its signals, and the fixtures that all tests share run in a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stormdrop
from stormdrop.cli import run

ROOT = Path(stormdrop.__file__).parents[1]
GUIDE = ROOT.parent / "docs" / "reference" / "documents.md"
SMALL = ["matmul", "m=32", "n=32", "k=32"]


def output_of(capfd: pytest.CaptureFixture[str], *words: object) -> str:
    """The standard output of a command that succeeds."""
    capfd.readouterr()
    code = run([str(word) for word in words])
    out, err = capfd.readouterr()
    assert code == 0, err
    return str(out)


def document(capfd: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """The document of a command that succeeds."""
    parsed: dict[str, Any] = json.loads(output_of(capfd, *words, "--json"))
    return parsed


def complaint(capfd: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line on standard error with which bad input ends, after exit code 2 and an empty standard output."""
    capfd.readouterr()
    code = run([str(word) for word in words])
    out, err = capfd.readouterr()
    assert code == 2, err
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("stormdrop: ")
    return str(lines[0].removeprefix("stormdrop: "))


def process(*words: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "stormdrop", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(),
        check=False,
    )


def document_of_process(*words: object) -> dict[str, Any]:
    """The document of a command that succeeds in a process of its own."""
    done = process(*words, "--json")
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def environment() -> dict[str, str]:
    """The environment of a user who has set nothing."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    variables.pop("TVM_NUM_THREADS", None)
    return variables


def sections_of_guide() -> dict[str, str]:
    """The text of each command in the description of the documents, by the command's name."""
    if not (ROOT.parent / "pyproject.toml").is_file():
        pytest.skip("the package is installed without its repository")
    return {text.split()[0]: text for text in GUIDE.read_text().split("\n## ")[1:]}


def recorded_trials(path: Path) -> int:
    """How many trials a database holds that a command may be writing; 0 if it does not exist yet."""
    if not path.exists():
        return 0
    from stormdrop.records import open_store

    with open_store(path) as store:
        return sum(summary.trials for summary in store.sessions())
