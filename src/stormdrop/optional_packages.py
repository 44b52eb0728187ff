"""Packages that only some commands need: each belongs to an extra, and who needs one that lacks says so in one line.

    require(["matplotlib"], "a report")  ->  a report needs matplotlib, which is not installed:
                                             pip install 'stormdrop[report]'

What needs such a package asks here first, before anything is measured, and imports it where it is used.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from .errors import InputError, one_line

EXTRAS: Mapping[str, str] = MappingProxyType(
    {
        "anyio": "dashboard",
        "jinja2": "report",
        "matplotlib": "report",
        "onnxruntime": "onnxruntime",
        "optuna": "optuna",
        "psycopg": "postgresql",
        "pygments": "report",
        "pyopencl": "opencl",
        "ray": "ray",
        "starlette": "dashboard",
        "uvicorn": "dashboard",
    }
)
"""The extra that brings each package, by the name of its module."""

PLOTS = ("matplotlib",)
PAGES = (*PLOTS, "jinja2", "pygments")


def installed(packages: Iterable[str]) -> bool:
    """Whether all of these modules are found. None is imported, which takes up to a second."""
    return all(_found(package) for package in packages)


def require(packages: Iterable[str], what: str, kind: type[InputError] = InputError, extra: str | None = None) -> None:
    """Refuses what needs packages that are not installed. None of them is imported.

    Args:
        packages: The names of their modules.
        what: What needs them, as the beginning of the message.
        kind: The exception.
        extra: The extra that brings all of them, if it is not that of `EXTRAS`.

    Raises:
        InputError: One is not installed. The message says how to install it.

    Example:
        >>> require(["numpy", "a_package_that_nobody_has"], "a hunt")
        Traceback (most recent call last):
        ...
        stormdrop.errors.InputError: a hunt needs a_package_that_nobody_has, which is not installed
    """
    for package in packages:
        if not _found(package):
            raise kind(_lacks(package, what, extra))


def load(package: str, what: str, kind: type[InputError] = InputError) -> Any:
    """Imports a package.

    Args:
        package: The name of its module.
        what: What needs it, as the beginning of the message.
        kind: The exception.

    Returns:
        The module.

    Raises:
        InputError: The package is not installed, or does not load.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise refusal(package, what, error, kind) from error


def refusal(package: str, what: str, error: ImportError, kind: type[InputError] = InputError) -> InputError:
    """The exception for a package whose import has failed: it is not installed, or does not load. See `load`."""
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return kind(_lacks(package, what))
    return kind(f"{what} needs {package}, which cannot be imported: {one_line(error)}")


def _found(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # it is loaded, and does not say where it comes from
        return True


def _lacks(package: str, what: str, extra: str | None = None) -> str:
    extra = extra or EXTRAS.get(package)
    command = f": pip install 'stormdrop[{extra}]'" if extra else ""
    return f"{what} needs {package}, which is not installed{command}"
