"""The programs in examples/ run as they stand, with a small budget."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stormdrop

PACKAGE = Path(stormdrop.__file__).parent
EXAMPLES = PACKAGE.parents[1] / "examples"
COMPILER = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the package is installed without its repository"),
]


def example(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


@pytest.mark.skipif(COMPILER is None, reason="no C compiler here: gcc, clang or cc")
def test_c_flags() -> None:
    done = example("c_flags.py", "--trials", "5")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^default +\d+\.\d+ ms +-O2 -DBI=64 -DBJ=64 -DBK=64$", done.stdout, re.MULTILINE)
    assert re.search(r"^best +\d+\.\d+ ms +\d+\.\d+ to \d+\.\d+ ms +-O\d .*-DBI=\d+", done.stdout, re.MULTILINE)
    assert "5 configurations, 0 failed" in done.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("own_operator.py", r"us with \w+: \{.*\nequal to NumPy's result"),
        ("own_sketch.py", r"us with \{'lanes': \d+\}"),
        ("own_search.py", r"^41 of 100 candidates measured, the fastest: \{'rows': 16, 'columns': 64\}"),
        ("tuned_callable.py", r"^8 trials, the fastest: \{'block': \d+\}"),
        ("saved_model.py", r"^the loaded model computes what the saved one did, 16 rows of 10 numbers"),
    ],
)
def test_the_gallery(name: str, says: str) -> None:
    done = example(name)
    assert done.returncode == 0, done.stderr
    assert re.search(says, done.stdout)


def test_triton_kernels() -> None:
    for package in ("torch", "triton"):
        pytest.importorskip(package, reason=f"the example needs {package}")
    done = example("triton_kernels.py", TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^matmul: \{.*\n3 configurations, 0 of them refused", done.stdout)
    assert re.search(r"\nattention: \{.*\n4 configurations, 0 of them refused", done.stdout)


def test_a_local_fleet() -> None:
    pytest.importorskip("ray", reason="a fleet needs Ray")
    done = example("local_fleet.py")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^6 trials on the fleet, the fastest: \{", done.stdout)


def test_a_local_fleet_without_ray() -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("Ray is installed")
    done = example("local_fleet.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "local_fleet: Ray is not installed, so there is nothing to show: pip install 'stormdrop[ray]'"
    ]


def test_every_program_is_in_the_index_and_tested() -> None:
    index, tests = (EXAMPLES / "README.md").read_text(), Path(__file__).read_text()
    for program in EXAMPLES.glob("*.py"):
        assert f"({program.name})" in index
        assert program.name in tests or program.name == "demo.py", "demo.py takes minutes"
    short = [program for program in EXAMPLES.glob("*.py") if program.stem not in {"demo", "c_flags", "triton_kernels"}]
    assert len(short) == 6
    assert all(len(program.read_text().splitlines()) < 60 for program in short)


def test_c_flags_without_a_compiler(tmp_path: Path) -> None:
    done = example("c_flags.py", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "c_flags: no C compiler found: install gcc or clang, or put it on your PATH\n"
