"""Files in the user's cache folder that keep what was measured: one per kind of measurement and machine."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platformdirs


def kept_file(kind: str, identity: Sequence[Any]) -> Path:
    """The file that keeps a measurement.

    Args:
        kind: What was measured, such as "peak": the name of a folder.
        identity: What the measurement depends on, as JSON can hold it.

    Returns:
        An absolute path; a relative one if there is no folder for caches, because the user has no home. `keep` writes
        nothing there.

    Example:
        >>> kept_file("peak", ["a CPU", 2]).suffix
        '.json'
    """
    name = hashlib.sha256(json.dumps(list(identity)).encode()).hexdigest()[:16]
    try:
        return Path(platformdirs.user_cache_dir("stormdrop", appauthor=False)) / kind / f"{name}.json"
    except RuntimeError:  # the system does not know this user
        return Path(f"~/{name}.json")


def keep(path: Path, document: Any) -> None:
    """Writes a measurement, whole or not at all, because another process may be reading.

    Args:
        path: A path from `kept_file`; nothing is written if it is relative.
        document: What JSON can hold.

    Raises:
        OSError: The file cannot be written.
    """
    if not path.is_absolute():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(document) + "\n")
    draft.replace(path)


def kept(path: Path) -> Any:
    """What a file keeps; None if it is not there, is damaged, or its path is relative."""
    if not path.is_absolute():
        return None
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
