"""Packages of extras: who needs one that lacks says so in one line; what only tunes and runs imports none."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from stormdrop.errors import InputError, SearchError
from stormdrop.optional_packages import EXTRAS, PAGES, installed, load, require
from test_imports import MODULES, ROOT, loaded_by

PYPROJECT = ROOT.parents[1] / "pyproject.toml"
ELSEWHERE = (
    *("report.pages.", "report.plots.", "report.code", "report.dashboard."),
    *("bench.peers.", "integrations.", "search.optional.", "testing", "__main__"),
    *("model.importer.torch_", "model.inputs.torch_places"),
)
"""Modules that draw, or that belong to a package of others; they are imported where this is asked for."""


def lists() -> dict[str, set[str]]:
    """The names of the packages in each list of pyproject.toml: "dependencies", and the extras."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 brings it")
    if not PYPROJECT.is_file():
        pytest.skip("the package is installed without its repository")
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    found = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    return {name: {re.split(r"[^\w-]", each)[0] for each in requirements} for name, requirements in found.items()}


@pytest.mark.parametrize("package", EXTRAS)
def test_a_package_is_in_its_extra_and_no_dependency(package: str) -> None:
    known = lists()
    assert package in known[EXTRAS[package]]
    assert package not in known["dependencies"]


def test_the_tests_have_the_packages_that_pages_need() -> None:
    assert lists()["dev"] >= set(PAGES)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose library is missing."""
    (tmp_path / "broken_package.py").write_text("raise ImportError('libx.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_package_that_lacks_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = r"^a picture needs matplotlib, which is not installed: pip install 'stormdrop\[report\]'$"
    with pytest.raises(InputError, match=line):
        require(["json", "matplotlib"], "a picture")
    with pytest.raises(SearchError, match=line):
        load("matplotlib", "a picture", SearchError)
    with pytest.raises(InputError, match=r"pip install 'stormdrop\[album\]'$"):
        require(["matplotlib"], "an album", extra="album")
    assert not installed(["json", "matplotlib"])


def test_a_package_that_is_there() -> None:
    require(["json"], "anything")
    assert load("json", "anything").dumps([]) == "[]"
    assert installed(["json", "__main__"])


@pytest.mark.usefixtures("broken")
def test_a_package_that_does_not_load_says_why() -> None:
    assert installed(["broken_package"])
    line = (
        "^a hunt needs broken_package, which cannot be imported: ImportError: libx.so: cannot open shared object file$"
    )
    with pytest.raises(InputError, match=line):
        load("broken_package", "a hunt")


@pytest.mark.long
def test_nothing_but_what_draws_imports_a_package_of_an_extra_at_its_top() -> None:
    names = [f"stormdrop.{name}" for name in MODULES if name and not name.startswith(ELSEWHERE)]
    program = f"import importlib, sys\nsys.modules.update(dict.fromkeys({list(EXTRAS)}))\n"
    loaded = loaded_by(f"{program}for name in {names}: importlib.import_module(name)\n")
    assert {"stormdrop", "tvm", "onnx"} <= loaded


@pytest.mark.parametrize("statement", ["import stormdrop.tuning.tune", "import stormdrop.model.tuning.tune"])
def test_what_a_tuning_may_need_later_is_not_loaded_first(statement: str) -> None:
    assert not loaded_by(statement) & {*EXTRAS, "alembic", "scipy", "sympy", "xgboost"}
