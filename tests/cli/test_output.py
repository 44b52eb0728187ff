"""What is printed: figures for people, JSON for tools, and nothing else on standard output."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

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
