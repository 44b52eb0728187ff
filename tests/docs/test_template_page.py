"""What docs/how-to/write-a-schedule.md says is done as it says: its code blocks run as one program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small_budgets import run_page

import stormdrop

PAGE = Path(stormdrop.__file__).parents[2] / "docs" / "how-to" / "write-a-schedule.md"

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(not PAGE.is_file(), reason="the package is installed without its repository"),
]


def test_the_page_is_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 8
    (tmp_path / "page.py").write_text("\n".join(blocks))
    run_page(tmp_path / "page.py")
    printed = capsys.readouterr().out
    assert 'with T.sblock("s0")' in printed
    assert re.search(r"^\{'i': .*\} \d+ GFLOP/s$", printed, flags=re.MULTILINE)
    names = ["rules.cache_write.tile_fuse.pack", "rules.tile.pack", "rules.cache_write.tile_fuse", "rules.tile"]
    assert re.findall(r"^(rules\S*) \d+$", printed, flags=re.MULTILINE) == names
    assert re.search(r"^rules(\.squares)? \{", printed, flags=re.MULTILINE)
