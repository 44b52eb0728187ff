"""Progress while a command runs."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from stormdrop.cli.live_display import LiveDisplay, sparkline
from stormdrop.cli.progress import Reporter
from stormdrop.tuning.result import KernelProgress, Progress

KERNELS = [
    KernelProgress("fused_conv2d_add_relu_with_a_very_long_name_indeed_of_a_kernel", 12, "done", 64, 1.25e-3),
    KernelProgress("dense", 1, "tuning", 8, 5e-4),
    *(KernelProgress(f"softmax{number}", 1, "waiting") for number in range(30)),
]


def test_progress_in_plain_lines(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from stormdrop.tuning.result import Progress

    now = [100.0]
    monkeypatch.setattr("stormdrop.cli.progress.time.monotonic", lambda: now[0])
    with Reporter(None, "tuning a nap") as report:
        for trials, best in ((1, None), (2, 1e-3), (3, 5e-4)):
            report(Progress(trials, 1, best, elapsed=trials * 1.0, budget_seconds=60.0))
            now[0] += 3.0
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "tuning a nap\n3 trials (1 failed), best 500 us, 3 s, 57 s left\n"


def test_plain_lines_are_readable_at_80_columns(capfd: pytest.CaptureFixture[str]) -> None:
    message = "12/40 fused_conv2d_add_relu_with_a_very_long_name_indeed_of_a_kernel"
    with Reporter(None) as report:
        for _ in range(2):
            report(Progress(1234, 56, 1.23e-2, 345.6, 600.0, message, "model about", KERNELS))
    ended, line = capfd.readouterr().err.splitlines()
    assert max(len(ended), len(line)) <= 80
    assert ended.startswith("done 1 of 32: fused_conv2d_add") and ended.endswith("...: 1.25 ms x 12, 64 trials")
    assert line.endswith("...: 1234 trials (56 failed), model about 12.3 ms, 346 s, 254 s left")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_display_fits_the_terminal(width: int) -> None:
    display = LiveDisplay("tuning resnet50.onnx until storm converges, 600 s at most")
    for best in (4e-2, 2e-2):
        display.show(Progress(80, 2, best, 30.0, 600.0, "2/32 dense", "model about", KERNELS), 0.05)
    console = Console(file=io.StringIO(), width=width, height=20, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(display)
    lines = capture.get().splitlines()
    assert len(lines) < 20 and max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "dense" in text and "and " in text and " more" in text
    if width >= 80:
        first, second = (line.split() for line in lines[2:4])
        assert first == ["dense", "1", "tuning", "8", "500", "us", "3.2%"]  # what is tuned now comes first
        assert second[1:] == ["12", "done", "64", "1.25", "ms", "96.8%"]
        assert "80 trials, 2 failed, model about 20 ms" in text
        assert "2/32 dense" in text and "30 s, 570 s left" in text and "█▁" in text


def shown(*given: Progress, width: int = 80) -> list[str]:
    display = LiveDisplay("tuning m.onnx")
    for progress in given:
        display.show(progress, 0.1)
    console = Console(file=io.StringIO(), width=width, height=20, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(display)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_display_shows_what_is_known_before_the_first_trial() -> None:
    early = Progress(0, 0, None, 2.0, 60.0, "importing m.onnx", checking=True)
    assert [line.split()[:2] for line in shown(early)] == [["tuning", "m.onnx"], ["importing", "m.onnx"]]
    later = Progress(0, 0, None, 5.0, 60.0, "measuring", untuned_seconds=3e-3, peer_seconds=2e-3)
    assert shown(early, later)[1] == "untuned 3 ms, onnxruntime 2 ms"
    kernel = KernelProgress("fused_conv2d_add_relu", 1, "waiting", layers=("features.4.conv", "features.4.relu"))
    known = Progress(8, 0, 2.5e-3, 9.0, 60.0, "1/2 conv", "model about", [kernel], 3e-3, 2e-3)
    assert shown(early, later, known)[2].split()[:3] == ["features.4:", "conv,", "relu"]
    assert "8 trials, model about 2.5 ms, untuned 3 ms, onnxruntime 2 ms" in shown(early, later, known)
    large = replace(known, trials=12345, failed=678, best_seconds=123.4e-3, untuned_seconds=234.5e-3)
    assert "12345 trials, 678 failed, model about 123 ms, untuned 234 ms, onnxruntime 2 ms" in shown(large)
    narrow = "12345 trials, model about 123 ms, untuned 234 ms, onnxruntime 2 ms"
    for width, line in ((72, narrow), (60, narrow.partition(", ")[2]), (40, "model about 123 ms, onnxruntime 2 ms")):
        assert line in shown(large, width=width)  # no word is cut


def test_nothing_is_written_to_a_file_while_the_input_is_checked(capfd: pytest.CaptureFixture[str]) -> None:
    """An error in the input is then the only line."""
    with Reporter(None, "tuning m.onnx") as report:
        report(Progress(0, 0, None, 2.0, 60.0, "importing m.onnx", checking=True))
        assert capfd.readouterr().err == ""
        report(Progress(0, 0, None, 5.0, 60.0, "measuring this machine"))
    assert capfd.readouterr().err.splitlines() == ["tuning m.onnx", "measuring this machine: 0 trials, 5 s, 55 s left"]
    with Reporter(None, "compiling m.onnx", lines=False) as report:
        report(Progress(0, 0, None, 5.0, None, "compiling 3 kernels"))
    assert capfd.readouterr().err == ""


def test_a_display_without_kernels() -> None:
    display = LiveDisplay("")
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(display)
        display.show(Progress(3, 0, None, 1.0, None), 0.0)
        console.print(display)
    assert [word for word in capture.get().split() if word.isalnum()] == ["3", "trials", "tuning", "1", "s"]


def test_a_sparkline_has_so_many_points() -> None:
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert len(sparkline([float(value) for value in range(1000)], 10)) == 10
