"""Every example in README and docs/ runs: the Python blocks of a page as one program, its commands in their order."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from pages import AVAILABLE, blocks, name_of, pages_with
from small_budgets import run_page
from small_network import save_small_network

from tiny_decoders import tiny_decoder

ELSEWHERE = {
    "docs/explanation/one-schedule.md": "test_schedule_page.py",
    "docs/how-to/add-a-search.md": "test_guides.py",
    "docs/how-to/add-a-sketch.md": "test_guides.py",
    "docs/how-to/emulate-an-arm-board.md": "tests/testing/test_arm_board.py",
    "docs/how-to/use-a-gpu.md": "tests/model/test_models_on_cuda.py",
    "docs/how-to/write-a-plug-in.md": "tests/test_plugins.py",
    "docs/how-to/write-a-schedule.md": "test_template_page.py",
    "docs/reference/python/index.md": "one import",
}
"""Pages whose Python blocks other tests run."""

NEEDED = {
    "import torch": "torch",
    "from transformers": "transformers",
    "import optuna": "optuna",
    "optuna:": "optuna",
    "import numba": "numba",
    "import kernel_tuner": "kernel_tuner",
}
"""By a text in examples the package that they need. Pages with such examples are skipped without it."""

SECONDS = 600
"""A page takes some ten seconds; more if other processes use the machine, since a kernel has it for itself."""

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.timeout(2 * SECONDS),
    pytest.mark.skipif(not AVAILABLE, reason="the package is installed without its repository"),
]


def prepare(folder: Path) -> Path:
    """A folder with the files that the pages suppose to be there."""
    for name in ("model.onnx", "squeezenet.onnx"):
        save_small_network(folder / name)
    save_small_network(folder / "open.onnx", batch="batch")
    onnx.save(tiny_decoder(), folder / "decoder.onnx")
    np.savez(folder / "x.npz", x=np.ones((1, 3, 224, 224), "float32"))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where an example runs."""
    return prepare(tmp_path)


@pytest.fixture(scope="session")
def with_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a folder in which the model is tuned and saved, with its records."""
    folder = prepare(tmp_path_factory.mktemp("tuned"))
    (folder / "setup.sh").write_text("stormdrop tune model.onnx --out model.sd")
    run_page(folder / "setup.sh")
    return folder


def skip_without_packages(program: str) -> None:
    """Skips a page about a package that is not installed."""
    for text, package in NEEDED.items():
        if text in program:
            pytest.importorskip(package, reason=f"the page is about {package}")


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
def test_python_examples(page: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    if name_of(page) in ELSEWHERE:
        pytest.skip(f"see {ELSEWHERE[name_of(page)]}")
    program = "\n\n".join(blocks(page, "python"))
    if ".sd" in program:
        shutil.copytree(request.getfixturevalue("with_model"), folder, dirs_exist_ok=True)
        (folder / "squeezenet.sd").symlink_to(folder / "model.sd")
    skip_without_packages(program)
    (folder / "page.py").write_text(program)
    run_page(folder / "page.py")


@pytest.mark.parametrize("page", pages_with("shell"), ids=name_of)
def test_commands(page: Path, folder: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> None:
    if "model.sd" in "".join(blocks(page, "shell")) and "--out model.sd" not in "".join(blocks(page, "shell")):
        shutil.copytree(request.getfixturevalue("with_model"), folder, dirs_exist_ok=True)
    skip_without_packages("".join(blocks(page, "shell")))
    (folder / "page.sh").write_text("\n".join(blocks(page, "shell")))
    capfd.readouterr()
    run_page(folder / "page.sh")
    assert capfd.readouterr().out
