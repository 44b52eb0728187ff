"""Arrays in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stormdrop.cli import arrays


def test_arrays_keep_any_name(tmp_path: Path) -> None:
    given = {name: np.arange(index + 2) for index, name in enumerate(("file", "allow_pickle", "a/b:0", "y"))}
    arrays.write(tmp_path / "y.npz", given)
    read = arrays.read(tmp_path / "y.npz")
    assert list(read) == list(given)
    for name, array in given.items():
        np.testing.assert_array_equal(read[name], array)
