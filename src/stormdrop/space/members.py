"""`Members`: a predicate that knows all combinations of values for which it holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property

from .knob import Value


class Members:
    """Holds for the listed combinations of values, one value per knob; see `Constraint.one_of`."""

    def __init__(self, members: Iterable[Sequence[Value]]) -> None:
        self.all = frozenset(map(tuple, members))

    def __call__(self, *values: Value) -> bool:
        return values in self.all

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with the members, whatever their order."""
        lines = sorted(json.dumps(member, separators=(",", ":")) for member in self.all)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
