"""An emulated ARM board that measures what is tuned for it. Skipped where QEMU or the board's folder is missing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import stormdrop
from stand_ins import arm_board
from stand_ins.arm_board import ArmBoard
from stand_ins.cpus import cpu
from stormdrop import operators
from stormdrop.cli import run
from stormdrop.errors import MeasureError
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import LocalMeasurer
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Request

FOLDER = Path(
    os.environ.get("STORMDROP_ARM_BOARD", Path(stormdrop.__file__).parents[2] / "benchmarks" / "out" / "arm_board")
)
"""What benchmarks/emulation/make_arm_board.py has made."""

on_a_board = pytest.mark.skipif(bool(arm_board.missing(FOLDER)), reason=f"no board: {arm_board.missing(FOLDER)}")


@pytest.fixture(scope="module")
def board() -> Iterator[ArmBoard]:
    with ArmBoard(FOLDER, "cortex-a72", counted=True) as running:
        yield running


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert arm_board.missing(tmp_path) == "qemu-aarch64 is not installed"
    for tool in ("qemu-aarch64", "aarch64-linux-gnu-g++"):
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    with pytest.raises(
        MeasureError, match=r"holds no complete board: benchmarks/emulation/make_arm_board.py makes one"
    ):
        ArmBoard(tmp_path, "cortex-a72")
    for part in ("root", "site", "programs"):
        (tmp_path / f"{part}.done").touch()
    assert arm_board.missing(tmp_path) == ""
    with pytest.raises(MeasureError, match="has one thread, not 2"):
        ArmBoard(tmp_path, "cortex-a72", threads=2, counted=True)


def test_a_board_that_ends_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("qemu-aarch64", "aarch64-linux-gnu-g++", "python"):
        (tmp_path / name).write_text("#!/bin/sh\necho unable to find CPU model >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    for part in ("root", "site", "programs"):
        (tmp_path / f"{part}.done").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    board = ArmBoard(tmp_path, "pentium")
    with pytest.raises(MeasureError, match="the emulated board ended: unable to find CPU model"):
        board.start()
    assert board.address == ""


@on_a_board
@pytest.mark.compiles
@pytest.mark.long
def test_an_operator_is_tuned_on_the_board(board: ArmBoard, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["tune-op", "matmul", "m=16", "n=32", "k=16", "--target", "cpu/cortex-a72", "--runner", board.address]
    assert run([*words, "--trials", "4", "--json", "--db", "sqlite://"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["trials"], document["failed"]) == (4, 0)
    assert document["target"] == f"Arm Cortex-A72 at {board.address}, 1 core"


@on_a_board
@pytest.mark.compiles
@pytest.mark.long
def test_the_example_of_the_guide_runs(
    board: ArmBoard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = (Path(stormdrop.__file__).parents[2] / "docs" / "how-to" / "emulate-an-arm-board.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    assert 'ArmBoard(Path("benchmarks/out/arm_board"), cpu="cortex-a72")' in program
    monkeypatch.setattr(arm_board, "ArmBoard", lambda folder, cpu: nullcontext(board))  # it runs already
    monkeypatch.setenv("STORMDROP_DB", f"sqlite:///{tmp_path / 'records.db'}")
    exec(program, {})
    assert f"Arm Cortex-A72 at {board.address}" in capsys.readouterr().out


@on_a_board
@pytest.mark.compiles
@pytest.mark.long
def test_counted_instructions_repeat_to_a_thousandth(board: ArmBoard) -> None:
    workload, rng = operators.softmax(8, 20), np.random.default_rng(0)
    target = cpu("cpu/cortex-a72").with_runner(board.address).of_runner()
    assert target.cores == 1 and target.machine == f"Arm Cortex-A72 at {board.address}, 1 core"
    (sketch, space), *_ = sketches_for(workload, target)
    requests = [Request(Candidate(space.name, point), 3) for point in (space.origin, space.sample(rng))]
    samples = []
    for _ in range(2):
        with LocalMeasurer(KernelSetup(workload, target, [(sketch, space)])) as measurer:
            samples.append([measurement.seconds for measurement in measurer.measure(requests)])
    first, second = np.array(samples)  # of each schedule three samples
    assert first == pytest.approx(second, rel=1e-3)
    assert np.ptp(first, axis=1) == pytest.approx([0.0, 0.0], abs=1e-3 * first.min())
    assert abs(first[0, 0] - first[1, 0]) > 1e-2 * first.min()  # two schedules
