"""What the pages refer to is there: pages, anchors, pictures, files, modules and the commands' options."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import AVAILABLE, DOCS, PACKAGE, PAGES, ROOT, blocks, name_of, prose

from stormdrop.cli.app import app

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the package is installed without its repository")

ROOMS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")
FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", ".ci", *ROOMS)
_PATH = re.compile(rf"(?<![\w/.-])(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*")
_WRITTEN = ("benchmarks/out",)  # by the benchmarks, when they run
_NOT_YET = ("src/stormdrop/search/mine.py", "src/stormdrop/sketches/cpu/rows.py")  # a reader of a guide writes these


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    if "<!-- command line -->" in page.read_text():
        headings += _commands()
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", _plain(text)).strip().lower()) for text in headings}


def _plain(heading: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)


def _commands() -> dict[str, Any]:
    """The commands by their full names."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {f"{name} {leaf}": inner[leaf] for leaf in inner} if inner else {name: command}
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_line_stands_twice_in_a_section(page: Path) -> None:
    for section in re.split(r"^#+ .*$", prose(page), flags=re.MULTILINE):
        entries = [line for line in section.splitlines() if re.match(r"- |\| `", line)]
        assert not {line for line in entries if entries.count(line) > 1}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("https://", "http://")):
            continue
        place, _, anchor = target.partition("#")
        linked = (page.parent / place).resolve() if place else page
        assert linked.exists(), f"{name_of(page)} links to {target}, which does not exist"
        if anchor and linked.suffix == ".md" and DOCS / "reference" / "python" not in linked.parents:
            assert anchor in anchors(linked), f"{name_of(page)} links to {target}, which has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        pytest.skip("what it tells of may be gone")
    for path in _PATH.findall(page.read_text()):
        path = path.rstrip(".")
        if path.startswith(_WRITTEN) or path in _NOT_YET:
            continue
        assert (ROOT / path).exists() or (PACKAGE / path).exists(), (
            f"{name_of(page)} names {path}, which does not exist"
        )


def test_paths_in_docstrings() -> None:
    for module in sorted(PACKAGE.rglob("*.py")):
        for path in re.findall(r"\b(?:docs|benchmarks|examples)/[\w./-]*\w", module.read_text()):
            assert (ROOT / path).exists(), f"{module.relative_to(ROOT)} names {path}, which does not exist"


def test_every_room_is_on_the_map() -> None:
    rooms = re.findall(r"^\| `(\w+)/` \|", (DOCS / "explanation" / "architecture.md").read_text(), flags=re.MULTILINE)
    assert set(rooms) == set(ROOMS)


def test_where_to_change_something_names_what_is_there() -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text()
    table = page.partition("## Where to change something")[2].partition("## ")[0]
    named = re.findall(r"`([\w/]+\.py)` \(((?:`[\w.]+`(?:, )?)+)\)", table)
    assert named
    for file, symbols in named:
        defined = set(_defined(ast.parse((PACKAGE / file).read_text())))
        assert set(re.findall(r"[\w.]+", symbols)) <= defined, file


def _defined(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    """The classes, functions and constants of a module, and the methods of its classes as `Class.method`."""
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef):
            yield inner.name
        if isinstance(inner, ast.ClassDef):
            yield from (f"{inner.name}.{name}" for name in _defined(inner))
        if isinstance(inner, ast.Assign | ast.AnnAssign):
            targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_the_page_of_the_rooms_lists_every_file() -> None:
    pytest.importorskip("markdown")
    written = runpy.run_path(str(DOCS / "extensions" / "rooms.py"))
    assert written["MARKER"] in (DOCS / "explanation" / "architecture.md").read_text().splitlines()
    listed = set()
    for section in written["sections"]().split("### `")[1:]:
        room, _, rest = section.partition("/`")
        listed |= {
            f"{room}/{name}" for row in re.findall(r"^\| (.*?) \|", rest, re.M) for name in re.findall(r"`(.*?)`", row)
        }
    there = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
    assert {name for name in there if "/" in name} <= listed


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    missing = [name for page in DOCS.rglob("*.md") if (name := page.relative_to(DOCS).as_posix()) not in navigation]
    assert not missing


def test_commands_that_cannot_run_here_have_options_that_exist() -> None:
    commands = _commands()
    for page in PAGES:
        for line in "".join(blocks(page, "text")).splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] != ["stormdrop"] or "COMMAND" in words:
                continue
            command = commands.get(words[1]) or commands[" ".join(words[1:3])]
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= known, f"{name_of(page)}: {line}"


def test_the_picture_has_the_figures_of_the_table() -> None:
    document = json.loads((DOCS / "explanation" / "models.json").read_text())
    text = (DOCS / "explanation" / "models.md").read_text()
    for model in (model for machine in document["machines"] for model in machine["models"]):
        low, high = model["interval"]
        ratio = f"{model['ratio']:.3f} ({low:.3f} to {high:.3f})"
        assert f"| {model['model']} | {model['milliseconds']:.2f} | {model['peer']} | {ratio} |" in text
    assert (DOCS / "explanation" / "images" / "models.png").is_file()


@pytest.mark.parametrize("page", ["models.md", "kernels.md"])
def test_current_figures_stand_in_a_dated_run(page: str) -> None:
    runs = "\n".join(run.read_text() for run in (DOCS / "results").glob("*.md"))
    text = (DOCS / "explanation" / page).read_text()
    for ratio in re.findall(r"[\d.]+ \([\d.]+ to [\d.]+\)", text):
        assert f" {ratio} " in runs, ratio
    for kernel, figures in re.findall(r"^\| ([A-Z]+\d+) \| [^|]* \|(.*)\|$", text, flags=re.MULTILINE):
        rows = "".join(row for row in runs.splitlines() if row.startswith(f"| {kernel} |"))
        for figure in re.findall(r"[\d.]+", figures):
            assert f"| {figure} (" in rows, (kernel, figure)
