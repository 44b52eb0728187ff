"""What a rule is, and the derivation that rules work on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tvm.s_tir import Schedule

from ...ir.workload import Workload
from ...machine.cpu import Target
from ..template import Knobs

VARIES = "varies"
"""A note on blocks whose extents depend on knobs: nothing about the structure may follow from these extents."""


class Applies(Enum):
    """Whether a rule applies to a block; MAY means that the derivation goes on both with it and without it."""

    NO = "no"
    MAY = "may"
    MUST = "must"


class Rule:
    """One rewriting step of a block (Figure 3 of the paper on Droplet Search in Ansor).

    `applies` is asked when sketches are derived, with all knobs at their defaults; `apply` runs for every
    configuration. Which knobs it declares, and what it tells the state, must not depend on the knobs' values.
    A rule is hashable and picklable, and its attributes are plain values: a frozen dataclass is all that.
    """

    name: str

    def applies(self, state: State, block: str) -> Applies:
        """Whether to apply this rule to a block. Schedules nothing."""
        raise NotImplementedError

    def apply(self, state: State, block: str) -> None:
        """Schedules the block."""
        raise NotImplementedError


class Annotation(Rule):
    """A rule of the second pass, over a function whose structure is settled (Figure 5 of that paper)."""


@dataclass
class Nest:
    """A loop nest that is not inside of another one.

    `outer` are loops that may be fused and run in parallel; `levels` are the loops inside of which other blocks can be
    computed, the outermost first.
    """

    outer: list[Any]
    levels: list[Any]


@dataclass
class Place:
    """A block that is computed inside of a loop of another block's nest: the nest's block, and the knob that says
    inside of which of its levels (1 for the outermost; 0 for none: the block then has a nest of its own)."""

    nest: str
    knob: str


@dataclass
class State:
    """A function in the course of a derivation.

    Blocks go by their names. `nests` are the blocks that have one and whose loops are known, `places` those that are
    computed in another's; `factors` the tile sizes of each iterator of a block with multi-level tiles, the outermost
    first; `vectors` the loops that those tiles want vectorised; `notes` what rules tell each other about blocks.
    """

    schedule: Schedule
    knobs: Knobs
    nests: dict[str, Nest] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    factors: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    vectors: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, set[str]] = field(default_factory=dict)

    @property
    def workload(self) -> Workload:
        return self.knobs.workload

    @property
    def target(self) -> Target:
        return self.knobs.target

    def note(self, block: str, what: str) -> None:
        """Leaves a word about a block."""
        self.notes.setdefault(block, set()).add(what)

    def noted(self, block: str, what: str) -> bool:
        """Whether a rule left this word about a block."""
        return what in self.notes.get(block, ())

    def at_root(self, block: str) -> bool:
        """Whether a block has a nest of its own, at this configuration."""
        place = self.places.get(block)
        return place is None or self.knobs.values[place.knob] == 0
