"""What the guides "add a search" and "add a sketch" say is done as they say, in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import AVAILABLE, DOCS, PACKAGE, blocks

SEARCH = DOCS / "how-to" / "add-a-search.md"
SKETCH = DOCS / "how-to" / "add-a-sketch.md"

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(not AVAILABLE, reason="the package is installed without its repository"),
]


def containing(page: Path, text: str) -> str:
    (block,) = [block for block in blocks(page, "python") if text in block]
    return block


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package with every example that names its file in its first line."""
    shutil.copytree(PACKAGE, tmp_path / "src" / "stormdrop", ignore=shutil.ignore_patterns("__pycache__"))
    for block in [*blocks(SEARCH, "python"), *blocks(SKETCH, "python")]:
        first = block.partition("\n")[0]
        if first.startswith("# src/"):
            (tmp_path / first.removeprefix("# ")).write_text(block)
    return tmp_path


def python(copy: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "XDG_DATA_HOME": str(copy / "data")}
    done = subprocess.run(
        [sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_search_conforms(copy: Path) -> None:
    (copy / "test_mine.py").write_text(containing(SEARCH, "class TestMine"))
    assert re.search(r"\d+ passed", python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"))
    assert "mine" in python(copy, "-m", "stormdrop", "tune-op", "--help")


def test_the_sketch_keeps_its_promises(copy: Path) -> None:
    blocks = (containing(SKETCH, text) for text in ("check_sketch(", "sketches=[Rows()]"))
    assert "'tile'" in python(copy, "-c", "\n".join(blocks))


def test_the_sketch_has_a_place_in_the_registry(copy: Path) -> None:
    registry = copy / "src/stormdrop/sketches/registry.py"
    before = registry.read_text()
    after = before.replace("        CodeSums(),\n", "        Rows(),\n        CodeSums(),\n")
    after = after.replace(
        "from .cpu.contractions.register_blocked",
        "from .cpu.rows import Rows\nfrom .cpu.contractions.register_blocked",
        1,
    )
    assert after.count("Rows") == before.count("Rows") + 2
    registry.write_text(after)
    program = (
        "from stormdrop import operators\nfrom stormdrop.sketches import registry\n"
        "from stormdrop.machine.cpu import Target\n"
        "print(registry.sketches_for(operators.matmul(8, 8, 8), Target.detect())[0][1].name)"
    )
    assert python(copy, "-c", program).strip() == "rows"
