"""`stormdrop cache`: the compiled graphs that are kept, and their removal."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import document, output_of, sections_of_guide


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of two graphs, of which one is damaged."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "stormdrop" / "graphs"
    entry = '{"name": "forward of net.py", "digest": "", "records": [], "outputs": {}}'
    for key, text in (("a" * 64, entry), ("b" * 64, "{")):
        (folder / key / "model").mkdir(parents=True)
        (folder / key / "entry.json").write_text(text)
        (folder / key / "model" / "weights.bin").write_bytes(bytes(2_000_000))
    return folder


def test_graphs_are_listed_and_removed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = output_of(capfd, "cache")
    assert "forward of net.py" in text and "damaged" in text
    assert text.splitlines()[-1] == f"2 compiled graphs, 4.0 MB of at most 4000.0 MB, in {folder}"
    found = document(capfd, "cache")
    assert found["folder"] == str(folder) and not found["removed"]
    assert {graph["name"] for graph in found["graphs"]} == {"forward of net.py", "damaged"}
    described = sections_of_guide()["cache"]
    assert all(f"`{key}`" in described for part in (found, *found["graphs"]) for key in part)
    assert output_of(capfd, "cache", "--clear").startswith("2 compiled graphs removed, 4.0 MB")
    assert not list(folder.iterdir())
    assert output_of(capfd, "cache").startswith("0 compiled graphs, 0.0 MB of at most")
