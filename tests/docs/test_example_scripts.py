"""The programs in examples/ run as they stand, with a small budget."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stormdrop

PACKAGE = Path(stormdrop.__file__).parent
EXAMPLES = PACKAGE.parents[1] / "examples"
COMPILER = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the package is installed without its repository"),
]


def example(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


@pytest.mark.skipif(COMPILER is None, reason="no C compiler here: gcc, clang or cc")
def test_c_flags() -> None:
    done = example("c_flags.py", "--trials", "5")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^default +\d+\.\d+ ms +-O2 -DBI=64 -DBJ=64 -DBK=64$", done.stdout, re.MULTILINE)
    assert re.search(r"^best +\d+\.\d+ ms +\d+\.\d+ to \d+\.\d+ ms +-O\d .*-DBI=\d+", done.stdout, re.MULTILINE)
    assert "5 configurations, 0 failed" in done.stdout


def test_c_flags_without_a_compiler(tmp_path: Path) -> None:
    done = example("c_flags.py", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "c_flags: no C compiler found: install gcc or clang, or put it on your PATH\n"
