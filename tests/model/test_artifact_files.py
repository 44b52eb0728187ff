from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stormdrop.errors import ArtifactError
from stormdrop.model.artifact import artifact_files
from stormdrop.model.artifact.artifact_files import (
    KERNELS,
    METADATA,
    PROGRAM,
    beside_older,
    check_free,
    check_writable,
    open_files,
    private_copy,
)
from stormdrop.model.artifact.atomic_folder import replace_folder


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


def test_a_path_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "older.sd").mkdir()
    (tmp_path / "older.sd" / METADATA).touch()
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for name in ("new.sd", "a/b/new.sd", "older.sd", "empty"):
        check_writable(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before


def unwritable(path: Path, words: str) -> None:
    with pytest.raises(ArtifactError, match=words) as raised:
        check_writable(path)
    assert str(raised.value).startswith(f"{path}: ") and "\n" not in str(raised.value)


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unwritable(tmp_path / "file", "exists and is no stormdrop model")
    unwritable(tmp_path / "file" / "m.sd", "cannot be written: Not a directory")
    unwritable(tmp_path / "file" / "a" / "m.sd", "cannot be written: Not a directory")
    unwritable(tmp_path / ("m" * 250), "cannot be written: File name too long")
    unwritable(tmp_path / "m\0.sd", "cannot be written: .*null")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    unwritable(tmp_path / "loop" / "m.sd", "cannot be written: Too many levels of symbolic links")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_file_system_that_cannot_be_written() -> None:
    unwritable(Path("/proc/m.sd"), "cannot be written")
    unwritable(Path("/proc/no/m.sd"), "cannot be written")
    unwritable(Path("/proc/sys/fs"), "no stormdrop model")


def test_a_mount_point_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path)
    unwritable(tmp_path, "is a mount point, which cannot be replaced: name a folder inside it")


NOT_ROOT = """
import os, sys
from pathlib import Path
from stormdrop.errors import ArtifactError
from stormdrop.model.artifact.artifact_files import check_writable
folder = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
for name in ("parent/m.sd", "older.sd", "m.sd"):
    try:
        check_writable(folder / name)
    except ArtifactError as error:
        print(str(error).removeprefix(str(folder / name)))
"""


def test_permissions() -> None:
    """They apply to users other than root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for inner in ("parent", "older.sd"):
            (folder / inner).mkdir()
        (folder / "older.sd" / METADATA).touch()
        for inner in ("parent", "older.sd"):
            (folder / inner).chmod(0o555)
        folder.chmod(0o777)
        done = subprocess.run([sys.executable, "-c", NOT_ROOT, name], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        ": cannot be written: Permission denied",
        ": is a folder that may not be written",
    ]


def test_an_older_model_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "resnet50.sd"
    with beside_older(path) as place:
        assert place == path and not path.exists()
    path.mkdir()
    with beside_older(path) as place:
        assert place == path
    (path / METADATA).touch()
    names = []
    for _ in range(3):
        with beside_older(path) as place:
            check_writable(place)
            (place / METADATA).touch()
            names.append(place.name)
    assert names == ["resnet50.interrupted.sd", "resnet50.interrupted-2.sd", "resnet50.interrupted-3.sd"]
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / METADATA).touch()
    with beside_older(tmp_path / "plain") as place:
        assert place.name == "plain.interrupted"


def test_a_place_that_is_not_used_is_not_left(tmp_path: Path) -> None:
    path = tmp_path / "resnet50.sd"
    path.mkdir()
    (path / METADATA).touch()
    with beside_older(path) as place:
        assert place.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["resnet50.sd"]


def test_a_folder_that_is_replaced_all_the_time_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "samestat", lambda *_: False)
    with pytest.raises(ArtifactError, match="other processes replace it again and again"), open_files(tmp_path):
        pass


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / METADATA)
    with pytest.raises(ArtifactError, match=r"metadata\.json: is no regular file"), open_files(tmp_path):
        pass
    (tmp_path / METADATA).unlink()
    (tmp_path / METADATA).mkdir()
    with pytest.raises(ArtifactError, match=r"metadata\.json: is no regular file"), open_files(tmp_path):
        pass


def test_open_files_are_of_one_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(generation: str) -> None:
        def write(new: Path) -> None:
            for name in (METADATA, PROGRAM):
                (new / name).write_text(generation)

        replace_folder(tmp_path / "m.sd", write)

    save("old")
    opened, open_file = [], artifact_files._open

    def then_replaced(path: Path, folder: int) -> object:
        file = open_file(path, folder)
        opened.append(path)
        if len(opened) == 1:
            save("new")
        return file

    monkeypatch.setattr(artifact_files, "_open", then_replaced)
    with open_files(tmp_path / "m.sd") as files:
        assert {name: file.read() for name, file in files.items()} == {METADATA: b"new", PROGRAM: b"new"}


def test_a_private_copy_is_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine" * 1_000_000)
    with (tmp_path / "file").open("rb") as file, private_copy(file) as (copy, digest):
        (tmp_path / "file").write_bytes(b"theirs")
        assert Path(copy).read_bytes() == b"mine" * 1_000_000
    assert digest == hashlib.sha256(b"mine" * 1_000_000).hexdigest()
