"""Unroll: small inner loops are unrolled, up to a number of steps together."""

from __future__ import annotations

from dataclasses import dataclass

from .contract import Annotation, Applies, State


@dataclass(frozen=True)
class Unroll(Annotation):
    """Inner loops are unrolled up to a number of steps together (Ansor's `auto_unroll_max_step`).

    Attributes:
        choices: The numbers of steps.
    """

    name = "unroll"
    choices: tuple[int, ...] = (0, 16, 64, 512)

    def applies(self, state: State, block: str) -> Applies:
        return Applies.MUST

    def apply(self, state: State, block: str) -> None:
        steps = state.knobs.ordinal("unroll", self.choices, default=64)
        loops = state.schedule.get_loops(block)
        if steps and loops and state.at_root(block):
            state.schedule.annotate(loops[0], "pragma_auto_unroll_max_step", steps)
            state.schedule.annotate(loops[0], "pragma_unroll_explicit", 1)
