"""What Linux reports about the caches of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stormdrop.machine.detect import data_caches, third_level_caches


def test_caches_that_the_kernel_does_not_know_are_zero(tmp_path: Path) -> None:
    def cache(index: int, level: int, kind: str, size: str | None) -> None:
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "level").write_text(f"{level}\n")
        (folder / "type").write_text(f"{kind}\n")
        if size is not None:
            (folder / "size").write_text(f"{size}\n")

    cache(0, 1, "Data", "48K")
    cache(1, 1, "Instruction", "32K")
    cache(2, 2, "Unified", None)
    cache(3, 3, "Unified", "30M")
    assert data_caches(tmp_path) == (48 << 10, 0, 30 << 20)
    assert data_caches(tmp_path / "nothing") == (0, 0, 0)


def test_third_level_caches_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 8, 9}, raising=False)
    assert third_level_caches(tmp_path) == 1
    for core in (0, 1, 8, 9):
        folder = tmp_path / f"cpu{core}" / "cache" / "index3"
        folder.mkdir(parents=True)
        (folder / "shared_cpu_list").write_text("0-7\n" if core < 8 else "8-15\n")
    assert third_level_caches(tmp_path) == 2
