"""`--log` and `--trace` of the commands that tune, and `run --profile --trace`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import SMALL, complaint, document

pytestmark = pytest.mark.compiles


def test_a_tuning_is_watched(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log, trace = tmp_path / "tune.jsonl", tmp_path / "trace.json"
    tuned = document(capfd, "tune-op", *SMALL, "--trials", 2, "--db", tmp_path / "r.db", "--log", log, "--trace", trace)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    begun = {line["number"]: line for line in lines if line["event"] == "started"}
    ended = {line["number"]: line for line in lines if line["event"] == "finished"}
    assert begun.keys() == ended.keys()  # nothing hangs
    assert all(ended[number]["what"] == line["what"] for number, line in begun.items())
    trials = [line for line in lines if line["what"] == "trial"]
    assert len(trials) == tuned["trials"] == 2
    assert {"workload", "sketch", "config", "status", "seconds"} <= trials[0].keys()
    jobs = [line for line in begun.values() if line["where"].startswith("worker")]
    assert {"build", "run", "race", "schedule", "check"} <= {line["what"] for line in jobs}
    assert {"wait", "shared", "exclusive"} <= {line["what"] for line in lines if line["where"].startswith("lock")}

    events = json.loads(trace.read_text())
    assert events[0]["args"]["name"].startswith("tuning matmul m=32")
    lanes = {event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    assert {"tuning", "worker"} <= {lane.split()[0] for lane in lanes}
    assert any(lane.startswith("lock ") for lane in lanes)
    slices = [event["ph"] for event in events if event["ph"] in "BE"]
    assert slices.count("B") == slices.count("E") == len(begun)


def test_a_profile_is_traced(artifact: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    profile = document(capfd, "run", artifact, "--profile", "--trace", trace)["profile"]
    names = {event["name"] for event in json.loads(trace.read_text()) if event["ph"] == "X"}
    assert {kernel["name"] for kernel in profile["kernels"]} <= names


def test_bad_files(tmp_path: Path, artifact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tune = ["tune-op", *SMALL, "--db", tmp_path / "r.db"]
    assert "--log and --trace are the same file" in complaint(
        capfd, *tune, "--log", tmp_path / "x", "--trace", tmp_path / "x"
    )
    assert "--log" in complaint(capfd, *tune, "--log", tmp_path)
    assert "there is no directory" in complaint(capfd, *tune, "--trace", tmp_path / "no" / "x")
    assert "--trace: needs --profile" in complaint(capfd, "run", artifact, "--trace", tmp_path / "x")
