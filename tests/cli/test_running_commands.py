"""`stormdrop run`, `stormdrop bench` and `stormdrop doctor` as a user or another tool meets them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import SMALL, complaint, document, document_of_process, output_of

import stormdrop

pytestmark = pytest.mark.compiles


def test_run(artifact: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype("float32")
    np.savez(tmp_path / "x.npz", x=x)
    done = document(capfd, "run", artifact, "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz")
    assert done["outputs"] == {"y": {"shape": [1, 16, 1, 1], "dtype": "float32"}}
    assert done["seconds"] > 0
    with np.load(tmp_path / "y.npz") as written:
        y = written["y"]
    assert y.shape == (1, 16, 1, 1)
    session = pytest.importorskip("onnxruntime").InferenceSession(artifact.with_name("small.onnx"))
    np.testing.assert_allclose(y, session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_run_checks_the_digest(artifact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    digest = document(capfd, "run", artifact)["digest"]
    assert document(capfd, "run", artifact, "--digest", digest)["digest"] == digest
    other = digest[::-1]
    assert f"has the digest {digest}, not {other}" in complaint(capfd, "run", artifact, "--digest", other)
    assert "must be 64 hexadecimal digits" in complaint(capfd, "run", artifact, "--digest", digest[:8])


def test_run_shows_where_the_time_goes(artifact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    profile = document(capfd, "run", artifact, "--profile")["profile"]
    assert {"seconds", "kernels", "layers", "limits", "outside", "moving"} == profile.keys()
    assert all(kernel["calls"] == 1 and kernel["seconds"] > 0 for kernel in profile["kernels"])
    (convolution,) = (kernel for kernel in profile["kernels"] if "conv2d" in kernel["name"])
    assert convolution["flops"] >= 2 * 16 * 8 * 9 * 12 * 12
    assert convolution["bytes"] >= 4 * (8 * 12 * 12 + 16 * 12 * 12 + 16 * 8 * 9)
    table = output_of(capfd, "run", artifact, "--profile")
    assert all(words in table for words in ("of its roofline", "outside of kernels", "moving data only"))


def test_run_shows_how_long_layers_take(artifact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    profile = document(capfd, "run", artifact, "--profile", "--by", "layer")["profile"]
    for kernel in profile["kernels"]:
        groups = [each for each in profile["layers"] if kernel["name"] in each["kernels"]]
        assert groups and {name for each in groups for name in each["layers"]} >= set(kernel["layers"])
    assert all(each["seconds"] > 0 for each in profile["layers"])
    table = output_of(capfd, "run", artifact, "--profile", "--by", "layer")
    assert "outside of kernels" in table and "conv" in table
    assert "--by: needs --profile" in complaint(capfd, "run", artifact, "--by", "layer")
    assert "--by: takes kernel or layer, not node" in complaint(capfd, "run", artifact, "--profile", "--by", "node")


def test_run_as_a_service(artifact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = document(capfd, "run", artifact, "--for", "0.3s", "--calls", "1,3")
    assert [service["at_a_time"] for service in done["services"]] == [1, 3]
    assert done["load"]["seconds"] == 0.3 and done["load"]["calls"] == [1, 3] and 0 <= done["load"]["disturbed"] <= 1
    for service in done["services"]:
        low, high = service["per_second_interval"]
        assert 0 < low <= service["per_second"] <= high and service["ratio"] is None
        median, most = service["percentiles"]["50"], service["percentiles"]["90"]
        assert 0 < median["interval"][0] <= median["seconds"] <= most["seconds"]
    text = output_of(capfd, "run", artifact, "--for", "0.3s", "--calls", "2")
    assert "calls/s" in text and "99%" in text
    text = output_of(capfd, "run", artifact, "--for", "0.001s", "--calls", "1")
    assert "a percentile is left out where too few calls know it" in text
    assert "services" not in document(capfd, "run", artifact)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--for", "soon"], "--for soon: not a duration; write 90s, 3m, 1h or a number of seconds"),
        (["--for", "0"], "--for 0: must be greater than zero"),
        (["--calls", "many"], "--calls many: write how many calls are made at a time, as in --calls 1,2,4"),
        (["--calls", "1,,2"], "write how many calls are made at a time"),
        (["--calls", "0"], "--calls: calls at a time: 0 is not a number from 1 to 256"),
        (["--calls", "1000"], "--calls: calls at a time: 1000 is not a number from 1 to 256"),
    ],
)
@pytest.mark.parametrize("command", ["run", "bench"])
def test_bad_loads(
    command: str, words: list[str], says: str, artifact: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert says in complaint(capfd, command, artifact, *words)


def test_an_operator_serves_no_calls(capfd: pytest.CaptureFixture[str]) -> None:
    assert "--for and --calls are for models" in complaint(capfd, "bench", *SMALL, "--for", "1s")


def test_run_takes_a_size(artifact: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import onnx

    source = onnx.load(artifact.with_name("small.onnx"))
    for value in (*source.graph.input, *source.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(source, tmp_path / "open.onnx")
    out = tmp_path / "m.sd"
    compiled = document(
        capfd, "compile", tmp_path / "open.onnx", "--shape", "x=1,2x8x12x12", "--out", out, "--db", tmp_path / "r.db"
    )
    assert [size["shapes"]["x"][0] for size in compiled["sizes"]] == [1, 2]
    assert document(capfd, "run", out)["outputs"]["y"]["shape"][0] == 1
    assert document(capfd, "run", out, "--shape", "x=2x8x12x12")["outputs"]["y"]["shape"][0] == 2
    assert "has no size x=3x8x12x12; its sizes are x=1x8x12x12; x=2" in complaint(
        capfd, "run", out, "--shape", "x=3x8x12x12"
    )
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8, 12, 12), "float32"))
    assert document(capfd, "run", out, "--input", tmp_path / "x.npz")["outputs"]["y"]["shape"][0] == 2
    again = ["--input", tmp_path / "x.npz", "--shape", "x=2x8x12x12"]
    assert "leave --shape out" in complaint(capfd, "run", out, *again)


def test_run_with_bad_inputs(artifact: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "other.npz", z=np.zeros(3, "float32"))
    np.savez(tmp_path / "shape.npz", x=np.zeros((1, 8, 12, 13), "float32"))
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("no archive")
    for name, message in (
        ("missing.npz", "no such file"),
        ("text.npz", "no .npz file"),
        ("one.npy", "single array"),
        ("other.npz", "has no input 'z'"),
        ("shape.npz", "has shape (1, 8, 12, 13), not (1, 8, 12, 12)"),
    ):
        assert message in complaint(capfd, "run", artifact, "--input", tmp_path / name)


def test_bench_of_an_operator(database: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = document(capfd, "bench", *SMALL, "--db", database, "--against", "torch,onnxruntime", "--rounds", 3)
    assert done["runs"] == 3
    ours = done["contenders"][0]
    assert (ours["name"], ours["ratio"], ours["agrees"]) == ("stormdrop", 1.0, True)
    assert set(done["skipped"]) >= {"torch-packed"}
    assert all(contender["agrees"] for contender in done["contenders"])
    names = {contender["name"] for contender in done["contenders"]}
    assert names | set(done["skipped"]) == {"stormdrop", "torch", "torch-packed", "onnxruntime"}


def test_bench_of_a_model(artifact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    done = document(capfd, "bench", artifact, "--against", "onnxruntime,torch-packed", "--rounds", 3)
    assert [contender["name"] for contender in done["contenders"]] == ["stormdrop", "onnxruntime"]
    assert done["contenders"][1]["max_error"] < 1e-4
    assert done["skipped"]["torch-packed"] == "does not run ONNX models"


def test_bench_of_a_service(artifact: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    page = tmp_path / "bench.html"
    words = ["--against", "onnxruntime", "--rounds", 2, "--for", "0.5s", "--calls", "1,2", "--report", page]
    done = document(capfd, "bench", artifact, *words)
    ours, theirs = done["contenders"]
    assert [service["at_a_time"] for service in ours["services"]] == [1, 2]
    assert [service["ratio"] for service in ours["services"]] == [1.0, 1.0]
    one, two = theirs["services"]
    assert one["forms"].keys() == {""} and two["form"] in two["forms"] and len(two["forms"]) == 2
    assert two["per_second"] == max(two["forms"].values()) and two["ratio"] > 0
    assert "How does it serve several calls at a time?" in page.read_text()
    text = output_of(capfd, "bench", artifact, *words[:4], "--for", "0.2s", "--calls", "2")
    assert "onnxruntime with 2 calls at a time is best with" in text


def test_doctor(capfd: pytest.CaptureFixture[str]) -> None:
    machine = document_of_process("doctor")
    assert machine["cores"] == stormdrop.machine.threads.usable_cores()
    assert machine["peak"]["flops"] > machine["peak"]["bandwidth"] > 0
    assert machine["versions"]["apache-tvm"] == "0.27.0.post1"
    assert "GFLOP/s" in output_of(capfd, "doctor")
