"""The kit for a GPU without a network: bundles are cut, checked and unpacked, and first contacts go on."""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KIT = BENCHMARKS / "gpu" / "kit"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
CONTENTS = {
    "site-packages/package/data": np.random.default_rng(0).bytes(5000),  # which xz cannot make smaller
    "source/src/module.py": b"answer = 42\n",
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    for folder in (BENCHMARKS / "models", BENCHMARKS, BENCHMARKS / "kernels", KIT):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module


@pytest.fixture
def parts(load: Callable[[str], ModuleType], tmp_path: Path) -> Path:
    """A bundle of two small files, in parts of 2,000 bytes."""
    if shutil.which("xz") is None:
        pytest.skip("needs xz")
    folder = tmp_path / "parts"
    folder.mkdir()
    made = load("bundle").Bundle(folder, 2000)
    made.manifest |= {"python": HERE, "assumed": ["numpy", "no-such-package"]}
    made.archive("packages", "key", _write)
    return folder


def _write(file: BinaryIO) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in CONTENTS.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def _unpack(parts: Path, into: Path) -> subprocess.CompletedProcess[str]:
    """Runs the script with a Python that finds no packages."""
    command = [sys.executable, "-I", "-S", str(KIT / "unpack.py"), str(parts), "--into", str(into)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_bundle_is_cut_and_unpacked(parts: Path, tmp_path: Path) -> None:
    sizes = [path.stat().st_size for path in sorted(parts.glob("packages.tar.xz.*"))]
    assert len(sizes) >= 3
    assert set(sizes[:-1]) == {2000}
    assert 0 < sizes[-1] <= 2000
    into = tmp_path / "un packed"
    for _ in range(2):  # a second time in place of the first
        done = _unpack(parts, into)
        assert done.returncode == 0, done.stderr
        assert {name: (into / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert "no-such-package is not installed here" in done.stderr
    program = f". '{into}/activate' && '{sys.executable}' -c 'import module; print(module.answer)'"
    assert subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=False).stdout == "42\n"


def test_parts_that_are_right_are_not_made_again(
    load: Callable[[str], ModuleType], parts: Path, tmp_path: Path
) -> None:
    made: list[str] = []

    def again(key: str) -> dict[str, bytes]:
        load("bundle").Bundle(parts, 2000).archive("packages", key, lambda file: made.append(key) or _write(file))
        return {path.name: path.read_bytes() for path in parts.glob("packages*")}

    before = again("key")
    assert made == []
    _flip(parts / "packages.tar.xz.01")
    assert again("key") == before
    (parts / "packages.tar.xz.00").unlink()
    assert again("key") == before
    again("another key")
    assert made == ["key", "key", "another key"]


def test_onnx2torch_is_brought_without_what_it_needs(
    load: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = load("bundle")
    asked: list[list[str]] = []

    def run(command: list[str]) -> str:
        if command[0] == "git":
            return ""
        asked.append(command)
        download = {"archive_info": {"hashes": {"sha256": "0"}}}
        return json.dumps({"install": [{"metadata": {"name": command[-1], "version": "1"}, "download_info": download}]})

    monkeypatch.setattr(bundle, "_run", run)
    monkeypatch.setattr(bundle.Bundle, "archive", lambda *_: None)
    bundle.make(tmp_path, ["numpy"], "", "3.12", 2000)
    assert [command[-1] for command in asked if "--no-deps" in command] == ["onnx2torch"]
    assert "; 2 packages, commit" in capsys.readouterr().out


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def _edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda parts: (parts / "packages.tar.xz.01").unlink(), "packages.tar.xz.01 is missing"),
    "damaged": (lambda parts: _flip(parts / "packages.tar.xz.02"), "packages.tar.xz.02 is damaged: its SHA-256"),
    "cut off": (lambda parts: os.truncate(parts / "packages.tar.xz.00", 1999), "has 1999 bytes, not 2000"),
    "no manifest": (lambda parts: (parts / "manifest.json").unlink(), "manifest.json is missing"),
    "no JSON": (lambda parts: (parts / "manifest.json").write_text("{"), "manifest.json is damaged: it is no JSON"),
    "another manifest": (lambda parts: (parts / "manifest.json").write_text("{}"), "is no manifest of a bundle"),
    "a list": (lambda parts: (parts / "manifest.json").write_text("[]"), "is no manifest of a bundle"),
    "an archive without parts": (
        lambda parts: _edit(parts / "manifest.json", archives={"packages": {"key": "", "bytes": 0}}),
        "is no manifest of a bundle",
    ),
    "a manifest that cannot be read": (
        lambda parts: [(parts / "manifest.json").unlink(), (parts / "manifest.json").mkdir()],
        "Is a directory",
    ),
    "another Python": (
        lambda parts: _edit(parts / "manifest.json", python="2.7"),
        f"the bundle is for Python 2.7, and this is Python {HERE}: bundle.py --python {HERE}",
    ),
    "no room": (
        lambda parts: _edit(
            parts / "manifest.json",
            archives={
                "packages": {
                    **json.loads((parts / "manifest.json").read_text())["archives"]["packages"],
                    "bytes": 10**18,
                }
            },
        ),
        "MB are free, and 1000000000000 MB are needed",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bundle_with_a_fault_is_refused_by_one_line(parts: Path, tmp_path: Path, fault: str) -> None:
    spoil, message = FAULTS[fault]
    spoil(parts)
    done = _unpack(parts, tmp_path / "unpacked")
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "unpacked").exists()


@pytest.mark.parametrize("into", ["/proc/unpacked", "parts/manifest.json/unpacked", "parts/manifest.json"])
def test_a_folder_that_cannot_be_made_is_refused_by_one_line(parts: Path, tmp_path: Path, into: str) -> None:
    done = _unpack(parts, tmp_path / into)
    assert done.returncode == 1
    assert str(Path(into).parent) in done.stderr
    assert done.stderr.count("\n") == 1


def test_programs_that_fail_are_one_line_of_a_bundle(
    load: Callable[[str], ModuleType], parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = load("bundle")

    def refused(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["bundle.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            bundle.main()
        assert "\n" not in str(ended.value)
        return str(ended.value)

    monkeypatch.setattr(bundle._Pip, "needed", lambda *_: {})
    assert "Not a directory" in refused(f"--out={parts}/manifest.json/out")
    (parts / "manifest.json").write_text("{")
    assert refused(f"--out={parts}").endswith("manifest.json is damaged: it is no JSON")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert refused(f"--out={tmp_path}/out") == "git cannot be run: No such file or directory"
    archive = partial(bundle.Bundle(tmp_path, 2000).archive, "packages", "key", _write)
    with pytest.raises(bundle.BundleError, match="xz cannot be run: No such file"):
        archive()
    _program(tmp_path / "bin" / "xz", "echo no memory >&2; exit 1")
    with pytest.raises(bundle.BundleError, match="xz -6 -T2 --stdout failed: no memory"):
        archive()


def test_a_report_of_pip_that_lacks_something_is_refused(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = load("bundle")
    monkeypatch.setattr(bundle, "_run", lambda command: "{}")
    with pytest.raises(bundle.BundleError, match="pip's report on numpy cannot be read: KeyError"):
        bundle._Pip("3.12").needed("numpy")


def test_a_folder_with_something_else_is_left_alone(parts: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "source"
    mine.mkdir(parents=True)
    assert "holds something else: choose a new folder" in _unpack(parts, mine.parent).stderr
    assert mine.is_dir()


def test_a_failed_item_is_tried_again_and_a_known_one_is_not(load: Callable[[str], ModuleType], tmp_path: Path) -> None:
    steps, campaign = load("_steps"), load("_common").Campaign
    answers = iter([ValueError("broken"), steps.Skipped("no tool"), {"figure": 1}])

    def work() -> dict[str, int]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    statuses = []
    for _ in range(4):
        kit = steps.Kit("limits", False, campaign(tmp_path / "file.jsonl", retries=True), 60.0, 9.0)
        kit.item("name", work)
        statuses.append(kit.summary()["status"])
    assert statuses == ["failed", "skipped", "ok", "ok"]
    assert next(answers, None) is None
    late = steps.Kit("limits", False, campaign(tmp_path / "file.jsonl"), -1.0, 9.0)
    with pytest.raises(steps.Skipped, match="0 s are left, and another needs 1: another call goes on"):
        late.item("another", work)


def test_an_item_is_not_begun_with_too_few_seconds(load: Callable[[str], ModuleType], tmp_path: Path) -> None:
    steps, campaign = load("_steps"), load("_common").Campaign(tmp_path / "file.jsonl")
    for minutes, seconds in ((9.0, 60.0), (4.5, 30.0)):
        kit = steps.Kit("models", False, campaign, 59.0, minutes)
        assert kit.scaled(60) == seconds
    kit.item("in half the minutes", lambda: {"figure": 1}, kit.scaled(60))
    with pytest.raises(steps.Skipped, match="and as long needs 60"):
        kit.item("as long", lambda: {"figure": 1}, 60.0)
    assert [entry["item"] for entry in campaign.entries] == ["in half the minutes"]


def test_a_tuned_model_is_kept_when_its_bench_is_cut_off(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, campaign = load("_steps"), load("_common").Campaign
    done: list[str] = []

    def tune_model(file: Path, out: Path, **_: Any) -> SimpleNamespace:
        done.append(f"tune {file.name}")
        out.mkdir()
        return SimpleNamespace(latency=Latency(), trials=1, verified=SimpleNamespace(max_error=0.0))

    def cut_off(out: Path, rounds: int) -> None:
        done.append(f"bench {out.name}")
        raise KeyboardInterrupt

    @dataclass
    class Latency:
        median: float = 1.0

    monkeypatch.setattr(steps, "_MODELS", {"resnet18": "resnet18"})
    monkeypatch.setattr(steps, "_graph", lambda name: SimpleNamespace(SerializeToString=lambda: b""))
    monkeypatch.setattr(steps, "_compiled", lambda kit, name: {})
    monkeypatch.setattr(steps, "sd", SimpleNamespace(tune_model=tune_model, bench=cut_off))
    monkeypatch.setattr(steps.Kit, "tuning", lambda kit, seconds: {})
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            steps.models(steps.Kit("models", False, campaign(tmp_path / "file.jsonl"), 90.0, 9.0))
    assert done == ["tune resnet18.onnx", "bench resnet18", "bench resnet18"]


def test_steps_that_have_ended_are_not_run_again(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load("first_contact")
    ends = {"gpu": "ok", "limits": "failed", "sketches": "skipped"}
    ran: list[tuple[str, float]] = []

    def in_child(step: str, limit: float, options: Namespace) -> dict[str, str]:
        ran.append((step, limit))
        return {"status": ends.get(step, "ok"), "reason": "as the test wants"}

    monkeypatch.setattr(script, "_in_child", in_child)

    def call(*arguments: str) -> list[str]:
        ran.clear()
        monkeypatch.setattr(sys, "argv", ["first_contact.py", f"--out={tmp_path}/file.jsonl", *arguments])
        script.main()
        return [step for step, _ in ran]

    everything = ["gpu", "limits", "sketches", "sanitizer", "operators", "models", "torch_compile", "papers"]
    assert call("--minutes=4.5") == everything
    assert dict(ran)["sketches"] == pytest.approx(40)
    assert dict(ran)["gpu"] == pytest.approx(7.5)
    assert call() == ["sketches"]
    assert call("--only=limits") == ["limits"]
    assert call("--host") == everything  # a dry run says nothing of a GPU
    assert call("--minutes=1", "--host") == ["sketches"]
    assert dict(ran)["sketches"] == pytest.approx(80 / 9)
    assert call("--minutes=0.01", "--only=gpu") == []
    assert json.loads((tmp_path / "file.jsonl").read_text().splitlines()[-1])["reason"] == "no time left"


def test_a_file_of_another_gpu_is_refused(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, file = load("first_contact"), tmp_path / "file.jsonl"
    for number in (0, 1):
        entry = {"step": "gpu", "item": f"gpu {number}", "host": False, "name": "NVIDIA H100"}
        load("_common").Campaign(file).keep(entry)
    load("_common").Campaign(file).keep({"step": "gpu", "item": "target", "host": False, "name": "h100"})
    monkeypatch.setattr(script, "_in_child", lambda *_: {"status": "ok", "reason": "as the test wants"})

    def call(*arguments: str, gpus: Sequence[str]) -> None:
        monkeypatch.setattr(script, "visible_gpus", lambda: [SimpleNamespace(name=name) for name in gpus])
        monkeypatch.setattr(sys, "argv", ["first_contact.py", f"--out={file}", "--only=gpu", *arguments])
        script.main()

    call(gpus=["NVIDIA H100"])
    call("--host", gpus=[])
    before = file.read_text()
    with pytest.raises(SystemExit, match="is of NVIDIA H100, and here is NVIDIA H200: choose another file by --out"):
        call(gpus=["NVIDIA H200"])
    with pytest.raises(SystemExit, match="and here is no GPU"):
        call(gpus=[])
    assert file.read_text() == before


def test_a_step_that_hangs_is_ended(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load("first_contact")
    hangs = tmp_path / "hangs.py"
    hangs.write_text("import time; time.sleep(3600)")
    monkeypatch.setattr(script, "__file__", str(hangs))
    monkeypatch.setattr(script, "_GRACE", 0.1)
    options = SimpleNamespace(minutes=9.0, out=tmp_path / "file.jsonl", host=False, only=None)
    assert script._in_child("gpu", 0.2, options) == {
        "status": "skipped",
        "reason": "ended after 0 s: another call goes on",
    }
    hangs.write_text("import sys; sys.exit(3)")
    assert script._in_child("gpu", 60.0, options)["reason"] == "its process ended with 3"


def test_only_a_step_that_is_named_tries_again_what_has_failed(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, file = load("first_contact"), tmp_path / "file.jsonl"
    load("_common").Campaign(file).keep({"step": "gpu", "item": "name", "host": False, "failed": "broken"})
    monkeypatch.setattr(script, "STEPS", {"gpu": lambda kit: kit.item("name", lambda: {"figure": 1})})
    relay = tmp_path / "relay.py"
    relay.write_text("import json, sys; print(json.dumps({'arguments': sys.argv[1:]}))")
    monkeypatch.setattr(script, "__file__", str(relay))
    ends = []
    for only in (None, "gpu"):
        call = script._in_child("gpu", 60.0, Namespace(minutes=9.0, out=file, host=False, only=only))
        monkeypatch.setattr(sys, "argv", ["first_contact.py", *call["arguments"]])
        ends.append(script._result(script._options())["status"])
    assert ends == ["failed", "ok"]


def test_nothing_outlives_a_step(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, step, pipe = load("first_contact"), tmp_path / "step.py", tmp_path / "pipe"
    os.mkfifo(pipe)
    step.write_text(
        "import json, subprocess\n"
        f"subprocess.Popen(['sleep', '3600'], stdout=open({str(pipe)!r}, 'w'))\n"
        "print(json.dumps({'status': 'ok', 'reason': 'it has begun'}))"
    )
    monkeypatch.setattr(script, "__file__", str(step))
    options = Namespace(minutes=9.0, out=tmp_path / "file.jsonl", host=False, only=None)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as end:
        assert script._in_child("gpu", 60.0, options) == {"status": "ok", "reason": "it has begun"}
        os.set_blocking(end.fileno(), True)
        assert end.read() == b""  # which waits for the end of the process that holds the other end


def test_a_tool_that_takes_too_long_is_given_up(load: Callable[[str], ModuleType], tmp_path: Path) -> None:
    tool, number = tmp_path / "tool", tmp_path / "number"
    _program(tool, f"sleep 3600 & echo $! >{number}.new; mv {number}.new {number}; wait")
    for seconds in (1, 8, 64):  # a busy machine may take longer to start it
        assert load("_steps")._sanitized(str(tool), "memcheck", seconds) == {"failed": f"takes more than {seconds} s"}
        if number.exists():
            break
    os.kill(int(number.read_text()), signal.SIGKILL)  # the step ends it; the tool's end did not wait for it


@pytest.mark.compiles
def test_a_network_of_torch_is_compiled_and_compared(load: Callable[[str], ModuleType], tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the network is one of torch")
    kit = load("_steps").Kit("torch_compile", True, load("_common").Campaign(tmp_path / "file.jsonl"), 60.0, 9.0)
    load("_steps").torch_compile(kit)
    assert kit.summary() == {"status": "ok", "reason": "1 of 1 are fine"}


@pytest.fixture
def gpu_kit(load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Runs a step as on an A100, with programs from the folder `bin`. Returns its findings by item, and its summary."""
    steps, campaign = load("_steps"), load("_common").Campaign(tmp_path / "file.jsonl", retries=True)
    monkeypatch.setattr(steps.Kit, "target", steps.GPUS["a100"])
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    def run(step: str) -> tuple[dict[str, Any], dict[str, str]]:
        kit = steps.Kit(step, False, campaign, 60.0, 9.0)
        steps.STEPS[step](kit)
        return {entry["item"]: entry for entry in campaign.entries if entry["step"] == step}, kit.summary()

    return run


def test_tunings_of_shapes_are_shorter_with_fewer_minutes(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, campaign = load("_steps"), load("_common").Campaign(tmp_path / "file.jsonl")
    monkeypatch.setattr(steps.Kit, "target", steps.GPUS["a100"])
    monkeypatch.setattr(steps.table_1, "SMALL", ["M0"])
    monkeypatch.setattr(steps, "TABLE_1", [])
    monkeypatch.setattr(steps.table_1, "measure", lambda shape, device, options, *_: {"budgets": options.budgets})
    with pytest.raises(steps.Skipped, match="and M0 needs 270"):
        steps.papers(steps.Kit("papers", False, campaign, 200.0, 9.0))
    steps.papers(steps.Kit("papers", False, campaign, 200.0, 4.5))
    assert [entry["budgets"] for entry in campaign.entries] == [[0.25]]


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_limits_stand_beside_the_data_sheet(gpu_kit: Callable[[str], Any], tmp_path: Path) -> None:
    _program(tmp_path / "bin" / "limits", """echo '{"name": "A100", "flops": 1.56e13, "bandwidth": 1.6312e12}'""")
    _program(tmp_path / "bin" / "nvcc", f"""test "$2$3" = -arch=sm_80-o && cp {tmp_path}/bin/limits "$4" """)
    findings, _ = gpu_kit("limits")
    assert findings["limits"]["of_stated_flops"] == pytest.approx(0.8)
    assert findings["limits"]["of_stated_bandwidth"] == pytest.approx(0.8)


def test_a_program_that_fails_is_a_finding(gpu_kit: Callable[[str], Any], tmp_path: Path) -> None:
    _program(tmp_path / "bin" / "nvcc", "echo ignored >&2; echo unsupported gpu architecture >&2; exit 1")
    findings, summary = gpu_kit("limits")
    assert findings["limits"]["failed"] == "MeasureError: nvcc ended with 1: unsupported gpu architecture"
    assert summary["status"] == "failed"


def test_what_compute_sanitizer_reports_is_kept(gpu_kit: Callable[[str], Any], tmp_path: Path) -> None:
    says = "echo noise; echo '========= ERROR SUMMARY: 3 errors'"
    _program(tmp_path / "bin" / "compute-sanitizer", f'{says}; test "$2" = racecheck && exit 9; exit 0')
    findings, summary = gpu_kit("sanitizer")
    assert list(findings) == ["memcheck", "racecheck", "synccheck"]
    assert all(found["report"] == ["========= ERROR SUMMARY: 3 errors"] for found in findings.values())
    assert [name for name, found in findings.items() if "failed" in found] == ["racecheck"]
    assert "ended with 9: ========= ERROR SUMMARY: 3 errors" in summary["reason"]


@pytest.mark.parametrize(
    "case",
    [
        "softmax m=6 n=50",
        "layer_norm m=6 n=50",
        "matmul m=8 n=6 k=4",
        "conv2d n=1 h=7 w=7 ci=4 co=6 kh=3 kw=3 pad=1",
        "depthwise_conv2d n=1 h=7 w=7 ci=8 kh=3 kw=3 stride=2 pad=1",
    ],
)
def test_torch_computes_the_same_operators(load: Callable[[str], ModuleType], case: str) -> None:
    torch = pytest.importorskip("torch")
    steps = load("_steps")
    work = steps._workload(case)
    inputs = work.random_inputs(0)
    (expected,) = steps.evaluate_graph(work.graph, inputs)
    for name, call in steps.table_1.torch_calls(work, [torch.from_numpy(array) for array in inputs]).items():
        found = call().numpy()
        found = found.transpose(0, 2, 3, 1) if found.ndim == 4 else found
        assert steps.relative_error(found, expected) < 1e-5, name


def test_torch_times_the_same_squeezenet(load: Callable[[str], ModuleType]) -> None:
    """Version 1.1 has 1,235,496 parameters, as torchvision's documentation says, and version 1.0 has 1,248,424."""
    steps = load("_steps")
    weights = steps._graph("squeezenet").graph.initializer
    assert sum(math.prod(tensor.dims) for tensor in weights if tensor.data_type == tensor.FLOAT) == 1_235_496
    pytest.importorskip("torchvision")
    theirs = load("_torch_modules").torchvision_models().get_model(steps._MODELS["squeezenet"], weights=None)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == 1_235_496


@pytest.fixture
def dry_run(tmp_path: Path) -> Callable[..., tuple[dict[str, str], list[dict[str, Any]]]]:
    """Runs steps without a network, by PoCL and g++, within four minutes. Returns how they end, and all entries."""
    opencl = importlib.import_module("stormdrop.machine.opencl")
    if not any("Portable" in info.platform for info in opencl.opencl_devices()):
        pytest.skip("needs pyopencl and pocl-opencl-icd")
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    isolated = ["unshare", "-rn"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs unshare -rn, which is not allowed here")

    def run(*steps: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
        file, script = tmp_path / "file.jsonl", str(KIT / "first_contact.py")
        end = time.monotonic() + 240  # a test may take 300 seconds
        for step in steps:
            left = end - time.monotonic()
            command = [*isolated, sys.executable, script, "--host", f"--out={file}", f"--only={step}"]
            command.append(f"--minutes={left / 60}")
            done = subprocess.run(command, capture_output=True, text=True, timeout=left + 30, check=False)
            assert done.returncode == 0, done.stderr
        entries = [json.loads(line) for line in file.read_text().splitlines()]
        return {entry["step"]: entry["status"] for entry in entries if entry["item"] is None}, entries

    return run


@pytest.mark.compiles
def test_a_dry_run_of_kernels(dry_run: Callable[..., Any]) -> None:
    ends, entries = dry_run("gpu", "sketches", "sanitizer", "operators", "papers")
    assert ends == {"gpu": "ok", "sketches": "ok", "sanitizer": "ok", "operators": "ok", "papers": "skipped"}
    schedules = [each for entry in entries for each in entry.get("schedules", ())]
    assert len(schedules) >= 12
    assert {each["status"] for each in schedules} == {"ok"}


@pytest.mark.compiles
def test_a_dry_run_of_models(dry_run: Callable[..., Any]) -> None:
    ends, entries = dry_run("models")
    assert ends == {"models": "ok"}
    (bench,) = (entry["bench"] for entry in entries if "bench" in entry)
    assert [each["device"] for each in bench["contenders"]] == ["opencl"]
