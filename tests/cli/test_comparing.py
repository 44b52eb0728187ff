"""`stormdrop compare` and `stormdrop landscape` as a user or another tool meets them."""

from __future__ import annotations

import gzip
import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import complaint, document, environment, sections_of_guide
from matplotlib.image import imread

from stormdrop.cli import run


def cache(path: Path, best: int = 64) -> Path:
    """A Kernel Tuner cache of 5 x 4 x 2 configurations, in which wide tiles of large blocks fail to compile."""
    keys: dict[str, list[Any]] = {"block": [16, 32, 64, 128, 256], "tile": [1, 2, 4, 8], "mode": ["a", "b"]}
    entries = {}
    for block, tile, mode in itertools.product(*keys.values()):
        milliseconds = 1 + abs(block - best) / 64 + abs(tile - 4) / 4 + (mode == "b")
        entry: dict[str, Any] = {"block": block, "tile": tile, "mode": mode, "compile_time": 100.0}
        if block == 256 and tile == 8:
            entry["time"] = "CompilationFailedConfig"
        else:
            entry |= {"time": milliseconds, "times": [milliseconds * factor for factor in (0.99, 1.0, 1.01)]}
        entries[f"{block},{tile},{mode}"] = entry
    text = json.dumps({"kernel_name": "k", "tune_params_keys": list(keys), "tune_params": keys, "cache": entries})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return cache(tmp_path / "small.json")


def test_compare_as_a_document(capfd: pytest.CaptureFixture[str], recorded: Path) -> None:
    compared = document(capfd, "compare", recorded, "--search", "droplet,random", "--seeds", 3, "--trials", 30)
    assert (compared["ground"], compared["optimum"], compared["trials"], compared["seeds"]) == ("small", 1e-3, 30, 3)
    assert len(compared["runs"]) == 6
    stable = {"evaluations", "best", "best_over_optimum", "evaluations_to_within", "search_seconds"}
    assert all(stable <= search_run.keys() for search_run in compared["runs"])
    assert compared["grounds"][0]["optimum_config"] == {"block": 64, "tile": 4, "mode": "a"}


def test_compare_as_tables(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = cache(tmp_path / "one.json"), cache(tmp_path / "two.json.gz", best=16)
    assert run(["compare", *map(str, files), "--search", "droplet,droplet:test=student,random", "--seeds", "3"]) == 0
    out = capfd.readouterr().out
    assert "one (optimum 1 ms): time / optimum" in out
    assert "mean over 2 spaces" in out
    (heading,) = {line for line in out.splitlines() if "within 5%" in line}
    assert heading.split()[:8] == ["at", "25", "at", "50", "at", "100", "at", "200"]
    assert out.count("\ndroplet:test=student ") == 3
    assert "pairs" in out


def test_a_difference_is_said_as_one_and_no_difference_as_none(
    capfd: pytest.CaptureFixture[str], recorded: Path
) -> None:
    words = ["compare", recorded, "--seeds", 8, "--trials", 6, "--exact", "--search"]
    assert run([*map(str, words), "grid,random,droplet"]) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if "pairs" in line]
    assert len(lines) == 2
    assert run([*map(str, words), "droplet,droplet:repeats=5"]) == 0
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "pairs" in line]
    assert line.startswith("droplet:repeats=5: not significantly different from droplet, 1.000 times")
    assert line.endswith("p = 1 over 8 pairs")


def test_plots_are_written(capfd: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path) -> None:
    words = ["compare", recorded, "--search", "droplet,random", "--seeds", 2, "--trials", 20, "--out", tmp_path / "o"]
    compared = document(capfd, *words)
    pictures = [Path(file) for file in compared["files"] if file.endswith(".png")]
    assert {path.stem for path in pictures} == {"best_by_evaluations", "best_by_seconds", "within", "time", "statuses"}
    assert all(imread(path).shape[0] > 200 for path in pictures)
    kept = json.loads((tmp_path / "o" / "comparison.json").read_text())
    assert kept["runs"] == compared["runs"]


def test_landscape(capfd: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path) -> None:
    words = ["landscape", recorded, "--knobs", "block,tile", "--out", tmp_path / "l.png"]
    drawn = document(capfd, *words, "--at", "mode=b")
    assert drawn["knobs"] == ["block", "tile"]
    assert drawn["fixed"] == {"mode": "b"}
    assert drawn["optimum"] == pytest.approx(2e-3)
    assert drawn["statuses"][3] == ["ok"] * 4 + ["compile_device"]
    assert imread(drawn["file"]).shape[0] > 300
    assert run(list(map(str, words))) == 0
    out = capfd.readouterr().out
    assert "small: the best of the plane takes 1 ms" in out
    assert out.endswith(f"saved: {tmp_path / 'l.png'}\n")


def test_every_key_of_the_documents_is_described(
    capfd: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path
) -> None:
    sections = sections_of_guide()
    compared = document(capfd, "compare", recorded, "--search", "droplet,random", "--seeds", 2, "--trials", 20)
    drawn = document(capfd, "landscape", recorded, "--knobs", "block,tile", "--out", tmp_path / "l.png")
    run_ = compared["runs"][0]
    summary = compared["summary"][0]
    parts = [compared, *compared["grounds"], run_, run_["trajectory"], summary, compared["differences"][0]]
    for command, documents in (("compare", parts), ("landscape", [drawn])):
        for key in {key for part in documents for key in part}:
            assert f"`{key}`" in sections[command], (command, key)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare"], "Missing argument"),
        (["compare", "analytic:lrw", "--search", "dropplet"], "unknown search 'dropplet'; did you mean 'droplet'?"),
        (["compare", "analytic:lrw", "--search", "droplet:repeats=0"], "droplet's repeats must be at least 1, not 0"),
        (["compare", "analytic:lrw", "--search", "droplet:q=0"], "search 'droplet' has no option 'q'"),
        (["compare", "analytic:lrw", "--search", "random,random"], "search random is given twice"),
        (["compare", "analytic:lrw", "--search", ","], "no search is named"),
        (["compare", "analytic:lrw", "--search", "random", "--seeds", "0"], "--seeds 0: must be 1 or more"),
        (["compare", "analytic:lrw", "--search", "random", "--trials", "0"], "--trials 0: must be 1 or more"),
        (["compare", "analytic:lrw", "--search", "random", "--jobs", "0"], "--jobs 0: must be 1 or more"),
        (["compare", "analytic:lrw", "--search", "random", "--time", "soon"], "--time soon: not a duration"),
        (["compare", "analytic:lrw", "analytic:lrw", "--search", "random"], "two recordings are called lrw"),
        (["compare", "analytic:lrww", "--search", "random"], "analytic landscape 'lrww'; did you mean 'lrw'?"),
        (["compare", "nowhere.json", "--search", "random"], "nowhere.json cannot be read"),
        (["compare", "a/folder/nowhere", "--search", "random"], "nowhere cannot be read"),
        (["compare", "matmull", "m=1", "--search", "random"], "unknown operator 'matmull'; did you mean 'matmul'"),
        (["compare", "matmul", "m=32", "--search", "random"], "matmul needs n, k"),
        (["compare", "matmul", "m=2", "n=2", "k=2", "analytic:lrw", "--search", "random"], "matmul: give one operator"),
        (["compare", "analytic:lrw", "m=2", "--search", "random"], "m=2: give one operator"),
        (["compare", "matmul", "m=2", "n=2", "k=2", "--search", "random", "--exact"], "exact is for recordings"),
        (["compare", "matmul", "m=2", "n=2", "k=2", "--search", "random", "--jobs", "2"], "jobs is for recordings"),
        (["landscape", "analytic:lrw"], "Missing option '--knobs'"),
        (["landscape", "analytic:lrw", "--knobs", "h"], "knobs h: a landscape has two different knobs"),
        (["landscape", "analytic:lrw", "--knobs", "h,h"], "knobs h,h: a landscape has two different knobs"),
        (["landscape", "analytic:lrw", "--knobs", "h,ww"], "no knob is called ww; did you mean 'w'?"),
        (["landscape", "analytic:lrw", "--knobs", "h,w", "--at", "h"], "argument 'h': write name=value"),
        (["landscape", "analytic:lrw", "--knobs", "h,w", "--at", "h=1"], "knob h is one of the two that vary"),
        (["landscape", "analytic:lrw", "--knobs", "h,w", "--search", "random,grid"], "a landscape shows one search"),
        (["landscape", "analytic:lrw", "--knobs", "h,w", "--seed", "-1"], "--seed -1: must be 0 or more"),
        (["landscape", "analytic:lrw", "--knobs", "h,w", "--trials", "0"], "--trials 0: must be 1 or more"),
        (["landscape", "analytic:lrw", "--knobs", "h,w", "--out", "x.pdf"], "--out x.pdf: must end in .png"),
        (["landscape", "analytic:lrw", "--knobs", "h,w", "--out", "no/x.png"], "there is no directory"),
        (["landscape", "analytic:lrw", "analytic:tss", "--knobs", "h,w"], "analytic:tss: a landscape shows one space"),
        (["landscape", "matmul", "m=32", "n=32", "k=32", "--knobs", "rows,colums"], "did you mean 'columns'?"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in complaint(capfd, *words)
    assert list(tmp_path.iterdir()) == []


def test_bad_files(capfd: pytest.CaptureFixture[str], recorded: Path) -> None:
    folder = recorded.parent
    (folder / "cut.json").write_bytes(recorded.read_bytes()[:900])
    (folder / "text.json").write_text("no cache")
    (folder / "zipped.json.gz").write_text("not zipped")
    (folder / "other.json").write_text("{}")
    for name in ("cut.json", "text.json", "zipped.json.gz", "other.json"):
        assert name in complaint(capfd, "compare", folder / name, recorded, "--search", "random")
        assert name in complaint(capfd, "landscape", folder / name, "--knobs", "block,tile")


def test_out_must_be_possible_before_the_work(capfd: pytest.CaptureFixture[str], recorded: Path) -> None:
    for place in (recorded, recorded.parent / "no" / "folder"):
        line = complaint(capfd, "compare", recorded, "--search", "random", "--out", place)
        assert line.startswith(f"--out {place}: the folder cannot be created")
    assert "is a directory" in complaint(
        capfd, "landscape", recorded, "--knobs", "block,tile", "--out", cache_folder(recorded)
    )


def cache_folder(recorded: Path) -> Path:
    folder = recorded.parent / "folder.png"
    folder.mkdir()
    return folder


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    return float(psutil.Process(process.pid).cpu_times().user)


@pytest.mark.compiles
def test_ctrl_c_reports_the_complete_seeds(recorded: Path) -> None:
    words = ["compare", recorded, "--search", "random,droplet", "--seeds", 20_000, "--trials", 20, "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "stormdrop", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("comparing random,droplet from 20000 seeds")
        begin = cpu_seconds(process)
        while cpu_seconds(process) < begin + 0.3:  # enough for some seeds, however busy the machine is
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    compared = json.loads(out)
    assert compared["interrupted"]
    random, droplet = (row["runs"] for row in compared["summary"])
    assert 0 < random == droplet < 20_000
    assert len(compared["runs"]) == 2 * random


@pytest.mark.compiles
def test_on_this_machine(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Both commands on an operator: what is fastest is measured, and the best of the runs is what they are held to."""
    operator = ["elementwise", "shape=64x64"]
    compared = document(capfd, "compare", *operator, "--search", "random,grid", "--seeds", 1, "--trials", 4)
    assert not compared["grounds"][0]["recorded"]
    ends = [search_run["best"] for search_run in compared["runs"]]
    assert min(ends) >= compared["optimum"] > 0
    assert all(
        search_run["evaluations"] <= 4 and search_run["best_over_optimum"] >= 1 for search_run in compared["runs"]
    )
    assert all(search_run["phases"]["build"] > 0 and search_run["phases"]["run"] > 0 for search_run in compared["runs"])
    knobs = list(compared["runs"][0]["config"])[:2]
    drawn = document(capfd, "landscape", *operator, "--knobs", ",".join(knobs), "--out", tmp_path / "l.png")
    places = [cell for row in drawn["statuses"] for cell in row]
    assert places.count("ok") >= 2
    assert drawn["knobs"] == knobs
