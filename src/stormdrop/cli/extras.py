"""The extras of this package: which are installed, and whether their packages load.

    pip install 'stormdrop[torch]'   ->   torch: torch 2.13.0 loads

Packages are imported in a child process: two that do not fit together may end it, and each costs time and memory.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

_OF_DEVELOPERS = ("dev", "docs")
"""Extras of which a user needs nothing."""

_LIMIT = 120.0
"""Seconds that one process may take to import the packages that are left."""

_REQUIREMENT = re.compile(r"""([A-Za-z0-9._-]+).*;.*extra\s*==\s*['"]([^'"]+)['"]""")

_IMPORT = """
import importlib, json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for module in sys.argv[1:]:
    error = None
    try:
        importlib.import_module(module)
    except BaseException as reason:
        lines = str(reason).strip().splitlines()
        error = f"{type(reason).__name__}: {lines[0] if lines else ''}"
    print(json.dumps([module, error]), file=answers, flush=True)
"""
"""Only the answers go to standard output: what packages print there, also from C, goes to standard error."""


@dataclass(frozen=True)
class Extra:
    """An extra.

    Attributes:
        name: Its name.
        packages: The version of each of its packages; None for one that is not installed.
        error: Why one of its packages does not load; None if all do that are installed.
    """

    name: str
    packages: Mapping[str, str | None]
    error: str | None

    @property
    def installed(self) -> bool:
        """Whether all of its packages are installed."""
        return None not in self.packages.values()

    def __str__(self) -> str:
        """For example "torch 2.13.0 loads"."""
        lacking = [package for package, version in self.packages.items() if version is None]
        if lacking:
            faulty = f"; {self.error}" if self.error else ""
            return f"{', '.join(lacking)} not installed: pip install 'stormdrop[{self.name}]'{faulty}"
        versions = ", ".join(f"{package} {version}" for package, version in self.packages.items())
        return f"{versions}: {self.error}" if self.error else f"{versions} load{'s' if len(self.packages) == 1 else ''}"


def extras() -> list[Extra]:
    """The extras of this package for users, and what is known of them; none if it runs without being installed."""
    packages: dict[str, list[str]] = {}
    for requirement in _requirements():
        if (found := _REQUIREMENT.match(requirement)) and found[2] not in _OF_DEVELOPERS:
            packages.setdefault(found[2], []).append(found[1])
    versions = {package: _version(package) for each in packages.values() for package in each}
    modules = _modules([package for package, version in versions.items() if version is not None])
    errors = dict(_imported(list(modules.values())))
    result = []
    for name, each in sorted(packages.items()):
        wrong = (f"{package}: {errors[modules[package]]}" for package in each if errors.get(modules.get(package, "")))
        result.append(Extra(name, {package: versions[package] for package in each}, next(wrong, None)))
    return result


def _requirements() -> Sequence[str]:
    """What this package requires, as its metadata says; nothing from a source tree that is not installed."""
    try:
        return metadata.requires("stormdrop") or ()
    except metadata.PackageNotFoundError:
        return ()


def _modules(packages: Sequence[str]) -> dict[str, str]:
    """The module to import for each package."""
    owners: dict[str, list[str]] = {}
    for module, distributions in metadata.packages_distributions().items():
        for distribution in distributions:
            owners.setdefault(_normal(distribution), []).append(module)
    found = {}
    for package in packages:
        own = [module for module in owners.get(_normal(package), ()) if not module.startswith("_")]
        found[package] = min(own, key=lambda module: (_normal(module) not in _normal(package), len(module)), default="")
    return {package: module or package.replace("-", "_") for package, module in found.items()}


def _imported(modules: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each module with what its import raises; None if that is nothing. One that ends the process is passed over."""
    left = list(modules)
    while left:
        command = [sys.executable, "-c", _IMPORT, *left]
        try:
            run = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_LIMIT, check=False
            )
            output, end = run.stdout, f"ends the process with {run.returncode}"
        except subprocess.TimeoutExpired as error:
            output, end = error.stdout or b"", f"takes more than {_LIMIT:.0f} s"
        whole = (line for line in output.splitlines(keepends=True) if line.endswith(b"\n"))  # the end may be cut
        done = [json.loads(line) for line in whole]
        yield from done
        left = left[len(done) :]
        if left:
            yield left.pop(0), end


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
