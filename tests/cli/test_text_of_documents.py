"""The text of a command says what its document says: it is made from the document alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stormdrop.cli.commands import benching, compiling, doctor, running

LIMITS = {"flops": 1e11, "bandwidth": 1e10, "undisturbed": True}
MACHINE: dict[str, Any] = {
    "cpu": "Some CPU",
    "target": "znver5",
    "cores": 4,
    "lanes": 16,
    "registers": 32,
    "caches": {"l1": 49152, "l2": 1 << 20, "l3": 0},
    "peak": LIMITS,
    "memory": {"read": [9e10, 2e10], "huge_pages": 2.5e10, "latency": 1e-7, "cached": 3 << 20, "undisturbed": True},
    "units": [
        {
            "name": "vnni",
            "operands": "u8 x i8",
            "sums": "int32",
            "rate": 4e11,
            "times_float32": 3.9,
            "undisturbed": True,
            "offered": True,
            "reason": None,
        }
    ],
    "opencl": [{"number": 0, "name": "cpu", "platform": "PoCL", "driver": "5.0", "target": "opencl/0"}],
    "gpus": [
        {
            "number": 1,
            "name": "NVIDIA H200",
            "driver": "550",
            "clock": 1980,
            "memory": 3201,
            "watts": 700,
            "target": "cuda/h200",
        }
    ],
    "other_targets": ["znver4", "cuda/h200"],
    "python": "3.11.9",
    "versions": {"stormdrop": "0.3.0", "torch": None},
    "database": "/records.sqlite",
    "plugins": [{"group": "stormdrop.searches", "name": "mine", "package": "other", "error": None}],
    "extras": [
        {"name": "torch", "packages": {"torch": None}, "error": None},
        {"name": "ray", "packages": {"ray": "2.50"}, "error": None},
        {
            "name": "bench",
            "packages": {"torch": "2.13", "torchvision": "0.27"},
            "error": "torchvision: RuntimeError: x",
        },
    ],
}


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_doctor_prints_its_document(capsys: pytest.CaptureFixture[str]) -> None:
    doctor._print_doctor(json.loads(json.dumps(MACHINE)))
    shown = {line[:15].strip(): line[15:].strip() for line in lines(capsys)}
    assert shown["data caches"] == "L1 48 KiB, L2 1 MiB, L3 unknown"
    assert shown["caches hold"] == "3 MiB in all, by the rate of reading"
    assert shown["memory"] == "read at 20.0 GB/s (25.0 from huge pages), 100 ns for a load by itself"
    assert shown["unit vnni"] == "u8 x i8 into int32: 400 Gop/s, 3.9 times float32; kernels use it"
    assert shown["OpenCL 0"] == "cpu (opencl/0), PoCL, 5.0"
    assert shown["GPU 1"] == "NVIDIA H200 (cuda/h200), 1980 MHz, memory 3201 MHz, 700 W, driver 550"
    assert shown["torch"] == "not installed" and shown["stormdrop"] == "0.3.0"
    assert shown["plug-in mine"] == "stormdrop.searches, of other: loads"
    assert shown["extra torch"] == "torch not installed: pip install 'stormdrop[torch]'"
    assert shown["extra ray"] == "ray 2.50 loads"
    assert shown["extra bench"] == "torch 2.13, torchvision 0.27: torchvision: RuntimeError: x"
    assert "measures again" not in " ".join(shown)


def test_doctor_says_what_was_disturbed(capsys: pytest.CaptureFixture[str]) -> None:
    doctor._print_doctor({**MACHINE, "gpus": [], "peak": {**LIMITS, "undisturbed": False}})
    *_, disturbed, last = lines(capsys)
    assert disturbed.startswith("something else used the machine while peak and bandwidth were measured")
    assert last == "on a quieter machine, stormdrop doctor --refresh finds the true figures"


@pytest.mark.parametrize("limits", [LIMITS, None])
def test_run_prints_its_document(capsys: pytest.CaptureFixture[str], limits: dict[str, Any] | None) -> None:
    kernels = [
        {"name": "a" * 70, "calls": 2, "seconds": 0.04, "flops": 1e9, "bytes": 1e6, "layers": ["net.conv", "net.relu"]},
        {"name": "foreign", "calls": 1, "seconds": 0.01, "flops": None, "bytes": None, "layers": []},
        {"name": "foreign: copy", "calls": 1, "seconds": 0.02, "flops": None, "bytes": 4096, "layers": []},
    ]
    layers = [{"layers": ["net.conv", "net.relu"], "kernels": ["a" * 70], "seconds": 0.04}]
    profile = {"seconds": 0.1, "outside": 0.05, "moving": 0.0, "kernels": kernels, "limits": limits, "layers": layers}
    outputs = {"y": {"shape": [1, 16], "dtype": "float32"}}
    running._print_run({"outputs": outputs, "seconds": 0.1, "profile": profile})
    shown = lines(capsys)
    assert shown[1].split() == ["y", "1x16", "float32"]
    (costly,) = (line.split() for line in shown if line.startswith("net: conv, relu"))
    # 1e9 FLOP at 1e11 FLOP/s are 10 ms of the 20 ms of a call.
    assert costly[3:] == ["2", "40", "ms", "40.0%", *(["50%"] if limits else []), "a" * 59 + "…"]
    assert next(line.split() for line in shown if line.startswith("foreign"))[-2:] == ["10.0%", "foreign"]
    assert any(line.startswith("foreign: copy (4,096 bytes)") for line in shown)
    assert next(line for line in shown if line.startswith("outside of kernels")).endswith("50.0%")
    running._print_run({"outputs": outputs, "seconds": 0.1, "profile": profile}, by="layer")
    assert next(line for line in lines(capsys) if line.startswith("net: conv, relu")).split()[3:6] == [
        "40",
        "ms",
        "40.0%",
    ]


def test_kernels_without_a_good_sketch_are_called_after_their_layers(capsys: pytest.CaptureFixture[str]) -> None:
    layers = [{"name": name, "kernels": ["fused_sort"]} for name in ("top.sort", "top.take")]
    document: dict[str, Any] = {
        "recorded": [],
        "borrowed": {},
        "kernels": 2,
        "sizes": [],
        "verified": {"max_error": 1e-6, "against": "NumPy"},
        "precision": None,
        "replaced": [{"task": "fused_sort", "before": "tiled", "after": "plain", "layers": ["top.sort", "top.take"]}],
        "fallbacks": ["fused_sort", "scatter"],
        "layers": layers,
        "foreign": [],
        "seconds": 1.0,
        "phases": {},
        "artifact": "m.sd",
        "digest": "ab",
    }
    compiling._print(document)
    shown = lines(capsys)
    assert "without a good sketch: top: sort, take; scatter" in shown
    assert "replaced, because the model was wrong with it: tiled of top: sort, take" in shown
    compiling._print({**document, "fallbacks": []})
    assert not [line for line in lines(capsys) if "without a good sketch" in line]


def test_run_says_if_the_layers_of_a_model_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    profile = {"seconds": 0.1, "outside": 0.1, "moving": 0.0, "kernels": [], "limits": None, "layers": []}
    running._print_run({"outputs": {}, "seconds": 0.1, "profile": profile}, by="layer")
    assert lines(capsys)[-1].startswith("its layers are not known: an earlier version made this model")


def test_bench_prints_its_document(capsys: pytest.CaptureFixture[str]) -> None:
    ours = {
        "name": "stormdrop",
        "seconds": 1e-3,
        "interval": [9e-4, 1.1e-3],
        "ratio": 1.0,
        "ratio_interval": [1.0, 1.0],
    }
    ours |= {"ratio_interval": [1.0, 1.0], "gflops": 100.0, "max_error": float("inf"), "agrees": False, "call": None}
    skipped = {"torch": "is not installed"}
    document = {"what": "matmul", "runs": 3, "disturbed": 1, "contenders": [ours], "skipped": skipped, "load": None}
    benching._print_bench(document)
    shown = lines(capsys)
    assert shown[0] == "matmul: 3 interleaved rounds" and shown[2].endswith("different")
    assert shown[3] == "torch: skipped: is not installed"
    assert shown[-1] == "stormdrop: its output differs from the reference"
