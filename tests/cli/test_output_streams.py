"""Output that nobody reads, or that cannot be written, costs no result."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import environment

from stormdrop.records import open_store


def shell(command: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A command of a shell, in which STORMDROP stands for a command of ours."""
    ours = " ".join(map(shlex.quote, [sys.executable, "-m", "stormdrop", *map(str, words)]))
    script = f"set -o pipefail; {command.replace('STORMDROP', ours)}"
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=200, env=environment(), check=False
    )


@pytest.fixture
def database(tmp_path: Path) -> Path:
    open_store(tmp_path / "r.db").close()
    return tmp_path / "r.db"


@pytest.mark.compiles
def test_a_reader_that_goes_away_costs_no_model(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 24]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model, out, records = tmp_path / "m.onnx", tmp_path / "m.sd", tmp_path / "r.db"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), model)
    done = shell("STORMDROP 2>&1 | head -1", "tune", model, "--trials", 2, "--out", out, "--db", records)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tuning ")
    assert (out / "metadata.json").is_file()
    with open_store(records) as store:
        assert [session.state.value for session in store.sessions()] == ["finished"]


def test_a_document_that_cannot_be_written_is_one_line(database: Path) -> None:
    done = shell("STORMDROP > /dev/full", "db", "list", "--db", database, "--json")
    assert (done.returncode, done.stderr) == (
        1,
        "stormdrop: standard output cannot be written: No space left on device\n",
    )


def test_a_long_output_ends_with_its_reader(database: Path) -> None:
    with open_store(database) as store:
        from stormdrop.testing.stores import PROBLEM, SETTING

        for _ in range(300):
            store.open(PROBLEM, SETTING)
    done = shell("STORMDROP | head -1", "db", "list", "--db", database)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_messages_that_cannot_be_written_are_dropped(stderr: str, tmp_path: Path) -> None:
    done = shell(f"STORMDROP {stderr}", "db", "list", "--db", tmp_path / "missing.db", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_a_standard_output_that_is_closed(database: Path) -> None:
    done = shell("STORMDROP >&-", "db", "list", "--db", database, "--json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("stream", "arrives"), [("stdout", 1_000_000), ("stderr", None)])
def test_a_pipe_that_does_not_wait_for_its_reader(stream: str, arrives: int | None) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    program = (
        f"from stormdrop.cli.streams import guard; guard(); import sys; sys.{stream}.write('x' * 1_000_000); sys.exit()"
    )
    streams: dict[str, Any] = {stream: writer}
    with subprocess.Popen([sys.executable, "-c", program], **streams) as process:
        os.close(writer)
        if arrives is None:  # nobody reads, and nothing waits for that
            assert process.wait(60) == 0
        with os.fdopen(reader, "rb") as file:
            read = len(file.read())
        assert process.wait(60) == 0
    assert read == arrives or (arrives is None and read < 1_000_000)
