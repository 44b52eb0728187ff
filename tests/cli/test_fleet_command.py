"""`stormdrop fleet`, and what `--fleet` does not go together with. No cluster is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import SMALL, complaint, document, output_of, sections_of_guide

from stormdrop.measure.fleet import status as module
from stormdrop.measure.fleet.status import FleetStatus, MachineStatus

READY = MachineStatus(
    "node1", "0a", "ready", kind="A CPU, 2 cores", features="ff", calibration=0.0031, group="A", queue=0
)
MACHINES = [
    READY,
    MachineStatus("node2", "0b", "in use", holder="me on laptop, process 7", since=1.7e9, measured=12, queue=3),
    MachineStatus("node3", "0c", "unusable", reason="versions differ: Python 3.10 there, 3.11 here"),
    MachineStatus("node4", "0d", "lost"),
]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fleet_status", lambda address: FleetStatus("2.60.0", MACHINES))


def test_machines_are_shown_with_what_they_do(fleet: None, capfd: pytest.CaptureFixture[str]) -> None:
    shown = output_of(capfd, "fleet", "ray://head:10001")
    for words in (["node1", "ready", "A CPU, 2 cores", "3.1", "0"], ["node2", "in use", "3"], ["node4", "lost"]):
        (line,) = [line for line in shown.splitlines() if line.split()[:1] == words[:1]]
        assert all(word in line for word in words)
    assert "node2: me on laptop, process 7 has measured 12 candidates there" in shown
    assert "node3: versions differ: Python 3.10 there, 3.11 here" in shown


def test_every_key_of_the_document_is_described(fleet: None, capfd: pytest.CaptureFixture[str]) -> None:
    shown = document(capfd, "fleet")
    assert shown["fleet"] == "auto" and shown["ray"] == "2.60.0"
    assert [machine["health"] for machine in shown["machines"]] == ["ready", "in use", "unusable", "lost"]
    section = sections_of_guide()["fleet"]
    assert not {key for part in (shown, *shown["machines"]) for key in part if f"`{key}`" not in section}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--runner", "127.0.0.1:1"], "--runner, --tracker and --fleet are different places to measure at: give one"),
        (["--tracker", "127.0.0.1:1", "--device", "a"], "--runner, --tracker and --fleet are different places"),
        (["--target", "cuda/h100"], "--target cuda/h100: --fleet measures on the CPUs of its machines"),
    ],
)
def test_fleets_and_other_places_exclude_each_other(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(capfd, "tune-op", *SMALL, "--fleet", "auto", *words)


def test_bad_addresses_are_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"a model")
    for command in (["fleet"], ["tune-op", *SMALL, "--fleet"], ["tune", model, "--out", tmp_path / "m.sd", "--fleet"]):
        assert "fleet 'nonsense': write auto, HOST:PORT or ray://HOST:PORT" in complaint(capfd, *command, "nonsense")
    assert "--fleet '': is empty" in complaint(capfd, "tune-op", *SMALL, "--fleet", " ")
    assert "--tracker HOST:PORT and --device KEY belong together" in complaint(capfd, "tune", model, "--device", "a")
