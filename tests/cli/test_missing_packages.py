"""Commands whose packages are not installed: one line that names the extra, before anything is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SMALL, complaint, environment

from stormdrop.optional_packages import EXTRAS


@pytest.mark.parametrize(
    ("package", "words", "message"),
    [
        ("matplotlib", ["report"], "a report needs matplotlib, {} 'stormdrop[report]'"),
        ("jinja2", ["report", "--out", "page.html"], "a report needs jinja2, {} 'stormdrop[report]'"),
        ("pygments", ["report"], "a report needs pygments, {} 'stormdrop[report]'"),
        (
            "matplotlib",
            ["bench", *SMALL, "--report", "a.html"],
            "--report a.html needs matplotlib, {} 'stormdrop[report]'",
        ),
        ("jinja2", ["compare", *SMALL, "--report", "a.html"], "--report a.html needs jinja2, {} 'stormdrop[report]'"),
        ("matplotlib", ["compare", *SMALL, "--out", "plots"], "--out plots needs matplotlib, {} 'stormdrop[report]'"),
        ("matplotlib", ["landscape", *SMALL, "--knobs", "a,b"], "a landscape needs matplotlib, {} 'stormdrop[report]'"),
        ("starlette", ["dashboard"], "the dashboard needs starlette, {} 'stormdrop[dashboard]'"),
        ("jinja2", ["dashboard"], "the dashboard needs jinja2, {} 'stormdrop[dashboard]'"),
        ("optuna", ["tune-op", *SMALL, "--search", "optuna"], "search 'optuna' needs optuna, {} 'stormdrop[optuna]'"),
        ("optuna", ["compare", *SMALL, "--search", "optuna"], "search 'optuna' needs optuna, {} 'stormdrop[optuna]'"),
        ("ray", ["tune-op", *SMALL, "--fleet", "auto"], "a fleet needs ray, {} 'stormdrop[ray]'"),
        ("pyopencl", ["tune-op", *SMALL, "--target", "opencl"], "target opencl needs pyopencl, {} 'stormdrop[opencl]'"),
    ],
)
def test_one_line_names_the_extra(
    package: str,
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    assert complaint(capfd, *words) == message.format("which is not installed: pip install")
    assert not list(tmp_path.iterdir())


@pytest.mark.compiles
def test_an_installation_without_extras_tunes_and_compares(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({list(EXTRAS)}))\n")
    variables = environment()
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), variables["PYTHONPATH"]])
    for words in (
        ["tune-op", *SMALL, "--trials", "4", "--db", "records.db"],
        ["compare", "analytic:lrw", "--search", "random,grid", "--seeds", "2", "--trials", "10"],
        ["db", "list", "--db", "records.db"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "stormdrop", *words], cwd=tmp_path, env=variables, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    done = subprocess.run([sys.executable, "-m", "stormdrop", "report"], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'stormdrop[report]'" in done.stderr
