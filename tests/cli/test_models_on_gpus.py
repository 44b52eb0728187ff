"""`bench`, `run` and `report` of a model on a GPU: by OpenCL on PoCL, and what is refused without a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import SMALL, complaint, document, document_of_process, output_of

from stormdrop.cli.commands import compiling, tuning
from stormdrop.machine.opencl import opencl_devices

pytestmark = pytest.mark.compiles
needs_opencl = pytest.mark.skipif(
    not opencl_devices(), reason="OpenCL finds no device here (it needs pyopencl and a driver such as PoCL)"
)


@pytest.fixture(scope="module")
def on_gpu(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model, tuned for OpenCL."""
    folder = tmp_path_factory.mktemp("opencl")
    words = ["--target", "opencl", "--trials", 2, "--out", folder / "gpu.sd", "--db", folder / "r.db"]
    document_of_process("tune", artifact.with_name("small.onnx"), *words)
    return folder / "gpu.sd"


@needs_opencl
def test_a_model_on_a_gpu_is_timed_by_its_clock(on_gpu: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = document(capfd, "bench", on_gpu, "--rounds", 2)
    (ours,) = done["contenders"]  # nothing else runs by OpenCL
    assert (ours["name"], ours["device"], done["skipped"]) == ("stormdrop", "opencl", {})
    low, high = ours["call"]["interval"]
    assert ours["seconds"] > 0 and 0 < low <= ours["call"]["seconds"] <= high


@needs_opencl
def test_peers_that_are_named_run_on_the_cpu(on_gpu: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    words = ["--rounds", 2, "--against", "onnxruntime", "--report", tmp_path / "bench.html"]
    _, theirs = document(capfd, "bench", on_gpu, *words, "--for", "0.2s", "--calls", "2")["contenders"]
    assert (theirs["device"], theirs["call"], theirs["agrees"]) == ("cpu", None, True)
    assert theirs["services"][0]["ratio"] > 0
    assert "onnxruntime runs on the CPU" in (tmp_path / "bench.html").read_text()
    text = output_of(capfd, "bench", on_gpu, *words[:4])
    assert "with copies" in text and "onnxruntime: runs on the CPU" in text


@needs_opencl
def test_a_saved_model_runs_on_what_it_was_made_for(
    on_gpu: Path, artifact: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = complaint(capfd, "bench", on_gpu, "--target", "cpu")
    assert said == f"target cpu: {on_gpu} was made for opencl: leave the target out"
    assert "was made for cpu: leave" in complaint(capfd, "bench", artifact, "--target", "opencl")


@needs_opencl
def test_a_profile_on_a_gpu(on_gpu: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    profile = document(capfd, "run", on_gpu, "--profile", "--threads", 1)["profile"]
    assert profile["limits"] is None  # OpenCL does not tell them, and those of the CPU are others
    assert all(kernel["seconds"] > 0 for kernel in profile["kernels"])
    document(capfd, "run", on_gpu, "--profile", "--trace", tmp_path / "trace.json")
    trace = (tmp_path / "trace.json").read_text()
    assert all(kernel["name"] in trace for kernel in profile["kernels"])


@needs_opencl
def test_a_report_on_a_gpu_model(on_gpu: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output_of(capfd, "report", on_gpu, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "gpu_contraction" in page and "doctor --refresh" not in page  # which measures the CPU


def test_operators_on_gpus_are_timed_elsewhere(capfd: pytest.CaptureFixture[str]) -> None:
    assert complaint(capfd, "bench", *SMALL, "--target", "cuda/a100") == (
        "target a100: bench times operators on CPUs only; benchmarks/gpu/run.py times them on GPUs"
    )


def test_the_gpus_that_measure_are_named_if_there_are_several(capfd: pytest.CaptureFixture[str]) -> None:
    tuning._say_which_gpus(SimpleNamespace(gpus=[2]))  # type: ignore[arg-type]
    assert capfd.readouterr().err == ""
    tuning._say_which_gpus(SimpleNamespace(gpus=[2, 5]))  # type: ignore[arg-type]
    said = " ".join(capfd.readouterr().err.split())
    assert said == "measuring on GPUs 2, 5 at the same time; races and last timings are on GPU 2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "cuda/a100", "--arch", "sm_80,sm_85"], "unknown architecture 'sm_85'; did you mean "),
        (["--target", "cuda/a100", "--arch", ""], "--arch '': is empty; write for example --arch sm_86,sm_90+ptx"),
        (["--target", "cuda/a10000"], "unknown GPU 'a10000'; did you mean "),
        (["--target", "cpu/znver5", "--arch", "sm_80"], "target cpu/znver5: has no architectures to choose from"),
    ],
)
@pytest.mark.parametrize("command", ["compile", "tune"])
def test_wrong_targets_are_refused_before_tvm_is_loaded(
    command: str,
    words: list[str],
    message: str,
    artifact: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (compiling, tuning):
        monkeypatch.setattr(module, "prepare", lambda *_, **__: pytest.fail("TVM is loaded"))
    assert complaint(capfd, command, artifact.with_name("small.onnx"), *words).startswith(message)


def test_a_model_for_a_gpu_that_is_not_here(artifact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = "cuda/sm_75:multiprocessors=1:clock=1e9:bandwidth=1e9"
    said = complaint(capfd, "bench", artifact.with_name("small.onnx"), "--target", target)
    assert "there is no" in said and "stormdrop compile makes a model for it without measuring" in said


def test_compile_says_how_many_kernels_have_what_other_gpus_have_found(capfd: pytest.CaptureFixture[str]) -> None:
    rtx3090, t4 = "NVIDIA GeForce RTX 3090", "Tesla T4"
    compiling._print(
        {
            "kernels": 6,
            "recorded": ["a"],
            "borrowed": {"b": rtx3090, "c": t4, "d": rtx3090},
            "sizes": [],
            "verified": {"max_error": 0.0, "against": "float64"},
            "precision": None,
            "replaced": [],
            "fallbacks": [],
            "foreign": [],
            "seconds": 1.0,
            "phases": {},
            "artifact": "m.sd",
            "digest": "0",
        }
    )
    said = " ".join(capfd.readouterr().out.split())
    counts = f"1 with schedules of earlier tunings, 2 with those of {rtx3090}, 1 with those of {t4}, 2 with default"
    assert said.startswith(f"6 kernels: {counts} schedules verified")
