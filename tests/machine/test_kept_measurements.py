"""Files that keep measurements: one per identity, whole or not at all, and none without a home."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from stormdrop.machine.limits.kept_measurements import keep, kept, kept_file


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path))
    return tmp_path


def test_a_measurement_is_found_by_what_it_depends_on(cache: Path) -> None:
    path = kept_file("peak", ["a CPU", 2])
    assert path.parent == cache / "peak"
    assert kept(path) is None
    keep(path, {"flops": 1.5})
    assert kept(kept_file("peak", ["a CPU", 2])) == {"flops": 1.5}
    for other in (kept_file("peak", ["a CPU", 4]), kept_file("units", ["a CPU", 2])):
        assert kept(other) is None
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]  # no draft is left


def test_a_damaged_file_keeps_nothing() -> None:
    path = kept_file("peak", [1])
    keep(path, [1])
    path.write_text("[1")
    assert kept(path) is None


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: "~/.cache/stormdrop")
    path = kept_file("peak", [1])
    keep(path, [1])
    assert kept(path) is None
    assert list(tmp_path.iterdir()) == []
