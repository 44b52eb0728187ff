"""Derivation: from a function to its sketches, block by block, from the output to the inputs, as in Ansor.

All rules are tried on each block once, in their order. If a rule may be applied, the derivation goes on both with it
and without it, and each way gives a sketch. The annotations are tried in a second pass, when the structure is complete.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.tirx import ForKind

from ...ir.workload import Workload
from ...machine.contract import CPU, Machine
from ..template import Knobs, Template
from . import blocks
from .contract import Annotation, Applies, Rule, State
from .cpu.rules import CPU_RULES
from .gpu.rules import GPU_RULES

Step = tuple[Rule, str]
"""A rule and the name of the block that it is applied to."""


@dataclass(frozen=True)
class Derivation:
    """A template's function: applies rules to blocks, one after the other.

    Attributes:
        steps: Each rule with the name of its block.
    """

    steps: tuple[Step, ...]

    def __call__(self, schedule: Schedule, knobs: Knobs) -> None:
        """Applies the rules, then gives the initial values of reductions loop nests of their own."""
        state = State(schedule, knobs)
        for rule, block in self.steps:
            rule.apply(state, block)
        for block in [name for name in blocks.names(schedule) if blocks.reduces(schedule, name)]:
            reduced = [loop.loop for loop in blocks.loops(schedule, block) if loop.reduce]
            # Where threads share the terms, TVM gives each of them an initial value when it lowers the reduction.
            if not any(schedule.get(loop).kind == ForKind.THREAD_BINDING for loop in reduced):
                schedule.decompose_reduction(schedule.get_sblock(block), reduced[0])


def derive(workload: Workload, target: Machine, rules: Sequence[Rule] | None = None) -> list[Template]:
    """The sketches that rules make of a workload.

    Args:
        workload: The function to schedule; any TensorIR function.
        target: The machine to schedule it for.
        rules: The rules in the order in which they are tried on each block; by default `CPU_RULES` for a CPU and
            `GPU_RULES` for a GPU.

    Returns:
        The sketches in a fixed order. A sketch is named "rules" and after the steps in which it differs from the
        others, such as "rules.rfactor".

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.reduce((65536,), 0)
        >>> [sketch.name for sketch in sd.rules.derive(workload, sd.parse_machine("cpu/x86-64-v3"))]
        ['rules.rfactor', 'rules.lanes']
    """
    if rules is None:
        rules = CPU_RULES if target.device == CPU else GPU_RULES
    derivations: list[tuple[Step, ...]] = []
    optional: set[Step] = set()
    pending: list[tuple[bool, ...]] = [()]
    while pending:
        choices = pending.pop(0)
        steps, decisions = _derive_once(workload, target, rules, choices)
        derivations.append(steps)
        optional.update(step for step, _ in decisions)
        taken = tuple(applied for _, applied in decisions)
        pending += [(*taken[:index], False) for index in range(len(choices), len(taken))]
    names = _names(derivations, optional)
    return [Template(name, Derivation(steps)) for name, steps in zip(names, derivations, strict=True)]


def _derive_once(
    workload: Workload, target: Machine, rules: Sequence[Rule], choices: Sequence[bool]
) -> tuple[tuple[Step, ...], list[tuple[Step, bool]]]:
    """One derivation. If a rule may apply, the next of the choices decides; without a choice left, it applies.

    Returns the steps, and for each rule that might apply whether it did.
    """
    knobs = Knobs("rules", workload, target, None)
    state = State(knobs.schedule, knobs)
    steps: list[Step] = []
    decisions: list[tuple[Step, bool]] = []
    for second_pass in (False, True):
        rules_of_pass = [rule for rule in rules if isinstance(rule, Annotation) is second_pass]
        visited: set[str] = set()
        while waiting := [name for name in blocks.names(state.schedule) if name not in visited]:
            block = waiting[-1]
            visited.add(block)
            for rule in rules_of_pass:
                applies = rule.applies(state, block)
                if applies is Applies.MAY:
                    applied = choices[len(decisions)] if len(decisions) < len(choices) else True
                    decisions.append(((rule, block), applied))
                    applies = Applies.MUST if applied else Applies.NO
                if applies is Applies.MUST:
                    rule.apply(state, block)
                    steps.append((rule, block))
                    if block not in blocks.names(state.schedule):
                        break
    return tuple(steps), decisions


def _names(derivations: Sequence[tuple[Step, ...]], optional: Collection[Step]) -> list[str]:
    """Names made of the steps that differ between derivations, with their blocks if the rules' names are ambiguous."""
    shared = [step for step in derivations[0] if all(step in steps for steps in derivations)]
    differing = [
        [step for step in steps if step not in shared and (step in optional or not isinstance(step[0], Annotation))]
        for steps in derivations
    ]
    short = [".".join(["rules", *dict.fromkeys(rule.name for rule, _ in steps)]) for steps in differing]
    if len(set(short)) == len(short):
        return short
    return [".".join(["rules", *(f"{rule.name}_{block}" for rule, block in steps)]) for steps in differing]
