"""CPUs by their names, as the type of CPUs: `Target.parse` also returns GPUs."""

from __future__ import annotations

from stormdrop.machine.cpu import Cpu, parse_machine


def cpu(name: str) -> Cpu:
    """The CPU with a name, such as "cpu/x86-64-v4"."""
    target = parse_machine(name)
    assert isinstance(target, Cpu)
    return target
