from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stormdrop
from stormdrop.machine.threads import thread_count, usable_cores

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
    code = (
        "import os; from stormdrop.machine.threads import configure; configure(); print(os.environ['TVM_NUM_THREADS'])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_users_choice_stays() -> None:
    assert threads_of("7") == "7"
    assert threads_of(None) == str(usable_cores())


def test_only_the_standard_library_is_loaded() -> None:
    code = "import sys, stormdrop.machine.threads; print('tvm' in sys.modules or 'numpy' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(stormdrop.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_user_may_choose_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    assert thread_count() == 1
    monkeypatch.setenv("TVM_NUM_THREADS", "many")
    assert thread_count() == usable_cores()
    monkeypatch.delenv("TVM_NUM_THREADS")
    assert thread_count() == usable_cores()


USED_BEFORE = """
import os, warnings
os.environ["TVM_NUM_THREADS"] = "1"
import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
import tvm
{first_use}
os.environ.pop("TVM_NUM_THREADS")
from stormdrop.machine.threads import configure
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    configure()
    configure()
print(len(warned), tvm.get_global_func("runtime.NumThreads")(), *(warning.message for warning in warned))
"""


def after_tvm(first_use: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(stormdrop.__file__).parents[1])}
    program = [sys.executable, "-c", USED_BEFORE.format(first_use=first_use)]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(AFFINITY < 2 or usable_cores() < 2, reason="one core cannot be half used")
def test_tvm_that_runs_on_fewer_threads_already_is_said_once() -> None:
    output = after_tvm('tvm.get_global_func("runtime.NumThreads")()')
    assert output.startswith(f"1 1 TVM was used before stormdrop and runs on 1 of {usable_cores()} threads")


def test_tvm_that_was_only_imported_still_gets_all_cores() -> None:
    assert after_tvm("pass") == f"0 {usable_cores()}"
