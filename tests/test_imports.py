"""Who may import whom: the rules of the rooms, read from the source of every module."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cloudpickle
import pytest

import stormdrop

ROOT = Path(stormdrop.__file__).parent
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "trial", "statistics", "events", "_version"),
    ("plugins", "optional_packages"),
    ("runtime",),
    ("machine", "ir", "space", "records"),
    ("operators", "surrogate", "report"),
    ("search", "sketches"),
    ("codegen",),
    ("measure",),
    ("tuning",),
    ("model",),
    ("compare", "bench"),
    ("cli", "testing", "integrations"),
    ("__init__", "__main__"),
)
"""The rooms from the lowest to the highest. A room imports rooms of lower layers only: no arrow points upward."""

RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

NARROW: dict[str, set[str]] = {
    "trial": set(),
    "space": {"errors", "trial"},
    "surrogate": {"errors", "trial", "space", "statistics"},
    "search": {"errors", "plugins", "optional_packages", "trial", "space", "statistics", "surrogate"},
    "ir": {"errors"},
    "machine": {"errors", "events", "optional_packages", "runtime"},
    "runtime": {"errors"},
    "records": {"errors", "plugins", "optional_packages", "trial", "statistics", "_version"},
    "sketches": {"errors", "plugins", "trial", "machine", "ir", "operators", "space", "surrogate"},
    "report": {"errors", "optional_packages", "trial", "statistics", "events", "records", "_version"},
}
"""Rooms that may import less than what lies below them."""

INNER: dict[str, tuple[tuple[str, ...], ...]] = {
    "machine": (("process", "sharing", "remote"), ("cpu", "gpu", "opencl"), ("limits",)),
    "ir": (
        ("expressions", "stages"),
        ("inlining",),
        ("contractions",),
        ("reference", "mixed_precision"),
        ("workload",),
    ),
    "records": (("contract",), ("sql",), ("buffered_store", "reading")),
    "search": (("common_model",), ("contract",), ("parts",), ("droplet", "evolutionary", "annealing", "storm")),
    "sketches": (("contract",), ("cpu", "gpu", "rules"), ("registry",)),
    "sketches.cpu": (("loops",), ("contractions",), ("attention", "code_sums", "tiles", "winograd")),
    "measure": (("contract",), ("pool",), ("worker", "local"), ("fleet",)),
    "model": (
        ("program",),
        ("tensors",),
        ("native",),
        ("artifact",),
        ("profile", "inputs"),
        ("onnx",),
        ("graph",),
        ("passes",),
        ("importer",),
        ("verification",),
        ("precision",),
        ("states",),
        ("building",),
        ("tuning",),
        ("untuned", "quantize", "padding"),
    ),
    "model.onnx": (("standard", "nodes", "weights"), ("segments",), ("rewrites",), ("source",)),
    "report": (("formatting", "plots", "traces"), ("pages", "dashboard")),
    "cli": (("options", "output"), ("commands",), ("app",)),
}
"""The order inside a room, from the lowest to the highest. What is not named may stand anywhere, but in no circle."""

MOST_FILES = 15
"""A room with more files than that has rooms inside."""

WITHOUT_TVM = {
    "errors", "events", "records", "report", "runtime", "search", "space", "statistics", "surrogate", "trial",
}  # fmt: skip
TOGETHER = {"space", "search", "measure", "records"}
"""Only `tuning`, and what is built on it, brings these together."""


def modules() -> dict[str, Path]:
    """Every module under src/stormdrop by its name inside the package ("" is the package itself)."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def imports(name: str, path: Path) -> frozenset[str]:
    """Absolute names that a module imports, wherever in it: "tvm.relax", "stormdrop.space.knob"."""
    return frozenset(_imports(name, path))


def _imports(name: str, path: Path) -> Iterator[str]:
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
        "import tvm.relax\nfrom .. import errors\nfrom ..machine.cpu import Target\n"
        "from stormdrop.space import Space\ndef f():\n    from .contract import Search\n"
    )
    assert set(imports("search.probe", source)) == {
        "tvm.relax",
        "stormdrop.errors",
        "stormdrop.machine.cpu",
        "stormdrop.space",
        "stormdrop.search.contract",
    }


@cache
def arrows() -> dict[tuple[str, str], str]:
    """Which room imports which other one, each with an example."""
    return {
        (room(name), room(other)): f"{name} imports {other}"
        for name in MODULES
        for other in ours(name, MODULES[name])
        if room(other) != room(name)
    }


def test_every_module_is_in_a_known_room() -> None:
    assert {room(name) for name in MODULES} <= RANK.keys()


def test_the_root_holds_nothing_but_what_all_rooms_share() -> None:
    files = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert files == {f"{name}.py" for name in (*LAYERS[0], *LAYERS[1], *LAYERS[-1])} | {"py.typed"}


def test_no_arrow_points_upward(capsys: pytest.CaptureFixture[str]) -> None:
    upward = [text for (lower, higher), text in arrows().items() if RANK[lower] <= RANK[higher]]
    with capsys.disabled():
        print(f"\n{len({room(name) for name in MODULES})} rooms, {len(arrows())} arrows, {len(upward)} point upward")
    assert not upward


@pytest.mark.parametrize("name", NARROW)
def test_a_room_imports_only_what_it_may(name: str) -> None:
    extra = [
        text for (importer, imported), text in arrows().items() if importer == name and imported not in NARROW[name]
    ]
    assert not extra


@pytest.mark.parametrize("name", sorted({room(name) for name in MODULES}))
def test_only_tuning_brings_space_search_measurer_and_store_together(name: str) -> None:
    imported = {other for importer, other in arrows() if importer == name}
    assert not imported >= TOGETHER or RANK[name] >= RANK["tuning"]


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or through others."""
    found: list[list[str]] = []
    reached: dict[str, set[str]] = {}
    for start in edges:
        pending, seen = list(edges[start]), set()
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                pending += edges.get(name, ())
        reached[start] = seen
    for name, seen in reached.items():
        if name in seen:
            circle = sorted(other for other in seen if name in reached.get(other, ()))
            found += [circle] if circle not in found else []
    return found


def test_circles_are_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


def test_no_modules_import_each_other() -> None:
    # A package that lists its modules' names is not imported by them for these names: they are left out.
    edges = {name: {other for other in ours(name, path) if other} for name, path in MODULES.items() if name}
    assert circles({name: others - {name.rpartition(".")[0]} for name, others in edges.items()}) == []


def arrows_inside(package: str) -> dict[str, dict[str, str]]:
    """Which files and rooms of a package import which others of it, each with an example."""
    prefix = f"{package}." if package else ""
    found: dict[str, dict[str, str]] = {}
    for name, path in MODULES.items():
        for other in ours(name, path) if name.startswith(prefix) and name != package else ():
            if other.startswith(prefix) and other not in ("", package):
                start, end = (full.removeprefix(prefix).partition(".")[0] for full in (name, other))
                if start != end:
                    found.setdefault(start, {})[end] = f"{name} imports {other}"
    return found


PACKAGES = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")


def test_at_no_depth_do_rooms_import_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for package in PACKAGES:
        inside = arrows_inside(package)
        found[package] = circles({start: set(ends) for start, ends in inside.items()})
        with capsys.disabled():
            rooms = sorted(path.parent.name for path in (ROOT / package.replace(".", "/")).glob("*/__init__.py"))
            print(
                f"\n{package or 'stormdrop'}: {sum(map(len, inside.values()))} arrows, rooms: {' '.join(rooms)}", end=""
            )
    assert not any(found.values()), found


@pytest.mark.parametrize("package", INNER)
def test_no_arrow_points_upward_inside(package: str) -> None:
    rank = {name: rank for rank, layer in enumerate(INNER[package]) for name in layer}
    inside = arrows_inside(package)
    there = {name.removeprefix(f"{package}.").partition(".")[0] for name in MODULES if name.startswith(f"{package}.")}
    assert rank.keys() <= there
    upward = [
        text for start in rank for end, text in inside.get(start, {}).items() if end in rank and rank[start] < rank[end]
    ]
    assert not upward


def test_inside_arrows_are_seen() -> None:
    assert arrows_inside("model")["tuning"]["building"].startswith("model.tuning.")
    assert "cpu" in arrows_inside("sketches")["registry"]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_room_holds_few_files(package: str) -> None:
    folder = ROOT / package.replace(".", "/")
    assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= MOST_FILES


def test_no_benchmarks_import_each_other() -> None:
    folder = ROOT.parents[1] / "benchmarks"
    made = folder / "out"  # what scripts have made may hold Python of others
    scripts = {path.stem: path for path in folder.rglob("*.py") if not path.is_relative_to(made)}
    edges = {}
    for name, path in scripts.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.rpartition(".")[2])
            elif isinstance(node, ast.Import):
                imported.update(alias.name.rpartition(".")[2] for alias in node.names)
        edges[name] = imported & scripts.keys() - {name}
    assert circles(edges) == []


def test_a_benchmark_that_is_not_run_has_an_underscore() -> None:
    folder = ROOT.parents[1] / "benchmarks"
    paths = [path for path in folder.rglob("*.py") if not path.is_relative_to(folder / "out")]
    assert [path for path in paths if path.name.startswith("_") == ("__main__" in path.read_text())] == []


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
    assert not {room(name) for name in reached} & {"ir", "sketches", "measure", "records", "model", "tuning"}


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
        "import stormdrop.compare.recordings",
        "import stormdrop.bench.contender_process, stormdrop.bench.peers",  # in a peer's process
        "import stormdrop.cli",
        "import stormdrop.runtime",
        "import stormdrop as sd; sd.minimize(sd.Space('s', [sd.Ordinal('x', [1, 2])]), lambda c: c['x'], trials=2)",
    ],
)
def test_tvm_is_not_loaded(statement: str) -> None:
    loaded = loaded_by(statement)
    assert "stormdrop" in loaded
    assert not loaded & {"tvm", "torch", "onnxruntime", "openvino"}


def test_what_the_command_line_needs_first_loads_no_database() -> None:
    assert not loaded_by("import stormdrop.tuning.request, stormdrop.tuning.result") & {"sqlalchemy", "tvm"}


def test_public_names_are_sorted_and_there() -> None:
    assert stormdrop.__all__ == sorted(stormdrop.__all__)
    assert dir(stormdrop) == stormdrop.__all__
    missing = [name for name in stormdrop.__all__ if not hasattr(stormdrop, name)]
    assert not missing


def test_a_public_function_is_not_hidden_by_its_module() -> None:
    program = (
        "import stormdrop.tuning.tune, stormdrop.tuning.minimize, stormdrop.bench.bench, stormdrop as sd\n"
        "from types import FunctionType\n"
        "assert all(isinstance(each, FunctionType) for each in (sd.tune, sd.minimize, sd.bench))"
    )
    assert "stormdrop" in loaded_by(program)  # the process did not fail


def test_the_package_is_pickled_by_its_name() -> None:
    assert cloudpickle.loads(cloudpickle.dumps(stormdrop)) is stormdrop, "a sketch in a script may name the package"


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = stormdrop.nonsense
