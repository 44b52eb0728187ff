"""The log and the trace of a tuning, as files."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from stormdrop import events
from stormdrop.errors import InputError
from stormdrop.report.traces.event_log import EventLog
from stormdrop.report.traces.event_trace import EventTrace

FULL = Path("/dev/full")  # a device on which every write fails as on a full disk


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_there_before_the_work_goes_on(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "tune.jsonl", pytest.fail)
    with events.listening(log), events.span("run", "worker 2", kernel=1) as outcome:
        assert [line["event"] for line in lines(tmp_path / "tune.jsonl")] == ["happened", "started"]
        outcome["status"] = "ok"
    log.close()
    first, begun, ended = lines(tmp_path / "tune.jsonl")
    assert (first["what"], first["version"]) == ("log", 1)
    assert begun["kernel"] == 1 and begun["where"] == "worker 2" and begun["time"].endswith("+00:00")
    assert ended["number"] == begun["number"] and ended["status"] == "ok"
    assert ended["took"] == pytest.approx(ended["clock"] - begun["clock"])


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    for _ in range(2):
        EventLog(tmp_path / "tune.jsonl", pytest.fail).close()
    assert [line["what"] for line in lines(tmp_path / "tune.jsonl")] == ["log", "log"]


def test_values_that_json_lacks(tmp_path: Path) -> None:
    import numpy as np

    log = EventLog(tmp_path / "tune.jsonl", pytest.fail)
    with events.listening(log):
        events.happened("trial", "tuning", tile=(np.int64(4), 2), seconds=float("nan"), path=tmp_path)
    line = lines(tmp_path / "tune.jsonl")[-1]
    assert (line["tile"], line["seconds"], line["path"]) == ([4, 2], None, str(tmp_path))


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_disk_ends_nothing() -> None:
    said: list[str] = []
    log, trace = EventLog(FULL, said.append), EventTrace(FULL, "a tuning", said.append)
    with events.listening(log), events.listening(trace):
        for _ in range(3):
            events.happened("trial", "tuning")
    log.close()
    trace.close()
    assert len(said) == 2  # once for each file
    assert all("/dev/full: cannot be written any more: No space left on device" in line for line in said)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: Is a directory"):
        EventLog(tmp_path, pytest.fail)


def test_a_trace_has_a_lane_for_each_place(tmp_path: Path) -> None:
    trace = EventTrace(tmp_path / "trace.json", "tuning a nap", pytest.fail)

    def elsewhere() -> None:
        with events.span("wait", "lock"):
            pass

    with events.listening(trace), events.span("search", "tuning"):
        with events.span("build", "worker 1", kernel=3):
            thread = threading.Thread(target=elsewhere, name="gpu 1")
            thread.start()
            thread.join()
        events.level("best seconds", "nap", 2e-3)
    hung = (tmp_path / "trace.json").read_text()  # as if the process were killed now
    trace.close()
    written = json.loads((tmp_path / "trace.json").read_text())
    assert json.loads(hung.rstrip().rstrip(",") + "]") == written[:-1]  # the form as an array needs no end
    names = {event["tid"]: event["args"]["name"] for event in written if event.get("name") == "thread_name"}
    assert list(names.values()) == ["tuning", "worker 1", "lock (gpu 1)"]
    slices = [(event["ph"], names[event["tid"]]) for event in written if event["ph"] in "BE"]
    assert slices == [
        ("B", "tuning"),
        ("B", "worker 1"),
        ("B", "lock (gpu 1)"),
        ("E", "lock (gpu 1)"),
        ("E", "worker 1"),
        ("E", "tuning"),
    ]
    (level,) = (event for event in written if event["ph"] == "C")
    assert (level["name"], level["args"]) == ("best seconds of nap", {"ms": 2.0})
    stamps = [event["ts"] for event in written if "ts" in event]
    assert stamps[0] == 0 and stamps == sorted(stamps)


def test_a_kernel_of_a_model_is_called_after_its_layers(tmp_path: Path) -> None:
    log, trace = EventLog(tmp_path / "log.jsonl", pytest.fail), EventTrace(tmp_path / "t.json", "net", pytest.fail)
    named = {"workload": "fused_conv2d", "layers": "features.4: conv, relu"}
    with events.listening(log), events.listening(trace), events.span("search", "tuning", **named):
        events.happened("trial", "tuning", **named)
        events.level("best seconds", "fused_conv2d", 2e-3, **named)
        events.level("best seconds", "fused_conv2d1", 3e-3, layers="features.4: conv, relu")  # another part of them
    trace.close()
    written = json.loads((tmp_path / "t.json").read_text())
    (begun,) = (event for event in written if event["ph"] == "B")
    assert (begun["name"], begun["args"]) == ("search of features.4: conv, relu", named)
    (trial,) = (event for event in written if event["ph"] == "i")
    assert (trial["name"], trial["args"]) == ("trial", named)
    curves = [(event["name"], event["args"]) for event in written if event["ph"] == "C"]
    assert curves == [
        ("best seconds of features.4: conv, relu (fused_conv2d)", {"ms": 2.0}),
        ("best seconds of features.4: conv, relu (fused_conv2d1)", {"ms": 3.0}),
    ]
    _, search, *_ = lines(tmp_path / "log.jsonl")
    assert (search["what"], search["workload"], search["layers"]) == ("search", *named.values())
