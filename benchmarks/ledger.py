"""The ledgers of long benchmarks: files of JSON lines, which a run that is started again reads first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger. A last line that an earlier run had no time to finish is removed from the file."""
    if not path.exists():
        return []
    *lines, last = path.read_text().split("\n")
    if last:
        path.write_text("".join(f"{line}\n" for line in lines))
    return [json.loads(line) for line in lines]
