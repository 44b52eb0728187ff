"""The line that says what a command does, on a terminal and nowhere else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from command_line import SMALL, environment

from stormdrop.cli import status_line
from stormdrop.cli.status_line import loading, telling
from stormdrop.tuning.result import Progress


def take_for_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets standard error be taken for a terminal. A fixture cannot: pytest gives the test another stream."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2)
    monkeypatch.setenv("COLUMNS", "80")


def screen(written: str) -> list[str]:
    """The lines of a terminal after this was written to it."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[\d*K|.", written, re.DOTALL):
        if part == "\n":
            lines, column = [*lines, ""], 0
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b"):
            lines[-1] = "" if part == "\x1b[2K" else lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + 1 :]
            column += 1
    return lines


def test_a_terminal_is_told_at_once_that_tvm_is_loaded(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_for_terminal(monkeypatch)
    before = signal.getsignal(signal.SIGALRM)
    with loading("tuning m.onnx"):
        assert capfd.readouterr().err == "\rtuning m.onnx: loading TVM, 0 s\x1b[K"
        signal.raise_signal(signal.SIGALRM)
        assert "loading TVM" in capfd.readouterr().err
    assert capfd.readouterr().err == "\r\x1b[2K"
    assert signal.getsignal(signal.SIGALRM) == before and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_elsewhere_nothing_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with loading("tuning m.onnx"):
        pass
    with telling("running m.sd", "loading it") as tell:
        tell("the first time")
    assert capfd.readouterr() == ("", "")
    with telling("timing m.onnx") as tell:  # what is tuned has its lines there, as it has without a line in place
        tell.tuning(Progress(1, 0, None, 1.0, None, "measuring this machine"))
        tell("round 1 of 20")
    assert capfd.readouterr() == ("", "measuring this machine: 1 trials, 1 s\n")


def test_a_terminal_sees_what_is_done_and_for_how_long(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_for_terminal(monkeypatch)
    monkeypatch.setattr(status_line, "_EVERY", 0.01)
    now = [100.0]
    monkeypatch.setattr("stormdrop.cli.status_line.time.monotonic", lambda: now[0])
    written = ""

    def seen(words: str) -> None:
        nonlocal written
        end = time.perf_counter() + 30
        while words not in "\n".join(screen(written)):
            assert time.perf_counter() < end, written
            written += capfd.readouterr().err
            time.sleep(0.005)

    with telling("running sqlite://me:secret@host", "loading it") as tell:
        seen("running sqlite://me:***@host: loading it, 0 s")
        now[0] += 3.0
        seen("loading it, 3 s")  # without anything being said
        print("a warning", file=sys.stderr)
        seen("a warning\nrunning")  # on a line of its own, with the line below it
        print("half a ", end="", file=sys.stderr)
        time.sleep(0.05)
        print("line", file=sys.stderr)
        tell("x" * 200)
        seen("half a line\nrunning sqlite://me…: xxx")
        assert [len(line) for line in screen(written)] == [9, 11, 79]
    written += capfd.readouterr().err
    assert screen(written) == ["a warning", "half a line", ""]
    assert not [thread for thread in threading.enumerate() if thread.name == "status line"]


def test_a_long_opening_leaves_room_for_what_is_done(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_for_terminal(monkeypatch)
    with telling(f"timing {'long/' * 30}m.onnx", "loading TVM"):
        (line,) = screen(capfd.readouterr().err)
    assert line.endswith("…: loading TVM, 0 s") and len(line) == 79


def test_a_tuning_takes_the_place_of_the_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_for_terminal(monkeypatch)
    with telling("timing m.onnx", "loading TVM") as tell:
        assert "timing m.onnx: loading TVM, 0 s" in capfd.readouterr().err
        tell.tuning(Progress(5, 0, 1e-3, 2.0, 60.0, "1/1 conv"))
        tell.tuning(Progress(9, 0, 1e-3, 2.0, 60.0, "1/1 conv"))
        tell("round 1 of 20")
        shown = capfd.readouterr().err
        tuned, _, after = shown.rpartition("\r")
        assert tuned.startswith("\r\x1b[2K") and "9 trials" in tuned
        assert after == "timing m.onnx: round 1 of 20, 0 s\x1b[K"
    assert capfd.readouterr().err == "\r\x1b[2K"


def test_a_terminal_that_has_gone_ends_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    with monkeypatch.context() as patch:
        take_for_terminal(patch)
        patch.setattr(sys.stderr, "fileno", lambda: write)
        with telling("running m.sd", "loading it") as tell:
            tell("the first time")
    os.close(write)
    assert capfd.readouterr().err == ""


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "ARTIFACT", "--profile"], ["loading it", "timing its kernels"]),
        (["bench", "ARTIFACT", "--rounds", "2", "--against", "onnxruntime"], ["loading TVM", "starting stormdrop"]),
        (["bench", *SMALL, "--rounds", "2", "--db", "DATABASE", "--against", "onnxruntime"], ["computing what"]),
        (["report", "ARTIFACT", "--out", "REPORT"], ["writing"]),
    ],
)
def test_commands_say_what_they_do(
    words: list[str], told: list[str], artifact: Path, database: Path, tmp_path: Path
) -> None:
    paths = {"ARTIFACT": str(artifact), "DATABASE": str(database), "REPORT": str(tmp_path / "report.html")}
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "stormdrop", *(paths.get(word, word) for word in words), "--json"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**environment(), "COLUMNS": "100", "TERM": "xterm"},
    )
    os.close(theirs)
    pieces: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(ours, 4096):
                pieces.append(piece)
        except OSError:  # its other end is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    out, _ = process.communicate(timeout=240)
    reader.join()
    os.close(ours)
    written = b"".join(pieces).decode()
    assert process.returncode == 0, written
    assert json.loads(out)
    assert all(words in written for words in told), written
    assert screen(written.replace("\r\n", "\n"))[-1] == "", "the line goes in the end"
