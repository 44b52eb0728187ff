"""Other processes may die at any moment while they write to a database, and may write to it at the same time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stormdrop.errors import StoreError
from stormdrop.records import State, open_store
from stormdrop.records.sql.writer_process import is_dead, new_writer, other_live_process
from stormdrop.testing.stores import PROBLEM, SETTING, timed

WRITE_AND_WAIT = """
import sys, time
from stormdrop.records import open_store
from stormdrop.testing.stores import PROBLEM, SETTING, timed
store = open_store(sys.argv[1])
session = store.open(PROBLEM, SETTING)
for batch in range(5):
    store.append(session, batch, [timed("packed", (batch, i), 1.0 + i) for i in range(3)])
print(session.id, flush=True)
time.sleep(600)
"""

WRITE_MANY = """
import sys
from stormdrop.records import open_store
from stormdrop.testing.stores import PROBLEM, SETTING, timed
sys.stdin.readline()
store = open_store(sys.argv[1])
session = store.open(PROBLEM, SETTING)
for batch in range(150):
    store.append(session, batch, [timed("packed", (batch, i), 1.0) for i in range(2)])
print(session.id)
"""


def start(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_what_was_appended_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    process = start(WRITE_AND_WAIT, path)
    assert process.stdout is not None
    session_id = process.stdout.readline().strip()
    with open_store(path) as store:
        session = store.session(session_id)
        assert session.state is State.RUNNING
        assert store.unfinished(PROBLEM, SETTING) == [], "a live run keeps its session"
        with pytest.raises(StoreError, match=f"process {process.pid}"):
            store.resume(session)

        process.send_signal(signal.SIGKILL)
        process.communicate()

        (interrupted,) = store.unfinished(PROBLEM, SETTING)
        assert (interrupted.id, interrupted.state) == (session_id, State.INTERRUPTED)
        trials = store.records(interrupted)
        assert [(trial.batch, trial.position) for trial in trials] == [(i // 3, i) for i in range(15)]
        assert [trial.config["tile"] for trial in trials] == [(i // 3, i % 3) for i in range(15)]
        resumed = store.resume(interrupted)
        store.append(resumed, 5, [timed("packed", (9, 9), 1.0)])
        assert store.records(resumed)[:15] == trials
        assert store.records(resumed)[15].position == 15


def test_a_kill_in_the_middle_of_writing_leaves_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    script = WRITE_AND_WAIT.replace("range(5)", "range(100_000)").replace(
        "    store.append", "    print(batch, flush=True)\n    store.append"
    )
    process = start(script, path)
    assert process.stdout is not None
    while int(process.stdout.readline()) < 40:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    # `communicate` would pass over the lines that `readline` has already taken from the pipe.
    rest = process.stdout.read().split()
    begun = int(rest[-1]) if rest else 40
    with open_store(path) as store:
        (summary,) = store.sessions()
        trials = store.records(store.session(summary.id))
    assert summary.trials == len(trials)
    assert len(trials) % 3 == 0
    assert begun <= len(trials) // 3 <= begun + 1, "every batch before the last line was committed"


@pytest.mark.long
def test_processes_write_at_once_and_a_reader_reads(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    processes = [start(WRITE_MANY, path) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")  # both create the database, at the same time
        process.stdin.flush()
    reads = 0
    while any(process.poll() is None for process in processes):
        if path.exists() and reads < 10_000:
            with open_store(path) as store:
                for summary in store.sessions():
                    trials = store.records(store.session(summary.id))
                    assert summary.trials <= len(trials) <= 300
                    assert [trial.position for trial in trials] == list(range(len(trials)))
            reads += 1
    ids = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert reads > 0
    with open_store(path) as store:
        assert {summary.id: summary.trials for summary in store.sessions()} == dict.fromkeys(ids, 300)


def test_a_writer_of_this_process_lives_and_is_not_another() -> None:
    writer = new_writer()
    assert new_writer() != writer
    assert not is_dead(writer)
    assert other_live_process(writer) is None


def test_writers_of_version_0_1() -> None:
    host, token = socket.gethostname(), "0"
    parent = psutil.Process(os.getppid())
    assert other_live_process(f"{host}|{parent.pid}|{parent.create_time()}|{token}") == parent.pid
    reused = f"{host}|{parent.pid}|{parent.create_time() - 3600}|{token}"
    assert is_dead(reused)
    assert other_live_process(reused) is None
    assert not is_dead(f"not{host}|{parent.pid}|1.0|{token}"), "another host's processes are unknown"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert is_dead(f"{host}|{gone.pid}|{parent.create_time()}|{token}")


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the boot id and the namespaces are Linux's")


def writer_of(pid: int, *, context: str | None = None, later: int = 0) -> str:
    host, ours, _, _, token = new_writer().split("|")
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return f"{host}|{context or ours}|{pid}|{ticks + later}|{token}"


@LINUX
def test_a_writer_is_known_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getppid()
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: real(self) - 3600)  # the clock was set
    assert other_live_process(writer_of(parent)) == parent
    assert not is_dead(new_writer())
    assert is_dead(writer_of(parent, later=1)), "the system has given the number to another process"
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    writer = writer_of(gone.pid)
    assert other_live_process(writer) == gone.pid
    gone.communicate()
    assert is_dead(writer)


@LINUX
def test_containers_with_one_name_are_not_confused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, context, *_ = new_writer().split("|")
    boot, _ = context.split("/")
    parent = os.getppid()
    elsewhere = [f"{boot}/17", "another-boot/17"]
    for other in elsewhere:
        assert not is_dead(writer_of(parent, context=other)), "it may live in its container"
        assert other_live_process(writer_of(parent, context=other)) is None
    first = 0xEFFFFFFC
    monkeypatch.setattr("stormdrop.records.sql.writer_process._context", lambda: f"{boot}/{first}")
    assert is_dead(writer_of(parent, context=f"another-boot/{first}")), "this machine was started again since"


def test_a_system_without_boot_ids_counts_by_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.records.sql.writer_process._context", lambda: None)
    writer = new_writer()
    assert writer.count("|") == 3
    assert not is_dead(writer)
