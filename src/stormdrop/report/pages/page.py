"""Renders pages: one HTML file each, which loads nothing. Whatever a document holds is shown as text."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..formatting import FILTERS
from ..layer_label import label_of, layer_label

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **context: Any) -> str:
    """Renders a page.

    Args:
        template: The name of a file in `TEMPLATES`.
        **context: What the template shows. Texts are escaped unless they are `Markup`.

    Returns:
        The page.
    """
    return _environment().get_template(template).render(**context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS, layer_label=layer_label, label_of=label_of)
    environment.globals["script"] = _script
    environment.globals["policy"] = _policy
    return environment


def _script(name: str) -> Markup:
    """A script of ours as an element."""
    return Markup(f"<script>{_source(name)}</script>")


def _policy(names: tuple[str, ...] = ()) -> str:
    """A content security policy: nothing is loaded, and only these scripts of ours run."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(_source(name).encode()).digest()).decode()}'" for name in names
    )
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes or repr('none')}"


@cache
def _source(name: str) -> str:
    return (TEMPLATES / name).read_text()
