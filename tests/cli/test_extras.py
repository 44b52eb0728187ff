"""What `doctor` says of the extras: which packages are there, and which of them do not load."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from stormdrop.cli import extras
from stormdrop.cli.extras import Extra

REQUIREMENTS = [
    "numpy>=2.1",
    'pytest>=8.2; extra == "dev"',
    'good>=1.0; extra == "good"',
    'bad-one[part]==2.0; extra == "pair"',
    "good>=1.0; extra == 'pair'",
    'crash; python_version >= "3.10" and extra == "crash"',
    'absent>=3; extra == "absent"',
]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages on the search path: one loads, one raises, one ends its process."""
    bodies = {
        "good": "import os; print('hello'); os.write(1, b'from C: \\xff\\n'); os.write(2, b'\\xff')",
        "bad_one": "raise RuntimeError('operator nms does not exist\\nmore')",
        "crash": "import os; os._exit(7)",
    }
    for number, (name, body) in enumerate(bodies.items()):
        (tmp_path / f"{name}.py").write_text(body)
        info = tmp_path / f"{name}-1.{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.{number}\n")
        (info / "RECORD").write_text(f"{name}.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(metadata, "requires", lambda _: REQUIREMENTS)


@pytest.mark.usefixtures("packages")
def test_each_extra_is_there_loads_or_says_why_not() -> None:
    found = {extra.name: extra for extra in extras.extras()}
    assert list(found) == ["absent", "crash", "good", "pair"]
    assert str(found["good"]) == "good 1.0 loads" and found["good"].installed
    assert str(found["absent"]) == "absent not installed: pip install 'stormdrop[absent]'"
    assert found["pair"].packages == {"bad-one": "1.1", "good": "1.0"}
    assert found["pair"].error == "bad-one: RuntimeError: operator nms does not exist"
    assert found["crash"].error == "crash: ends the process with 7"


@pytest.mark.usefixtures("packages")
def test_a_package_that_takes_too_long_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crash.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(extras, "_LIMIT", 8.0)
    found = {extra.name: extra.error for extra in extras.extras()}
    assert found["crash"] == "crash: takes more than 8 s"
    assert found["good"] is None and found["pair"] == "bad-one: RuntimeError: operator nms does not exist"


def test_an_answer_that_is_cut_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([b'["one", null]\n["tw', b'["three", null]\n'])
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, -9, next(answers)))
    assert list(extras._imported(["one", "two", "three"])) == [
        ["one", None],
        ("two", "ends the process with -9"),
        ["three", None],
    ]


def test_a_source_tree_that_is_not_installed_has_no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert extras.extras() == []


def test_two_packages_load() -> None:
    assert str(Extra("two", {"a": "1", "b": "2"}, None)) == "a 1, b 2 load"
    assert str(Extra("two", {"a": "1", "b": None}, None)) == "b not installed: pip install 'stormdrop[two]'"
    assert str(Extra("two", {"a": "1", "b": None}, "a: x")).endswith("'stormdrop[two]'; a: x")
