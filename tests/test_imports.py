"""Who may import whom: the rules of the rooms, read from the source of every module."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stormdrop

ROOT = Path(stormdrop.__file__).parent
SHARED = {"errors", "trial"}  # values that every room may use
TOP = {
    "__init__",
    "__main__",
    "_version",
    "arena",
    "bench",
    "cli",
    "compare",
    "contest",
    "landscape",
    "minimize",
    "model",
    "peers",
    "recordings",
    "testing",
    "tune",
    "walk",
}

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "trial": set(),
    "threads": set(),
    "duration": {"errors"},
    "statistics": set(),
    "space": SHARED,
    "surrogate": SHARED | {"space", "statistics"},
    "search": SHARED | {"space", "statistics", "surrogate"},
    "kernel": SHARED | {"space", "surrogate", "threads"},
    "measure": SHARED | {"kernel", "space", "statistics", "threads"},
    "records": SHARED | {"_version", "space", "statistics"},
    "report": SHARED | {"records", "statistics"},
    "answers": SHARED | {"records", "space"},
    "finals": SHARED | {"statistics"},
    "loop": SHARED | {"answers", "finals", "measure", "plan", "records", "result", "space", "statistics", "tally"},
    "plan": SHARED | {"duration", "records", "result", "search", "space"},
    "result": SHARED | {"kernel", "measure"},
    "tally": SHARED,
}
"""Rooms of ours that a room may import, besides itself. `TOP` brings rooms together and may import all."""

WITHOUT_TVM = {
    "answers",
    "errors",
    "finals",
    "loop",
    "minimize",
    "plan",
    "records",
    "report",
    "search",
    "space",
    "statistics",
    "surrogate",
    "tally",
    "threads",
    "trial",
}


def modules() -> dict[str, Path]:
    """Every module under src/stormdrop by its name inside the package ("" is the package itself)."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str, path: Path) -> Iterator[str]:
    """Absolute names that a module imports, wherever in it: "tvm.relax", "stormdrop.space.knob"."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = [part for part in package if part]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ["stormdrop", *package[: len(package) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                inner = ".".join([*base[1:], alias.name]) if base[0] == "stormdrop" else ""
                yield ".".join([*base, alias.name]) if inner in MODULES else ".".join(base)


def room(name: str) -> str:
    """The room of a module inside the package: "space.knob" is in "space"."""
    return name.split(".")[0] or "__init__"


def ours(name: str, path: Path) -> set[str]:
    """Modules of ours that a module imports, by their name inside the package."""
    return {
        full.removeprefix("stormdrop").lstrip(".") for full in imports(name, path) if full.split(".")[0] == "stormdrop"
    }


def test_the_reader_sees_relative_and_absolute_imports(tmp_path: Path) -> None:
    source = tmp_path / "probe.py"
    source.write_text(
        "import tvm.relax\nfrom .. import errors\nfrom ..kernel.target import Target\n"
        "from stormdrop.space import Space\ndef f():\n    from .contract import Search\n"
    )
    assert set(imports("search.probe", source)) == {
        "tvm.relax",
        "stormdrop.errors",
        "stormdrop.kernel.target",
        "stormdrop.space",
        "stormdrop.search.contract",
    }


def test_every_module_is_in_a_known_room() -> None:
    assert {room(name) for name in MODULES} <= ALLOWED.keys() | TOP


@pytest.mark.parametrize("name", [name for name in MODULES if room(name) not in TOP])
def test_a_room_imports_only_what_it_may(name: str) -> None:
    imported = {room(other) for other in ours(name, MODULES[name])} - {room(name)}
    assert imported <= ALLOWED[room(name)]


@pytest.mark.parametrize("name", [name for name in MODULES if room(name) in WITHOUT_TVM])
def test_a_room_without_tvm_does_not_import_it(name: str) -> None:
    packages = {full.split(".")[0] for full in imports(name, MODULES[name])}
    assert not packages & {"tvm", "tvm_ffi"}


@pytest.mark.parametrize("start", ["search", "space", "surrogate"])
def test_searches_reach_nothing_that_measures_or_compiles(start: str) -> None:
    pending = [name for name in MODULES if room(name) == start]
    reached: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += [other for other in ours(name, MODULES[name]) if other in MODULES and other]
    assert not {room(name) for name in reached} & {"kernel", "measure", "records", "model", "tune"}


def loaded_by(statement: str) -> set[str]:
    """Top-level packages that a fresh process has loaded after a statement."""
    program = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    path = os.pathsep.join([str(ROOT.parent), os.environ.get("PYTHONPATH", "")])
    output = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    ).stdout
    return set(output.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import stormdrop",
        "import stormdrop.search, stormdrop.space",
        "import stormdrop.records",
        "import stormdrop.recordings",
        "import stormdrop.contest, stormdrop.peers",  # what a peer's process loads beside the peer
        "import stormdrop.cli",
        "import stormdrop as sd; sd.minimize(sd.Space('s', [sd.Ordinal('x', [1, 2])]), lambda c: c['x'], trials=2)",
    ],
)
def test_tvm_is_not_loaded(statement: str) -> None:
    loaded = loaded_by(statement)
    assert "stormdrop" in loaded
    assert not loaded & {"tvm", "torch", "onnxruntime", "openvino"}


def test_what_the_command_line_needs_first_loads_no_database() -> None:
    assert not loaded_by("import stormdrop.plan, stormdrop.result") & {"sqlalchemy", "tvm"}


def test_public_names_are_sorted_and_there() -> None:
    assert stormdrop.__all__ == sorted(stormdrop.__all__)
    assert dir(stormdrop) == stormdrop.__all__
    missing = [name for name in stormdrop.__all__ if not hasattr(stormdrop, name)]
    assert not missing


def test_a_public_function_is_not_hidden_by_its_module() -> None:
    program = (
        "import stormdrop.tune, stormdrop.minimize, stormdrop.bench, stormdrop as sd\n"
        "from types import FunctionType\n"
        "assert all(isinstance(each, FunctionType) for each in (sd.tune, sd.minimize, sd.bench))"
    )
    assert "stormdrop" in loaded_by(program)  # the process did not fail


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = stormdrop.nonsense
