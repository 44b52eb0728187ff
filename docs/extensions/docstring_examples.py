"""Shows the examples of docstrings as code.

The docstrings call the section with an example `Example:`. Griffe, which reads them for the site, knows it as
`Examples:`.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_HEADING = re.compile(r"^(\s*)Example:[ \t]*$", flags=re.MULTILINE)


class DocstringExamples(griffe.Extension):
    """The Griffe extension that `mkdocs.yml` names."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _HEADING.sub(r"\1Examples:", obj.docstring.value)
