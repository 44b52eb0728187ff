"""What a run says of itself while it is at work."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stormdrop import events
from stormdrop.report.traces import announcement
from stormdrop.report.traces.announcement import Run, announced, folder, runs_at_work


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(announcement, "default_path", lambda: tmp_path / "records.db")
    monkeypatch.setattr(announcement, "_EVERY", 0.0)
    yield
    assert list(folder().glob("*")) == []  # nothing is left


def only() -> Run:
    (run,) = runs_at_work()
    return run


def test_a_model_from_its_first_second_to_its_last() -> None:
    with announced("net.onnx", seconds=60.0, begun=time.perf_counter() - 2.0):
        assert (only().what, only().phase, only().trials) == ("net.onnx", "starting", 0)
        assert 2.0 <= only().elapsed < 12.0 and 48.0 < (only().left or 0.0) <= 58.0
        with events.span("import", "phases"):
            assert only().phase == "importing the model"
        with events.span("tune", "phases", kernels=7):
            named = {"workload": "conv2d", "layers": "head.conv"}
            with events.span("search", "tuning", **named), events.span("tell", "tuning"):
                events.happened("trial", "tuning", status="ok")
                events.happened("trial", "tuning", status="runtime")
                events.level("best seconds", "conv2d", 5e-3)
                assert (only().phase, only().kernel, only().layers) == ("searching", "conv2d", "head.conv")
                assert only().kernels == 7
                assert (only().trials, only().failed, only().best_seconds) == (2, 1, None)
            events.level("estimated seconds", "model", 4e-2)
            assert (only().kernel, only().layers, only().best_seconds) == ("", "", 4e-2)
        with events.span("a phase of its own", "phases"):
            assert only().phase == "a phase of its own"
    assert runs_at_work() == []


def test_an_operator_by_its_trials() -> None:
    with announced("matmul m=8", trials=4):
        events.happened("trial", "tuning", status="ok")
        events.level("best seconds", "matmul m=8", 5e-6)
        assert (only().share, only().left, only().best_seconds) == (0.25, None, 5e-6)


def test_one_run_of_a_process_is_announced() -> None:
    with announced("the command"), announced("the function that it calls"):
        assert only().what == "the command"


def test_runs_of_two_threads_are_announced_each_by_itself() -> None:
    both, read = threading.Barrier(3, timeout=60.0), threading.Barrier(3, timeout=60.0)

    def run(what: str, trials: int) -> None:
        with announced(what), announced("the function that it calls"), events.span("a search", "phases"):
            for _ in range(trials):
                events.happened("trial", "tuning", status="ok")
            events.level("best seconds", what, 1.0 / trials)
            both.wait()
            read.wait()

    threads = [threading.Thread(target=run, args=each) for each in (("matmul", 2), ("softmax", 4))]
    for thread in threads:
        thread.start()
    both.wait()
    found = {run.what: (run.phase, run.trials, run.best_seconds) for run in runs_at_work()}
    read.wait()
    for thread in threads:
        thread.join()
    assert found == {"matmul": ("a search", 2, 0.5), "softmax": ("a search", 4, 0.25)}
    assert runs_at_work() == []


def test_a_run_that_fails_is_not_at_work() -> None:
    with pytest.raises(ZeroDivisionError), announced("net"):
        raise ZeroDivisionError
    assert runs_at_work() == []
    with announced("net again"):
        assert only().what == "net again"


def test_a_run_that_was_killed_is_not_at_work() -> None:
    program = (
        "import os\nfrom pathlib import Path\nfrom stormdrop.report.traces import announcement\n"
        f"announcement.default_path = lambda: Path({str(folder().parent / 'records.db')!r})\n"
        "with announcement.announced('killed'):\n    os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    (path,) = folder().glob("*.json")
    assert msgspec.json.decode(path.read_bytes())["what"] == "killed"
    assert runs_at_work() == []
    with announced("the next one"):  # removes what the other left
        assert only().what == "the next one"
        assert not path.exists()


def test_what_is_no_run_is_passed_over() -> None:
    folder().mkdir()
    run = Run("no writer", "net", 0.0, None, None, "", "starting", 0.0)
    texts = (b'{"writer": "a', b'{"writer": 1}', msgspec.json.encode(run))
    for number, text in enumerate(texts):
        (folder() / f"{number}.json").write_bytes(text)
    assert runs_at_work() == []
    for path in folder().iterdir():
        path.unlink()


def test_a_folder_that_cannot_be_written_disturbs_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (tmp_path / "running").write_text("no folder")
    with announced("net"), events.span("import", "phases"):
        assert runs_at_work() == []
    assert "the dashboard does not show this run" in caplog.text
    (tmp_path / "running").unlink()


def test_without_a_home_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(announcement, "default_path", lambda: Path("~/records.db"))
    monkeypatch.chdir(tmp_path)
    with announced("net"), events.span("import", "phases"):
        assert list(tmp_path.iterdir()) == []
