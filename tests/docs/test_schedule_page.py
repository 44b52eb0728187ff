"""What docs/explanation/one-schedule.md shows is what its code prints: the page runs as one program."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import AVAILABLE, DOCS, blocks
from small_budgets import run_page

PAGE = DOCS / "explanation" / "one-schedule.md"
MOST_WORDS = 1500

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the package is installed without its repository")


def test_the_page_shows_what_its_code_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.py").write_text("\n".join(blocks(PAGE, "python")))
    run_page(tmp_path / "page.py")
    assert capsys.readouterr().out.splitlines() == "".join(blocks(PAGE, "text")).splitlines()


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text().split()) < MOST_WORDS
