"""Writes the reference of the command line from the program itself, while the site is built.

In every page, the line `<!-- command line -->` is replaced by the usage, the arguments and the options of all commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

from stormdrop.cli.app import app
from stormdrop.cli.guide import EXAMPLES

MARKER = "<!-- command line -->"


class CommandLine(Extension):
    """The Markdown extension that `mkdocs.yml` names."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Marker(md), "command_line", priority=200)  # before all others: it writes Markdown


class _Marker(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return [written for line in lines for written in (reference().splitlines() if line == MARKER else [line])]


def makeExtension(**options: Any) -> CommandLine:
    """Python-Markdown calls this."""
    return CommandLine(**options)


def reference() -> str:
    """All commands, in Markdown."""
    sections = (
        "\n\n".join([f"## {name}", command.help, usage(name, command), examples(name), parameters(command)])
        for name, command in commands()
    )
    return "\n\n".join(sections)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name, those of a group one by one."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            yield from ((f"{name} {inner}", leaf) for inner, leaf in command.commands.items())
        else:
            yield name, command


def usage(name: str, command: Any) -> str:
    """How the command is called."""
    arguments = [
        parameter.metavar if parameter.required else f"[{parameter.metavar}]"
        for parameter in command.params
        if parameter.param_type_name == "argument"
    ]
    return f"```text\nstormdrop {' '.join([name, *arguments, '[OPTIONS]'])}\n```"


def examples(name: str) -> str:
    """Commands that work."""
    return "\n".join(["```text", *EXAMPLES[name], "```"])


def parameters(command: Any) -> str:
    """A table of the arguments and the options."""
    rows = ["| argument or option | meaning | default |", "|---|---|---|"]
    for parameter in (each for each in command.params if not getattr(each, "hidden", False)):
        option = parameter.param_type_name == "option"
        words = [*parameter.opts, *filter(None, [parameter.metavar])] if option else [parameter.metavar]
        default = "required" if parameter.required else _default(parameter)
        rows.append(f"| `{_escaped(' '.join(words))}` | {_escaped(parameter.help or '')} | {default} |")
    return "\n".join(rows)


def _default(parameter: Any) -> str:
    return "" if parameter.default is None or parameter.default is False else f"`{parameter.default}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
