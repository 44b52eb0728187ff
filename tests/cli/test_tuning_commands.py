"""`stormdrop tune-op` and `stormdrop tune` as a user or another tool meets them."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import SMALL, complaint, document, environment, output_of, process, recorded_trials

import stormdrop
from stormdrop.cli import run
from stormdrop.cli.commands import tuning
from stormdrop.errors import InputError
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.limits.peak import Peak
from stormdrop.measure.contract import Measurer
from stormdrop.measure.sites import Given
from stormdrop.trial import Candidate, Measurement, Request, Status

pytestmark = pytest.mark.compiles


def test_the_help_names_every_search() -> None:
    from stormdrop.search import names

    shown = process("tune-op", "--help").stdout
    listed = " ".join(shown.split()).replace("- ", "-")
    assert ", ".join(names()) in listed


def test_what_is_known_is_answered_from_the_records(database: Path, capfd: pytest.CaptureFixture[str]) -> None:
    again = document(capfd, "tune-op", *SMALL, "--db", database, "--trials", 12)
    assert again["reused"] == again["trials"] > 0
    words = ["tune-op", *SMALL, "--db", str(database), "--fresh"]
    fresh = document(capfd, *words, "--trials", 3, "--search", "random", "--seed", 5)
    assert (fresh["reused"], fresh["search"], fresh["seed"]) == (0, "random", 5)
    assert fresh["trials"] <= 3
    assert run([*words, "--trials", "2", "--time", "1m"]) == 0
    err = capfd.readouterr().err
    assert err.startswith("tuning matmul m=32 n=32 k=32 until storm converges, 2 trials or 60 s at most\n")


def test_records_of_another_shape_say_where_to_begin(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["tune-op", "matmul", "m=32", "n=32", "--db", tmp_path / "r.db", "--search", "random"]
    assert document(capfd, *words, "k=64", "--trials", 24)["transfer"] is None
    assert document(capfd, *words, "k=32", "--trials", 4, "--no-transfer")["transfer"] is None
    told = document(capfd, *words, "k=32", "--trials", 8)["transfer"]
    assert told["starts"] == 2 and told["sources"] == ["matmul m=32 n=32 k=64"]
    shown = output_of(capfd, *words, "k=32", "--trials", 8, "--seed", 1)
    assert "answered from earlier records" in shown or "recorded trials of matmul m=32 n=32 k=64 point to" in shown


def test_the_table_for_people(database: Path) -> None:
    done = process("tune-op", *SMALL, "--db", database, "--trials", 12, "--show", "schedule")
    assert done.returncode == 0
    row = re.search(r"^best +[\d.]+ \w+ +[\d.]+ \w+ to [\d.]+ \w+ +\d+ +(\d+%|-)$", done.stdout, re.MULTILINE)
    assert row is not None
    # An answer measures nothing. The peak is known if this machine was quiet when something else measured it.
    assert (row[1] == "-") == ('"of peak" is unknown, because this machine\'s peak was not measured yet' in done.stdout)
    assert "answered from earlier records" in done.stdout
    assert "# schedule" in done.stdout
    name, _, headline = done.stdout.splitlines()[-1].partition(": ")
    assert name == " ".join(SMALL) and "default schedule" in headline
    assert done.stderr == ""


def test_native_model_of_a_size_that_was_left_open(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 24]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "open", [x], [y])
    path, out = tmp_path / "open.onnx", tmp_path / "open.sd"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    assert "--shape x=" in complaint(capfd, "tune", path, "--trials", 1)
    assert "write the input and its sizes" in complaint(capfd, "tune", path, "--trials", 1, "--shape", "x")
    database = f"sqlite:///{tmp_path / 'records.db'}"
    document(capfd, "tune", path, "--trials", 1, "--shape", "x=3x24", "--native", "--out", out, "--db", database)
    assert (out / "model.so").is_file()
    assert document(capfd, "run", out)["outputs"]["y"]["shape"] == [3, 24]
    assert "has shape (2, 24), not (3, 24)" in complaint(
        capfd, "run", out, "--input", _saved(tmp_path / "x.npz", np.zeros((2, 24), "float32"))
    )


def test_a_model_is_tuned_in_bfloat16(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 32]) for name in "xy")
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    weights = np.random.default_rng(0).standard_normal((32, 32)).astype("float32")
    graph = helper.make_graph(nodes, "two", [x], [y], [numpy_helper.from_array(weights, "w")])
    path, out = tmp_path / "two.onnx", tmp_path / "two.sd"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    words = ["tune", path, "--trials", 1, "--out", out, "--db", f"sqlite:///{tmp_path / 'records.db'}"]
    tuned = document(capfd, *words, "--precision", "auto", "--max-error", "0.1")
    assert (tuned["precision"]["asked"], tuned["precision"]["layers"], tuned["precision"]["bfloat16"]) == ("auto", 2, 1)
    assert 1e-5 < tuned["precision"]["error"] < 0.1
    assert run([*map(str, words), "--precision", "bf16"]) == 0
    assert "precision: 1 of 2 layers in bfloat16; error " in capfd.readouterr().out
    assert "precision 'half': must be float32, bf16, fp16, tf32 or auto" in complaint(
        capfd, *words, "--precision", "half"
    )
    assert "precision bf16 is for ONNX files: a saved model has its own" in complaint(
        capfd, "bench", out, "--precision", "bf16"
    )


def test_resume_without_an_interrupted_run_is_said_at_the_beginning(
    database: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune-op", *SMALL, "--db", str(database), "--trials", "12", "--resume"]) == 0
    said = "--resume: there is no interrupted run with search storm and seed 0 in this database; this one begins anew"
    assert capfd.readouterr().err.splitlines()[0] == said


def test_without_a_home_directory_the_records_of_a_run_are_not_kept(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("platformdirs.user_data_dir", lambda *_, **__: "~/.local/share/stormdrop")
    monkeypatch.chdir(tmp_path)
    result = run(["tune-op", *SMALL, "--trials", "1", "--json"])
    out, err = capfd.readouterr()
    assert result == 0, err
    assert json.loads(out)["best"]["seconds"] > 0
    assert err.splitlines()[0].startswith("there is no home directory: the records of this run are not kept")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "owner"), [("tune-op", "tuning.tune"), ("tune", "model.tuning.tune")])
def test_the_time_counts_from_the_command_on(
    command: str, owner: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not from the moment when TVM and the rest of us are loaded."""
    module, read = importlib.import_module(f"stormdrop.{owner}"), list[float]()

    def started(*_: Any, started: float, **__: Any) -> None:
        read.append(started)
        raise InputError("enough")

    monkeypatch.setattr(module, "tune_with" if command == "tune-op" else "tune_model_with", started)
    monkeypatch.setattr("stormdrop.cli.commands.tuning.prepare", lambda *_, **__: read.append(time.perf_counter()))
    (tmp_path / "m.onnx").write_bytes(b"never read")
    words = SMALL if command == "tune-op" else [str(tmp_path / "m.onnx"), "--out", str(tmp_path / "m.sd")]
    before = time.perf_counter()
    assert run([command, *words, "--time", "5s", "--db", str(tmp_path / "r.db")]) == 2
    prepared, begun = read
    assert before < begun < prepared


def test_a_run_without_a_result_says_why(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = importlib.import_module("stormdrop.tuning.tune")
    real = module.tune_with

    def fail(workload: Any, *arguments: Any, **named: Any) -> Any:
        result = real(workload, *arguments, **{**named, "site": Given(AlwaysFailing())})
        assert result.best is None
        return result

    monkeypatch.setattr(module, "tune_with", fail)
    assert run(["tune-op", *SMALL, "--trials", "2", "--db", str(tmp_path / "r.db"), "--json"]) == 1
    out, err = capfd.readouterr()
    assert json.loads(out)["best"] is None
    assert err.splitlines()[-1].endswith("no candidate worked; the most frequent error: it is broken")


def test_a_search_that_a_space_has_ended_is_no_success(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = importlib.import_module("stormdrop.tuning.tune")
    real = module.tune_with

    def end(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **{**named, "site": Given(AlwaysFailing())})
        return dataclasses.replace(result, ended_by="a bad constraint")

    monkeypatch.setattr(module, "tune_with", end)
    assert run(["tune-op", *SMALL, "--trials", "2", "--db", str(tmp_path / "r.db")]) == 1
    out, err = capfd.readouterr()
    assert "no candidate worked" in out
    assert err.splitlines()[-1].endswith("its search was ended by an error: a bad constraint")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"end": "budget"}, "the search ended because its budget was spent"),
        ({"end": "exhausted"}, "the search ended because every candidate was measured"),
        ({"end": "finished"}, "the search ended at a limit of its own"),
    ],
)
def test_a_search_that_has_not_converged_says_why_it_ended(
    document: dict[str, Any], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning._print_effort({"trials": 4, "failed": 0, "seconds": 1.0, "converged": False, **document})
    assert capsys.readouterr().out.splitlines()[-1] == expected


class AlwaysFailing(Measurer):
    """A measurer for which nothing works."""

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for _ in requests:
            yield Measurement(Status.RUNTIME, (), "it is broken")

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return [Measurement(Status.RUNTIME, (), "it is broken") for _ in candidates]

    def close(self) -> None:
        pass


def _saved(path: Path, x: np.ndarray[Any, Any]) -> Path:
    np.savez(path, x=x)
    return path


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "records.db"
    words = ["tune-op", "matmul", "m=96", "n=96", "k=96", "--search", "random", "--time", "5m", "--db", path, "--json"]
    tuning = subprocess.Popen(
        [sys.executable, "-m", "stormdrop", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while recorded_trials(path) < 3:
        assert tuning.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(tuning.pid, signal.SIGINT)  # as a terminal does: to the workers too
    out, err = tuning.communicate(timeout=60)
    assert tuning.returncode == 130, err
    assert "Traceback" not in err
    interrupted = json.loads(out)
    assert interrupted["interrupted"] is True
    assert interrupted["trials"] >= 3
    assert interrupted["best"]["seconds"] > 0
    (session,) = document(capfd, "db", "list", "--db", path)["sessions"]
    assert session["state"] == "interrupted"
    assert session["trials"] >= interrupted["trials"]
    resumed = document(capfd, *words[:-5], "--trials", session["trials"] + 2, "--db", path, "--resume")
    assert resumed["reused"] == session["trials"]


def test_all_cores_are_used_where_the_user_chose_no_number() -> None:
    program = (
        "import os, stormdrop as sd\nassert 'TVM_NUM_THREADS' not in os.environ\n"
        "sd.operators\nprint(os.environ['TVM_NUM_THREADS'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=True
    )
    assert int(done.stdout) == stormdrop.machine.threads.usable_cores()


@pytest.mark.parametrize(
    ("known", "line"),
    [
        (None, '"of peak" is unknown, because this machine\'s peak was not measured yet'),
        (
            Peak(1e12, 1e10, undisturbed=False),
            'the true shares "of peak" are lower: something else used the machine while its peak was measured',
        ),
        (Peak(1e12, 1e10), ""),
    ],
    ids=["unknown", "disturbed", "known"],
)
def test_a_share_of_a_peak_that_is_not_sure_is_explained(
    known: Peak | None, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stormdrop.machine.limits.peak.known_peak", lambda _: known)
    tuning._say_what_peak_is_worth(Cpu.detect())
    out = capsys.readouterr().out
    assert out.startswith(line) and out.count("\n") == (1 if line else 0)


@pytest.mark.parametrize("option", ["--sketches", "--space"])
def test_sketches_are_named_as_in_python_and_as_before(option: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["tune-op", *SMALL, option, "nonsense"]) == 2
    assert "unknown sketches 'nonsense'" in capfd.readouterr().err


@pytest.mark.parametrize(("trials", "said"), [(9, "goes on with them"), (4, "; a larger budget (--time, --trials)")])
def test_only_what_was_measured_helps_the_next_run(trials: int, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    left = {"name": "conv", "seconds": None, "untuned": 2e-4, "reason": "no time left: default schedule"}
    document = {"tasks": [left], "trials": trials, "reused": 4, "interrupted": False}
    tuning._say_what_is_left(document, fresh=False)
    assert said in " ".join(capfd.readouterr().out.split())
