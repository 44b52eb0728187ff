"""Signals that end a command: what was found so far is kept, and the exit code names the signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import environment, process, recorded_trials

from stormdrop.cli import options, run, signals

PROGRAM = [sys.executable, "-m", "stormdrop"]


@pytest.fixture(autouse=True)
def _nothing_is_ignored() -> Iterator[None]:
    """Tests may run under `nohup`, and then they and their children would ignore SIGHUP."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.compiles
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_what_was_measured_is_kept_after_a_signal(number: signal.Signals, code: int, tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    words = ["tune-op", "matmul", "m=96", "n=96", "k=96", "--search", "random", "--time", "5m", "--db", path, "--json"]
    tuning = subprocess.Popen(
        [*PROGRAM, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while recorded_trials(path) < 3:
        assert tuning.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(tuning.pid, number)  # to the workers too, as a service manager and a terminal that closes do
    os.killpg(tuning.pid, number)
    try:
        out, err = tuning.communicate(timeout=60)
    finally:
        tuning.kill()
    assert tuning.returncode == code, err
    assert "Traceback" not in err
    document = json.loads(out)
    assert document["interrupted"] is True
    assert document["best"]["seconds"] > 0
    assert document["statuses"].keys() == {"ok"}, "the workers' end is no failure of a candidate"
    assert recorded_trials(path) >= document["trials"] >= 3


def test_the_first_signal_interrupts_and_others_within_a_second_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("stormdrop.cli.signals.time.monotonic", lambda: now[0])
    before = signal.getsignal(signal.SIGTERM)
    with signals.as_interrupts() as interruption:
        assert interruption.exit_code(0) == 0
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)
        now[0] += 0.5
        send(signal.SIGHUP)
        assert interruption.exit_code(signals.INTERRUPTED) == 143
        assert interruption.exit_code(0) == 0, "the command had its result before"
        now[0] += 1.0
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert interruption.exit_code(signals.INTERRUPTED) == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_third_signal_ends_the_process() -> None:
    program = """
import os, signal, stormdrop.cli.signals as signals
signals._SAME_SECONDS = 0.0
with signals.as_interrupts():
    for _ in range(3):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.stdout.split() == ["interrupted"] * 2
    assert done.returncode == -signal.SIGTERM


def test_a_signal_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with signals.as_interrupts() as interruption:
            send(signal.SIGHUP)
        assert interruption.number is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_without_a_result_says_one_line(
    number: signal.Signals, code: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stormdrop.records.open_store", lambda *_, **__: send(number))
    assert run(["db", "list", "--db", "x.db"]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "stormdrop: interrupted; everything measured so far is kept\n"


def test_a_signal_while_the_program_is_loaded_is_one_line() -> None:
    program = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from stormdrop.cli import main
main(["db", "list"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.returncode == 130, done.stderr
    assert done.stderr == "stormdrop: interrupted; everything measured so far is kept\n"


def test_python_users_keep_their_own_handlers() -> None:
    program = "import signal, stormdrop as sd; sd.tune; print(signal.getsignal(signal.SIGTERM))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.stdout.strip() == str(signal.SIG_DFL)
    assert process("--version").returncode == 0


LAST_MOMENTS = """
import atexit, os, signal, sys, time
from stormdrop import cli

def run(arguments, started):
    atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.1)))
    return 0

from stormdrop.cli import app
app.run = run
cli.main(["doctor"])
"""


def test_a_signal_after_the_command_has_ended_changes_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", LAST_MOMENTS], capture_output=True, text=True, env=environment())
    assert (ended.returncode, ended.stderr) == (0, "")


def test_ctrl_c_while_the_database_is_closed_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sqlalchemy.dialects.sqlite import pysqlite

    close = pysqlite.SQLiteDialect_pysqlite.do_close
    interrupted: list[object] = []

    def interrupted_once(self: object, connection: object) -> None:
        if not interrupted:
            interrupted.append(connection)
            raise KeyboardInterrupt
        close(self, connection)  # type: ignore[arg-type]

    with options.tuning_records(str(tmp_path / "records.db")) as store:
        assert store.sessions() == []
        monkeypatch.setattr(pysqlite.SQLiteDialect_pysqlite, "do_close", interrupted_once)
    assert interrupted
    assert capsys.readouterr().err == ""


IN_AN_EXEC = """
import os, signal
from stormdrop.cli import app, main

def run(arguments, started):
    exec("os.kill(os.getpid(), signal.SIGINT)")
    return 0

app.run = run
main(["doctor"])
"""


def test_the_exit_code_is_the_same_wherever_ctrl_c_comes() -> None:
    """Python remembers that an `exec` was interrupted, as the making of a dataclass, and would end by SIGINT itself."""
    ended = subprocess.run([sys.executable, "-c", IN_AN_EXEC], capture_output=True, text=True, env=environment())
    assert (ended.returncode, ended.stderr) == (130, "stormdrop: interrupted; everything measured so far is kept\n")


WHILE_A_THREAD_COMPILES = """
import os, signal, time
from concurrent.futures import ThreadPoolExecutor
from stormdrop.cli import app, main

def run(arguments, started):
    ThreadPoolExecutor(1).submit(time.sleep, 60)
    os.kill(os.getpid(), signal.SIGTERM)

app.run = run
main(["doctor"])
"""


def test_a_thread_that_compiles_is_not_waited_for() -> None:
    program = [sys.executable, "-c", WHILE_A_THREAD_COMPILES]
    ended = subprocess.run(program, capture_output=True, text=True, env=environment(), timeout=50)
    assert (ended.returncode, ended.stderr) == (143, "stormdrop: interrupted; everything measured so far is kept\n")
