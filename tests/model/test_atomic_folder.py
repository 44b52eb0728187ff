from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stormdrop.model.artifact import atomic_folder
from stormdrop.model.artifact.artifact_files import KERNELS, METADATA, PROGRAM, open_files
from stormdrop.model.artifact.atomic_folder import find_folder, recover, replace_folder

NAMES = (METADATA, PROGRAM, KERNELS)

WRITER = """
import itertools, os, sys
from pathlib import Path
from stormdrop.model.artifact import atomic_folder
folder, mode, first, saves, dies_at = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
if mode == "renames":
    atomic_folder._exchange = lambda first, second: False

def save(generation):
    def write(new):
        for name in ("metadata.json", "program.json", "kernels.bc"):
            (new / name).write_text(f"{generation} " * 1000)
    atomic_folder.replace_folder(folder, write)

def die(event, arguments, steps=itertools.count()):
    if event.startswith(("os.", "open", "shutil.")) and next(steps) == dies_at:
        os._exit(9)

save(first)
if dies_at < 0:
    print("ready", flush=True)
    for generation in range(first + 1, first + saves):
        save(generation)
    sys.exit()
for dies_at in itertools.count():  # this process has few modules and no threads, so that forks are cheap
    child = os.fork()
    if child == 0:
        sys.addaudithook(die)
        save(dies_at + first + 1)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
    found = atomic_folder.find_folder(folder)
    print(*sorted({(found / name).read_text() for name in os.listdir(found)}), len(os.listdir(found)))
print("ended")
"""


def writer(folder: Path, mode: str, first: int, saves: int = 0, dies_at: int = -1) -> subprocess.Popen[str]:
    words = [folder, mode, first, saves, dies_at]
    command = [sys.executable, "-c", WRITER, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)


def generation(folder: Path) -> str:
    """The one generation that all files of a folder are of."""
    with open_files(folder) as files:
        assert sorted(files) == sorted(NAMES)
        (content,) = {file.read() for file in files.values()}
    assert len(set(content.split())) == 1 and content.count(b" ") == 1000
    return content.split()[0].decode()


def leftovers(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.parent.iterdir() if entry != folder)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["exchange", "renames"])
def test_a_save_may_die_at_every_step(tmp_path: Path, mode: str) -> None:
    """A process is ended at each call of the system in turn. What the next one finds is one complete generation."""
    folder = tmp_path / "m.sd"
    output, _ = writer(folder, mode, 0, dies_at=0).communicate(timeout=60)
    *lines, end = output.splitlines()
    assert end == "ended" and len(lines) > 20
    for line in lines:
        *words, files = line.split()
        assert files == "3" and len(words) == 1000 and len(set(words)) == 1
    assert generation(folder) == str(len(lines) + 1)
    assert leftovers(folder) == []


@pytest.mark.long
@pytest.mark.parametrize("mode", ["exchange", "renames"])
def test_a_killed_save_leaves_a_complete_folder(tmp_path: Path, mode: str) -> None:
    folder, rng = tmp_path / "m.sd", random.Random(0)
    for round in range(6):
        with writer(folder, mode, 10_000 * round, saves=10_000) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.05 * rng.random())
            process.send_signal(signal.SIGKILL)
        assert int(generation(folder)) >= 10_000 * round
    recover(folder)
    assert leftovers(folder) == [] and int(generation(folder)) >= 50_000


@pytest.mark.long
def test_runs_with_one_folder_do_not_mix(tmp_path: Path) -> None:
    folder = tmp_path / "m.sd"
    with writer(folder, "exchange", 0, 100) as first, writer(folder, "exchange", 1000, 100) as second:
        assert first.stdout is not None and second.stdout is not None
        first.stdout.readline(), second.stdout.readline()
        seen = set()
        while first.poll() is None or second.poll() is None:
            seen.add(int(generation(folder)) // 1000)
    assert first.returncode == second.returncode == 0
    assert seen == {0, 1} and generation(folder) in ("99", "1099")
    assert leftovers(folder) == []


def write(new: Path) -> None:
    for name in NAMES:
        (new / name).write_text("1 " * 1000)


def test_only_what_dead_processes_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "m.sd"
    (tmp_path / ".m.sd.saving-dead" / "new").mkdir(parents=True)
    (tmp_path / ".other.sd.saving-dead").mkdir()
    begun, go_on = threading.Event(), threading.Event()

    def slow(new: Path) -> None:
        begun.set()
        assert go_on.wait(30)
        write(new)

    saving = threading.Thread(target=replace_folder, args=(folder, slow))
    saving.start()
    assert begun.wait(30)
    (alive,) = tmp_path.glob(".m.sd.saving-*")
    replace_folder(folder, write)
    assert leftovers(folder) == [alive.name, ".other.sd.saving-dead"]
    go_on.set()
    saving.join()
    assert leftovers(folder) == [".other.sd.saving-dead"] and generation(folder) == "1"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_save_changes_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    folder = tmp_path / "m.sd"
    replace_folder(folder, write)

    def interrupted(new: Path) -> None:
        (new / METADATA).write_text("2 ")
        raise error

    with pytest.raises(error):
        replace_folder(folder, interrupted)
    assert generation(folder) == "1" and leftovers(folder) == []


def test_a_folder_between_two_renames_is_found_and_put_back(tmp_path: Path) -> None:
    folder, old = tmp_path / "m.sd", tmp_path / ".m.sd.saving-dead" / "old"
    old.mkdir(parents=True)
    write(old)
    assert find_folder(folder) == old and generation(folder) == "1"
    recover(folder)
    assert generation(folder) == "1" and leftovers(folder) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "m.sd").symlink_to(tmp_path / "disk" / "m.sd")
    for _ in range(2):
        replace_folder(tmp_path / "m.sd", write)
        assert (tmp_path / "m.sd").is_symlink() and generation(tmp_path / "disk" / "m.sd") == "1"


def test_everything_reaches_the_disk_before_the_folder_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, publish = atomic_folder._sync, atomic_folder._publish
    monkeypatch.setattr(atomic_folder, "_sync", lambda path: (steps.append(path.name), sync(path)))
    monkeypatch.setattr(atomic_folder, "_publish", lambda *paths: (steps.append("publish"), publish(*paths)))
    replace_folder(tmp_path / "m.sd", write)
    assert sorted(steps[:3]) == sorted(NAMES) and steps[3:] == ["new", "publish", tmp_path.name]
