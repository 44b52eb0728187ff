"""What docs/how-to/write-a-schedule.md says is done as it says: its code blocks run as one program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stormdrop

PAGE = Path(stormdrop.__file__).parents[2] / "docs" / "how-to" / "write-a-schedule.md"

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(not PAGE.is_file(), reason="the package is installed without its repository"),
]


def test_the_page_is_a_program(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 8
    (tmp_path / "page.py").write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'with T.sblock("s0")' in done.stdout
    assert re.search(r"^\{'i': .*\} \d+ GFLOP/s$", done.stdout, flags=re.MULTILINE)
    names = ["rules.cache_write.tile_fuse.pack", "rules.tile.pack", "rules.cache_write.tile_fuse", "rules.tile"]
    assert re.findall(r"^(rules\S*) \d+$", done.stdout, flags=re.MULTILINE) == names
    assert re.search(r"^rules(\.squares)? \{", done.stdout, flags=re.MULTILINE)
