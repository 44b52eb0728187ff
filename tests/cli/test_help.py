"""What helps to find a command: its help with examples, the list of operators, and tab completion."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import document, environment, output_of

from stormdrop.cli import app, run
from stormdrop.cli.guide import EXAMPLES, descriptions
from stormdrop.search import names

COMPLETIONS = [
    (["tune-op", "ma"], ["matmul"]),
    (["tune-op", "--search", "st"], ["storm"]),
    (["compare", "matmul", "--search", "storm,dro"], ["storm,droplet"]),
    (["tune", "--target", "cuda/h"], ["cuda/h100", "cuda/h200"]),
    (["compile", "--arch", "sm_80,sm_10"], ["sm_80,sm_100", "sm_80,sm_103"]),
    (["bench", "soft"], ["softmax"]),
    (["tune", "--sha"], ["--shape"]),
    (["op"], ["operators"]),
]


def all_commands() -> dict[str, Any]:
    root = typer.main.get_command(app.app)
    found: dict[str, Any] = {}
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {key}": leaf for key, leaf in inner.items()}
    return found


def test_every_command_has_examples_that_can_be_written(capfd: pytest.CaptureFixture[str]) -> None:
    found = all_commands()
    assert found.keys() == EXAMPLES.keys()
    for name, command in found.items():
        shown = output_of(capfd, *name.split(), "--help")
        for example in EXAMPLES[name]:
            assert f"  {example}\n" in shown
            program, *words = shlex.split(example)
            before, words = words[: len(name.split())], words[len(name.split()) :]
            assert [program, *before] == ["stormdrop", *name.split()]
            command.make_context(name, words)  # raises for an unknown option or a missing argument


def test_no_help_is_wider_than_a_terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("", "db", *all_commands()):
        lines = output_of(capfd, *name.split(), "--help").splitlines()
        assert [line for line in lines if len(line) > 80] == []
        listed = lines[lines.index("Commands:") :] if "Commands:" in lines else []
        assert [line for line in listed if line.endswith("...")] == []  # a sentence that the list cuts


def test_the_help_of_tune_op_describes_the_operators_without_loading_tvm() -> None:
    program = "import sys; from stormdrop.cli import run; run(['tune-op', '--help']); assert 'tvm' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    for name, what in descriptions().items():
        (line,) = [line for line in done.stdout.splitlines() if line.split()[:1] == [name]]
        assert line.endswith(what)


def test_operators(capfd: pytest.CaptureFixture[str]) -> None:
    from stormdrop import operators

    listed = document(capfd, "operators")["operators"]
    assert [entry["name"] for entry in listed] == operators.names()
    assert set(descriptions()) == set(operators.names()), "an operator does not say what it computes"
    assert {entry["name"]: entry["arguments"] for entry in listed}["matmul"] == operators.usage("matmul")
    rows = output_of(capfd, "operators").splitlines()
    assert len(rows) == 1 + len(listed)
    assert all(descriptions()[row.split()[0]] in row for row in rows[1:])


@pytest.mark.parametrize(("words", "offered"), COMPLETIONS, ids=lambda value: " ".join(value))
def test_completion(
    words: list[str], offered: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_STORMDROP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", shlex.join(["stormdrop", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit) as end:
        run([])
    assert end.value.code == 0
    assert capfd.readouterr().out.split() == offered


def test_files_complete_what_may_be_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.onnx").touch()
    monkeypatch.chdir(tmp_path)
    from stormdrop.cli.completion import operators_and_files

    assert operators_and_files("mo") == ["models"]
    assert operators_and_files("models/s") == ["models/small.onnx"]
    assert operators_and_files(f"{tmp_path}/m") == [f"{tmp_path}/models"]
    assert "matmul" in operators_and_files("") and "models" in operators_and_files("")


def test_completion_loads_no_tvm_and_names_all_searches() -> None:
    program = (
        "import sys; from stormdrop.cli import completion; print(*completion.searches('')); "
        "completion.targets(''); assert 'tvm' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.stdout.split() == list(names()), done.stderr


def test_the_script_of_a_shell_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stormdrop", "--show-completion", "bash"],
        capture_output=True,
        text=True,
        env={**environment(), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert "_STORMDROP_COMPLETE=complete_bash" in done.stdout, done.stderr
