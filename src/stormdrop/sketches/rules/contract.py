"""The contract of a rule, and the state of a derivation that rules read and change."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tvm.s_tir import Schedule

from ...errors import TargetError
from ...ir.workload import Workload
from ...machine.cpu import Cpu, require_cpu
from ...machine.gpu import Gpu
from ..template import Knobs

VARIES = "varies"
"""A note on blocks whose extents depend on knobs. Rules must not decide about the structure by these extents."""


class Applies(Enum):
    """Whether a rule applies to a block.

    Attributes:
        NO: The rule does not apply.
        MAY: The derivation goes on both with the rule and without it, so that there are more sketches.
        MUST: The rule applies in every sketch.
    """

    NO = "no"
    MAY = "may"
    MUST = "must"


class Rule:
    """One rewriting step of a block (Figure 3 of the paper on Droplet Search in Ansor).

    `applies` is called when sketches are derived, with all knobs at their defaults. `apply` is also called for every
    configuration. Which knobs it declares, and what it writes into the state, must not depend on the knobs' values. A
    rule must be hashable and picklable, and its attributes must be plain values, as in a frozen dataclass.

    Attributes:
        name: The rule's part of a sketch's name, such as "tile" in "rules.tile".
    """

    name: str

    def applies(self, state: State, block: str) -> Applies:
        """Whether to apply this rule to a block. It must not change the schedule.

        Args:
            state: The derivation so far.
            block: The block's name.
        """
        raise NotImplementedError

    def apply(self, state: State, block: str) -> None:
        """Rewrites a block in `state.schedule`.

        Args:
            state: The derivation so far. The rule declares its knobs with `state.knobs`, and writes into the state
                what other rules have to know.
            block: The block's name.
        """
        raise NotImplementedError


class Annotation(Rule):
    """A rule of the second pass, which begins when the structure is complete (Ansor, OSDI 2020, Figure 5)."""


@dataclass
class Nest:
    """A loop nest that is not inside of another one.

    Attributes:
        outer: The loops that may be fused and run in parallel.
        levels: The loops inside of which other blocks can be computed, the outermost first.
    """

    outer: list[Any]
    levels: list[Any]


@dataclass
class Place:
    """Where a block is computed that belongs to another block's nest.

    Attributes:
        nest: The block whose nest it is.
        knob: The name of the knob whose value is the nest's level inside of which the block is computed: 1 for the
            outermost level, 0 if the block has a nest of its own. None if the place is fixed.
    """

    nest: str
    knob: str | None = None


@dataclass
class Rows:
    """A GPU's loop over rows: over the axes that reductions share with the block that reads their results.

    Attributes:
        axes: The number of these axes, which are the first of each block.
        loop: The loop over them, which is one.
        lanes: The threads that share the terms of a row.
        axis: What the loop over these threads is bound to: "threadIdx.x" or "threadIdx.y".
        whole: Whether all threads of a block work on the same row, because it has several elements.
    """

    axes: int
    loop: Any
    lanes: int
    axis: str
    whole: bool


@dataclass
class State:
    """A function in the course of a derivation. Blocks are known by their names.

    Attributes:
        schedule: The schedule that rules change.
        knobs: The knobs, which rules declare.
        nests: The loop nests of blocks whose loops are known.
        places: Where blocks are computed that belong to the nests of other blocks.
        factors: For blocks with multi-level tiles the tile sizes of each iterator, the outermost first.
        vectors: For blocks with multi-level tiles the loop to vectorise.
        rows: For blocks on a GPU whose nest is a loop over rows, how threads share them.
        notes: What rules tell each other about blocks; see `note`.
    """

    schedule: Schedule
    knobs: Knobs
    nests: dict[str, Nest] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    factors: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    vectors: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Rows] = field(default_factory=dict)
    notes: dict[str, set[str]] = field(default_factory=dict)

    @property
    def workload(self) -> Workload:
        """The function that is scheduled."""
        return self.knobs.workload

    @property
    def target(self) -> Cpu:
        """The CPU that it is scheduled for. Raises `TargetError` if the machine is none."""
        return require_cpu(self.knobs.target, f"a rule for CPUs is applied for target {self.knobs.target.name}")

    @property
    def gpu(self) -> Gpu:
        """The GPU that it is scheduled for. Raises `TargetError` if the machine is none."""
        machine = self.knobs.target
        if not isinstance(machine, Gpu):
            raise TargetError(f"a rule for GPUs is applied for target {machine.name}")
        return machine

    def note(self, block: str, word: str) -> None:
        """Attaches a word to a block for other rules."""
        self.notes.setdefault(block, set()).add(word)

    def noted(self, block: str, word: str) -> bool:
        """Whether a rule attached this word to a block."""
        return word in self.notes.get(block, ())

    def at_root(self, block: str) -> bool:
        """Whether a block has a nest of its own at this configuration."""
        place = self.places.get(block)
        return place is None or (place.knob is not None and self.knobs.values[place.knob] == 0)
