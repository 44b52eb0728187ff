"""Derivation: from a function to its sketches, block by block, from the output to the inputs, as Ansor does.

Each block passes the list of rules once. Where a rule may or must not be applied, the derivation goes on both ways,
so that a function has as many sketches as there are ways. When the structure is settled, the annotations pass.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tvm.s_tir import Schedule

from ...ir.workload import Workload
from ...machine.cpu import Target
from ..template import Knobs, Template
from . import blocks
from .contract import Annotation, Applies, Rule, State
from .cpu import CPU_RULES

Step = tuple[Rule, str]


@dataclass(frozen=True)
class Derivation:
    """The rules that were applied, each with its block: a template."""

    steps: tuple[Step, ...]

    def __call__(self, schedule: Schedule, knobs: Knobs) -> None:
        """Applies the rules one after the other. What reductions start from is then stored in nests of its own."""
        state = State(schedule, knobs)
        for rule, block in self.steps:
            rule.apply(state, block)
        for block in [name for name in blocks.names(schedule) if blocks.reduces(schedule, name)]:
            first = next(loop.loop for loop in blocks.loops(schedule, block) if loop.reduce)
            schedule.decompose_reduction(schedule.get_sblock(block), first)


def derive(workload: Workload, target: Target, rules: Sequence[Rule] = CPU_RULES) -> list[Template]:
    """The sketches that the rules make of a workload, in a fixed order.

    A sketch is named "rules" and after those steps that set it apart from the others: "rules.rfactor".
    """
    found: list[tuple[Step, ...]] = []
    optional: set[Step] = set()
    pending: list[tuple[bool, ...]] = [()]
    while pending:
        choices = pending.pop(0)
        steps, asked = _walk(workload, target, rules, choices)
        found.append(steps)
        optional.update(step for step, _ in asked)
        made = tuple(yes for _, yes in asked)
        pending += [(*made[:at], False) for at in range(len(choices), len(made))]
    names = _names(found, optional)
    return [Template(name, Derivation(steps)) for name, steps in zip(names, found, strict=True)]


def _walk(
    workload: Workload, target: Target, rules: Sequence[Rule], choices: Sequence[bool]
) -> tuple[tuple[Step, ...], list[tuple[Step, bool]]]:
    """One derivation: where a rule may apply, the next of the choices decides, and it does where these are used up.

    Returns the steps, and what was decided about which of them.
    """
    knobs = Knobs("rules", workload, target, None)
    state = State(knobs.schedule, knobs)
    steps: list[Step] = []
    asked: list[tuple[Step, bool]] = []
    for second in (False, True):
        own = [rule for rule in rules if isinstance(rule, Annotation) is second]
        visited: set[str] = set()
        while waiting := [name for name in blocks.names(state.schedule) if name not in visited]:
            block = waiting[-1]
            visited.add(block)
            for rule in own:
                applies = rule.applies(state, block)
                if applies is Applies.MAY:
                    yes = choices[len(asked)] if len(asked) < len(choices) else True
                    asked.append(((rule, block), yes))
                    applies = Applies.MUST if yes else Applies.NO
                if applies is Applies.MUST:
                    rule.apply(state, block)
                    steps.append((rule, block))
                    if block not in blocks.names(state.schedule):
                        break
    return tuple(steps), asked


def _names(derivations: Sequence[tuple[Step, ...]], optional: Collection[Step]) -> list[str]:
    """Names after the steps that are not in all derivations; with the blocks where the rules alone leave doubt."""
    shared = [step for step in derivations[0] if all(step in steps for steps in derivations)]
    telling = [
        [step for step in steps if step not in shared and (step in optional or not isinstance(step[0], Annotation))]
        for steps in derivations
    ]
    short = [".".join(["rules", *dict.fromkeys(rule.name for rule, _ in steps)]) for steps in telling]
    if len(set(short)) == len(short):
        return short
    return [".".join(["rules", *(f"{rule.name}_{block}" for rule, block in steps)]) for steps in telling]
