"""The witnesses of the campaign see what they are there for: each rule is broken once on purpose."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from contract import Kind, Outcome
from material import shared
from sandbox import End, Sandbox, check_end, sandbox

ROW = ("session", 0, "workload", "sketch", '{"tile":[4,2]}', "ok", "[0.5]", "", 0, 1.0)
CANDIDATE: dict[str, Any] = {"workload": "workload", "sketch": "sketch", "config": {"tile": [4, 2]}}
ACK = {"event": "ack", "time": 1.0, "status": "ok", "seconds": [0.5], "error": "", **CANDIDATE}
BEGIN = {"event": "begin", "time": 0.5, **CANDIDATE}


def kinds(outcome: Outcome) -> list[Kind]:
    return [finding.kind for finding in outcome.findings]


@pytest.mark.parametrize(
    ("log", "rows", "found"),
    [
        ([ACK], [ROW], []),
        ([ACK], [], [Kind.LOST]),
        ([ACK, ACK], [ROW], [Kind.LOST]),
        ([{**ACK, "seconds": [0.5000000001]}], [ROW], [Kind.LOST]),
        ([{**ACK, "time": -1.0}], [], []),
    ],
)
def test_an_acknowledged_trial_is_stored(log: list[dict[str, Any]], rows: list[oracle.Row], found: list[Kind]) -> None:
    outcome = Outcome("")
    oracle.check_acknowledged(outcome, log, rows)
    assert kinds(outcome) == found


def test_a_stored_trial_stays_as_it_was() -> None:
    for after, count in (([ROW], 0), ([], 1), ([(*ROW[:-1], 2.0)], 1)):
        outcome = Outcome("")
        oracle.check_prefix(outcome, [ROW], after)
        assert kinds(outcome) == [Kind.LOST] * count


def test_what_was_committed_is_not_measured_again() -> None:
    for log, kills, count in (
        ([BEGIN, ACK], 0, 0),
        ([BEGIN, BEGIN, ACK], 1, 0),  # it was in flight
        ([BEGIN, BEGIN, ACK], 0, 1),
        ([BEGIN, ACK, BEGIN], 1, 1),
    ):
        outcome = Outcome("")
        oracle.check_measured_once(outcome, log, kills)
        assert kinds(outcome) == [Kind.LOST] * count, log


def test_statuses_are_those_that_were_injected() -> None:
    failed = (*ROW[:5], "runtime", *ROW[6:])
    for failures, count in ((0, 1), (1, 0)):
        outcome = Outcome("")
        oracle.check_statuses(outcome, [ROW, failed], failures)
        assert kinds(outcome) == [Kind.WRONG] * count


def test_a_damaged_database_is_seen(tmp_path: Path) -> None:
    database = tmp_path / "records.db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table t (x)")
        connection.executemany("insert into t values (?)", [("x" * 100,)] * 1000)
    connection.close()
    outcome = Outcome("")
    oracle.check_integrity(outcome, database)
    assert not outcome.findings
    content = bytearray(database.read_bytes())
    content[4096 * 3 : 4096 * 5] = b"\xff" * 8192
    database.write_bytes(content)
    oracle.check_integrity(outcome, database)
    assert kinds(outcome) == [Kind.LOST]


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (End(0, "", "progress\n"), []),
        (End(2, "", "stormdrop: no such file\n"), []),
        (End(2, "", "stormdrop: no such file\nmore\n"), [Kind.OTHER]),
        (End(2, "", ""), [Kind.OTHER]),
        (End(130, "", "stormdrop: interrupted\n"), [Kind.OTHER]),  # nobody had interrupted it
        (End(None, "", ""), [Kind.HUNG]),
        (End(0, "", "Traceback (most recent call last):\n"), [Kind.TRACEBACK]),
        (End(-signal.SIGSEGV, "", ""), [Kind.OTHER]),
    ],
)
def test_the_end_of_a_command(end: End, found: list[Kind]) -> None:
    outcome = Outcome("")
    check_end(outcome, end, [0, 2])
    assert kinds(outcome) == found


STRAY = """
import fcntl, os, subprocess, sys, time
from pathlib import Path
descriptor = os.open("tmp/stormdrop.lock", os.O_RDONLY | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
Path(".model.sd.saving-1").mkdir()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], pass_fds=[descriptor])
"""


def test_what_is_left_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose parent has ended, which holds the lock, and a temporary folder."""
    monkeypatch.setattr("sandbox.PATIENCE", 0.5)
    with sandbox(tmp_path / "run") as home:
        assert home.start(["-c", STRAY]).wait().code == 0
        outcome = Outcome("")
        home.check_left(outcome)
        texts = " ".join(finding.text for finding in outcome.findings)
        assert set(kinds(outcome)) == {Kind.STRAY}
        assert "time.sleep(100)" in texts
        assert ".model.sd.saving-1" in texts
        home.check_left(outcome := Outcome(""), killed=True)
        assert not outcome.findings  # the process was ended, and a killed save tidies up later


def test_an_open_file_is_seen(tmp_path: Path) -> None:
    home = Sandbox(tmp_path / "run")
    line = {"event": "done", "pid": 1, "time": 0.0, "open": [str(home.database), "/dev/null", "pipe:[1]"]}
    (home.folder / "log").write_text(json.dumps(line) + "\n")
    home.check_descriptors(outcome := Outcome(""))
    assert kinds(outcome) == [Kind.STRAY]


SLEEPING = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; time.sleep(90)"])
"""


def test_a_process_that_takes_too_long_is_killed_with_its_group(tmp_path: Path) -> None:
    with sandbox(tmp_path / "run") as home:
        end = home.start(["-c", SLEEPING], limit=1.0).wait()
        assert end.code is None
        home.check_left(outcome := Outcome(""))
        assert not outcome.findings


@pytest.mark.compiles
def test_a_model_is_what_was_saved_and_computes_what_it_should(tmp_path: Path) -> None:
    material, expected = shared(), tmp_path / "expected.npz"
    with np.load(material.expected) as arrays:
        np.savez(expected, **{name: arrays[name] + (name == "out0") for name in arrays.files})
    with sandbox(tmp_path / "run") as home:
        shutil.copytree(material.older, home.artifact)
        for path, damaged, found in (
            (material.expected, False, []),
            (expected, False, [Kind.WRONG]),
            (material.expected, True, [Kind.WRONG]),
        ):
            if damaged:
                (home.artifact / "metadata.json").unlink()
            outcome = Outcome("")
            oracle.check_artifact(outcome, home, path, required=True)
            assert kinds(outcome) == found, outcome.findings
