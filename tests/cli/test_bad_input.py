"""Bad input of the commands that tune, run and bench: one line on standard error, and exit code 2."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import SMALL, complaint

from stormdrop import records
from stormdrop.cli import options, run
from stormdrop.errors import InputError, MeasureError, OperatorError, StormdropError, UnsupportedFunction


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing command"),
        (["--bogus"], "No such option: --bogus"),
        (["tuneop"], "No such command 'tuneop'"),
        (["tune-op"], "Missing argument 'OPERATOR'"),
        (["tune"], "Missing argument 'MODEL.onnx'"),
        (["tune-op", *SMALL, "--bogus"], "No such option: --bogus"),
        (["tune-op", "matmul", "--m=64"], "--m: an argument of an operator has no dashes: m=64"),
        (["bench", "conv2d", "--kh", "3"], "--kh: an argument of an operator has no dashes: kh=VALUE"),
        (["tune-op", *SMALL, "--trails", "5"], "No such option: --trails (Possible options: --trace, --trials) (see"),
        (["tune-op", *SMALL, "--trials", "many"], "Invalid value for '--trials'"),
        (["tune-op", *SMALL, "--trials", "0"], "--trials 0: must be 1 or more"),
        (["tune-op", *SMALL, "--seed", "-1"], "--seed -1: must be 0 or more"),
        (["tune-op", *SMALL, "--time", "soon"], "--time soon: not a duration; write 90s, 3m, 1h"),
        (["tune-op", *SMALL, "--time", "0"], "--time 0: must be greater than zero"),
        (["tune-op", *SMALL, "--resume", "--fresh"], "--resume and --fresh exclude each other"),
        (["tune-op", *SMALL, "--max-error", "1.5"], "--max-error 1.5: must be from 0 to less than 1"),
        (["tune-op", *SMALL, "--show", "assembly"], "--show assembly: must be schedule or tir"),
        (["tune-op", *SMALL, "--search", "dropplet"], "unknown search 'dropplet'; did you mean 'droplet'"),
        (["tune-op", *SMALL, "--target", "cuda/a10"], "unknown GPU 'a10'; did you mean 'a10g'"),
        (["tune-op", *SMALL, "--target", ""], "--target '': is empty; write for example --target cpu"),
        (["tune-op", *SMALL, "--runner", " "], "--runner '': is empty; write for example --runner 127.0.0.1:9090"),
        (["bench", *SMALL, "--target", ""], "--target '': is empty"),
        (["bench", *SMALL, "--seed", "-1"], "--seed -1: must be 0 or more"),
        (["run", "nowhere.sd", "--seed", "-1"], "--seed -1: must be 0 or more"),
        (["tune-op", *SMALL, "--runner", "nowhere"], "runner 'nowhere': write HOST:PORT, such as 127.0.0.1:9090"),
        (["tune-op", *SMALL, "--features", "knob"], "unknown features 'knob'; did you mean 'knobs'"),
        (["tune-op", *SMALL, "--target", "toaster"], "unknown target 'toaster'"),
        (["tune-op", *SMALL, "--target", "cpu/neoverse-n1"], "target cpu/neoverse-n1 is another machine"),
        (["tune-op", "matmull", "m=1"], "unknown operator 'matmull'; did you mean 'matmul'"),
        (["tune-op", "matmul", "m=32", "n=32"], "matmul needs k"),
        (["tune-op", "matmul", "m=32", "n=32", "k=32", "q=1"], "matmul has no argument 'q'"),
        (["tune-op", "matmul", "m=32", "n=32", "k=x"], "k='x' is not a whole number"),
        (["tune-op", "matmul", "m=32", "n=32", "k=1.5"], "k='1.5' is not a whole number"),
        (["tune-op", "matmul", "m=32", "n=32", "k=0"], "k=0 must be positive"),
        (["tune-op", "matmul", "m=32", "n=32", "k=-4"], "k=-4 must be positive"),
        (["tune-op", "matmul", "m=32", "n=32", "k"], "argument 'k': write name=value"),
        (["tune-op", "matmul", "m=32", "n=32", "k=3", "k=4"], "argument k is given twice"),
        (["tune-op", "reduce", "shape=4xax4", "axis=1"], "is not a list of whole numbers such as 128x512"),
        (["tune-op", *SMALL, "dtype=float64"], "dtype=float64 is not supported yet"),
        (["bench", *SMALL, "--against", "torhc"], "unknown peer 'torhc'; did you mean 'torch'?"),
        (["bench", *SMALL, "--rounds", "1"], "rounds 1: an interval needs 2 or more"),
        (["bench", "nowhere.onnx"], "nowhere.onnx"),
        (["bench", "nonsense"], "unknown operator 'nonsense'"),
        (["run", "nowhere.sd"], "nowhere.sd: no such folder"),
        (["run", "."], "no stormdrop model; give a folder that `stormdrop tune` or `stormdrop compile` wrote"),
        (["run", "nowhere.sd", "-p"], "No such option: -p (Possible options: --profile)"),
        (["db", "import", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["db", "list", "my.db"], "extra argument(s) (my.db); a database is named with --db my.db (see"),
        (["dashboard", "sqlite:///my.db"], "a database is named with --db sqlite:///my.db"),
        (["tune-op", "matmul", "m=8,n=8,k=8"], "'m=8,n=8,k=8': write spaces between arguments: m=8 n=8 k=8"),
        (["tune-op", "net.onnx"], "net.onnx: is no operator; `stormdrop tune net.onnx` tunes a model"),
        (["tune", "https://example.org/net.onnx"], "is an address; download the file, and give its path"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in complaint(capfd, *words)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_bad_models(capfd: pytest.CaptureFixture[str], tmp_path: Path, flags: list[str]) -> None:
    import onnx

    graph = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
    (tmp_path / "cut.onnx").write_bytes(graph.read_bytes()[:1000])
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("missing.onnx", "cut.onnx", "text.onnx", "empty.onnx"):
        assert name in complaint(capfd, "tune", tmp_path / name, "--db", tmp_path / "x.db", *flags)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("net.pt", "its name is that of another kind (PyTorch): export the model to ONNX"),
        ("empty.onnx", "is empty; give an ONNX file"),
        ("folder.onnx", "is a folder; give the path of an ONNX file"),
        ("tuned.sd", "is a compiled model; run or bench it, or give the ONNX file that it comes from"),
    ],
)
@pytest.mark.parametrize("command", ["tune", "compile", "quantize", "bench"])
def test_what_is_no_onnx_file(
    command: str, name: str, message: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for folder in ("folder.onnx", "tuned.sd"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tuned.sd" / "metadata.json").write_text("{}")
    (tmp_path / "net.pt").write_bytes(b"bytes")
    (tmp_path / "empty.onnx").touch()
    if command == "bench" and (tmp_path / name).is_dir():
        pytest.skip("bench takes the folder of a compiled model")
    flags = ["--weights-only", "8"] if command == "quantize" else []
    assert message in complaint(capfd, command, tmp_path / name, *flags)


def test_an_unsupported_operator_is_named_with_its_node(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    node = helper.make_node("FancyPool", ["x"], ["y"], name="the_odd_one", domain="example.org")
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("example.org", 1)]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets), tmp_path / "m.onnx")
    line = complaint(capfd, "tune", tmp_path / "m.onnx", "--db", tmp_path / "x.db")
    assert "FancyPool" in line
    assert "the_odd_one" in line


def test_bad_databases(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, and long enough to be read as one" * 20)
    for place in (tmp_path / "no" / "x.db", tmp_path, tmp_path / "text.db"):
        assert str(place) in complaint(capfd, "tune-op", *SMALL, "--db", place)
        assert str(place) in complaint(capfd, "db", "list", "--db", place)
    assert "nosuch" in complaint(capfd, "db", "list", "--db", "nosuch://host/records")


def test_a_database_that_does_not_exist_is_not_made_by_a_look_at_it(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for words in (["list"], ["export", tmp_path / "all.jsonl"]):
        assert "typo.db does not exist" in complaint(capfd, "db", *words, "--db", tmp_path / "typo.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["db", "list", "URL"], ["db", "list", "--db", "URL"], ["db", "merge", "URL"]])
def test_no_line_holds_a_password(
    words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STORMDROP_DB", str(tmp_path / "r.db"))
    records.open_store(tmp_path / "r.db").close()
    url = "postgresql+nosuch://me:s3cr3t@host/db?sslpassword=s3cr3t"
    line = complaint(capfd, *[url if word == "URL" else word for word in words])
    assert "s3cr3t" not in line


def test_out_must_be_possible_before_the_work(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"never read")
    assert "there is no directory" in complaint(capfd, "tune", model, "--out", tmp_path / "no" / "m.sd")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("mine")
    for name in ("file", "folder"):
        line = complaint(capfd, "tune", model, "--out", tmp_path / name)
        assert line == f"--out {tmp_path / name}: exists and is no stormdrop model; it is left as it is"
    (tmp_path / "empty").mkdir()
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "metadata.json").write_text("{}")
    for name in ("empty", "older", "new.sd"):
        assert options.artifact_folder(tmp_path / name, "--out") == tmp_path / name
    assert "is a directory" in complaint(capfd, "run", "nowhere.sd", "--output", tmp_path)


def test_a_folder_that_a_model_may_be_saved_to_is_one_that_the_command_takes(tmp_path: Path) -> None:
    """The command line has the rule of `CompiledModel.save` without loading TVM: here they are held together."""
    from stormdrop.model.artifact.artifact import CompiledModel

    model = CompiledModel.__new__(CompiledModel)
    model.write_files = lambda folder, native: ""  # type: ignore[method-assign]
    for make in ("new", "empty", "older", "file", "folder"):
        path = tmp_path / make
        if make == "file":
            path.write_text("mine")
        elif make != "new":
            path.mkdir()
        if make in ("older", "folder"):
            (path / ("metadata.json" if make == "older" else "thesis.txt")).write_text("{}")
        refused = []
        for attempt in (lambda folder: options.artifact_folder(folder, "--out"), model.save):
            try:
                attempt(path)
            except InputError as error:
                refused.append(str(error).removeprefix("--out "))
        assert refused in ([], [f"{path}: exists and is no stormdrop model; it is left as it is"] * 2)
        assert bool(refused) == (make in ("file", "folder"))


@pytest.mark.parametrize("sizes", [["m=99999999999", "n=4", "k=4"], ["m=100000", "n=100000", "k=4"]])
def test_absurd_sizes(capfd: pytest.CaptureFixture[str], tmp_path: Path, sizes: list[str]) -> None:
    assert "matmul" in complaint(capfd, "tune-op", "matmul", *sizes, "--db", tmp_path / "x.db")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OperatorError("m is too large:\n  1e30"), 2),
        (UnsupportedFunction("m is too large: 1e30"), 2),
        (MeasureError("m is too large: 1e30"), 1),
        (StormdropError("m is too large: 1e30"), 1),
        (MemoryError("m is too large: 1e30"), 1),
    ],
)
def test_every_error_of_ours_is_one_line_and_closes_the_database(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, code: int
) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise error

    def open_store(url: str | None) -> Any:
        store = real(url)
        close = store.close
        monkeypatch.setattr(store, "close", lambda: (closed.append(True), close()))
        return store

    closed: list[bool] = []
    real = records.open_store
    monkeypatch.setattr(records, "open_store", open_store)
    monkeypatch.setattr(importlib.import_module("stormdrop.tuning.tune"), "tune_with", fail)
    monkeypatch.setattr(importlib.import_module("stormdrop.model.tuning.tune"), "tune_model_with", fail)
    (tmp_path / "m.onnx").write_bytes(b"never read")
    for words in (["tune-op", *SMALL], ["tune", str(tmp_path / "m.onnx")]):
        assert run([*words, "--db", str(tmp_path / "x.db")]) == code
        out, err = capfd.readouterr()
        assert out == ""
        assert re.fullmatch(r"stormdrop: (out of memory: )?m is too large: 1e30\n", err)
    assert closed == [True, True]


@pytest.mark.parametrize(
    "words",
    [
        ("tune", "{path}/m.onnx", "--trials", "1"),
        ("bench", "{path}/m.onnx"),
        ("db", "export", "{path}/all.jsonl", "--db", "{database}"),
        ("tune-op", "softmax", "m=4", "n=4", "--db", "{path}/records.db"),
    ],
    ids=lambda words: words[0],
)
def test_a_folder_that_may_not_be_entered(
    words: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python before 3.14 raises an error for it if one asks whether there is a file."""
    from stormdrop.records import open_store

    path, database = tmp_path / "closed", tmp_path / "records.db"
    open_store(database).close()
    real = os.stat

    def stat(file: Any, *arguments: Any, **named: Any) -> Any:
        if str(file).startswith(str(path)):
            raise PermissionError(13, "Permission denied", str(file))
        return real(file, *arguments, **named)

    monkeypatch.setattr(os, "stat", stat)
    message = complaint(capfd, *[word.format(path=path, database=database) for word in words])
    assert str(path) in message
