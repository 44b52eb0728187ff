"""Sessions that a page shows together, as one line or as one kernel of a model, in sums that can be added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row


@dataclass(frozen=True)
class Sum:
    """Sessions that a page shows together.

    Attributes:
        sessions, running, trials, failed: How many they are, how many of them run, their trials, and failed ones.
        newest: The row of the newest of them.
        timed: That of the newest that has a time; None if none has.
    """

    sessions: int
    running: int
    trials: int
    failed: int
    newest: Row[Any]
    timed: Row[Any] | None

    @property
    def shown(self) -> Row[Any]:
        """The row of the session that stands for all."""
        return self.newest if self.timed is None else self.timed

    def __add__(self, other: Sum) -> Sum:
        timed = [row for row in (self.timed, other.timed) if row is not None]
        return Sum(
            self.sessions + other.sessions,
            self.running + other.running,
            self.trials + other.trials,
            self.failed + other.failed,
            max(self.newest, other.newest, key=_age),
            max(timed, key=_age, default=None),
        )


Sums = dict[tuple[Any, ...], Sum]
"""Sums by what their sessions have in common."""


def newest_first(sums: Sums) -> list[tuple[tuple[Any, ...], Sum]]:
    """The sums with their keys, that of the newest session first."""
    return sorted(sums.items(), key=lambda entry: _age(entry[1].newest), reverse=True)


def added(one: Sums, other: Sums) -> Sums:
    """The sums of both."""
    return one | {key: one[key] + sums if key in one else sums for key, sums in other.items()}


def _age(row: Row[Any]) -> tuple[str, int]:
    """What is larger for a newer session, as in the order "newest"."""
    return row.created, row.number
