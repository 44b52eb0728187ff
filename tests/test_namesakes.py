"""mypy checks every file: what it leaves out, because another file has its name, `make check` gives to it by itself."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_what_mypy_leaves_out_is_checked_by_itself() -> None:
    (patterns,) = re.findall(r"^exclude = \[(.+)\]$", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    left_out = re.compile("|".join(re.findall(r"'(.+?)'", patterns)))
    paths = (
        path.relative_to(ROOT).as_posix() for top in ("tests", "benchmarks") for path in (ROOT / top).rglob("*.py")
    )
    (listed,) = re.findall(r"^NAMESAKES := ((?:.+\\\n)*.+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert sorted(filter(left_out.search, paths)) == sorted(listed.replace("\\", "").split())
