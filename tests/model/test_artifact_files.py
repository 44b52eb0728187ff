from __future__ import annotations

from pathlib import Path

import pytest

from stormdrop.errors import ArtifactError
from stormdrop.model.artifact_files import KERNELS, METADATA, PROGRAM, check_free


def test_a_folder_with_other_files_is_not_free(tmp_path: Path) -> None:
    check_free(tmp_path / "new.sd")
    check_free(tmp_path)
    for name in (METADATA, PROGRAM, KERNELS):
        (tmp_path / name).touch()
    check_free(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ArtifactError, match=r"is a stormdrop model, and holds notes.txt, too; it is left as it is"):
        check_free(tmp_path)
    (tmp_path / METADATA).unlink()
    with pytest.raises(ArtifactError, match="exists and is no stormdrop model"):
        check_free(tmp_path)
