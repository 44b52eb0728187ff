"""How much memory there is, in control groups as containers, systemd and SLURM make them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from stormdrop.machine.process.memory import available_memory, usable_memory

MB = 1 << 20


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def v2(group: str, bound: str, used: int = 0, cached: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup{group}"
    return {
        f"{folder}/memory.max": f"{bound}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 1\nactive_file 7\ninactive_file {cached}\n",
    }


@pytest.mark.parametrize(
    ("files", "usable", "available"),
    [
        # A container with a namespace of its own.
        ({"proc/self/cgroup": "0::/\n", **v2("", str(64 * MB), 10 * MB)}, 64 * MB, 54 * MB),
        # A slice above the service bounds it, too; what files take in the cache is free.
        (
            {
                "proc/self/cgroup": "0::/user.slice/tune.service\n",
                **v2("/user.slice", str(32 * MB), 30 * MB, 20 * MB),
                **v2("/user.slice/tune.service", "max", 30 * MB),
            },
            32 * MB,
            22 * MB,
        ),
        # A job of SLURM with control groups of version 1.
        (
            {
                "proc/self/cgroup": "9:memory:/slurm/uid_7/job_3/step_0\n1:name=systemd:/\n0::/\n",
                "sys/fs/cgroup/memory/slurm/uid_7/job_3/memory.limit_in_bytes": f"{16 * MB}\n",
                "sys/fs/cgroup/memory/slurm/uid_7/job_3/memory.usage_in_bytes": f"{15 * MB}\n",
                "sys/fs/cgroup/memory/slurm/uid_7/job_3/memory.stat": f"inactive_file 5\ntotal_inactive_file {MB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            16 * MB,
            2 * MB,
        ),
        # It uses more than its bound already.
        ({"proc/self/cgroup": "0::/\n", **v2("", str(8 * MB), 9 * MB)}, 8 * MB, 0),
    ],
)
def test_bounds(tmp_path: Path, files: dict[str, str], usable: int, available: int) -> None:
    write(tmp_path, files)
    assert usable_memory(tmp_path) == usable
    assert available_memory(tmp_path) == available


@pytest.mark.parametrize("files", [{}, {"proc/self/cgroup": "0::/job\n", **v2("/job", "max")}])
def test_without_bounds(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    assert usable_memory(tmp_path) == psutil.virtual_memory().total
    assert 0 < available_memory(tmp_path) <= psutil.virtual_memory().total
