"""What a shell offers for the values of options and arguments. It loads no TVM."""

from __future__ import annotations

from pathlib import Path

from ..machine.gpu import GPUS
from ..machine.known_cpus import KNOWN_CPUS
from ..machine.known_gpus import FAMILIES
from ..plugins import plugins
from ..search import names
from ..tuning.options import PRECISIONS
from .guide import descriptions

VARIABLE = "_STORMDROP_COMPLETE"
"""The environment variable by which a shell asks for completions."""


def searches(incomplete: str) -> list[str]:
    """The names of the searches; of the last one if there are several with commas in between."""
    others, comma, last = incomplete.rpartition(",")
    return [f"{others}{comma}{name}" for name in names() if name.startswith(last)]


def targets(incomplete: str) -> list[str]:
    """The names of the machines."""
    known = ["cpu", *KNOWN_CPUS, "cuda", *sorted(f"cuda/{name}" for name in GPUS), "opencl"]
    return [name for name in known if name.startswith(incomplete)]


def architectures(incomplete: str) -> list[str]:
    """The architectures of NVIDIA's GPUs, after those that are written already."""
    others, comma, last = incomplete.rpartition(",")
    return [f"{others}{comma}{name}" for name in FAMILIES if name.startswith(last)]


def precisions(incomplete: str) -> list[str]:
    """What a model may compute in."""
    return [name for name in PRECISIONS if name.startswith(incomplete)]


def operators_and_files(incomplete: str) -> list[str]:
    """The names of the operators, and the files and folders here."""
    folder, slash, _ = incomplete.rpartition("/")
    found = [f"{folder}{slash}{path.name}" for path in sorted(Path(folder or slash or ".").glob("[!.]*"))]
    return [name for name in [*descriptions(), *plugins("operators"), *found] if name.startswith(incomplete)]


def operators(incomplete: str) -> list[tuple[str, str]]:
    """The names of the operators, with what each computes."""
    known = {**descriptions(), **{name: plugin.package for name, plugin in plugins("operators").items()}}
    return [(name, what) for name, what in known.items() if name.startswith(incomplete)]
