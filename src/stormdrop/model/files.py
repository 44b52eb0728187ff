"""The files of a saved model, and whether a folder is free for one."""

from __future__ import annotations

from pathlib import Path

from ..errors import ArtifactError

METADATA, PROGRAM, KERNELS, NATIVE = "metadata.json", "model.vm", "kernels.bc", "kernels.so"


def check_free(path: Path) -> None:
    """Raises `ArtifactError` where a model cannot be saved because something else would be lost."""
    if not path.exists():
        return
    held = {each.name for each in path.iterdir()} if path.is_dir() else None
    if held is None or (held and METADATA not in held):
        raise ArtifactError(f"{path}: exists and is no stormdrop model; it is left as it is")
    if foreign := sorted(held - {METADATA, PROGRAM, KERNELS, NATIVE}):
        raise ArtifactError(f"{path}: is a stormdrop model, and holds {foreign[0]}, too; it is left as it is")
