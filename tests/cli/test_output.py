"""What is printed: figures for people, JSON for tools, and nothing else on standard output."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import numpy as np
import pytest
from rich.console import Console

from stormdrop.cli import output


def test_figures() -> None:
    assert [output.seconds(value) for value in (12.0, 0.0123, 45.6e-6, 2e-7)] == [
        "12 s",
        "12.3 ms",
        "45.6 us",
        "0.2 us",
    ]
    assert output.seconds(None) == output.seconds(float("nan")) == "-"
    assert output.interval((1e-3, 2e-3)) == "1 ms to 2 ms"
    assert output.interval((0.912, 1.1), "ratio") == "0.91 to 1.10"
    assert [output.size(count) for count in (0, 512, 48 << 10, 32 << 20)] == ["unknown", "512 B", "48 KiB", "32 MiB"]


def test_documents_are_json_whatever_is_in_them(capfd: pytest.CaptureFixture[str]) -> None:
    output.emit({"a": (1, float("inf")), "b": {2: np.float32(0.5)}, "c": [np.int64(3), None]})
    assert json.loads(capfd.readouterr().out) == {"a": [1, None], "b": {"2": 0.5}, "c": [3, None]}


def test_nothing_else_reaches_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    with output.stdout_for_json(True):
        print("a library's words")
        os.write(1, b"a C library's words\n")
    print("the document")
    out, err = capfd.readouterr()
    assert out == "the document\n"
    assert "a library's words" in err
    assert "a C library's words" in err


HEADINGS = ["task", "each", "what", "trials"]
ROWS = [
    ["fused_conv2d_add_relu", "320 us", "a convolution with its bias and its activation", "8"],
    ["softmax", "-", "a row at a time", "16"],
]


def _on_a_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], spare: Sequence[str] = ()
) -> list[str]:
    monkeypatch.setattr(output, "Console", lambda **given: Console(force_terminal=True, color_system=None, width=width))
    output.table(HEADINGS, ROWS, spare=spare)
    return [line.removeprefix("\x1b[1m").removesuffix("\x1b[0m") for line in capfd.readouterr().out.splitlines()]


def test_elsewhere_than_on_a_terminal_each_row_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    rows = [[name, each, what * 20, trials] for name, each, what, trials in ROWS]
    output.table(HEADINGS, rows, spare=HEADINGS)
    heading, *lines = capfd.readouterr().out.splitlines()
    assert heading.split() == HEADINGS
    assert [line.split()[0] for line in lines] == [row[0] for row in rows]
    assert all(row[2] in line for row, line in zip(rows, lines, strict=True))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_breaks_between_words(
    width: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = _on_a_terminal(width, monkeypatch, capfd)
    assert all(len(line) <= width for line in lines)
    words = {word for line in lines for word in line.split()}
    assert words == {word for row in (HEADINGS, *ROWS) for cell in row for word in cell.split()}


def test_what_does_not_fit_breaks_the_longest_word_and_no_other(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = _on_a_terminal(44, monkeypatch, capfd)
    assert all(len(line) <= 44 for line in lines)
    assert "fused_conv2d_add_relu" not in lines[1] and "fused" in lines[1]
    words = {word for line in lines for word in line.split()}
    assert {"task", "each", "what", "trials", "convolution", "activation", "16"} <= words
    assert any("320 us" in line for line in lines)


def test_a_narrow_terminal_spares_columns(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    spare = ("what", "trials")
    assert _on_a_terminal(200, monkeypatch, capfd, spare)[0].split() == HEADINGS
    assert _on_a_terminal(45, monkeypatch, capfd, spare)[0].split() == ["task", "each", "trials"]
    assert _on_a_terminal(32, monkeypatch, capfd, spare)[0].split() == ["task", "each"]


def test_figures_to_the_right_and_words_to_the_left(capfd: pytest.CaptureFixture[str]) -> None:
    output.table(HEADINGS, ROWS)
    heading, _, second = capfd.readouterr().out.splitlines()
    assert second.index("a row") == heading.index("what")
    assert second.endswith("16")
    assert len(second) == len(heading)
    assert second[heading.index("each") + 3] == "-"


def test_pairs(capfd: pytest.CaptureFixture[str]) -> None:
    output.pairs([("CPU", "some"), ("data caches", "L1 48 KiB, " * 20)])
    assert capfd.readouterr().out.splitlines() == ["CPU          some", f"data caches  {'L1 48 KiB, ' * 20}".rstrip()]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_long_line_is_broken_between_words_on_a_terminal(
    stream: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = "a line that is longer than a narrow terminal, with /a/path/that-is-one-word and phases: build 1.0 s"
    print_it = output.line if stream == "stdout" else output.say
    print_it(words)
    whole = getattr(capfd.readouterr(), stream[3:]).splitlines()
    assert whole == [words]
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    print_it(words)
    broken = getattr(capfd.readouterr(), stream[3:]).splitlines()
    assert len(broken) > 2 and all(len(line) <= 40 for line in broken)
    assert " ".join(broken) == words
