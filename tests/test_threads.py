from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stormdrop
from stormdrop.threads import chosen, usable_cores

AFFINITY = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({}, AFFINITY),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000\n"}, AFFINITY),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "100000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/job\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/job\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            AFFINITY,
        ),
    ],
)
def test_quotas(tmp_path: Path, groups: dict[str, str], expected: int) -> None:
    for name, text in groups.items():
        write(tmp_path, name, text)
    assert usable_cores(tmp_path) == expected


def threads_of(variable: str | None) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "TVM_NUM_THREADS"}
    environment["PYTHONPATH"] = str(Path(stormdrop.__file__).parents[1])
    if variable is not None:
        environment["TVM_NUM_THREADS"] = variable
    code = "import os; from stormdrop.threads import configure; configure(); print(os.environ['TVM_NUM_THREADS'])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_users_choice_stays() -> None:
    assert threads_of("7") == "7"
    assert threads_of(None) == str(usable_cores())


def test_only_the_standard_library_is_loaded() -> None:
    code = "import sys, stormdrop.threads; print('tvm' in sys.modules or 'numpy' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(stormdrop.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_user_may_choose_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    assert chosen() == 1
    monkeypatch.setenv("TVM_NUM_THREADS", "many")
    assert chosen() == usable_cores()
    monkeypatch.delenv("TVM_NUM_THREADS")
    assert chosen() == usable_cores()
