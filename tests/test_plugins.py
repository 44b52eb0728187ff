"""What other packages add: a wheel that is installed is found, used and listed, and a broken one is one line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import stormdrop
from stormdrop.errors import OperatorError, PluginError, SearchError, StoreError
from stormdrop.operators import OPERATORS
from stormdrop.plugins import everything, plugins
from stormdrop.search import create, names, options_of

GUIDE = (Path(stormdrop.__file__).parents[2] / "docs" / "how-to" / "write-a-plug-in.md").read_text()
GROUPS = {
    "searches": {"alternate": "stormdrop_alternate.search:Alternate", "broken": "stormdrop_alternate.broken:Search"},
    "operators": {"double": "stormdrop_alternate.operator:double"},
    "stores": {"nowhere": "stormdrop_alternate.store:open_nowhere"},
}
MODULES = {
    "__init__": "",
    "search": GUIDE.partition("# stormdrop_alternate/search.py\n")[2].partition("```")[0],
    "broken": "import a_package_that_nobody_has\n",
    "operator": """
from tvm import te
from stormdrop.operators.declare import Definition, operator

@operator()
def double(n: int, dtype: str = "float32") -> Definition:
    \"\"\"Twice each element.\"\"\"
    x = te.placeholder((n,), dtype, "x")
    return Definition([x], te.compute((n,), lambda i: x[i] * 2, "y"))
""",
    "store": """
from stormdrop.records import SqlStore

def open_nowhere(place, *, create):
    return SqlStore("sqlite://", create=create)
""",
}


def wheel(folder: Path) -> Path:
    """A wheel of a package with these modules and entry points."""
    info = "stormdrop_alternate-1.0.dist-info"
    lines = [
        line
        for group, entries in GROUPS.items()
        for line in (f"[stormdrop.{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    files = {f"stormdrop_alternate/{name}.py": text for name, text in MODULES.items()}
    files |= {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: stormdrop-alternate\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(lines) + "\n",
    }
    record = [f"{name},sha256={_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    path = folder / "stormdrop_alternate-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def _digest(text: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the wheel."""
    folder = tmp_path_factory.mktemp("plugin")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*command, folder / "site", wheel(folder)], check=True)
    return folder / "site"


@pytest.fixture
def here(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder, in the path of this process, which forgets afterwards what it has loaded from there."""
    monkeypatch.syspath_prepend(str(installed))
    yield installed
    OPERATORS.pop("double", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "stormdrop_alternate"]:
        del sys.modules[name]


@pytest.mark.long
def test_an_installed_search_is_used(here: Path) -> None:
    from stormdrop import Ordinal, Space, minimize

    assert {"alternate", "broken", "storm"} <= set(names())
    space = Space("square", [Ordinal("x", range(20)), Ordinal("y", range(20))])
    result = minimize(space, lambda config: 1 + (config["x"] - 7) ** 2 + (config["y"] - 11) ** 2, search="alternate")
    assert result.best is not None
    assert dict(result.best.config) == {"x": 7, "y": 11}


@pytest.mark.long
def test_a_plugin_that_does_not_import_is_one_line(here: Path) -> None:
    import numpy as np

    with pytest.raises(PluginError) as caught:
        create("broken", [], np.random.default_rng(0))
    message = str(caught.value)
    assert "plug-in search 'broken' of the package stormdrop-alternate 1.0 does not import" in message
    assert "a_package_that_nobody_has" in message
    assert "\n" not in message
    with pytest.raises(SearchError, match="did you mean 'alternate'"):
        create("alternat", [], np.random.default_rng(0))


@pytest.mark.long
def test_an_operator_and_a_store_of_a_plugin(here: Path) -> None:
    from stormdrop import operators
    from stormdrop.records import open_store

    assert "double" in operators.names()
    assert operators.usage("double") == "n [dtype=float32]"
    assert operators.create("double", {"n": "8"}).outputs[0].shape == (8,)
    with open_store("nowhere://at-all") as store:
        assert store.sessions() == []
    with pytest.raises(StoreError, match="no kind of database 'elsewhere'"):
        open_store("elsewhere://at-all")


@pytest.mark.long
def test_the_page_of_a_session_says_how_to_repeat_the_operator_of_a_plugin(here: Path, tmp_path: Path) -> None:
    from stormdrop.cli import run
    from stormdrop.records import Problem, Setting, open_store

    database, page = tmp_path / "records.db", tmp_path / "page.html"
    problem = Problem("a key", "text", "double n=8", "llvm", "a CPU, 2 cores")
    with open_store(database) as store:
        session = store.open(problem, Setting("storm", 3, {"tiled": "fingerprint"}, {"size": 8}, {}, {}))
    assert run(["report", session.id, "--db", str(database), "--out", str(page)]) == 0
    assert "stormdrop tune-op double n=8 --search storm --seed 3 --fresh" in page.read_text()


@pytest.mark.alone
@pytest.mark.compiles
def test_doctor_and_operators_list_plugins(installed: Path) -> None:
    path = os.pathsep.join([str(installed), str(Path(stormdrop.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}

    def command(*words: str) -> str:
        run = [sys.executable, "-m", "stormdrop", *words]
        return subprocess.run(run, capture_output=True, text=True, env=environment, check=True).stdout

    listed = {each["name"]: each for each in json.loads(command("operators", "--json"))["operators"]}
    assert listed["double"] == {"name": "double", "arguments": "n [dtype=float32]", "computes": "Twice each element."}
    found = {each["name"]: each for each in json.loads(command("doctor", "--json"))["plugins"]}
    assert found.keys() == {"alternate", "broken", "double", "nowhere"}
    assert found["alternate"]["package"] == "stormdrop-alternate 1.0"
    assert found["alternate"]["error"] is None
    assert "a_package_that_nobody_has" in found["broken"]["error"]


def entry_points(folder: Path, package: str, group: str, text: str) -> None:
    """Makes a package with these entry points, as if it were installed in the folder."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[stormdrop.{group}]\n{text}\n")


def test_two_plugins_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("one", "two"):
        entry_points(tmp_path, package, "searches", f"mine = {package}:Search")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match=r"has the name of the .*; uninstall one of them"):
        plugins("searches")


def test_packages_are_looked_through_once_for_each_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    read = metadata.entry_points

    def counted(*, group: str) -> metadata.EntryPoints:
        asked.append(group)
        return read(group=group)

    monkeypatch.setattr(metadata, "entry_points", counted)
    for folder in (tmp_path / "first", tmp_path / "second"):
        entry_points(folder, folder.name, "cpu_sketches", f"{folder.name} = types:SimpleNamespace")
        monkeypatch.syspath_prepend(str(folder))
        for _ in range(3):
            assert plugins("cpu_sketches")[folder.name].package == f"{folder.name} 1.0"
    assert asked == ["stormdrop.cpu_sketches"] * 2


def test_a_plugin_that_is_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(tmp_path, "one", "searches", "dumps = json:dumps\nnothing = json:nothing")
    entry_points(tmp_path, "two", "operators", "loads = json:loads")
    entry_points(tmp_path, "three", "cpu_sketches", "plain = types:SimpleNamespace")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match="json:dumps is not a class derived from GeneratorSearch"):
        options_of("dumps")
    with pytest.raises(PluginError, match=r"of the package one 1\.0 does not import: AttributeError"):
        options_of("nothing")
    from stormdrop import operators
    from stormdrop.sketches.registry import cpu_sketches

    with pytest.raises(PluginError, match="json:loads is not an operator"):
        operators.usage("loads")
    with pytest.raises(OperatorError):
        operators.usage("nothing")
    with pytest.raises(PluginError, match="SimpleNamespace is not a sketch named 'plain'"):
        cpu_sketches()
    assert [plugin.package for plugin in everything()] == ["one 1.0", "one 1.0", "three 1.0", "two 1.0"]
