"""CPUs by their names, as the type of CPUs: `Target.parse` also returns GPUs."""

from __future__ import annotations

from stormdrop.machine.cpu import Target


def cpu(name: str) -> Target:
    """The CPU with a name, such as "cpu/x86-64-v4"."""
    target = Target.parse(name)
    assert isinstance(target, Target)
    return target
