"""Searches with their options, as people write them: `droplet,droplet:test=student:speculation=false`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InputError
from ..search import Knowledge, Search, create, parse_search
from ..space import Space


@dataclass(frozen=True)
class SearchSpec:
    """A search with options.

    Attributes:
        label: The text that it was written as.
        name: The name of the search.
        options: Its options by name.
    """

    label: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def create(self, spaces: Sequence[Space], seed: int, knowledge: Knowledge | None = None) -> Search:
        """The search on these spaces."""
        return create(self.name, spaces, np.random.default_rng(seed), knowledge, **self.options)


def parse_searches(text: str) -> list[SearchSpec]:
    """Searches separated by commas, each `name` or `name:option=value:option=value`.

    Raises:
        SearchError: A search, an option or a value is unknown.
        InputError: No search is named, or one is given twice.

    Example:
        >>> [spec.options for spec in parse_searches("droplet,droplet:test=student")]
        [{}, {'test': 'student'}]
    """
    labels = [label.strip() for label in text.split(",") if label.strip()]
    if not labels:
        raise InputError("no search is named: write, for example, droplet,random")
    for label, count in Counter(labels).items():
        if count > 1:
            raise InputError(f"search {label} is given twice")
    return [SearchSpec(label, *parse_search(label)) for label in labels]
