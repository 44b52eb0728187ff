"""The control groups of this process, which bound its CPU time and its memory: containers, systemd's slices, SLURM.

This module imports the standard library only, because `threads` must run before TVM is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """The control groups that this process is in, and those above them, whose bounds hold for it, too.

    Args:
        controller: The controller of version 1 whose groups are wanted, such as "cpu". Groups of version 2 have all
            controllers.
        root: The folder in which /proc and /sys are looked for.

    Yields:
        The version of the group, 1 or 2, and its folder, which need not exist.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        mounts = root / "sys/fs/cgroup"
        if controllers == "":
            yield from ((2, group) for group in _with_parents(mounts, path))
        elif controller in controllers.split(","):
            for mount in dict.fromkeys((controllers, controller)):
                yield from ((1, group) for group in _with_parents(mounts / mount, path))


def words(file: Path) -> list[str]:
    """The words of a control group's file; none if there is no such file, because the group has no such bound."""
    try:
        return file.read_text().split()
    except OSError:
        return []


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []  # the system is not Linux, or has no control groups


def _with_parents(mount: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
