"""What CONTRIBUTING.md says is done as it says, in a copy of the package."""

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
GUIDE = PACKAGE.parents[1] / "CONTRIBUTING.md"

CONFORMANCE = """
from collections.abc import Sequence
import numpy as np
from stormdrop.search import Search, create
from stormdrop.space import Space
from stormdrop.testing import SearchConformance
"""

pytestmark = pytest.mark.skipif(not GUIDE.is_file(), reason="the package is installed without its repository")


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)


def containing(text: str) -> str:
    (found,) = [example for example in examples() if text in example]
    return found


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package with every example that names its file in its first line."""
    shutil.copytree(PACKAGE, tmp_path / "src" / "stormdrop", ignore=shutil.ignore_patterns("__pycache__"))
    for example in examples():
        first = example.partition("\n")[0]
        if first.startswith("# src/"):
            (tmp_path / first.removeprefix("# ")).write_text(example)
    return tmp_path


def python(copy: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    done = subprocess.run(
        [sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_search_of_the_guide_conforms(copy: Path) -> None:
    (copy / "test_mine.py").write_text(CONFORMANCE + containing("class TestMine"))
    assert re.search(r"\d+ passed", python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"))
    assert "mine" in python(copy, "-m", "stormdrop", "tune-op", "--help")


def test_the_sketch_of_the_guide_keeps_its_promises(copy: Path) -> None:
    python(copy, "-c", containing("check_sketch("))
    registry = copy / "src/stormdrop/kernel/registry.py"
    text = registry.read_text().replace("return (RegisterBlocked(),", "return (Rows(), RegisterBlocked(),")
    registry.write_text(
        text.replace("from .sketch import Described", "from .rows import Rows\nfrom .sketch import Described")
    )
    program = (
        "from stormdrop import operators\nfrom stormdrop.sketches import registry\n"
        "from stormdrop.machine.cpu import Target\n"
        "print(registry.sketches_for(operators.matmul(8, 8, 8), Target.detect())[0][1].name)"
    )
    assert python(copy, "-c", program).strip() == "rows"
